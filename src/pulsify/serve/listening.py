"""Where a server listens."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from pulsify.core.errors import InvalidArgument


@dataclass(frozen=True)
class Options:
    """Where it listens."""

    host: str = "127.0.0.1"
    port: int = 8000
    tls_cert: str | None = None
    tls_key: str | None = None


def bound(options: Options) -> socket.socket:
    """A place to listen at, taken before anything else is done: whoever cannot have it learns so at once."""
    made = socket.socket(socket.AF_INET6 if ":" in options.host else socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((options.host, options.port))
    except (OSError, OverflowError) as error:
        made.close()
        why = getattr(error, "strerror", None) or error
        raise InvalidArgument(
            f"cannot listen at {options.host}, port {options.port}: {why}; --host and --port choose another"
        ) from error
    return made


def url(options: Options, listening: socket.socket) -> str:
    """Where clients find it."""
    scheme = "https" if options.tls_cert else "http"
    host = f"[{options.host}]" if ":" in options.host else options.host
    return f"{scheme}://{host}:{listening.getsockname()[1]}"

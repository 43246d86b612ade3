"""Who may come in: tokens and origins."""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from pulsify.serve.protocol import SUBPROTOCOL, TOKEN_PREFIX, Refused

OPENAI_PREFIX = "openai-insecure-api-key."
SPOKEN = (SUBPROTOCOL, "realtime")  # subprotocols that are answered


def check_token(wanted: str | None, authorization: str | None, subprotocols: Iterable[str] = ()) -> None:
    """Refused unless one of those shown is the right one. All are compared in constant time."""
    if wanted is None:
        return
    shown = []
    if authorization is not None and authorization[:7].lower() == "bearer ":
        shown.append(authorization[7:].strip())
    for name in subprotocols:
        if name.startswith(TOKEN_PREFIX):
            shown.append(_decoded(name.removeprefix(TOKEN_PREFIX)))
        elif name.startswith(OPENAI_PREFIX):
            shown.append(name.removeprefix(OPENAI_PREFIX))
    if not any(hmac.compare_digest(wanted.encode(), each.encode("utf-8", "replace")) for each in shown):
        raise Refused("unauthorized", "a token is needed: Authorization: Bearer TOKEN, or the subprotocol")


def check_origin(origin: str | None, host: str | None, allowed: Iterable[str]) -> None:
    """A browser says which page it is at: one of this server, or one that is allowed. Other clients say nothing."""
    if origin is None or "*" in allowed or origin in allowed:
        return
    if host is not None and urlsplit(origin).netloc.lower() == host.lower():
        return
    raise Refused("forbidden_origin", "pages from elsewhere may not connect; --origin allows one")


def spoken(subprotocols: Iterable[str]) -> str | None:
    """The subprotocol that is answered, if any was offered."""
    return next((name for name in subprotocols if name in SPOKEN), None)


def headers(raw: Iterable[tuple[bytes, bytes]]) -> Mapping[str, str]:
    """By name in lower case; of those that come twice, the first."""
    out: dict[str, str] = {}
    for name, value in raw:
        out.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
    return out


def _decoded(text: str) -> str:
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except (binascii.Error, ValueError):
        return ""

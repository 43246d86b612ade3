"""Who may come in: tokens and origins."""

from __future__ import annotations

import base64
import binascii
import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

from pulsify.serve.protocol import SUBPROTOCOL, TOKEN_PREFIX, Refused
from pulsify.serve.tokens import Tokens

OPENAI_PREFIX = "openai-insecure-api-key."
PROXIES = 20  # one behind the other
SPOKEN = (SUBPROTOCOL, "realtime")  # subprotocols that are answered


@dataclass(frozen=True)
class Client:
    """Who is at the other end: HOST:PORT, the name of the token that was shown, and the header `traceparent`."""

    address: str | None = None
    token: str | None = None
    trace: str | None = None


NOBODY = Client()


def address(client: Any) -> str | None:
    """Of an ASGI scope's `client`, or a socket's peer."""
    if not isinstance(client, (tuple, list)) or len(client) < 2:
        return None  # a socket of this machine's file system
    host, port = client[0], client[1]
    shown = f"[{host}]" if ":" in str(host) else f"{host}"
    return f"{shown}:{port}" if port else shown  # a proxy knows the host only


def behind_proxies(peer: Any, forwarded: str | None, trusted: Iterable[str]) -> Any:
    """The client, if its peer is a proxy that is believed: the last address in `X-Forwarded-For` that is none of those.

    trusted: addresses and networks, or "*", which believes all that is said.
    """
    known = list(trusted)
    if forwarded is None or not isinstance(peer, tuple) or not _is_among(str(peer[0]), known):
        return peer
    for host in reversed([each.strip() for each in forwarded.split(",")][-PROXIES:]):
        try:
            ipaddress.ip_address(host)
        except ValueError:  # whatever a client made up
            return peer
        peer = host, 0
        if not _is_among(host, known):
            break
    return peer


def _is_among(host: str, known: Iterable[str]) -> bool:
    for each in known:
        try:
            if each == "*" or ipaddress.ip_address(host) in ipaddress.ip_network(each, strict=False):
                return True
        except ValueError:  # a name, or a socket of the file system
            if each == host:
                return True
    return False


def host(address: str | None) -> str:
    """Of HOST:PORT."""
    return (address or "").rpartition(":")[0]


def is_local(host: str) -> bool:
    """Is this an address that only this machine reaches?"""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_token(wanted: Tokens, authorization: str | None, subprotocols: Iterable[str] = ()) -> str | None:
    """The name of the token that is shown, None if none is wanted. Refused if it is not one of those."""
    if not wanted:
        return None
    shown = []
    if authorization is not None and authorization[:7].lower() == "bearer ":
        shown += _spellings(authorization[7:].strip())
    for name in subprotocols:
        if name.startswith(TOKEN_PREFIX):
            shown.append(_decoded(name.removeprefix(TOKEN_PREFIX)))
        elif name.startswith(OPENAI_PREFIX):
            shown.append(name.removeprefix(OPENAI_PREFIX))
    whose = wanted.name_of(shown)
    if whose is None:
        raise Refused("unauthorized", "a token is needed: Authorization: Bearer TOKEN, or the subprotocol")
    return whose


def check_origin(origin: str | None, host: str | None, allowed: Iterable[str]) -> None:
    """A browser says which page it is at: one of this server, or one that is allowed. Other clients say nothing."""
    if origin is None or "*" in allowed or origin in allowed:
        return
    if host is not None and _split(origin).netloc.lower() == host.lower():
        return
    raise Refused("forbidden_origin", "pages from elsewhere may not connect; --origin allows one")


def check_host(named: str | None, allowed: Iterable[str]) -> None:
    """The name by which a client calls this server: an address, or one that is allowed.

    Else a page from elsewhere could have its own name lead here, and be of this server to its browser (DNS rebinding).
    """
    if named is None or "*" in allowed:
        return
    name = _split(f"//{named}").hostname or ""
    if name in allowed or _is_address(name):
        return
    raise Refused("forbidden_host", f"this server is not called {name[:80]!r}; --allow-host allows a name")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:  # half an address of IPv6
        return SplitResult("", "", "", "", "")


def spoken(subprotocols: Iterable[str]) -> str | None:
    """The subprotocol that is answered, if any was offered."""
    return next((name for name in subprotocols if name in SPOKEN), None)


def headers(raw: Iterable[tuple[bytes, bytes]]) -> Mapping[str, str]:
    """By name in lower case; of those that come twice, the first."""
    out: dict[str, str] = {}
    for name, value in raw:
        out.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
    return out


def _spellings(text: str) -> list[str]:
    """A header's text, which is bytes as latin-1, and what it is if they were UTF-8."""
    return [text, text.encode("latin-1", "replace").decode(errors="replace")]


def _decoded(text: str) -> str:
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except (binascii.Error, ValueError):
        return ""

"""Messages between a parent and a worker: JSON, behind its length, over a socket that only the two of them have."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from typing import Any

Message = dict[str, Any]
HEAD = 4  # bytes of a length
PACKETS = sys.platform == "linux"  # has Unix sockets that keep messages apart, in order
LARGEST = 16384  # bytes of what a client has said, that are handed over with it


class Channel:
    """One side, on an event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @staticmethod
    async def over(own: socket.socket) -> Channel:
        return Channel(*await asyncio.open_unix_connection(sock=own))

    def send(self, kind: str, /, **values: Any) -> None:
        """To a side that is gone: nothing happens."""
        if not self._writer.is_closing():
            self._writer.write(_framed({"kind": kind, **values}))

    async def receive(self) -> Message | None:
        """The next one; None: the other side is gone."""
        try:
            size = int.from_bytes(await self._reader.readexactly(HEAD), "big")
            message: Message = json.loads(await self._reader.readexactly(size))
        except (asyncio.IncompleteReadError, OSError):
            return None
        return message

    def close(self) -> None:
        self._writer.close()


def send_now(own: socket.socket, kind: str, /, **values: Any) -> None:
    """Before there is an event loop."""
    own.sendall(_framed({"kind": kind, **values}))


def receive_now(own: socket.socket) -> Message:
    """Likewise. EOFError: the other side is gone."""
    message: Message = json.loads(_exactly(own, int.from_bytes(_exactly(own, HEAD), "big")))
    return message


def _framed(message: Message) -> bytes:
    body = json.dumps(message).encode()
    return len(body).to_bytes(HEAD, "big") + body


def _exactly(own: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = own.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


# ---- clients


def client_pair() -> tuple[socket.socket, socket.socket]:
    """For connections of clients, from one process to the other."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET if PACKETS else socket.SOCK_STREAM)


def hand_over(own: socket.socket, handle: int, turns: int = 0, said: bytes = b"") -> bool:
    """A client's connection. turns: workers that had no room for it; said: what it has said to them."""
    if said and (not PACKETS or len(said) >= LARGEST):
        return False
    try:
        socket.send_fds(own, [bytes([turns]) + said], [handle])
    except OSError:  # too many wait already, or the other side is gone
        return False
    return True


def take_over(own: socket.socket) -> tuple[socket.socket | None, int, bytes] | None:
    """The next one, if it could be had, and what belongs to it; None: nothing waits. EOFError: nobody is there."""
    try:
        data, handles, _, _ = socket.recv_fds(own, LARGEST if PACKETS else 1, 1)
    except BlockingIOError:
        return None
    except OSError as error:
        raise EOFError from error
    if not data:
        raise EOFError
    return (socket.socket(fileno=handles[0]) if handles else None), data[0], data[1:]

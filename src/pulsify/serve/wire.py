"""Websockets for uvicorn, with nothing between the socket and a stream.

The handshake is the package websockets'; frames (RFC 6455) are taken apart here, since this is paid once a message.
Unlike other servers, this one goes on sending when a client has closed its side: what is inside a stream comes out.
"""

from __future__ import annotations

import asyncio
import struct
from functools import partial
from typing import Any, cast
from urllib.parse import unquote

from websockets.http11 import Request
from websockets.server import ServerProtocol

try:
    from websockets.speedups import apply_mask
except ImportError:  # a build of websockets without C
    from websockets.utils import apply_mask

from pulsify.serve import access
from pulsify.serve.app import entrance, refusal
from pulsify.serve.doors import EARLY, address_of
from pulsify.serve.protocol import Refused, too_many
from pulsify.serve.scheduler import LEAST, cost
from pulsify.serve.service import Service
from pulsify.serve.turns import Allowance

CONTINUED, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
WRONG, NOT_TEXT = 1002, 1007
LONGEST_CONTROL = 125
NOTHING: list[bytes] = []  # stays so
RATE, BURST = 1000, 64  # frames a second, and at once, that are handled as they come
A_TURN = 16  # frames of one connection in line, before the next one has its turn
CONTROLS = 10  # seconds' worth of control frames that may come at once


class Wire(asyncio.Protocol):
    """One connection. uvicorn hands it over with the request that asked for a websocket.

    A live stream's frames are handled as they come. Of whoever sends more, `BURST` frames are; the rest waits in line
    (`Turns`) and nothing is read meanwhile. What is said in one turn of the loop is written at once.
    """

    def __init__(self, service: Service, config: Any, server_state: Any, app_state: Any) -> None:
        limits = service.settings.limits
        self._service, self._largest = service, limits.message_bytes
        self._all, self._root = server_state.connections, config.root_path
        believed = config.forwarded_allow_ips
        self._proxies = [each.strip() for each in believed.split(",")] if isinstance(believed, str) else believed
        self._early: bytes = app_state.get(EARLY, b"")
        self._handler: Any = None
        self._rest = bytearray()  # of a frame that is not whole, or whose turn has not come
        self._need = 2
        self._parts: list[bytes] = []  # of a message in several frames
        self._cost = 0  # of them
        self._kind = BINARY
        self._frames, self._controls = Allowance(RATE, BURST), Allowance(limits.controls, CONTROLS * limits.controls)
        self._closing = self._heard_close = self._ended = self._quiet = self._lost = False
        self._paused = self._in_line = self._reads_not = False  # by the handler, by others, and so in all
        self._out = NOTHING  # to be written at the end of this turn
        self._pong: bytes | None = None
        self._transport: asyncio.Transport

    # ---- the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by class
        self._address = address_of(transport)
        self._all.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._all.discard(self)
        self._lost = True
        self._service.doors.leave(self._address)
        self._rest.clear()
        if self._handler is not None:
            self._handler.gone()

    def eof_received(self) -> bool:
        """It sends no more, and may still listen."""
        self._ended = True
        if self._handler is None or self._closing:
            return False
        if not self._in_line and not self._paused:
            self._half_closed()
        return True

    def shutdown(self) -> None:
        """uvicorn stops."""
        if self._handler is None:
            self._transport.close()
        else:
            self._handler.refuse(Refused("going_away", "the server stops"))

    def data_received(self, data: bytes) -> None:
        if self._handler is None:
            self._shake_hands(data)
            return
        rest = self._rest
        if rest:
            rest += data
            if self._in_line or self._paused or len(rest) < self._need:
                return
            self._advance(rest)
        else:
            self._advance(data)

    # ---- from the client

    def _advance(self, data: bytes | bytearray) -> None:
        """As many frames as it may have handled now. data: `_rest`, or what comes if there is none."""
        most = self._frames.left()
        at, size, left = 0, len(data), most
        while left > 0 and size - at >= self._need and not self._paused and not self._lost:
            took = self._one_frame(data, at, size)
            if took <= 0:
                break
            at += took
            left -= 1
        self._frames.take(most - left)
        self._keep(data, at)
        if not left and len(self._rest) >= self._need and not self._paused and not self._lost:
            self._join_line()

    def _keep(self, data: bytes | bytearray, at: int) -> None:
        """What follows is not handled yet."""
        if data is self._rest:
            del self._rest[:at]
        elif at < len(data) and not self._lost:
            self._rest += data[at:] if at else data
        if self._pong is not None:
            self._write(PONG, self._pong)
            self._pong = None

    def _join_line(self) -> None:
        if not self._in_line:
            self._in_line = True
            self._read_or_not()
            self._service.turns.join(self._turn)

    def _turn(self) -> bool:
        """A few of the frames in line; are there more? Then, or once the handler wants no more for now, it is over."""
        rest, at, left = self._rest, 0, A_TURN
        while left and len(rest) - at >= self._need and not self._paused and not self._lost:
            took = self._one_frame(rest, at, len(rest))
            if took <= 0:
                break
            at += took
            left -= 1
        if self._lost:
            return False
        self._keep(rest, at)
        if not left and not self._paused:
            return True
        self._in_line = False
        self._read_or_not()
        if self._ended and not self._paused:
            self._half_closed()
        return False

    def _one_frame(self, data: bytes | bytearray, at: int, size: int) -> int:
        """How many bytes it took: 0 if it is not whole, and `_need` says how many there must be."""
        first, second = data[at], data[at + 1]
        length, start = second & 0x7F, at + 6
        if length >= 126:
            more = 2 if length == 126 else 8
            if size - at < 2 + more:
                self._need = 2 + more
                return 0
            length = int.from_bytes(data[at + 2 : at + 2 + more], "big")
            start += more
        if not second & 0x80 or first & 0x70:
            self._wrong(WRONG, "frames must be masked, and have no extensions")
            return size - at
        if length > self._largest:
            self._handler.refuse(Refused("too_large", f"a message has {self._largest} bytes at the most"))
            self._closing = True
            self._hang_up()  # what is left of it is not waited for
            return size - at
        end = start + length
        if end > size:
            self._need = end - at
            return 0
        self._need = 2
        payload = apply_mask(data[start:end], data[start - 4 : start])
        self._frame(first & 0x0F, bool(first & 0x80), payload)
        return end - at

    def _frame(self, kind: int, last: bool, payload: bytes) -> None:
        if kind >= CLOSE:
            self._control(kind, last, payload)
            return
        if self._closing:
            return
        if kind > BINARY or (kind == CONTINUED) != bool(self._parts):
            self._wrong(WRONG, "no such frame, or out of order")
            return
        if kind != CONTINUED:
            self._kind = kind
        if not last or self._parts:
            self._parts.append(payload or b"")
            self._cost += cost(len(payload))
            if self._cost > self._largest + LEAST:
                self._handler.refuse(Refused("too_large", f"a message has {self._largest} bytes at the most"))
                return
            if not last:
                return
            payload = b"".join(self._parts)
            self._parts, self._cost = [], 0
        if self._kind == BINARY:
            self._handler.binary(payload)
            return
        try:
            text = payload.decode()
        except UnicodeDecodeError:
            self._wrong(NOT_TEXT, "not UTF-8")
            return
        self._handler.text(text)

    def _control(self, kind: int, last: bool, payload: bytes) -> None:
        if len(payload) > LONGEST_CONTROL or not last or kind > PONG:
            self._wrong(WRONG, "no such frame")
        elif kind == CLOSE:
            self._heard_close = True
            self._half_closed()
        elif not self._closing and not self._controls.spend():
            self._handler.refuse(too_many("pings", self._service.settings.limits.controls))
        elif kind == PING:
            self._handler.alive()
            if not self._closing and self.waiting() < self._largest:
                self._pong = payload  # of several at once the last one is answered (RFC 6455, 5.5.3)

    def _half_closed(self) -> None:
        """It has said its last, by a close or by TCP."""
        if self._closing:
            self._hang_up()
        elif not self._quiet:
            self._quiet = True
            self._handler.half_closed()

    def _wrong(self, code: int, why: str) -> None:
        """Not a websocket's frame: there is no going on."""
        self._handler.refuse(Refused("bad_message", why))
        self._hang_up()

    # ---- to the client

    def send(self, message: bytes | str) -> None:
        if not self._closing and not self._transport.is_closing():
            self._write(TEXT, message.encode()) if isinstance(message, str) else self._write(BINARY, message)

    def _write(self, kind: int, data: bytes) -> None:
        size = len(data)
        if size < 126:
            head = bytes((0x80 | kind, size))
        elif size < 1 << 16:
            head = struct.pack("!BBH", 0x80 | kind, 126, size)
        else:
            head = struct.pack("!BBQ", 0x80 | kind, 127, size)
        if self._out:
            self._out.append(head + data)
        else:
            self._out = [head + data]
            self._service.turns.last(self.written)

    def written(self) -> None:
        """Everything that was said in this turn, in one call."""
        out, self._out = self._out, NOTHING
        if out and not self._transport.is_closing():
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def _hang_up(self) -> None:
        self.written()
        self._transport.close()

    def close(self, code: int, reason: str) -> None:
        """The last thing said. The client answers, unless it has said so before or cannot any more."""
        if self._closing:
            return
        self._write(CLOSE, struct.pack("!H", code) + reason.encode()[: LONGEST_CONTROL - 2])
        self._closing = True
        self.pause(False)
        if self._heard_close or self._ended:
            self._hang_up()

    def abort(self) -> None:
        self._transport.abort()

    def pause(self, paused: bool) -> None:
        """The handler wants no more for now: of what has been read, too."""
        if paused != self._paused:
            self._paused = paused
            if not paused and (self._ended or len(self._rest) >= self._need):
                self._join_line()
            self._read_or_not()

    def _read_or_not(self) -> None:
        not_now = self._paused or self._in_line
        if not_now != self._reads_not and not self._transport.is_closing():
            self._reads_not = not_now
            self._transport.pause_reading() if not_now else self._transport.resume_reading()

    def waiting(self) -> int:
        return self._transport.get_write_buffer_size() + sum(map(len, self._out))

    # ---- the handshake

    def _shake_hands(self, data: bytes) -> None:
        shaking = ServerProtocol(max_size=self._largest)
        shaking.receive_data(data)
        request = next((e for e in shaking.events_received() if isinstance(e, Request)), None)
        if request is None:
            self._transport.close()
            return
        response, make = shaking.accept(request), None
        if response.status_code == 101:
            scope = self._scope(request)
            try:
                make = entrance(self._service, scope, partial(self._pass_on, data + self._early))
            except Refused as refused:
                said = refusal(refused)
                response = shaking.reject(said.status_code, bytes(said.body).decode())
                for name in ("content-type", "retry-after"):
                    if name in said.headers:
                        response.headers.pop(name, None)
                        response.headers[name] = said.headers[name]
            else:
                if make is None:  # another worker has it
                    self._transport.close()
                    return
                if chosen := access.spoken(scope["subprotocols"]):
                    response.headers["Sec-WebSocket-Protocol"] = chosen
        shaking.send_response(response)
        self._transport.write(b"".join(shaking.data_to_send()))
        if make is not None:
            self._handler = make(self)
            if early := self._early:  # it did not wait for the answer
                self._early = b""
                self.data_received(early)
        else:
            self._transport.close()

    def _pass_on(self, data: bytes) -> bool:
        """To another worker of this server."""
        siblings = self._service.siblings
        return siblings is not None and siblings.pass_on(self._transport, data)

    def _scope(self, request: Request) -> dict[str, Any]:
        """As an ASGI server says it, as far as it is asked for."""
        path, _, query = request.path.partition("?")
        said = ",".join(request.headers.get_all("X-Forwarded-For")) or None
        offered = [n.strip() for h in request.headers.get_all("Sec-WebSocket-Protocol") for n in h.split(",")]
        return {
            "client": access.behind_proxies(self._transport.get_extra_info("peername"), said, self._proxies),
            "headers": [(k.encode(), v.encode("latin-1", "replace")) for k, v in request.headers.raw_items()],
            "subprotocols": offered,
            "root_path": self._root,
            "path": self._root + unquote(path),
            "query_string": query.encode("latin-1", "replace"),
        }

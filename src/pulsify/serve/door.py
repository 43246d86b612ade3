"""Connections before they are websockets: HTTP as uvicorn speaks it, for clients that may mean no good.

A connection that asks for nothing is closed, and so is one that does not read its answer. What comes in excess is taken
apart in slices, in line with everyone else's (`Turns`). An address may have so many connections.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from pulsify.serve.doors import EARLY, address_of

if TYPE_CHECKING:
    from pulsify.serve.service import Service

SMALL = 1 << 12  # bytes that are taken apart as they come
LARGEST = 1 << 16  # bytes in a slice of a body
QUICK, SLOW = 0.0003, 0.001  # seconds for a slice, between which its size is left as it is
HEAD_BYTES = 1 << 14  # of a request
FULL = b"HTTP/1.1 429 Too Many Requests\r\nConnection: close\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"


class Gate:
    """A transport's reading, which uvicorn may stop, and a door."""

    def __init__(self, transport: Any, resumed: Callable[[], None]) -> None:
        self._transport, self._resumed = transport, resumed
        self.stopped = self.held = self._paused = False  # by uvicorn, by the door, and so in all

    def pause_reading(self) -> None:
        self.stopped = True
        self._apply()

    def resume_reading(self) -> None:
        self.stopped = False
        self._apply()
        self._resumed()

    def hold(self, held: bool) -> None:
        self.held = held
        self._apply()

    def _apply(self) -> None:
        paused = self.stopped or self.held
        if paused != self._paused and not self._transport.is_closing():
            self._paused = paused
            self._transport.pause_reading() if paused else self._transport.resume_reading()


class Door(H11Protocol):
    """One of them."""

    def __init__(self, service: Service, **given: Any) -> None:
        super().__init__(**given)
        self._turns, self._doors = service.turns, service.doors
        self._unread = bytearray()  # its turn has not come
        self._size = SMALL  # of a slice of it
        self._gate: Gate
        self._address = ""
        self._in_line = False
        self._gone = False  # or a websocket by now
        self._cycle: Any = None  # the request that was looked at last
        self._since = time.monotonic()  # when it had been answered
        self._waiting, self._waits_since = 0, 0.0  # bytes to be read by the client

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.app_state = {**self.app_state, "abort": transport.abort}
        self._gate = Gate(transport, self._join_line)
        self.flow = FlowControl(self._gate)  # type: ignore[arg-type]
        self._address = address_of(transport)
        self._doors.doors[self] = None
        if not self._doors.enter(self._address):
            transport.write(FULL)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone = True
        self._unread.clear()
        self._doors.doors.pop(self, None)
        self._doors.leave(self._address)
        super().connection_lost(exc)

    def handle_websocket_upgrade(self, event: Any) -> None:
        """From here on it is a `Wire`, which leaves for it, and has what came behind the request."""
        self._gone = True
        self.app_state = {**self.app_state, EARLY: self.conn.trailing_data[0] + bytes(self._unread)}
        self._unread.clear()
        self._gate.hold(False)  # from now on reading is the wire's to stop
        self._doors.doors.pop(self, None)
        super().handle_websocket_upgrade(event)

    def data_received(self, data: bytes) -> None:
        if self._unread:
            self._unread += data
        elif len(data) <= SMALL and self._doors.allowance.spend():
            super().data_received(data)
        else:
            self._unread += data
            self._gate.hold(True)
            self._join_line()

    def _join_line(self) -> None:
        if self._unread and not self._in_line:
            self._in_line = True
            self._turns.join(self._turn)

    def _turn(self) -> bool:
        """A slice of what waits; is there more?"""
        if self.transport.is_closing():
            self._unread.clear()
        if self._gone or not self._unread or self._gate.stopped:  # so far the body has not been taken
            self._in_line = False
            return False
        in_body = self.cycle is not None and not self.cycle.response_complete
        size = self._size if in_body else SMALL
        data = bytes(self._unread[:size])
        del self._unread[:size]
        start = time.perf_counter()
        super().data_received(data)
        took = time.perf_counter() - start
        if took < QUICK:
            self._size = min(2 * self._size, LARGEST)
        elif took > SLOW:
            self._size = max(self._size // 2, 256)
        if self._unread and not self._gone:
            return True
        self._in_line = False
        self._gate.hold(False)
        return False

    def look(self, now: float, request_seconds: float, unread_seconds: float) -> None:
        """Is any time up?"""
        waiting = self.transport.get_write_buffer_size()
        if waiting != self._waiting or not waiting:
            self._waiting, self._waits_since = waiting, now
        elif now - self._waits_since > unread_seconds:
            self.transport.abort()
        if self.cycle is not self._cycle or (self.cycle is not None and not self.cycle.response_complete):
            self._cycle, self._since = self.cycle, now
        elif now - self._since > request_seconds and not waiting:
            self.transport.close()

"""What a client sends in excess waits in line; nobody else does."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pulsify
from pulsify.serve import turns as module
from pulsify.serve.flow import Flow
from pulsify.serve.hosted import Hosted, Machine
from pulsify.serve.protocol import Refused, Sound
from pulsify.serve.scheduler import AT_ONCE, LEAST, Live, Taken
from pulsify.serve.service import Limits
from pulsify.serve.sources import of_stream
from pulsify.serve.stage import MANY
from pulsify.serve.turns import Allowance, Turns
from pulsify.serve.wire import A_TURN, BURST, Wire
from tests.models import frames, look_ahead
from tests.serve.fuzz import masked

RNG = random.Random(0)


class Transport:
    """A socket that keeps what is written."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.reads, self.closed = True, False

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def pause_reading(self) -> None:
        assert self.reads
        self.reads = False

    def resume_reading(self) -> None:
        assert not self.reads
        self.reads = True

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> Any:
        return ("192.0.2.1", 5)


class Handler:
    """It counts messages, and may want no more after some."""

    def __init__(self, peer: Wire, most: int = 1 << 30) -> None:
        self.peer, self.most, self.pings, self.ends = peer, most, 0, 0
        self.messages: list[bytes | str] = []
        self.refused: Refused | None = None

    def binary(self, data: bytes) -> None:
        self.messages.append(data)
        if len(self.messages) == self.most:
            self.peer.pause(True)

    def text(self, text: str) -> None:
        self.binary(text.encode())

    def alive(self) -> None:
        self.pings += 1

    def half_closed(self) -> None:
        self.ends += 1

    def refuse(self, refused: Refused) -> None:
        self.refused = self.refused or refused
        self.peer.close(4400, refused.code)

    def gone(self) -> None:
        pass


def connected(most: int = 1 << 30, limits: Limits | None = None) -> tuple[Wire, Handler, Transport]:
    service: Any = SimpleNamespace(settings=SimpleNamespace(limits=limits or Limits()), turns=Turns())
    state = SimpleNamespace(connections=set())
    made, transport = (
        Wire(service, SimpleNamespace(root_path="", forwarded_allow_ips="127.0.0.1"), state, {}),
        Transport(),
    )
    made.connection_made(transport)  # type: ignore[arg-type]
    made._handler = handler = Handler(made, most)
    return made, handler, transport


async def until(done: Any) -> None:
    for _ in range(2000):
        if done():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("not done in time")


@pytest.mark.parametrize("payload", [b"", b"1234"])
def test_a_segment_of_thousands_of_frames_is_handled_a_few_at_a_time(payload: bytes) -> None:
    async def through() -> None:
        made, handler, transport = connected()
        turns, most = made._service.turns, 0
        made.data_received(masked(2, payload, RNG) * 5000)
        assert len(handler.messages) <= BURST and not transport.reads and len(turns) == 1
        while turns:  # a call of the line's is one turn of this client
            before = len(handler.messages)
            turns._line.append(turns._line.popleft()) if turns._line[0]() else turns._line.popleft()
            most = max(most, len(handler.messages) - before)
        assert most <= A_TURN and transport.reads
        assert handler.messages == [payload] * 5000
        made.data_received(masked(2, payload, RNG))
        await until(lambda: len(handler.messages) == 5001)

    asyncio.run(through())


def test_a_handler_that_wants_no_more_gets_no_more_of_what_is_read_already() -> None:
    async def through() -> None:
        made, handler, transport = connected(most=10)
        made.data_received(b"".join(masked(1, b"%d" % i, RNG) for i in range(200)))
        assert len(handler.messages) == 10 and not transport.reads
        await asyncio.sleep(0.02)
        assert len(handler.messages) == 10
        made.pause(False)
        await until(lambda: transport.reads)
        assert handler.messages == [b"%d" % i for i in range(200)]

    asyncio.run(through())


def test_an_end_comes_behind_what_was_sent_before_it() -> None:
    async def through() -> None:
        made, handler, _ = connected()
        made.data_received(masked(2, b"x", RNG) * 500)
        assert made.eof_received() and not handler.ends
        await until(lambda: handler.ends)
        assert len(handler.messages) == 500
        await asyncio.sleep(0.01)
        assert handler.ends == 1

    asyncio.run(through())


def test_of_many_pings_the_last_one_is_answered_and_too_many_end_it() -> None:
    async def through() -> None:
        made, handler, transport = connected(limits=Limits(controls=2))
        made.data_received(b"".join(masked(9, b"%d" % i, RNG) for i in range(20)))
        await asyncio.sleep(0)
        assert handler.pings == 20 and transport.writes == [b"\x8a\x0219"]
        made.data_received(masked(9, b"", RNG) * 30)
        assert handler.refused is not None and handler.refused.code == "too_many_requests"

    asyncio.run(through())


def test_what_is_said_in_one_turn_is_one_write() -> None:
    async def through() -> None:
        made, _, transport = connected()
        for each in (b"1", "2", b"3" * 200):
            made.send(each)
        waiting = made.waiting()
        await asyncio.sleep(0)
        assert [len(each) for each in transport.writes] == [waiting]
        assert transport.writes[0].startswith(b"\x82\x011\x81\x012\x82\x7e\x00\xc8333")

    asyncio.run(through())


@pytest.mark.parametrize(("size", "fragments", "refused"), [(0, 900, False), (0, 4200, True), (1 << 18, 5, True)])
def test_fragments_have_a_cost_and_are_added_up_once(size: int, fragments: int, refused: bool) -> None:
    async def through() -> None:
        made, handler, _ = connected()
        for number in range(fragments):
            made.data_received(masked(2 if not number else 0, bytes(size), RNG, last=False))
        made.data_received(masked(0, b"end", RNG))
        await until(lambda: handler.messages or handler.refused)
        assert (handler.refused is not None and handler.refused.code == "too_large") == refused
        assert handler.messages == ([] if refused else [b"end"])

    asyncio.run(through())


def test_the_line_leaves_the_loop_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice ends after its time; the next one comes after twice as long. By a clock of the test's own."""
    clock, calls, later = [0.0], [0, 0], list[tuple[float, Any]]()
    monkeypatch.setattr(module.time, "perf_counter", lambda: clock[0])

    def work(which: int) -> bool:
        clock[0] += 0.0003
        calls[which] += 1
        return calls[which] < 50

    async def through() -> None:
        loop, line = asyncio.get_running_loop(), Turns()
        monkeypatch.setattr(loop, "call_later", lambda seconds, call: later.append((seconds, call)))
        line.join(lambda: work(0))
        line.join(lambda: work(1))
        await asyncio.sleep(0)
        assert calls == [2, 2] and later[0][0] == pytest.approx(0.0024)
        while len(line):
            later[-1][1]()
        assert calls == [50, 50] and not line._going

    asyncio.run(through())


def test_work_that_fails_leaves_the_line() -> None:
    async def through() -> list[int]:
        line, calls = Turns(), list[int]()
        line.join(lambda: bool(1 // 0))
        line.join(lambda: bool(calls.append(1)))
        await asyncio.sleep(0.01)
        return calls

    assert asyncio.run(through()) == [1]


def test_an_allowance_comes_back_with_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    made = Allowance(10, 5)
    assert [made.spend() for _ in range(7)] == [True] * 5 + [False] * 2
    now[0] += 0.25
    assert [made.spend() for _ in range(4)] == [True] * 2 + [False] * 2
    now[0] += 100
    assert made.left() == 5


# ---- the model's thread


def hosting() -> Hosted:
    stream = pulsify.stream(look_ahead("B"), 4, verify=False)
    return Hosted(of_stream("m", stream, None), Machine(calibrate=False), lambda batch: None)


def test_of_a_full_inbox_a_few_are_taken_before_the_next_stream_has_its_turn() -> None:
    made = hosting()
    scheduler, lives = made.scheduler, [Live(made.chain(Sound(), Sound())) for _ in range(3)]
    for live in lives:
        scheduler.post(live, "open")
    for _ in range(5000):
        scheduler.post(lives[0], "data", b"")
    scheduler.post(lives[1], "data", frames(1, 2, 4).tobytes())
    assert scheduler._drain() and len(lives[0].inbox) > 5000 - AT_ONCE
    assert len(lives[1].inbox) == len(lives[2].inbox) == 0
    rounds = 1
    while scheduler._line.qsize():
        assert scheduler._drain()
        rounds += 1
    assert not lives[0].inbox and rounds >= 5000 // AT_ONCE


def test_stopping_comes_after_what_was_posted() -> None:
    made = hosting()
    scheduler, live = made.scheduler, Live(made.chain(Sound(), Sound()))
    scheduler.post(live, "open")
    x = frames(1, 2, 4 * 300)
    for at in range(0, 1200, 4):
        scheduler.post(live, "data", np.ascontiguousarray(x[:, :, at : at + 4]).tobytes())
    scheduler.post(live, "end")
    scheduler.start()
    scheduler.stop()
    assert not live.inbox and live.flow is not None
    assert live.flow.received == {"x": 1200} and live.flow.ended


@pytest.mark.parametrize("size", [0, 8, 8 * 40, 8 * 200])
def test_what_is_posted_is_taken_to_the_last_byte(size: int) -> None:
    """Else a stream would stop being read one day, or never."""
    made = hosting()
    scheduler, live, told = made.scheduler, Live(made.chain(Sound(), Sound()), room=4096), list[Any]()
    scheduler._deliver = lambda batch: told.extend(news for _, each in batch for news in each)
    posted = 0
    scheduler._handle(live, "open", None, 0.0)
    for _ in range(64):
        scheduler._handle(live, "data", bytes(size), 0.0)
        scheduler._handle(live, "acked", LEAST, 0.0)
        posted += max(size, LEAST) + LEAST
        while scheduler._stages[0][1].ready:
            scheduler._round()
        scheduler._hand_out()
    assert isinstance(live.flow, Flow) and live.came == posted
    assert live.flow.computed() + live.light == posted
    taken = [news.count for news in told if isinstance(news, Taken)]
    assert taken == sorted(taken) and posted - taken[-1] <= 4096 // 4


def test_small_messages_that_wait_take_no_more_memory_than_their_frames() -> None:
    stream = pulsify.stream(look_ahead("B"), 4096, verify=False)
    made = Hosted(of_stream("m", stream, None), Machine(calibrate=False), lambda batch: None)
    scheduler, live = made.scheduler, Live(made.chain(Sound(), Sound()))
    scheduler._handle(live, "open", None, 0.0)
    x = frames(1, 2, 4000)
    for at in range(4000):
        scheduler._handle(live, "data", np.ascontiguousarray(x[:, :, at : at + 1]).tobytes(), 0.0)
    assert live.flow is not None
    (seat,) = live.flow.seats
    assert len(seat.backlog["x"].pieces) <= 4000 // MANY + MANY
    assert np.array_equal(seat.rest()["x"], x)


def test_a_text_of_many_values_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    from pulsify.serve import protocol

    monkeypatch.setattr(protocol.json, "loads", lambda *_, **__: pytest.fail("parsed"))
    for text in ("[" * 6000, '{"a":' * 6000, "[" + "0," * 6000 + "0]"):
        with pytest.raises(Refused, match="values at the most"):
            protocol.json_object(text)

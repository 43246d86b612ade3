"""How many workers, whose figures are whose, and what the parent makes of workers that end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from pulsify.cli.main import main
from pulsify.serve.store import Memory, StoreFailed
from pulsify.serve.workers import channel, counts, parent
from pulsify.serve.workers.counts import Cost, Part, worth
from pulsify.serve.workers.families import lasting, merged, packed, unpacked
from pulsify.serve.workers.snapshots import InParent, answer

unix = pytest.mark.skipif(sys.platform == "win32", reason="workers need Unix sockets")


# ---- how many


@pytest.mark.parametrize(("most", "count"), [(5, 2), (1, 3), (1024, 7), (3, 3)])
def test_parts_add_up(most: int, count: int) -> None:
    shares = [Part(index, count).of(most) for index in range(count)]
    assert sum(shares) == most and max(shares) - min(shares) <= 1


def test_more_workers_than_cores_share_them() -> None:
    assert Part(0, 2, 4.0).time == 1 and Part(0, 8, 4.0).time == 0.5 and Part().time == 1


@pytest.mark.parametrize(
    ("cost", "cores", "free", "count", "why"),
    [
        (Cost(1024, (75, 900), False, 1 << 28), 8, None, 8, "8 cores"),
        (Cost(200, (75, 900), False, 1 << 28), 8, None, 3, "--most 200"),
        (Cost(64, (75,), False, 0), 8, 0, 1, "--most 64"),
        (Cost(1024, (75, None), False, 1 << 30), 8, 4 << 30, 4, "4096 MiB of free memory"),
        (Cost(1024, (75,), True, 1 << 28), 8, None, 1, "does not compute on one core"),
        (Cost(1024, (None,), False, 1 << 28), 8, None, 1, "no model has a known rate"),
        (Cost(1024, (75,), False, 1 << 28), 1.5, None, 1, "1.5 cores"),
    ],
)
def test_as_many_as_pay_off(cost: Cost, cores: float, free: int | None, count: int, why: str) -> None:
    found, reason = worth(cost, cores, free)
    assert found == count and why in reason


def test_a_container_has_the_cores_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "CGROUPS", tmp_path)
    monkeypatch.setattr(counts, "OWN_CGROUP", tmp_path / "own")
    every = counts.cores()
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert counts.cores() == every >= 1
    (tmp_path / "cpu.max").write_text("75000 100000\n")
    assert counts.cores() == 0.75
    service = tmp_path / "system.slice" / "pulsify.service"
    service.mkdir(parents=True)
    (tmp_path / "own").write_text("1:cpu:/nothing\n0::/system.slice/pulsify.service\n")
    assert counts.cores() == 0.75, "that of the outermost group"
    (service / "cpu.max").write_text("50000 100000\n")
    assert counts.cores() == 0.5
    (tmp_path / "cpu.max").write_text("nonsense")
    assert counts.cores() == 0.5


@pytest.mark.parametrize(
    ("sources", "rate", "has"),
    [((), None, True), (("m.onnx",), None, False), (("m.onnx",), 16000, True), (("a@b.onnx",), None, False),
     (("m.onnx", "n=n.onnx@16000"), None, True), (("model.toml",), None, True)],
)  # fmt: skip
def test_a_rate_is_what_a_cost_is_measured_by(sources: tuple[str, ...], rate: float | None, has: bool) -> None:
    assert counts.has_rate(sources, rate) is has


def test_windows_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "send_fds", raising=False)
    done = CliRunner().invoke(main, ["serve", "--port", "0", "--workers", "2"])
    assert done.exit_code == 2 and "behind a proxy" in done.output


# ---- figures


def test_counters_add_up_and_outlive_their_process() -> None:
    def process(streams: float, ended: float, lag: float) -> list[Any]:
        counter = CounterMetricFamily("pulsify_streams_ended", "Ended.", labels=("model",))
        counter.add_metric(("m",), ended)
        histogram = HistogramMetricFamily("pulsify_lag_seconds", "Lag.")
        histogram.add_metric([], [("0.1", lag), ("+Inf", 2 * lag)], lag / 10)
        gauges = [GaugeMetricFamily("pulsify_streams", "Open.", streams), GaugeMetricFamily("pulsify_ready", "", 1.0),
                  GaugeMetricFamily("pulsify_duty_ratio", "", streams / 10)]  # fmt: skip
        return packed([counter, histogram, *gauges])

    gone = lasting(process(7, 100, 1000))
    both = merged([process(2, 3, 10), process(4, 5, 20), gone])
    values = {(s.name, s.labels.get("le", "")): s.value for metric in unpacked(both) for s in metric.samples}
    assert values == {
        ("pulsify_streams_ended_total", ""): 108, ("pulsify_lag_seconds_bucket", "0.1"): 1030,
        ("pulsify_lag_seconds_bucket", "+Inf"): 2060, ("pulsify_lag_seconds_count", ""): 2060,
        ("pulsify_lag_seconds_sum", ""): 103, ("pulsify_streams", ""): 6, ("pulsify_ready", ""): 1,
        ("pulsify_duty_ratio", ""): pytest.approx(0.3),
    }  # fmt: skip


# ---- between processes


def test_snapshots_are_in_the_parents_memory() -> None:
    ours, theirs = Pipe()
    store = InParent(theirs)  # type: ignore[arg-type]
    thread = threading.Thread(target=answer, args=(ours, Memory(60, largest=100)))
    thread.start()
    store.put("a", b"x" * 60)
    assert store.get("a") == b"x" * 60 and store.get("b") is None
    with pytest.raises(StoreFailed, match="full of snapshots"):
        store.put("b", b"x" * 60)
    assert store.get("a") == b"x" * 60, "it goes on"
    assert store.add("c", b"1") and not store.add("c", b"2") and store.get("c") == b"1"
    theirs.close()
    thread.join(5)
    assert not thread.is_alive()
    with pytest.raises(StoreFailed, match="the parent process is gone"):
        store.get("a")


@unix
@pytest.mark.parametrize("packets", [channel.PACKETS, False])
def test_a_client_is_handed_over_with_what_it_said(packets: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where sockets do not keep messages apart, clients are handed over, but not what they said."""
    monkeypatch.setattr(channel, "PACKETS", packets)
    ours, theirs = channel.client_pair()
    client, server = socket.socketpair()
    assert channel.hand_over(ours, server.fileno())
    assert channel.hand_over(ours, server.fileno(), 3, b"GET / HTTP/1.1\r\n" if packets else b"")
    assert not channel.hand_over(ours, server.fileno(), 3, b"x" if not packets else bytes(channel.LARGEST))
    server.close()
    theirs.setblocking(False)
    first = channel.take_over(theirs)
    assert first is not None and first[0] is not None and first[1:] == (0, b"")
    second = channel.take_over(theirs)
    assert second is not None and second[0] is not None
    assert second[1:] == (3, b"GET / HTTP/1.1\r\n" if packets else b"")
    second[0].sendall(b"hello")
    assert client.recv(5) == b"hello"
    second[0].close()
    assert channel.take_over(theirs) is None
    ours.close()
    with pytest.raises(EOFError):
        channel.take_over(theirs)
    for each in (client, theirs, first[0]):
        each.close()


# ---- workers that end

WORKER = """
import json, os, signal, socket, sys, time
from pulsify.serve.workers import channel
from pulsify.serve.workers.child import VARIABLE
control = socket.socket(fileno=json.loads(os.environ[VARIABLE])[0])
hello = channel.receive_now(control)
index, fate = hello["part"]["index"], sys.argv[1]
if fate == "at once":
    sys.exit(5)
channel.send_now(control, "joined", models=["m"], guarded=False)
channel.send_now(control, "opened", models=[{"model": "m"}], most=8, streams=[2], elsewhere=False, memory=0)
if fate == "nonsense":
    channel.send_now(control, "status")
if fate == "soon" and index == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if fate == "deaf":
    time.sleep(60)
if fate == "asks":
    family = {"name": "n", "about": "", "type": "counter", "samples": [["n_total", {}, 3.0]]}
    channel.send_now(control, "ask", id=1, families=[family])
    while channel.receive_now(control)["kind"] != "answers":
        pass
    os.kill(os.getpid(), signal.SIGKILL)
while channel.receive_now(control)["kind"] not in ("drain", "stop"):
    pass
"""


class Run:
    """A parent of such workers, in this process."""

    def __init__(self, fate: str, count: int | None, cores: float = 4.0) -> None:
        self.joined: list[Any] = []
        self.opened: list[Any] = []
        self.listening = socket.create_server(("127.0.0.1", 0))
        plan = parent.Plan([sys.executable, "-c", WORKER, fate], count, 8, 60.0, 0.5, cores)
        self.parent = parent.Parent(plan, self.listening, self.joined.append, self.opened.append)

    def __call__(self, during: Any = None) -> int:
        async def both() -> int:
            running = asyncio.create_task(self.parent.run())
            if during is not None:
                await during(self.parent)
            return await asyncio.wait_for(running, 60)

        before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
        try:
            return asyncio.run(both())
        finally:
            self.listening.close()
            for number, handler in zip((signal.SIGTERM, signal.SIGINT), before, strict=True):
                signal.signal(number, handler)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parent, "PAUSES", (0.01, 0.02))


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.01)


@unix
def test_a_worker_that_ends_again_and_again_ends_the_server(quick: None, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "pulsify")
    run = Run("soon", 2)
    assert run() == parent.BUG
    said = [record.getMessage() for record in caplog.records]
    assert sum("started again" in line for line in said) == parent.CRASHES - 1
    assert "worker 1 was ended by signal 9" in said[-1] and said[-1].endswith("5 times in a row: the server ends")
    assert run.joined == [["m"]] and run.opened == [[{"model": "m"}]], "said once"
    assert not Path(run.parent._folder).exists()


@unix
def test_a_bug_in_the_parent_ends_the_server(caplog: pytest.LogCaptureFixture) -> None:
    """Rather than leave a worker without anyone to restart it."""
    assert Run("nonsense", 1)() == parent.BUG
    assert any(record.exc_info for record in caplog.records)


@unix
def test_a_first_worker_that_cannot_start_ends_the_server_with_its_code() -> None:
    run = Run("at once", 2)
    assert run() == 5 and run.parent._restarts == 0 and run.joined == []


@unix
def test_there_are_as_many_as_pay_off_and_a_killed_one_comes_back(quick: None) -> None:
    async def during(made: parent.Parent) -> None:
        await until(lambda: len(made._workers) == 3 and all(w.opened for w in made._workers.values()))
        first = made._workers[0].process.pid
        os.kill(first, signal.SIGKILL)
        await until(lambda: made._restarts == 1 and 0 in made._workers and made._workers[0].opened)
        assert made._workers[0].process.pid != first
        assert [made._part(index).of(8) for index in range(3)] == [3, 3, 2]
        made._terminate()  # what a signal does; servers as processes are sent one in tests/serve/test_workers.py

    assert Run("well", None, cores=3.0)(during) == 0


@unix
def test_a_worker_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parent, "GRACE", 0.1)

    async def during(made: parent.Parent) -> None:
        await until(lambda: 0 in made._workers and made._workers[0].opened)
        made._terminate()

    assert Run("deaf", 1)(during) == 0


@unix
def test_a_worker_that_says_nothing_any_more_is_killed(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parent, "STUCK", 0.0)

    async def during(made: parent.Parent) -> None:
        await until(lambda: made._restarts == 1)
        made._terminate()

    assert Run("deaf", 1)(during) == 0


@unix
def test_a_figure_that_was_shown_outlives_the_worker_that_showed_it(quick: None) -> None:
    async def during(made: parent.Parent) -> None:
        await until(lambda: made._restarts == 1)
        assert [family["samples"] for family in made._past] == [[["n_total", {}, 3.0]]]
        made._terminate()

    assert Run("asks", 1)(during) == 0


@unix
def test_a_worker_that_ends_while_others_are_asked_is_counted_once(quick: None) -> None:
    def counted(value: float) -> list[Any]:
        return [{"name": "n", "about": "", "type": "counter", "samples": [["n_total", {}, value]]}]

    async def during(made: parent.Parent) -> None:
        await until(lambda: len(made._workers) == 3 and all(w.opened for w in made._workers.values()))
        asking, ends, slow = made._workers.values()
        sent: list[dict[str, Any]] = []
        asking.channel.send = lambda kind, /, **values: sent.append(values)  # type: ignore[method-assign]
        ends.channel.send = slow.channel.send = lambda kind, /, **values: None  # type: ignore[method-assign]
        asked = asyncio.create_task(made._answer(asking, 7))
        await until(lambda: len(made._asked) == 2)
        numbers = {each: number for number, (each, _) in made._asked.items()}
        made._on_figures(ends, {"id": numbers[ends], "families": counted(5.0)})
        ends.process.kill()
        await until(lambda: made._restarts == 1)
        made._on_figures(slow, {"id": numbers[slow], "families": counted(2.0)})
        await asked
        del asking.channel.send, slow.channel.send
        answers = [values for values in sent if values.get("id") == 7]
        values = [
            s[2] for families in answers[0]["families"] for f in families if f["name"] == "n" for s in f["samples"]
        ]
        assert sum(values) == 7.0
        made._terminate()

    assert Run("well", 3)(during) == 0


def worker(**facts: Any) -> parent.Worker:
    made = parent.Worker(0, None, None, None, 0.0, joined=True, opened=True, unready=None)  # type: ignore[arg-type]
    for name, value in facts.items():
        setattr(made, name, value)
    return made


def test_the_next_client_goes_where_there_is_room() -> None:
    """Not to one that is starting, silent, going away or full, unless there is no other; then to the emptiest."""
    now = 100.0
    best = worker(heard=now, streams=3)
    worse = [
        worker(heard=now, streams=3, used=0.5), worker(heard=now, streams=3, sent=9, seen=8),
        worker(heard=now, unready="full: 3 streams"), worker(heard=now, unready="draining: bye"),
        worker(heard=now - 3), worker(heard=now, opened=False, unready="starting: m"),
    ]  # fmt: skip
    order = sorted([*reversed(worse), best], key=lambda w: w.order(now))
    assert order == [best, *worse]

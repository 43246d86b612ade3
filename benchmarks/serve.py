"""How many live streams a server holds, and what it adds to them: loopback, the client in a process of its own.

python -m benchmarks.serve [--only NAME ...] [--seconds 60] [--json OUT]
python -m benchmarks.serve --core           what a core carries: on a machine that is busy with other things
python -m benchmarks.serve --churn 600      streams coming and going: is memory flat?

Beside it what else one might do: `Pool` alone (no network), a process per stream, and an asyncio server that calls
sessions one by one.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import pulsify
from benchmarks.serve_client import Load, Seen, drive
from benchmarks.serve_models import MODELS, Bench
from pulsify.serve.admission import MESSAGE

Facts = dict[str, Any]
Say = Callable[[str], None]
spawn = multiprocessing.get_context("spawn")


# ---- the server, in its process


def serve_bench(name: str, plain: bool, backend: str, pipe: Any) -> None:
    """Serve until told to stop; figures when asked. plain: sessions one by one in the event loop."""
    import asyncio
    import threading

    if plain:
        from benchmarks.serve_plain import serve_plain

        threading.Thread(target=_answer, args=(pipe, lambda: {}), daemon=True).start()
        asyncio.run(serve_plain(MODELS[name], lambda port: pipe.send(port)))
        return
    import socket

    from pulsify.serve.hosted import Machine
    from pulsify.serve.listening import Options
    from pulsify.serve.running import server, tune
    from pulsify.serve.service import Service, Settings

    service = Service([MODELS[name].served()], Settings(Machine(most=2048, backend=backend, calibrate=False)))
    spent = _instrument(service)
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen(4096)
    meter = next(iter(service.models.values())).scheduler.meter

    def figures() -> Facts:
        return {"model": sum(spent), "rounds": meter.rounds, "pulses": meter.pulses, "busy": meter.busy,
                "streams": len(service.connections)}  # fmt: skip

    threading.Thread(target=_answer, args=(pipe, figures), daemon=True).start()
    pipe.send(listening.getsockname()[1])
    tune()
    server(service, Options()).run([listening])


def _instrument(service: Any) -> list[float]:
    """CPU seconds inside the models, added up as they run."""
    spent = [0.0]
    for hosted in service.models.values():
        for stage in hosted._stages:
            slots = stage.engine.pool._slots
            inner = slots.run

            def run(*args: Any, inner: Any = inner) -> Any:
                start = time.thread_time()
                out = inner(*args)
                spent[0] += time.thread_time() - start
                return out

            slots.run = run
    return spent


def _answer(pipe: Any, figures: Callable[[], Facts]) -> None:
    while True:
        asked = pipe.recv()
        if asked == "stop":
            os._exit(0)
        pipe.send({"cpu": time.process_time(), "rss": resident(), **figures()})


def resident(process: int | str = "self") -> int:
    """Bytes of memory a process has."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Running:
    """A server in a process of its own."""

    def __init__(self, name: str, plain: bool = False, backend: str = "ort") -> None:
        self._pipe, other = spawn.Pipe()
        self._process = spawn.Process(target=serve_bench, args=(name, plain, backend, other), daemon=True)
        self._process.start()
        self.port = int(self._pipe.recv())

    def figures(self) -> Facts:
        self._pipe.send("figures")
        out: Facts = self._pipe.recv()
        return out

    def stop(self) -> None:
        self._pipe.send("stop")
        self._process.join(10)


def _driving(load: Load, pipe: Any) -> None:
    pipe.send(drive(load))


def driven(load: Load) -> Seen:
    """The client, in a process of its own."""
    mine, other = spawn.Pipe()
    process = spawn.Process(target=_driving, args=(load, other), daemon=True)
    process.start()
    seen: Seen = mine.recv()
    process.join(10)
    return seen


# ---- figures


@dataclass(frozen=True)
class Held:
    """So many streams, for so long: latency over the model's own delay in pulses, and what it took."""

    streams: int
    seconds: float
    p50_ms: float
    p99_ms: float
    p99_pulses: float
    late: float
    cpu: float
    python: float
    batch: float
    stream_bytes: float
    errors: int
    client: float  # cores that the client took, of the same machine

    @property
    def fine(self) -> bool:
        """Everyone is served in time."""
        return self.p99_pulses < 2 and self.late < 0.01 and not self.errors


def hold(running: Running, bench: Bench, streams: int, seconds: float) -> Held:
    empty = running.figures()
    load = Load(running.port, bench, streams, seconds)
    before = dict(empty)
    seen = driven(load)
    after = running.figures()
    cpu = after["cpu"] - before["cpu"]
    model = after.get("model", 0.0) - before.get("model", 0.0)
    rounds = max(after.get("rounds", 0) - before.get("rounds", 0), 1)
    latencies = np.sort(np.array(seen.latencies)) if seen.latencies else np.array([np.inf])
    p50, p99 = (float(latencies[min(int(len(latencies) * q), len(latencies) - 1)]) for q in (0.5, 0.99))
    missing = 1 - seen.answered / max(seen.expected, 1)
    return Held(
        streams, seconds, p50 * 1e3, p99 * 1e3, p99 / bench.pulse_seconds, missing, cpu / max(seen.lasted, 1e-9),
        1 - model / cpu if cpu and "model" in after else float("nan"),
        (after.get("pulses", 0) - before.get("pulses", 0)) / rounds,
        (seen.server_bytes - empty["rss"]) / streams if seen.server_bytes else float("nan"), seen.errors,
        seen.cpu / max(seen.lasted, 1e-9),
    )  # fmt: skip


def most_held(running: Running, bench: Bench, start: int, say: Say, seconds: float) -> int:
    """The most streams that are served in time, in short runs: doubled, then halved in between."""
    good, bad, count = 0, None, max(start, 1)
    for _ in range(8):
        held = hold(running, bench, count, seconds)
        say(f"    {shown(held)}")
        if held.fine:
            good = count
        else:
            bad = count
        if bad is None:
            count = int(count * 1.4) + 1
        elif good == 0:
            count = max(count // 2, 1)
        else:
            count = (good + bad) // 2
            if bad - good <= max(good // 16, 1):
                break
    return good


def pool_alone(bench: Bench, backend: str = "ort") -> float:
    """Streams for which one core is quick enough: where all pulses take as long as they last, on it alone."""
    from pulsify.serve.admission import fitted
    from pulsify.serve.engine import Pooled
    from pulsify.serve.stage import Stage

    served = bench.served()
    lasts = served.pulses_seconds
    assert lasts is not None
    stages = [Stage(Pooled(pulsify.Pool(s, 2048, backend=backend))) for s in served.streams]
    counts, seconds = [1, 8, 32, 64, 128, 256, 512, 1024, 2048], []
    for count in counts:
        took = 0.0
        for stage, each in zip(stages, lasts, strict=True):
            took += max(lasts) / each * exchanged(stage.engine.pool, stage, count)  # type: ignore[attr-defined]
        seconds.append(took)
        if took > max(lasts):
            break
    if seconds[-1] < max(lasts):
        return float(counts[len(seconds) - 1])
    a, b = len(seconds) - 2, len(seconds) - 1
    line = fitted(2048, max(lasts), [counts[a], counts[b]], [seconds[a], seconds[b]])
    return (max(lasts) - line.base) / line.each


def _spin() -> None:
    while True:
        pass


@contextmanager
def beside_others() -> Iterator[None]:
    """While the other cores are at work, as a client keeps them: on many machines that slows this one down."""
    busy = [spawn.Process(target=_spin, daemon=True) for _ in range((os.cpu_count() or 1) - 1)]
    for process in busy:
        process.start()
    time.sleep(0.5)
    try:
        yield
    finally:
        for process in busy:
            process.kill()


def exchanged(pool: Any, stage: Any, count: int) -> float:
    """Seconds of a core for an exchange: the quickest way there is."""
    from pulsify.serve.engine import shape_of

    lanes = [pool.open() for _ in range(count)]
    slots, rng = np.array([lane.slot for lane in lanes]), np.random.default_rng(0)
    frames = {}
    for i in stage.spec.inputs:
        one = rng.standard_normal(shape_of(i, i.frames)).astype(i.dtype) * np.float32(0.1)
        frames[i.name] = np.concatenate([one] * count, 0)
    for _ in range(3):
        pool.exchange(slots, frames)
    times = []
    for _ in range(7):
        start = time.thread_time()
        pool.exchange(slots, frames)
        times.append(time.thread_time() - start)
    for lane in lanes:
        lane.close()
    return sorted(times)[len(times) // 2]


def _process_stream(name: str, seconds: float, pipe: Any) -> None:
    """One stream, one process."""
    from pulsify.serve.engine import shape_of

    served = MODELS[name].served()
    assert served.pulses_seconds is not None
    took = 0.0  # of a pulse of the first stage, and of the others their share
    for stream, lasts in zip(served.streams, served.pulses_seconds, strict=True):
        session, port = stream.session(), stream.inputs[0]
        x = np.zeros(shape_of(port, port.frames), port.dtype)
        for _ in range(10):
            session.push(x)
        start, count = time.process_time(), 0
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            session.push(x)
            count += 1
        took += (time.process_time() - start) / count * served.pulses_seconds[0] / lasts
    pipe.send((took, resident()))


def process_per_stream(name: str, bench: Bench) -> Facts:
    """What one takes, and so how many there could be on this machine's cores."""
    mine, other = spawn.Pipe()
    process = spawn.Process(target=_process_stream, args=(name, 1.0, other), daemon=True)
    process.start()
    each, memory = mine.recv()
    process.join(10)
    cores = os.cpu_count() or 1
    return {"cpu_ms": each * 1e3, "bytes": memory, "streams": cores * bench.served_pulse_seconds / each}


# ---- the whole of it


def shown(held: Held) -> str:
    return (
        f"{held.streams:5d} streams: p50 {held.p50_ms:6.1f} ms, p99 {held.p99_ms:7.1f} ms ({held.p99_pulses:5.2f} "
        f"pulses), missing {held.late:6.2%}, {held.cpu:4.2f} cores (client {held.client:4.2f}), "
        f"Python {held.python:4.0%}, {held.batch:5.1f} a batch, {held.stream_bytes / 1024:6.0f} KiB a stream, "
        f"{held.errors} errors"
    )


def a_core_carries(name: str, backend: str, say: Say, counts: Sequence[int] = (16, 64)) -> Facts:
    """Seconds of a core for a second of a stream, as fast as it goes: streams that one core carries."""
    bench, rows = MODELS[name], []
    say(f"{name}: {bench.what}; load of the machine: {others():.1f} on {os.cpu_count()} cores")
    alone = pool_alone(bench, backend)
    say(f"  Pool alone, {backend}: a core carries {alone:.0f} streams")
    running = Running(name, backend=backend)
    try:
        for count in counts:
            lasts = max(2.0, min(120 / count, 20.0))
            driven(Load(running.port, bench, count, 1.0, flat=True))
            before = running.figures()
            seen = driven(Load(running.port, bench, count, lasts, flat=True))
            after = running.figures()
            spent = {k: after[k] - before[k] for k in ("cpu", "model", "rounds", "pulses")}
            each = count * lasts / spent["cpu"]
            rows.append({"streams": count, "a_core": each, "python": 1 - spent["model"] / spent["cpu"],
                         "batch": spent["pulses"] / max(spent["rounds"], 1), "errors": seen.errors})  # fmt: skip
            say(
                f"  {count:4d} at once: a core carries {each:6.0f} streams ({each / alone:4.0%} of the pool alone), "
                f"Python {rows[-1]['python']:4.0%}, {rows[-1]['batch']:5.1f} a batch, {seen.errors} errors"
            )
    finally:
        running.stop()
    return {"name": name, "pool": alone, "rows": rows, "process_per_stream": process_per_stream(name, bench)}


def others() -> float:
    """Cores' worth of work that wants to run now: where that is much, nothing said of time here means anything."""
    return os.getloadavg()[0]


def one_model(name: str, backend: str, seconds: float, short: float, say: Say, plain: bool = True) -> Facts:
    bench = MODELS[name]
    say(f"{name}: {bench.what}, a message every {bench.pulse_seconds * 1e3:g} ms")
    alone = pool_alone(bench, backend)
    say(f"  load of the machine: {others():.1f} on {os.cpu_count()} cores")
    with beside_others():
        slower = pool_alone(bench, backend)
    say(
        f"  Pool alone, one core, no network: {alone:.0f} streams on {backend}, "
        f"{slower:.0f} while the other core is at work"
    )
    facts: Facts = {"name": name, "what": bench.what, "pulse_seconds": bench.pulse_seconds, "pool": alone}
    facts |= {"backend": backend, "pool_beside_others": slower}
    running = Running(name, backend=backend)
    try:
        say("  pulsify serve:")
        guess = 1 / (1 / slower + MESSAGE / bench.pulse_seconds)
        most = most_held(running, bench, int(guess * 0.8) or 1, say, short)
        facts["most"] = most
        for label, share in (("held", 1.0), ("at_80", 0.8)):
            held = hold(running, bench, max(int(most * share), 1), seconds)
            facts[label] = asdict(held)
            say(f"    {label}: {shown(held)}")
    finally:
        running.stop()
    core = facts["at_80"]["streams"] / facts["at_80"]["cpu"]
    said = f"{most / alone:.0%} of the pool alone, {most / slower:.0%} beside others"
    say(f"  most {most} streams: {said}; {core:.0f} streams a core: {core / alone:.0%}, {core / slower:.0%}")
    facts["process_per_stream"] = process_per_stream(name, bench)
    one = facts["process_per_stream"]
    say(
        f"  a process per stream: {one['streams']:.0f} streams on all cores, {one['bytes'] / 2**20:.0f} MiB each, "
        "without a network"
    )
    if plain:
        other = Running(name, plain=True)
        try:
            say("  asyncio, sessions one by one:")
            facts["plain"] = most_held(other, bench, max(most // 3, 1), say, short)
        finally:
            other.stop()
    return facts


def churn(name: str, backend: str, seconds: float, say: Say) -> Facts:
    """Streams that come and go for a while: memory every so often."""
    bench, running = MODELS[name], Running(name, backend=backend)
    sizes: list[float] = []
    try:
        end = time.monotonic() + seconds
        count = 0
        while time.monotonic() < end:
            seen = driven(Load(running.port, bench, 40, 10.0, churn=True))
            count += seen.streams
            sizes.append(running.figures()["rss"] / 2**20)
            say(f"  {count} streams so far, {sizes[-1]:.1f} MiB, {seen.errors} errors")
    finally:
        running.stop()
    return {"name": name, "streams": count, "mib": sizes, "grown": sizes[-1] - sizes[min(2, len(sizes) - 1)]}


def main(argv: Sequence[str] | None = None) -> Facts:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(MODELS))
    parser.add_argument("--backend", default="native", choices=["native", "ort"], help="that computes (as C: native)")
    parser.add_argument("--seconds", type=float, default=60.0, help="that streams are held for")
    parser.add_argument("--short", type=float, default=6.0, help="of a run while the most is looked for")
    parser.add_argument("--churn", type=float, help="seconds of streams that come and go")
    parser.add_argument("--core", action="store_true", help="what a core carries, where the machine is not idle")
    parser.add_argument("--no-plain", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    say: Say = lambda text: print(text, flush=True)  # noqa: E731
    names = args.only or list(MODELS)
    facts: Facts
    if args.core:
        facts = {"core": [a_core_carries(name, args.backend, say) for name in names]}
    elif args.churn:
        facts = {"churn": [churn(name, args.backend, args.churn / len(names), say) for name in names]}
    else:
        held = args.backend, args.seconds, args.short, say, not args.no_plain
        facts = {"models": [one_model(n, *held) for n in names]}
    if args.json:
        args.json.write_text(json.dumps(facts, indent=2))
    return facts


if __name__ == "__main__":
    main()

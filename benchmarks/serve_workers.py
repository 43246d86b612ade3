"""How many live streams `pulsify serve --workers N` holds: loopback, clients on the same cores, admission as it is.

python -m benchmarks.serve_workers [--only NAME ...] [--workers 1 2] [--cores 2] [--clients 1] [--json OUT]

The server is the command itself. Streams are sent as a microphone would send them; so many are held if nobody was
turned away and 99 % of the answers came within two pulses. What is looked for is the most.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.serve import driven
from benchmarks.serve_client import Load
from benchmarks.serve_models import MODELS, Bench
from pulsify.serve.sources import BUILT_IN

Facts = dict[str, Any]


@dataclass(frozen=True)
class Held:
    """So many streams at once, and how it went. server, client: cores that were taken."""

    streams: int
    p50_ms: float
    p99_ms: float
    p99_pulses: float
    missing: float
    errors: int
    server: float
    client: float
    mib: float

    @property
    def fine(self) -> bool:
        return self.p99_pulses < 2 and self.missing < 0.01 and not self.errors

    def __str__(self) -> str:
        return (
            f"{self.streams:5d} streams: p50 {self.p50_ms:6.1f} ms, p99 {self.p99_ms:7.1f} ms "
            f"({self.p99_pulses:5.2f} pulses), missing {self.missing:6.2%}, server {self.server:5.2f} cores, "
            f"client {self.client:5.2f}, {self.mib:5.0f} MiB, {self.errors} errors"
        )


class Server:
    """`pulsify serve`, open."""

    def __init__(self, source: str, workers: int, backend: str) -> None:
        command = [sys.executable, "-m", "pulsify", "serve", source, "--workers", str(workers), "--port", "0"]
        command += ["--most", "16384", "--backend", backend, "--no-verify", "--log-level", "warning"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline().rsplit(":", 1)[1])
        while self._get("/ready") is None or (workers > 1 and self.figures().get("pulsify_workers_open") != workers):
            assert self._process.poll() is None
            time.sleep(0.2)

    def _get(self, path: str) -> str | None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as reply:
                return str(reply.read().decode())
        except OSError:
            return None

    def figures(self) -> dict[str, float]:
        lines = [line.rsplit(" ", 1) for line in (self._get("/metrics") or "").splitlines() if line[:1] != "#"]
        return {name.partition("{")[0]: float(value) for name, value in lines}

    def stop(self) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(30)


@contextmanager
def source(name: str) -> Iterator[str]:
    """What the command serves: a stream file at its rate, or a recogniser's."""
    served = MODELS[name].served()
    if served.recogniser is not None:
        yield f"{name}={BUILT_IN}"
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stream.onnx"
        served.streams[0].save(path, share=False)
        yield f"{name}={path}@{served.sample_rate}"


def hold(server: Server, bench: Bench, streams: int, seconds: float, clients: int) -> Held:
    """clients: processes that the streams are shared out to."""
    parts = [streams // clients + (i < streams % clients) for i in range(clients)]
    before = server.figures()
    with ThreadPoolExecutor(clients) as pool:
        loads = [Load(server.port, bench, part, seconds) for part in parts if part]
        running = [pool.submit(driven, load) for load in loads]
        time.sleep(0.5 + max(parts) * 0.004 + seconds / 2)
        memory = server.figures()["process_resident_memory_bytes"]
        seen = [each.result() for each in running]
    spent = server.figures()["process_cpu_seconds_total"] - before["process_cpu_seconds_total"]
    times = np.sort(np.concatenate([each.latencies for each in seen])) if any(s.latencies for s in seen) else [np.inf]
    p50, p99 = (float(times[min(int(len(times) * q), len(times) - 1)]) for q in (0.5, 0.99))
    lasted = max(max(each.lasted for each in seen), 1e-9)
    return Held(
        streams, p50 * 1e3, p99 * 1e3, p99 / bench.pulse_seconds,
        1 - sum(each.answered for each in seen) / max(sum(each.expected for each in seen), 1),
        sum(each.errors for each in seen), spent / lasted, sum(each.cpu for each in seen) / lasted, memory / 2**20,
    )  # fmt: skip


def most_held(server: Server, bench: Bench, start: int, seconds: float, clients: int) -> tuple[Held | None, float]:
    """The most, in short runs; and for how many the server says there is time."""
    capacity = server.figures()["pulsify_capacity_streams"]
    good, bad, count = None, None, start
    for _ in range(9):
        held = hold(server, bench, count, seconds, clients)
        print(f"    {held}", flush=True)
        if held.fine:
            good = held
        else:
            bad = count
        low = good.streams if good is not None else 0
        if bad is None:
            count = int(count * 1.5) + 1
        elif good is None:
            count = max(count // 2, 1)
        else:
            count = (low + bad) // 2
        if bad is not None and bad - low <= max(bad // 16, 1):
            break
    return good, capacity


def main(argv: Sequence[str] | None = None) -> list[Facts]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--workers", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--cores", type=int, help="that all of it may use, the clients too")
    parser.add_argument("--clients", type=int, default=1, help="processes that send")
    parser.add_argument("--backend", default="native", choices=["native", "ort"])
    parser.add_argument("--seconds", type=float, default=6.0, help="of a run")
    parser.add_argument("--start", type=int, default=64, help="streams that are tried first")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    if args.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    facts = []
    for name in args.only:
        with source(name) as given:
            for workers in args.workers:
                print(f"{name}, {workers} workers, {args.clients} clients, {args.backend}", flush=True)
                server = Server(given, workers, args.backend)
                try:
                    held, capacity = most_held(server, MODELS[name], args.start, args.seconds, args.clients)
                finally:
                    server.stop()
                print(f"  capacity {capacity:.0f}, most held {0 if held is None else held.streams}", flush=True)
                facts.append({"name": name, "workers": workers, "capacity": capacity,
                              "held": None if held is None else asdict(held)})  # fmt: skip
    if args.json:
        args.json.write_text(json.dumps(facts, indent=2))
    return facts


if __name__ == "__main__":
    main()

"""A server in a process of its own, and live streams on it that notice when somebody holds them up."""

from __future__ import annotations

import asyncio
import json
import logging
import multiprocessing
import os
import resource
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from websockets.asyncio.client import connect

from tests.models import model, node, weights

PULSE, RATE = 512, 16000
LASTS = PULSE / RATE  # seconds
LONG = 0.02  # seconds
MOST = 1000  # pulses of a stream
NAME = "detector"
spawn = multiprocessing.get_context("spawn")
Facts = dict[str, Any]


def detector() -> onnx.ModelProto:
    """Sound in, as much out, every pulse at once: what comes late was held up."""
    nodes = [
        node("Conv", "x w1", "h", pads=[15, 0]),
        node("Relu", "h", "r"),
        node("Conv", "r w2", "y", pads=[15, 0]),
    ]
    return model(nodes, {"x": ["B", 1, "T"]}, ["y"], {"w1": weights(16, 1, 16), "w2": weights(1, 16, 16)})


# ---- the server


class Turns(selectors.DefaultSelector):  # type: ignore[misc,valid-type]
    """It takes the time between two looks at the sockets: a turn of the event loop, in seconds of its thread's CPU."""

    began = 0.0
    longest = 0.0
    longer = 0  # than LONG

    def select(self, timeout: float | None = None) -> Any:
        took = time.thread_time() - self.began if self.began else 0.0
        self.longest, self.longer = max(self.longest, took), self.longer + (took > LONG)
        events = super().select(timeout)
        self.began = time.thread_time()
        return events


class Errors(logging.Handler):
    """What was logged that should not have been."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(self.format(record)[-2000:])


def _serve(settings: Facts, turns: bool, pipe: Any) -> None:
    """Serve until told to stop; figures when asked. turns: on asyncio's loop, whose turns are timed; else as always."""
    import pulsify
    from pulsify.serve.hosted import Machine
    from pulsify.serve.running import Options, server, tune
    from pulsify.serve.service import Service, Settings
    from pulsify.serve.sources import of_stream

    stream = pulsify.stream(detector(), PULSE, verify=False)
    service = Service([of_stream(NAME, stream, RATE)], Settings(Machine(most=200, calibrate=False), **settings))
    listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
    timed, errors = Turns(), Errors()
    logging.getLogger().addHandler(errors)

    loop_clock = time.pthread_getcpuclockid(threading.get_ident())

    def answer() -> None:
        while pipe.recv() != "stop":
            usage = resource.getrusage(resource.RUSAGE_SELF)
            pipe.send({
                "cpu": usage.ru_utime + usage.ru_stime, "loop": time.clock_gettime(loop_clock), "rss": _resident(),
                "streams": len(service.connections), "turn": timed.longest, "turns": timed.longer,
                "errors": errors.said,
            })  # fmt: skip
            timed.longest, timed.longer = 0.0, 0
        os._exit(0)

    threading.Thread(target=answer, daemon=True).start()
    pipe.send(listening.getsockname()[1])
    tune()
    runner = server(service, Options())
    if turns:
        asyncio.SelectorEventLoop(timed).run_until_complete(runner._serve([listening]))
    else:
        runner.run([listening])


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Apart:
    """A server in another process."""

    pipe: Any
    where: str

    def figures(self) -> Facts:
        """cpu: seconds; loop: of them, in the event loop's thread; rss: bytes; streams: that are open.

        turn: the longest of the event loop since the last time; turns: how many were longer than `LONG`; errors: lines
        of the log.
        """
        self.pipe.send("figures")
        out: Facts = self.pipe.recv()
        return out


@contextmanager
def serving_apart(turns: bool = False, **settings: Any) -> Iterator[Apart]:
    """turns: those of the event loop are timed. settings: of `Settings`."""
    mine, other = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(settings, turns, other), daemon=True)
    process.start()
    try:
        yield Apart(mine, f"127.0.0.1:{mine.recv()}")
    finally:
        mine.send("stop")
        process.join(10)
        process.kill()


# ---- the bystanders


@dataclass
class Bystander:
    """One live stream: what it sent and got, and how long each pulse took."""

    seed: int
    sent: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)  # by how much it sent too late itself, on a busy machine
    got: bytearray = field(default_factory=bytearray)
    last: Facts = field(default_factory=dict)
    counted: int = 0  # the first of those latencies that count

    @cached_property
    def sound(self) -> Any:
        return np.random.default_rng(self.seed).standard_normal((1, 1, MOST * PULSE)).astype(np.float32)

    async def live(self, where: str, stop: asyncio.Event) -> None:
        """A pulse whenever it would have been heard, until told to stop; then to the end."""
        x = self.sound
        async with connect(f"ws://{where}/v1/stream/{NAME}", compression=None, max_size=None, ping_interval=None) as ws:
            await ws.send('{"type": "open"}')
            assert json.loads(await ws.recv())["type"] == "ready"
            reading = asyncio.create_task(self._read(ws))
            start = time.perf_counter() + self.seed % 16 * LASTS / 16
            while not stop.is_set() and not reading.done() and len(self.sent) < MOST:
                number = len(self.sent)
                left = start + number * LASTS - time.perf_counter()
                if left > 0:
                    await asyncio.sleep(left)
                self.sent.append(time.perf_counter())
                self.late.append(self.sent[-1] - start - number * LASTS)
                await ws.send(x[:, :, number * PULSE : (number + 1) * PULSE].tobytes())
            await ws.send('{"type": "flush"}')
            await reading

    async def _read(self, ws: Any) -> None:
        async for message in ws:
            if isinstance(message, bytes):
                self.got += message
                now = time.perf_counter()
                while len(self.latencies) < len(self.got) // (4 * PULSE):
                    self.latencies.append(now - self.sent[len(self.latencies)])
            else:
                self.last = json.loads(message)

    def check(self, batch: ort.InferenceSession) -> None:
        """What it got is what the batch model makes of what it sent, every frame."""
        assert self.last.get("type") == "done", self.last
        got = np.frombuffer(bytes(self.got), "<f4").reshape(1, 1, -1)
        np.testing.assert_allclose(got, batch.run(None, {"x": self.sound[:, :, : got.shape[2]]})[0], atol=1e-4)
        assert got.shape[2] == len(self.sent) * PULSE


def percentile(bystanders: list[Bystander], share: float, late: bool = False) -> float:
    """Of latencies, or of how late they sent; seconds."""
    every = sorted(each for b in bystanders for each in (b.late if late else b.latencies)[b.counted :])
    return every[min(int(share * len(every)), len(every) - 1)]

"""Several processes at one port: exact through cuts and kills, counted as one, restarted, and ended in good order."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from prometheus_client.parser import text_string_to_metric_families
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.models import frames, look_ahead
from tests.serve.live import exchange, opened
from tests.serve.returning import Returning

PROTO = look_ahead("B")
BATCH = ort.InferenceSession(PROTO.SerializeToString())
X = frames(1, 2, 40)
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="workers need Unix sockets")


class Running:
    """`pulsify serve --workers N`, and where it is."""

    def __init__(self, path: Path, *arguments: str) -> None:
        onnx.save(PROTO, path)
        self.head: dict[str, str] = {}  # of requests that need a token
        command = [sys.executable, "-m", "pulsify", "serve", f"m={path}@100", "-p", "4", "--no-verify", "--port", "0"]
        self.log = path.with_suffix(".log")
        self.temporary = path.parent / "temporary"
        self.temporary.mkdir()
        own = {**os.environ, "TMPDIR": str(self.temporary)}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, *arguments], stdout=subprocess.PIPE, stderr=log, text=True, env=own
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("serving m at http://"), self.log.read_text()
        self.where = line.split("://")[1].strip()

    def pids(self) -> list[int]:
        """Of its workers."""
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in listed.split()]

    def figures(self) -> dict[tuple[str, tuple[str, ...]], float]:
        text = httpx.get(f"http://{self.where}/metrics", headers=self.head, timeout=20).text
        return {
            (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def until(self, workers: int, seconds: float = 60) -> None:
        """So many are alive and open."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if httpx.get(f"http://{self.where}/ready", timeout=20).status_code == 200:
                figures = self.figures()
                if figures["pulsify_workers", ()] == workers == figures["pulsify_workers_open", ()]:
                    return
            time.sleep(0.1)
        raise AssertionError(self.log.read_text())


@contextmanager
def running(path: Path, *arguments: str, workers: int = 2) -> Iterator[Running]:
    made = Running(path, *arguments)
    try:
        made.until(workers)
        yield made
    finally:
        pids, end = made.pids(), time.monotonic() + 20
        (folder,) = made.temporary.glob("pulsify-*")
        made.process.kill()
        made.process.wait(10)
    while any(Path(f"/proc/{pid}").exists() for pid in pids) or folder.exists():  # they do not outlive their parent
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Two workers with room for five streams."""
    folder = tmp_path_factory.mktemp("workers")
    with running(folder / "m.onnx", "--workers", "2", "--most", "5", "--snapshot", "0.1") as made:
        yield made


def exact(client: Returning) -> None:
    np.testing.assert_allclose(client.y, BATCH.run(None, {"x": client.x})[0], atol=1e-5, rtol=1e-5)


async def held(where: str, count: int) -> list[ClientConnection]:
    out = []
    for _ in range(count):
        ws = await connect(f"ws://{where}/v1/stream/m")
        await opened(ws)
        out.append(ws)
    return out


def test_most_is_said_for_all_workers(two: Running) -> None:
    """Three streams on one, two on the other: nobody is turned away while there is room anywhere."""

    async def fill() -> None:
        for _ in range(3):
            streams = await held(two.where, 5)
            with pytest.raises(InvalidStatus) as refused:
                await held(two.where, 1)
            assert refused.value.response.status_code == 503
            await asyncio.gather(*(ws.close() for ws in streams))
            await asyncio.sleep(0.6)  # until the workers have said so

    asyncio.run(fill())


def test_figures_are_those_of_all_workers(two: Running) -> None:
    async def four() -> list[str]:
        streams = await held(two.where, 4)
        during = two.figures()
        assert during["pulsify_streams", ("m",)] == 4 and during["pulsify_capacity_streams", ("m",)] == 5
        for ws in streams:
            await ws.send(X.tobytes())
            await ws.send('{"type": "flush"}')
        ends = []
        for ws in streams:
            async for message in ws:
                if isinstance(message, str):
                    ends.append(json.loads(message)["type"])
        return ends

    before = two.figures()
    assert asyncio.run(four()) == ["done"] * 4
    after = two.figures()

    def grown(name: str, *labels: str) -> float:
        return after.get((name, labels), 0.0) - before.get((name, labels), 0.0)

    assert grown("pulsify_streams_ended_total", "m", "done") == 4
    assert grown("pulsify_messages_total", "received", "m") == 12
    assert grown("pulsify_lag_seconds_count", "m") == sum(
        after[name, labels] - before.get((name, labels), 0.0)
        for name, labels in after
        if name == "pulsify_lag_seconds_bucket" and "+Inf" in labels
    )
    assert after["process_resident_memory_bytes", ()] > 100 << 20


def test_a_stream_is_taken_over_from_a_worker_that_still_has_it(two: Running) -> None:
    async def both() -> tuple[str, int]:
        first = await connect(f"ws://{two.where}/v1/stream/m")
        token = (await opened(first, resume=True))["token"]
        others = await held(two.where, 1)  # the next one is on the first worker again, or beside it
        await first.send(np.ascontiguousarray(X[:, :, :8]).tobytes())
        have = 0
        async for message in first:
            if isinstance(message, bytes):
                have += len(message) // 12
            elif json.loads(message)["type"] == "ack":
                break
        second = await connect(f"ws://{two.where}/v1/stream/m")
        ready = await opened(second, resume=token, have={"y": have})
        end = ""
        with suppress(ConnectionClosed):
            async for message in first:
                end = json.loads(message)["code"] if isinstance(message, str) else end
        await asyncio.gather(*(ws.close() for ws in [second, *others]))
        return end, ready["received"]["x"]

    assert asyncio.run(both()) == ("going_away", 8)


def test_a_worker_that_is_killed_loses_nothing(two: Running) -> None:
    """Cut again and again, and with kill -9 of each worker by turns: every stream is the batch model's."""
    clients = [Returning(frames(1, 2, 300 + 7 * i, seed=i), 3, 4 + i % 5, 0.03) for i in range(4)]
    url = f"ws://{two.where}/v1/stream/m"
    before = two.figures()

    async def all_of_them() -> None:
        going = [asyncio.create_task(c.persist([url], [60 + 31 * i], 400)) for i, c in enumerate(clients)]
        for turn in (1, 3):
            while sum(c.marks for c in clients) < 4 * turn:
                await asyncio.sleep(0.02)
            os.kill(two.pids()[-1], signal.SIGKILL)
            await asyncio.sleep(0.3)
        await asyncio.gather(*going)

    asyncio.run(all_of_them())
    for client in clients:
        exact(client)
    assert sum(c.connections for c in clients) >= 6
    two.until(2)
    after = two.figures()
    assert after["pulsify_worker_restarts_total", ()] - before["pulsify_worker_restarts_total", ()] == 2
    fallen = [key for key, value in before.items() if key[0].endswith(("_total", "_count")) and after[key] < value]
    assert fallen == []


def test_all_workers_let_streams_end(tmp_path: Path) -> None:
    """A folder keeps the snapshots here; SIGHUP first, which no worker dies of."""
    tokens = tmp_path / "tokens"
    tokens.write_text("first\n")
    kept = ("--store", str(tmp_path / "kept"), "--key", "k", "--drain", "20", "--log-format", "json")
    x = frames(1, 2, 60)

    async def through(made: Running) -> list[np.ndarray]:  # type: ignore[type-arg]
        head = {"Authorization": "Bearer second"}
        streams = [await connect(f"ws://{made.where}/v1/stream/m", additional_headers=head) for _ in range(4)]
        for ws in streams:
            await opened(ws)
            await ws.send(np.ascontiguousarray(x[:, :, :30]).tobytes())
        for pid in (made.process.pid, *made.pids()):  # as systemd does
            os.kill(pid, signal.SIGTERM)
        out = []
        for ws in streams:
            got = []
            async for message in ws:
                if isinstance(message, bytes):
                    got.append(np.frombuffer(message, "<f4").reshape(1, 3, -1))
                elif json.loads(message).get("code") == "draining":
                    await ws.send(np.ascontiguousarray(x[:, :, 30:]).tobytes())
                    await ws.send('{"type": "flush"}')
            out.append(np.concatenate(got, 2))
        return out

    made = Running(tmp_path / "m.onnx", "--workers", "2", "--token-file", str(tokens), *kept)
    try:
        while made.log.read_text().count("ready after") < 2:
            assert made.process.poll() is None, made.log.read_text()
            time.sleep(0.1)
        tokens.write_text("second\n")
        made.process.send_signal(signal.SIGHUP)
        while made.log.read_text().count("reloaded: tokens") < 2:
            time.sleep(0.05)
        outputs = asyncio.run(through(made))
        assert made.process.wait(20) == 0
    finally:
        made.process.kill()
    for y in outputs:
        np.testing.assert_allclose(y, BATCH.run(None, {"x": x})[0], atol=1e-5)


def test_a_model_that_cannot_be_opened_ends_the_server_once(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"nothing")
    command = [sys.executable, "-m", "pulsify", "serve", str(tmp_path / "m.onnx"), "--port", "0", "--workers", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 5 and done.stderr.count("error:") == 1 and "m.onnx" in done.stderr


def test_a_stream_through_either_worker_is_exact(two: Running) -> None:
    async def several() -> None:
        outs = await asyncio.gather(*(exchange(two.where, "m", [X.tobytes()]) for _ in range(4)))
        for got, said in outs:
            assert said[-1]["type"] == "done"
            y = np.concatenate([np.frombuffer(f, "<f4").reshape(1, 3, -1) for f in got], 2)
            np.testing.assert_allclose(y, BATCH.run(None, {"x": X})[0], atol=1e-5)

    two.until(2)
    asyncio.run(several())


def test_files_that_are_broken_when_a_worker_is_started_again_cost_that_worker_only(tmp_path: Path) -> None:
    """And no worker starts without a token where the others ask for one."""
    config, head = tmp_path / "server.toml", {"Authorization": "Bearer s3cret"}
    config.write_text('token = "s3cret"\n')
    server = Running(tmp_path / "m.onnx", "--workers", "2", "--config", str(config))
    server.head = head
    try:
        server.until(2)
        config.write_text("")
        os.kill(server.pids()[0], signal.SIGKILL)
        end = time.monotonic() + 60
        while "cannot start" not in server.log.read_text():
            assert time.monotonic() < end and server.process.poll() is None
            time.sleep(0.05)
        for _ in range(5):
            assert httpx.get(f"http://{server.where}/v1/models", headers=head).status_code == 200
            assert httpx.get(f"http://{server.where}/v1/models").status_code == 401
    finally:
        server.process.kill()
        server.process.wait(10)
    assert "there is no token any more" in server.log.read_text()

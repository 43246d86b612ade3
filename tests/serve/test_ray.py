"""Replicas on Ray: a stream outlives the replica it began on. Slow: Ray itself takes most of a minute to start."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from pulsify.core.errors import InvalidArgument
from tests import models
from tests.models import frames, run_batch
from tests.serve.returning import Returning

ray = pytest.importorskip("ray", reason="ray is not installed")
from pulsify.serve import ray_app  # noqa: E402

STREAMS, LENGTH, CHUNK = 20, 10_000, 100


def test_as_many_replicas_as_bring_the_duty_to_its_target() -> None:
    assert ray_app.wanted([], 0.6, 2, 8) == 2
    assert ray_app.wanted([0.6, 0.6], 0.6, 1, 8) == 2
    assert ray_app.wanted([0.7, 0.6], 0.6, 1, 8) == 3
    assert ray_app.wanted([1.0] * 8, 0.5, 1, 8) == 8
    told = SimpleNamespace(
        aggregated_metrics={ray_app.DUTY: {"a": 0.9, "b": 0.9}},
        capacity_adjusted_min_replicas=1,
        capacity_adjusted_max_replicas=9,
    )
    assert ray_app.by_duty(told, 0.6) == (3, {})


def test_replicas_without_a_shared_store_are_refused() -> None:
    for store, key in (("memory", "k"), ("/somewhere", "")):
        with pytest.raises(InvalidArgument, match="replicas share a store and a key"):
            ray_app.application(store=store, key=key)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def replica_processes() -> list[int]:
    """Ray names its processes after what they do; its own list of them needs a dashboard."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().startswith(b"ray::ServeReplica:pulsify"):
                found.append(int(path.parent.name))
        except OSError:  # it has ended
            continue
    return found


@pytest.mark.slow
def test_streams_outlive_the_replica_that_is_killed(tmp_path: Path) -> None:
    from ray import serve

    onnx.save(models.look_ahead("B"), tmp_path / "m.onnx")
    port = free_port()
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        ignore_reinit_error=True,
        runtime_env={"env_vars": {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}},
    )
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        many = ray_app.Replicas(least=2, most=2, cpus=0.5, drain_seconds=1.0)
        machine = ray_app.Machine(calibrate=False)
        app = ray_app.application(
            [f"m={tmp_path / 'm.onnx'}"], store=str(tmp_path / "store"), key="secret", replicas=many, machine=machine
        )
        serve.run(app, name="pulsify", route_prefix="/")
        asyncio.run(_live(f"ws://127.0.0.1:{port}/v1/stream/m"))
    finally:
        serve.shutdown()
        ray.shutdown()


async def _live(url: str) -> None:
    xs = [frames(1, 2, LENGTH, seed=n) for n in range(STREAMS)]
    clients = [Returning(x, 3, CHUNK, pause=0.2) for x in xs]
    tasks = [asyncio.create_task(c.persist([url], [], tries=400)) for c in clients]
    for _ in range(600):
        if all(c.have for c in clients):
            break
        await asyncio.sleep(0.1)
    assert all(c.have for c in clients), "some have not begun"
    killed = (await asyncio.to_thread(replica_processes))[0]
    os.kill(killed, signal.SIGKILL)
    await asyncio.gather(*tasks)
    moved = sum(c.connections > 1 for c in clients)
    assert moved, "nobody was on the replica that was killed"
    for client, x in zip(clients, xs, strict=True):
        want = run_batch(models.look_ahead("B"), x)["y"]
        assert client.y.shape == want.shape
        assert np.abs(client.y - want).max() <= 1e-5 * np.abs(want).max()
    print(f"{moved} of {STREAMS} streams moved")

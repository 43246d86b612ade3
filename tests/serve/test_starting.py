"""The server listens before its models are open, and says what it waits for."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import onnxruntime as ort
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

import pulsify
from pulsify.core.errors import InvalidModel
from pulsify.serve.sources import ModelSource, Served, of_stream
from tests.models import frames, look_ahead
from tests.serve.live import exchange, serving

PROTO = look_ahead("B")
STREAM = pulsify.stream(PROTO, 4, verify=False)


class Slow:
    """A model that opens when it is let."""

    def __init__(self) -> None:
        self.may = threading.Event()

    def open(self) -> Served:
        assert self.may.wait(30)
        return of_stream("slow", STREAM, 100)


async def refusal(where: str, path: str) -> tuple[int, str]:
    with pytest.raises(InvalidStatus) as caught:
        async with connect(f"ws://{where}{path}"):
            pass
    response = caught.value.response
    return response.status_code, json.loads(response.body or b"")["error"]["code"]


def until_ready(where: str) -> None:
    while httpx.get(f"http://{where}/ready").status_code != 200:
        time.sleep(0.02)


def test_it_answers_while_a_model_is_opened(caplog: pytest.LogCaptureFixture) -> None:
    slow, x = Slow(), frames(1, 2, 40)
    want = ort.InferenceSession(PROTO.SerializeToString()).run(None, {"x": x})[0]
    caplog.set_level(logging.INFO, "pulsify")
    with serving([of_stream("quick", STREAM, None), ModelSource("slow", slow.open)]) as (_, where):
        try:
            assert httpx.get(f"http://{where}/health").status_code == 200
            ready = httpx.get(f"http://{where}/ready")
            assert ready.status_code == 503 and ready.text == "not ready: starting: slow not open yet\n"
            listed = httpx.get(f"http://{where}/v1/models").json()
            assert [m["model"] for m in listed["models"]] == ["quick"] and listed["starting"] == ["slow"]
            assert asyncio.run(refusal(where, "/v1/stream/slow")) == (503, "starting")
            assert asyncio.run(refusal(where, "/v1/realtime")) == (503, "starting")
            run = httpx.post(f"http://{where}/v1/run/slow", content=b"")
            assert (run.status_code, run.json()["error"]["code"]) == (503, "starting")
            assert run.headers["retry-after"]
            early, _ = asyncio.run(exchange(where, "quick", [x.tobytes()]))
        finally:
            slow.may.set()
        until_ready(where)
        late, said = asyncio.run(exchange(where, "slow", [x.tobytes()]))
    assert said[-1]["type"] == "done"
    for got in (early, late):
        y = np.concatenate([np.frombuffer(f, "<f4").reshape(1, 3, -1) for f in got], 2)
        np.testing.assert_allclose(y, want, atol=1e-5)
    lines = [record.getMessage() for record in caplog.records if record.name == "pulsify.serve"]
    quick, slow_line, ready_line = (
        next(line for line in lines if line.startswith(start)) for start in ("quick: ", "slow: ", "ready after")
    )
    assert quick.startswith("quick: pulse 4 frames, delay ") and "up to 1024 streams" in quick
    assert slow_line.startswith("slow: pulse 40 ms, delay ") and "back end " in slow_line
    assert lines.index(quick) < lines.index(slow_line) < lines.index(ready_line)


def test_a_server_that_is_stopped_does_not_wait_for_a_model() -> None:
    slow = Slow()
    with serving([ModelSource("slow", slow.open)]) as (service, where):
        assert httpx.get(f"http://{where}/health").status_code == 200
    assert not service.models  # it ended before the model was open
    slow.may.set()


def broken() -> Served:
    raise InvalidModel("no good")


def test_a_model_that_cannot_be_opened_ends_the_server() -> None:
    from pulsify.serve.listening import Options, bound
    from pulsify.serve.running import run
    from pulsify.serve.service import Service

    where: list[str] = []
    options, interval = Options(port=0), sys.getswitchinterval()
    try:
        with pytest.raises(InvalidModel, match="no good"):
            run(Service([ModelSource("m", broken)]), options, bound(options), where.append)
    finally:
        sys.setswitchinterval(interval)
    assert where[0].startswith("http://127.0.0.1:")


def test_the_command_says_which_model_and_why(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"nothing")
    command = [sys.executable, "-m", "pulsify", "serve", str(tmp_path / "m.onnx"), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 5 and "m.onnx" in done.stderr

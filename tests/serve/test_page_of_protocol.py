"""The clients in docs/serve.md work as they stand."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

import pulsify
from pulsify.demo.model import enhancer
from pulsify.serve.sources import of_stream
from tests.serve.live import serving

PAGE = (Path(__file__).parents[2] / "docs" / "serve.md").read_text("utf-8")


def test_the_python_client_gets_what_the_batch_model_gives() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    found: dict[str, Any] = {}
    exec(code, found)
    proto = enhancer()
    samples = np.random.default_rng(0).standard_normal(16000).astype(np.float32) * np.float32(0.1)
    with serving([of_stream("enhancer", pulsify.stream(proto, 320, verify=False), 16000)]) as (_, where):
        got = asyncio.run(found["clean"](samples, f"ws://{where}/v1/stream/enhancer"))
    want = ort.InferenceSession(proto.SerializeToString()).run(None, {"audio": samples[None, None]})[0]
    np.testing.assert_allclose(got, want.reshape(-1), atol=1e-4)


def test_the_clients_are_short() -> None:
    for code in re.findall(r"```(?:python|js)\n(.*?)```", PAGE, re.S):
        assert len([line for line in code.splitlines() if line.strip()]) <= 25

"""What another stream left in a place is not there for the next one: a bad index pads no later stream's last pulse."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import pulsify
from pulsify.core.errors import PulsifyError
from tests.models import close, model, node, run_batch, weights


def tokens() -> onnx.ModelProto:
    """A table of 7 rows, and two frames of look-ahead behind it."""
    look = [
        node("Gather", "table x", "e", axis=0),
        node("Transpose", "e", "t", perm=[0, 2, 1]),
        node("Conv", "t w", "y", pads=[2, 2]),
    ]
    given = {"table": weights(7, 2), "w": weights(3, 2, 5)}
    return model(look, {"x": ["B", "T"]}, ["y"], given, dtypes={"x": np.int64})


X = np.arange(8)[None] % 5


@pytest.mark.parametrize("backend", ["ort", "torch"])
@pytest.mark.parametrize("way", ["exchange", "restore"])
def test_a_lane_in_the_slot_of_one_that_failed(backend: str, way: str) -> None:
    if backend == "torch":
        pytest.importorskip("torch")
    proto = tokens()
    stream = pulsify.stream(proto, pulse=2, verify=False)
    pool = pulsify.Pool(stream, most=1, backend=backend, options={"device": "cpu"} if backend == "torch" else None)
    bad = pool.open()
    bad.push(np.array([[1, 99]]))
    with pytest.raises(PulsifyError):
        pool.run()
    lane, parts = pool.open(), []
    if way == "exchange":
        parts = [pool.exchange([lane], X[:, i : i + 2]).of(0) for i in range(0, 8, 2)]
    else:
        session = stream.session()
        parts = [session.push(X)]
        lane.restore(session.state())
    lane.flush()
    parts.append(pool.run()[lane])
    close(np.concatenate(parts, 2), run_batch(proto, X)["y"])


def test_a_session_that_failed_and_goes_on_elsewhere() -> None:
    proto = tokens()
    stream = pulsify.stream(proto, pulse=2, verify=False)
    good, other = stream.session(), stream.session()
    parts = [good.push(X)]
    with pytest.raises(PulsifyError):
        other.push(np.array([[1, 99]]))
    other.restore(good.state())
    close(np.concatenate([*parts, other.flush()], 2), run_batch(proto, X)["y"])

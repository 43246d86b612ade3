"""The best frames of a whole stream, in order; logarithms of a softmax over time where a sum follows."""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import pulsify
from tests.models import model, node
from tests.side import Batch, streamed
from tests.whole.check import check, cuts, same

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from tests.inputs.test_exported import EXPORTERS, exported  # noqa: E402


class Net(torch.nn.Module):
    def __init__(self, make: Any) -> None:
        super().__init__()
        self.make, self.conv = make, torch.nn.Conv1d(3, 3, 3, padding=1)

    def forward(self, x: Any) -> Any:
        return self.make(self.conv(x.transpose(1, 2)).transpose(1, 2))


MAKERS = {
    "best": lambda h: torch.topk(h, 3, dim=1),
    "worst, and a network behind": lambda h: torch.tanh(torch.topk(h, 2, dim=1, largest=False)[0]).mean(1),
    "the best frame as a whole": lambda h: torch.topk(h.sum(2), 1, dim=1)[1],
    "entropy over time": lambda h: (torch.softmax(h, 1) * h).sum(1) - torch.log_softmax(h, 1).mean(1),
}


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("what", MAKERS)
def test_as_exporters_write_it(what: str, exporter: str, tmp_path: Path) -> None:
    proto = exported(Net(MAKERS[what]), ("B", "T", 3), tmp_path / "m.onnx", dynamo=exporter == "dynamo")
    check(proto, pulses=(1, 4))


def top(k: int, dtype: type = np.float32, **attrs: int) -> onnx.ModelProto:
    made = node("TopK", "x k", "values places", axis=1, **attrs)
    dtypes = {"x": dtype, "values": dtype, "places": np.int64}
    return model([made], {"x": ["B", "T", 2]}, ["values", "places"], {"k": np.array([k])}, dtypes=dtypes)


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_of_equals_the_earlier_is_first(dtype: type, largest: int) -> None:
    """Few different numbers, infinite ones among them, at every length."""
    proto, rng = top(3, dtype, largest=largest), np.random.default_rng(0)
    whole, lowest = Batch(proto), np.array([-1, 0, 1], dtype)
    numbers = np.array([-np.inf, -1, 0, 1, np.inf], dtype) if dtype is np.float32 else lowest
    for pulse in (1, 4):
        stream = pulsify.stream(proto, pulse=pulse, verify=False)
        for length in (*range(3, 14), 30):
            x = rng.choice(numbers, (2, length, 2)).astype(dtype)
            x[1] = numbers[0] if largest else numbers[-1]  # all as bad as can be
            same(streamed(stream, x, cuts(length, rng), check=False), whole.run({"x": x}))


def test_streams_with_fewer_frames_are_turned_down() -> None:
    stream = pulsify.stream(top(5), pulse=2)
    with pytest.raises(pulsify.InvalidLength, match="at least 5"):
        stream.run(np.zeros((1, 4, 2), np.float32))


@pytest.mark.parametrize(
    ("proto", "reason", "hint"),
    [
        (top(3, sorted=0), "in no order", "sorted=1"),
        (top(3, np.int64), "64 bits", "cast"),
    ],
)
def test_what_is_refused(proto: onnx.ModelProto, reason: str, hint: str) -> None:
    with pytest.raises(pulsify.NotStreamable, match=reason) as caught:
        pulsify.stream(proto, pulse=4)
    assert caught.value.node == "values" and hint in caught.value.hint


def test_as_many_as_there_are_are_no_fixed_number() -> None:
    nodes = [node("Shape", "x", "t", start=1, end=2), node("TopK", "x t", "y places", axis=1)]
    with pytest.raises(pulsify.NotStreamable, match="changes with the length") as caught:
        pulsify.stream(model(nodes, {"x": [1, "T", 2]}, ["y"]), pulse=4)
    assert caught.value.op == "TopK" and "constant" in caught.value.hint


def test_logarithms_of_a_softmax_frame_by_frame_have_no_stream() -> None:
    proto = model([node("LogSoftmax", "x", "y", axis=1)], {"x": ["B", "T", 2]}, ["y"])
    with pytest.raises(pulsify.NotStreamable, match="normalises over the whole stream") as caught:
        pulsify.stream(proto, pulse=4)
    assert caught.value.node == "y" and caught.value.hint

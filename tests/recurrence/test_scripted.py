"""Scripted loops whose state starts as zeros like the first frame, by the exporter that writes them as Loop."""

from __future__ import annotations

import io
import math
import time
import warnings

import numpy as np
import onnx
import pytest
import torch

import pulsify
from pulsify.core.chunks import chunkings
from tests.recurrence import scripted
from tests.recurrence.scripted import Alone
from tests.side import Batch, streamed

LENGTHS = (1, 2, 3, 4, 7, 12)
CASES = {
    "ema": (lambda: Alone(scripted.ema), (2, "T", 3)),
    "ema of single numbers": (lambda: Alone(scripted.ema), (2, "T")),
    "biquad": (lambda: Alone(scripted.biquad), (2, "T", 3)),
    "biquad of single numbers": (lambda: Alone(scripted.biquad), (2, "T")),
    "gate": (lambda: Alone(scripted.gate), (2, "T", 3)),
    "delay": (lambda: Alone(scripted.last_frame_first), (2, "T", 3)),
    "channels first": (lambda: Alone(scripted.channels_first), (2, 3, "T")),
    "like the mean": (lambda: Alone(scripted.like_the_mean), (2, "T", 3)),
    "decided branches": (scripted.Warm, (2, "T", 3)),
    "squeezed frame": (lambda: Alone(scripted.squeezed), (2, "T", 3)),
    "squeezed state": (lambda: Alone(scripted.squeezed_state), (2, "T", 3)),
    "squeezed number": (lambda: Alone(scripted.squeezed), (2, "T", 1)),
    "every third turn": (lambda: Alone(scripted.every_third), (2, "T", 3)),
    "branches in branches": (lambda: Alone(scripted.branches_in_branches), (2, "T", 3)),
    "a flag": (lambda: Alone(scripted.a_flag), (2, "T", 3)),
    "appended in branches": (lambda: Alone(scripted.appended_in_branches), (2, "T", 3)),
    "in a row": (scripted.InARow, (2, "T", 3)),
    "between convolutions": (scripted.BetweenConvolutions, (2, "T", 3)),
}


def exported(module: torch.nn.Module, dims: tuple[int | str, ...], free: bool) -> onnx.ModelProto:
    axes = {dims.index("T"): "T"} | ({0: "B"} if free else {})
    example = torch.randn(*(11 if d == "T" else int(d) for d in dims))
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": axes, "y": axes}}
        torch.onnx.export(module.eval(), (example,), file, dynamo=False, opset_version=17, **names)
    return onnx.load_from_string(file.getvalue())


@pytest.mark.parametrize("free", [True, False], ids=["free batch", "fixed batch"])
@pytest.mark.parametrize("name", CASES)
def test_a_scripted_loop_streams(name: str, free: bool) -> None:
    torch.manual_seed(0)
    make, dims = CASES[name]
    proto = exported(make(), dims, free)
    stream, batch, rng = pulsify.stream(proto, pulse=2, time="T"), Batch(proto), np.random.default_rng(3)
    for length in LENGTHS:
        x = rng.standard_normal([length if d == "T" else int(d) for d in dims]).astype(np.float32)
        want = batch.run({"x": x})["y"]
        for cuts in chunkings(length, stream.pulse, rng):
            for backend in ("ort", "native", "torch", "reference"):
                got = streamed(stream, x, cuts, backend=backend, padding=math.nan)["y"]
                np.testing.assert_allclose(got, want, atol=1e-6, rtol=1e-6, err_msg=f"{backend} {length} {cuts}")


def test_a_branch_by_the_data_streams() -> None:
    proto = exported(Alone(scripted.by_the_data), (1, "T", 3), free=False)
    stream, batch, rng = pulsify.stream(proto, pulse=3, time="T"), Batch(proto), np.random.default_rng(3)
    for length in LENGTHS:
        x = rng.standard_normal([1, length, 3]).astype(np.float32)
        want = batch.run({"x": x})["y"]
        for cuts in chunkings(length, stream.pulse, rng):
            for backend in ("ort", "native", "torch", "reference"):
                got = streamed(stream, x, cuts, backend=backend, padding=math.nan)["y"]
                np.testing.assert_allclose(got, want, atol=1e-6, rtol=1e-6, err_msg=f"{backend} {length} {cuts}")


@pytest.mark.parametrize(
    ("loop", "op", "says"),
    [
        (scripted.appended_sometimes, "Scan", "a branch in its body appends to a list"),
        (scripted.of_two_shapes, "If", "values of different shapes, \\[2, 6\\] and \\[2, 3\\]"),
        (scripted.the_frame_before, "If", "Gather in one of its branches may fail where that is not taken"),
        (scripted.divided_by_the_turn, "If", "Div in one of its branches may fail where that is not taken"),
    ],
)
def test_branches_that_cannot_both_be_computed_are_refused(loop: torch.jit.ScriptFunction, op: str, says: str) -> None:
    proto, began = exported(Alone(loop), (2, "T", 3), free=False), time.process_time()
    with pytest.raises(pulsify.NotStreamable, match=says) as refused:
        pulsify.stream(proto, pulse=2)
    assert refused.value.op == op and refused.value.hint
    assert time.process_time() - began < 5


def test_a_tensor_that_ends_early_is_refused() -> None:
    proto, began = exported(scripted.BesideFirst(), (2, "T", 3), free=False), time.process_time()
    with pytest.raises(pulsify.NotStreamable, match="different numbers of frames, 5 and") as refused:
        pulsify.stream(proto, pulse=2)
    assert refused.value.op == "Scan"
    assert time.process_time() - began < 5


@torch.jit.script
def begun_empty(x: torch.Tensor) -> torch.Tensor:
    out = x[:, :0]
    state = torch.zeros_like(x[:, 0])
    for t in range(x.shape[1]):
        state = 0.5 * state + x[:, t]
        out = torch.cat([out, state.unsqueeze(1)], 1)
    return out


def test_an_empty_tensor_to_begin_with_is_refused_as_such() -> None:
    """The model runs at every length: nothing else may be said of it."""
    proto = exported(Alone(begun_empty), (2, "T", 3), free=False)
    with pytest.raises(pulsify.NotStreamable, match="no entries, whatever the length") as refused:
        pulsify.stream(proto, pulse=2)
    assert refused.value.op == "Slice" and "collect frames in a list" in refused.value.hint

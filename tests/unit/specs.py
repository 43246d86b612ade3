"""Streams as their metadata has them, made up: what sessions, lanes and passes know of a model."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import onnx_ir as ir

from pulsify.core.length import Length
from pulsify.core.spec import Dims, Input, Output, Spec, State
from tests.models import Array, weights
from tests.unit.graphs import graph

F32 = np.dtype(np.float32)
FAR = 1 << 30  # the length of a stream whose end is unknown


def an_input(name: str = "x", dims: Dims = (1, 2, 4), rate: int = 1, dtype: Any = F32) -> Input:
    """Time is the last axis."""
    return Input(name, len(dims) - 1, Fraction(rate), np.dtype(dtype), dims)


def an_output(
    name: str = "y", dims: Dims = (1, 2, 4), rate: Fraction | int = 1, delay: int = 0, length: Length | None = None
) -> Output:
    """Time is the last axis."""
    frames = dims[-1]
    assert isinstance(frames, int)
    return Output(name, len(dims) - 1, Fraction(rate), delay, frames, F32, dims, length or Length())


def a_stream(pulse: int = 4, *, dims: Dims | None = None, **fields: Any) -> Spec:
    """x in, y out, as many frames, nothing remembered; any field can be another."""
    own = dims or (1, 2, pulse)
    about: dict[str, Any] = {
        "pulse": pulse, "granularity": 1, "time": "T", "batch": None, "step": 1, "shortest": 1,
        "inputs": (an_input(dims=own),), "statics": (), "outputs": (an_output(dims=own),), "states": (),
        "conditions": (), "length": None, "unknown_length": FAR, "position": None, "rebase": 1, "source": "made up",
    }  # fmt: skip
    return Spec(**{**about, **fields})


def a_state(name: str = "s", shape: Dims = (1, 2, 2), **fields: Any) -> State:
    """Time is the last axis; `new_` in front names what replaces it."""
    about: dict[str, Any] = {"axis": len(shape) - 1, "after": f"new_{name}"}
    return State(name, shape, F32, "conv", **{**about, **fields})


def remembers(batch: int | str = 1, pulse: int = 4) -> tuple[ir.Model, Spec]:
    """A convolution of three frames, two of them of the past: y [B, 3, pulse] of x [B, 2, pulse] and s [B, 2, 2]."""
    bounds = {"i": np.array([pulse]), "j": np.array([pulse + 2]), "a": np.array([2]), "one": np.array([1])}
    model = graph(
        "Concat s x > full axis=2; Conv full w > c; Identity c > y; Slice full i j a one > cut; Identity cut > new_s",
        {"x": [batch, 2, pulse], "s": [batch, 2, 2]},
        "y new_s",
        {"w": weights(3, 2, 3), **bounds},
    )
    for value, dims in zip(model.graph.outputs, ([batch, 3, pulse], [batch, 2, 2]), strict=True):
        value.shape = ir.Shape(dims)
    spec = a_stream(
        pulse,
        batch=batch if isinstance(batch, str) else None,
        inputs=(an_input(dims=(batch, 2, pulse)),),
        outputs=(an_output(dims=(batch, 3, pulse)),),
        states=(a_state(shape=(batch, 2, 2)),),
    )
    return model, spec


def remembered(x: Array) -> Array:
    """What `remembers` makes of all frames at once."""
    padded, kernel = np.pad(x, [(0, 0), (0, 0), (2, 0)]), weights(3, 2, 3)
    taps = [np.einsum("bct,oc->bot", padded[..., k : k + x.shape[2]], kernel[..., k]) for k in range(3)]
    return np.sum(taps, 0, dtype=np.float32)

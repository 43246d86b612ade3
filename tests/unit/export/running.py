"""Exports run as whoever gets them would: by their own files, beside the batch model."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest

import pulsify
from pulsify.core.runner import open_model, run_model
from pulsify.core.spec import concrete
from pulsify.verify.check import valid_length
from pulsify.verify.distance import error, limit
from pulsify.verify.inputs import make_inputs
from tests.models import Array
from tests.zoo import manifest

Run = Callable[[Mapping[str, Array], Mapping[str, Array]], Mapping[str, Array]]  # inputs, static ones -> outputs
ZOO = {
    "attn_block_diag", "attn_chunk_rope", "attn_relpos_skew", "avgpool_same_nopadcount", "conv2d_subsample",
    "conv_lstm", "convtranspose_overlap", "cumulative_layernorm", "gru_intra_frame", "lstm_2layer", "pad_reflect",
    "pixel_shuffle", "posenc_table", "running_mean", "stft_mel_center", "unet", "upsample_linear", "wavenet_noncausal",
}  # fmt: skip


def module(path: Path) -> ModuleType:
    """A file of an export, and those beside it."""
    sys.path.insert(0, str(path.parent))
    sys.modules.pop("frames", None)
    try:
        spec = importlib.util.spec_from_file_location(f"exported_{path.stem}", path)
        assert spec is not None and spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(made)
    finally:
        sys.path.remove(str(path.parent))
    return made


def zoo(name: str, exporter: manifest.Exporter = "legacy") -> onnx.ModelProto:
    entry = next(e for e in manifest.load() if e.name == name)
    return onnx.load(entry.fixture(exporter))


def zoo_cases() -> list[Any]:
    """All bounded models of the zoo by name and exporter; those that are not among the few are slow."""
    return [
        pytest.param(e.name, x, id=f"{e.name}-{x}", marks=[] if e.name in ZOO and x == "legacy" else [pytest.mark.slow])
        for e, x in manifest.runnable(manifest.load())
        if e.streamable and not e.exports[x].large and e.name != "attn_full_causal"
    ]


def converted(source: onnx.ModelProto, pulse: int = 4, **options: Any) -> pulsify.Stream:
    """At about this pulse, as one graph."""
    first = source.graph.input[0].type.tensor_type.shape.dim[:1]
    time = "S" if first and first[0].dim_param == "S" else None  # as `Entry.time`
    chosen = {"verify": False, "opening": False, "time": time, **options}
    try:
        return pulsify.stream(source, pulse=pulse, **chosen)
    except pulsify.InvalidPulse as wrong:
        return pulsify.stream(source, pulse=-(-pulse // wrong.granularity) * wrong.granularity, **chosen)


def stepping(stream: pulsify.Stream) -> Callable[[Mapping[str, Array], int | None, bool], Mapping[str, Array]]:
    """One pulse after the other, by ONNX Runtime on the plain graph."""
    runner = open_model(stream.model)
    state = {s.name: np.zeros(concrete(s.shape, 1), s.dtype) for s in stream.states}

    def step(inputs: Mapping[str, Array], total: int | None, last: bool) -> Mapping[str, Array]:
        end = {} if total is None or stream.spec.length is None else {stream.spec.length: np.array([[total]], np.int32)}
        made = run_model(runner, {**inputs, **state, **end})
        state.update({s.name: made[s.after] for s in stream.states})
        return made

    return step


def is_batch(source: onnx.ModelProto, stream: pulsify.Stream, run: Run, tolerance: float | None = None) -> float:
    """Every frame of every output at many lengths; the largest error, of the output's scale."""
    batch, rng, p, worst, tried = open_model(source), np.random.default_rng(7), stream.pulse, 0.0, 0
    wished = (1, p - 1, p, p + 1, 2 * p + 1, 41, 7 * p, 97, stream.spec.shortest + p + 1)
    for length in sorted({valid_length(stream, max(n, 1)) or 0 for n in wished} - {0}):
        feeds = make_inputs(batch, stream, length, rng)
        want = run_model(batch, feeds)
        own = {i.name for i in stream.inputs}
        got = run({n: feeds[n] for n in own}, {s.name: feeds[s.name] for s in stream.statics})
        for o in stream.outputs:
            assert got[o.name].shape == want[o.name].shape, (o.name, length)
            off = float(error(got[o.name], want[o.name]).max(initial=0))
            assert off <= limit(want[o.name], tolerance), (o.name, length, off)
            worst = max(worst, off)
        tried += 1
    assert tried >= 3
    return worst

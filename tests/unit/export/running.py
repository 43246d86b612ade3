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

import pulsify
from pulsify.core.runner import open_model, run_model
from pulsify.core.spec import concrete
from pulsify.verify.check import error, limit, make_inputs, valid_length
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


def zoo(name: str) -> onnx.ModelProto:
    entry = next(e for e in manifest.load() if e.name == name)
    return onnx.load(entry.fixture("legacy"))


def converted(source: onnx.ModelProto, pulse: int = 4, **options: Any) -> pulsify.Stream:
    """At about this pulse, as one graph."""
    chosen = {"verify": False, "opening": False, **options}
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
    for length in sorted({valid_length(stream, n) or 0 for n in (1, p - 1, p, p + 1, 2 * p + 1, 41, 7 * p, 97)} - {0}):
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

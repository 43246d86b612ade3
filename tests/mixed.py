"""The zoo with an axis of streams: one is at its end while another starts, in one pool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import pulsify
from tests.models import close
from tests.side import Batch
from tests.zoo.manifest import Entry, load

SOME = {
    "attn_relpos_skew",
    "cumulative_layernorm",
    "fastconformer",
    "lstm_2layer",
    "posenc_table",
    "stft_mel_center",
}


def pooled_zoo() -> list[Any]:
    """A few in the default run; with batch 1 made a symbol in the file, most of the others have one too."""
    return [
        pytest.param(e, id=e.name, marks=[] if e.name in SOME else [pytest.mark.slow])
        for e in load()
        if e.streamable and not e.masks and e.exports["legacy"].exists and not e.exports["legacy"].large
    ]


def batched(path: Path) -> onnx.ModelProto:
    return symbolic(onnx.load(path))


def symbolic(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same, with batch 1 made a symbol."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model)
    for port in (*proto.graph.input, *proto.graph.output):
        dims = port.type.tensor_type.shape.dim
        if len(dims) and dims[0].dim_value == 1:
            dims[0].dim_param = "B"
    del proto.graph.value_info[:]
    return proto


def mixed_ages(entry: Entry, **options: Any) -> pulsify.Pool:
    """Three streams of it, the ends of two beside the middle of the third, each beside batch. Their pool."""
    path = entry.fixture("legacy")
    try:
        stream = pulsify.stream(batched(path), pulse=entry.pulse, verify=False)
        pool = pulsify.Pool(stream, 6, padding=float("nan"), **options)
    except pulsify.PulsifyError as error:
        pytest.skip(f"no axis of streams: {error}")
    lengths = [n for n in (7 * entry.pulse, 3 * entry.pulse, 5 * entry.pulse) if n >= stream.spec.shortest]
    xs, out = [entry.inputs(n)["x"] for n in lengths], dict[Any, list[Any]]()
    for i, x in enumerate(xs):
        lane = pool.open()
        out[lane] = []
        lane.push(x)
        if i != 2:
            lane.flush()
        for who, result in pool.step(rounds=2).results.items():
            out[who].append(result)
        last = lane
    if last.live:
        last.flush()
    for who, result in pool.run().items():
        out[who].append(result)
    for x, parts in zip(xs, out.values(), strict=True):
        for name, want in Batch(path).run({"x": x}).items():
            axis = next(o.axis for o in stream.spec.outputs if o.name == name)
            found = [p[name] if isinstance(p, dict) else p for p in parts if not isinstance(p, dict) or name in p]
            close(np.concatenate(found, axis) if axis is not None else found[-1], want)
    return pool

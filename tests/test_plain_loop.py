"""The README's loop on every graph of one input and one output: the file alone is enough to be the batch model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pulsify
from pulsify.core.count import expression
from pulsify.core.length import Length, Table
from pulsify.core.runner import open_model
from pulsify.verify.check import valid_length
from pulsify.verify.distance import error, limit
from pulsify.verify.inputs import make_inputs
from tests.attention.graphs import build
from tests.attention.known import failure
from tests.attention.test_graphs import CASES as ATTENTION
from tests.attention.test_graphs import GROWING
from tests.recurrence.graphs import CASES as STACKS
from tests.recurrence.graphs import DUAL_PATH, ENDS, MIXED, PREFIX, stacked
from tests.signal.graphs import GRAPHS, TORCH
from tests.test_artefact import stream_with_onnx_runtime
from tests.whole.graphs import FOLDS, LATCHES, exported
from tests.zoo import manifest

Models = tuple[onnx.ModelProto, ...]  # the model, and what ONNX Runtime can run of it


def collected() -> dict[str, Callable[[], Models]]:
    out: dict[str, Callable[[], Models]] = {}
    for entry, exporter in manifest.runnable(manifest.load()):
        if entry.streamable and not entry.exports[exporter].large:
            out[f"zoo-{entry.name}-{exporter}"] = partial(lambda path: (onnx.load(path),) * 2, entry.fixture(exporter))
    for name, make in GRAPHS.items():
        if name not in TORCH:
            out[f"signal-{name}"] = partial(lambda make: (make().model,) * 2, make)
    recurrent: dict[str, Any] = {n: partial(stacked, c) for n, c in STACKS.items()}
    for name, make in (recurrent | ENDS | DUAL_PATH | PREFIX | MIXED).items():
        out[f"recurrence-{name}"] = partial(lambda make: ((b := make()).model, b.reference), make)
    for name, case in (ATTENTION | {f"growing-{n}": c for n, c in GROWING.items()}).items():
        if not failure(case, "grow" if name.startswith("growing") else "refuse"):
            out[f"attention-{name}"] = partial(lambda case: (build(case).model,) * 2, case)
    for name in (*FOLDS, *LATCHES):
        if name != "beside_frames":  # several outputs
            out[f"whole-{name}"] = partial(lambda name: (exported("legacy", name, batch=False),) * 2, name)
    return out


def converted(source: onnx.ModelProto, pulse: int = 4) -> pulsify.Stream:
    """At about this pulse, keeping all of the past where that has no bound."""
    dims = [d.dim_param or d.dim_value for d in source.graph.input[0].type.tensor_type.shape.dim]
    options: dict[str, Any] = {"verify": False}
    if isinstance(dims[0], str) and not any(isinstance(d, str) for d in dims[1:]):
        options["time"] = dims[0]  # a lone symbolic first axis could be the batch
    try:
        return pulsify.stream(source, pulse=pulse, **options)
    except pulsify.InvalidPulse as wrong:
        return pulsify.stream(source, pulse=-(-pulse // wrong.granularity) * wrong.granularity, **options)
    except pulsify.NotStreamable as refusal:
        if "unbounded" not in str(refusal):
            raise
        return pulsify.stream(source, pulse=pulse, unbounded="grow", **options)


def plain(stream: pulsify.Stream) -> bool:
    """Is it what the README says the loop is for?"""
    if len(stream.inputs) != 1 or len(stream.outputs) != 1 or stream.statics:
        return False
    return {stream.inputs[0].dtype, stream.outputs[0].dtype} == {np.dtype(np.float32)}


@pytest.mark.parametrize("models", [pytest.param(make, id=name) for name, make in collected().items()])
def test_the_loop_is_batch(models: Callable[[], Models], tmp_path: Path) -> None:
    source, reference = models()
    path = tmp_path / "stream.onnx"
    if len(source.graph.output) > 1 or not plain(stream := converted(source)):
        pytest.skip("more than one input or output, or another type")
    stream.save(path)
    batch, rng = open_model(reference), np.random.default_rng(7)
    wished = (1, stream.pulse - 1, 2 * stream.pulse + 1, 41)
    for length in {valid_length(stream, max(n, 1)) for n in wished} - {None}:
        assert length is not None
        feeds = make_inputs(batch, stream, length, rng)
        want = dict(zip([o.name for o in batch.get_outputs()], batch.run(None, feeds), strict=True))
        got, wanted = stream_with_onnx_runtime(path, feeds[stream.inputs[0].name]), want[stream.outputs[0].name]
        assert got.shape == wanted.shape, length
        assert error(got, wanted).max(initial=0) <= limit(wanted, None), length


# ---- how many frames there are


def counted(e: Any, total: int) -> Any:
    """As the loop has it."""
    if isinstance(e, list) and isinstance(e[0], str):
        return getattr(np, e[0])(*(counted(a, total) for a in e[1:]))
    return total if e == "S" else e


@st.composite
def lengths(draw: st.DrawFn) -> Length:
    small, steps = st.integers(-9, 9), st.tuples(st.integers(0, 5), st.integers(-9, 9), st.integers(1, 5))
    table = None
    if draw(st.booleans()):
        values = draw(st.lists(small, min_size=1, max_size=7))
        table = Table(len(values), draw(st.integers(0, 9)), tuple(values))
    chain = draw(st.lists(steps, max_size=4))
    floors = frozenset(i for i in range(len(chain)) if draw(st.booleans()))
    return Length(tuple(chain), table, floors, tuple(draw(st.lists(st.integers(0, 9), max_size=5))))


@given(length=lengths())
def test_what_is_written_down_is_the_length(length: Length) -> None:
    for total in range(40):
        assert int(counted(expression(length), total)) == max(length.at(total), 0)

"""Any nodes may stay on the CPU: random ones of random networks, of attention and of recurrence, change nothing.

The long run: PULSIFY_EXAMPLES=2000 pytest -m slow tests/property/test_islands.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import assume, given, note, settings
from hypothesis import strategies as st

import pulsify
from pulsify.backends.seam import Placement
from pulsify.core.chunks import chunking
from tests.attention.graphs import Case, build
from tests.attention.masks import Mask
from tests.property.check import Batch, convert, data, difference, lengths
from tests.property.graph import Array
from tests.property.strategies import compositions
from tests.recurrence.build import Cell
from tests.recurrence.graphs import AHEAD, stacked
from tests.recurrence.graphs import Case as Recurrent
from tests.side import Batch as Whole
from tests.side import streamed

pytest.importorskip("torch")

EXAMPLES = int(os.environ.get("PULSIFY_EXAMPLES", 2000))
LIMIT = 1e-4  # of the output's scale
FACTORS = st.sampled_from([None, 2, 3])


def forced(placement: Sequence[Placement], parts: Sequence[str]) -> None:
    """Those that were asked for are on the CPU, and nothing else is; something crosses to get there."""
    for p in placement:
        asked = any(part in p.node or part == p.op for part in parts)
        assert p.device == "cpu" and (p.reason == "asked for") == asked, p
        assert not p.nbytes or p.reason
    for step in {p.step for p in placement}:
        islands = [p for p in placement if p.step == step and p.reason]
        assert not islands or sum(p.nbytes for p in islands) > 0, islands


def check(stream: pulsify.Stream, want: Mapping[str, Array], feeds: Any, parts: list[str], cuts: list[int]) -> None:
    """The stream with these nodes on the CPU is the batch model."""
    options = {"device": "cpu", "force_cpu": parts}
    for portable in (False, True):
        got = streamed(stream, feeds, cuts, backend="torch", options=options, portable=portable, fuse_quantised=False)
        for o in stream.outputs:
            problem = difference(got[o.name], want[o.name], o.axis, LIMIT)
            assert not problem, f"{o.name} {problem}, forced: {parts}, cuts {cuts}"


def nodes(stream: pulsify.Stream) -> list[str]:
    return list(dict.fromkeys(p.node for p in stream.session(backend="torch", device="cpu").placement))


def chosen(stream: pulsify.Stream, some: st.DataObject) -> list[str]:
    names = nodes(stream)
    assume(names)
    parts = some.draw(st.lists(st.sampled_from(names), min_size=1, max_size=6, unique=True))
    note(f"forced to the CPU: {parts}")
    forced(stream.session(backend="torch", device="cpu", force_cpu=parts).placement, parts)
    return parts


def any_network(made: tuple, factor: int | None, some: st.DataObject) -> None:
    graph, outputs = made
    model = graph.model(outputs)
    try:
        stream = convert(model, factor)
    except pulsify.NotStreamable:
        assume(False)
    batch, rng = Batch(model), np.random.default_rng(0)
    parts = chosen(stream, some)
    for length in lengths(stream, rng, graph.least)[-2:]:
        x = data(graph, length, 1 if graph.batch == 1 else 2)
        want = batch.run(x)
        assume(want is not None)
        assert want is not None
        check(stream, want, x, parts, chunking("random", length, stream.pulse, rng))


@settings(max_examples=16)
@given(made=compositions(most=5, batches=(1, "B")), factor=FACTORS, some=st.data())
def test_any_nodes_of_any_network(made: tuple, factor: int | None, some: st.DataObject) -> None:
    any_network(made, factor, some)


@pytest.mark.slow
@settings(max_examples=EXAMPLES)
@given(made=compositions(batches=(1, "B")), factor=FACTORS, some=st.data())
def test_many_networks(made: tuple, factor: int | None, some: st.DataObject) -> None:
    any_network(made, factor, some)


# ---- with memory


@cache
def remembering(which: str) -> tuple[pulsify.Stream, onnx.ModelProto, Any]:
    if which == "attention":
        built: Any = build(Case(mask=Mask("chunk", 4, left=2), scheme="alibi", padding="length"))
    elif which == "two layers":
        built = build(Case(mask=Mask("chunk", 4, left=1), scheme="rope_half_table", layers=2))
    else:
        built = stacked(Recurrent(Cell(which), front=AHEAD, residual=True))
    return pulsify.stream(built.model, pulse=4, verify=False), built.model, built


@pytest.mark.parametrize("which", ["attention", "two layers", "GRU", "LSTM"])
@settings(max_examples=4)
@given(some=st.data(), length=st.integers(3, 30))
def test_any_nodes_of_attention_and_recurrence(which: str, some: st.DataObject, length: int) -> None:
    stream, model, built = remembering(which)
    feeds = built.feeds(length)
    rng = np.random.default_rng(length)
    check(stream, Whole(model).run(feeds), feeds, chosen(stream, some), chunking("random", length, stream.pulse, rng))

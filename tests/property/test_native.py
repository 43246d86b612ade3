"""Random networks as C beside ONNX Runtime: the same frames, first to last.

The long run: PULSIFY_EXAMPLES=1000 pytest -m slow --hypothesis-show-statistics tests/property/test_native.py
which says how many were exact and how many were refused, and by what.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

import pulsify
from pulsify.backends.native import library
from tests import side
from tests.property.check import TOLERANCE, convert, data, difference, lengths
from tests.property.double import truth
from tests.property.strategies import compositions

EXAMPLES = int(os.environ.get("PULSIFY_EXAMPLES", 1000))
FACTORS = st.sampled_from([None, 2, 3, 1, 5])

pytestmark = pytest.mark.skipif(not library.available(), reason="no C compiler")


def refusal(stream: pulsify.Stream) -> pulsify.NotSupported | None:
    """Why there is no C for it, by node, with a way out."""
    try:
        stream.session(backend="native")
    except pulsify.NotSupported as refused:
        return refused if refused.op and refused.target == "C" and refused.hint else pytest.fail(repr(refused))
    return None


def check(graph: object, outputs: object, factor: int | None, seed: int) -> str:
    """Native and the runtime on the same stream, ragged, with NaN behind the end. A refusal must name its node.

    What became of it, for whoever counts: exact, or by whom it was refused.
    """
    try:
        stream = convert(graph.model(outputs), factor)  # type: ignore[attr-defined]
    except pulsify.NotStreamable:
        return "not streamable"
    if (refused := refusal(stream)) is not None:
        return f"no C: {refused.op}"
    rng = np.random.default_rng(seed)
    for length in lengths(stream, rng, graph.least)[:5]:  # type: ignore[attr-defined]
        x = data(graph, length, 1)  # type: ignore[arg-type]
        cuts = [length // 3, length - length // 3]
        want = side.streamed(stream, x, cuts, fuse_quantised=False)
        got = side.streamed(stream, x, cuts, backend="native")
        for out in stream.outputs:
            tolerance = TOLERANCE[str(graph.dtype.name)] * graph.rounds  # type: ignore[attr-defined]
            problem = difference(got[out.name], want[out.name], out.axis, tolerance)
            if problem and graph.dtype == np.float32:  # type: ignore[attr-defined]  # apart: which of them is wrong?
                exact = truth(graph.model(outputs), x)[out.name]  # type: ignore[attr-defined]
                problem = difference(got[out.name], exact, out.axis, tolerance)
            assert not problem, f"pulse {stream.pulse} length {length}: {out.name} {problem}\n{graph!r}"
    return "exact"


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(made=compositions(most=4), factor=FACTORS)
def test_composition_as_c(made: tuple, factor: int | None) -> None:
    event(check(*made, factor, 0))


@pytest.mark.slow
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(made=compositions(), factor=FACTORS, seed=st.integers(0, 99))
def test_many_compositions_as_c(made: tuple, factor: int | None, seed: int) -> None:
    event(check(*made, factor, seed))

"""Garbage never leaks: not from the padding of the last pulse, not from states that a boundary covers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import pulsify
from tests.zoo import manifest
from tests.zoo.manifest import Entry, Exporter
from tests.zoo.test_zoo import SUPPORTED

CASES = [
    pytest.param(entry, exporter, id=f"{entry.name}-{exporter}")
    for entry, exporter in manifest.runnable(manifest.load())
    if entry.family in SUPPORTED and entry.streamable and entry.exports[exporter].file
]


def poison(session: pulsify.Session) -> int:
    """Fill every state that need not start at zero with NaN (integers: a large number); how many there were."""
    count = 0
    for state in session.spec.states:
        if not state.zero:
            step: Any = session._stepper
            places = [step._sides[0], *(ring.arrays for ring in step._rings)]
            array = next(arrays[state.name] for arrays in places if state.name in arrays)
            array.fill(np.nan if array.dtype.kind == "f" else 99)
            count += 1
    return count


@pytest.mark.parametrize(("entry", "exporter"), CASES)
def test_poisoned_states_do_not_show(entry: Entry, exporter: Exporter) -> None:
    """States are NaN wherever a Boundary claims to cover them, and so is the end of the last pulse."""
    path = str(entry.fixture(exporter))
    try:
        stream = pulsify.stream(path, pulse=entry.pulse, time=entry.time, verify=False, unbounded="grow")
    except pulsify.InvalidPulse as error:
        stream = pulsify.stream(path, pulse=error.granularity * 2, verify=False)
    x = entry.inputs(entry.length)["x"]
    reference = ort.InferenceSession(path).run(None, {"x": x})[0]
    session = stream.session(padding=float("nan"))
    poison(session)
    begin, end = session.push(x), session.flush()
    axis = stream.outputs[0].axis
    y = end if axis is None else np.concatenate([begin, end], axis)  # of the whole: it comes at the end
    np.testing.assert_allclose(y, reference, rtol=0, atol=1e-4 * max(1.0, float(np.abs(reference).max())))


def test_some_states_are_covered() -> None:
    """The test above is not empty: a stack of look-ahead convolutions has states that may start as NaN."""
    entry = next(e for e in manifest.load() if e.name == "conv_same")
    stream = pulsify.stream(str(entry.fixture("legacy")), pulse=8)
    assert poison(stream.session()) >= 2


def test_causal_models_have_no_boundary() -> None:
    """No counters, no length: nothing but buffers."""
    entry = next(e for e in manifest.load() if e.name == "wavenet_causal")
    stream = pulsify.stream(str(entry.fixture("legacy")), pulse=8)
    assert stream.spec.length is None
    assert stream.spec.position is None
    assert {n.op_type for n in stream.model.graph}.isdisjoint({"Where", "GreaterOrEqual", "Less"})

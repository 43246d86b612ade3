"""Forms that onnx's evaluator does not take: other axes and backwards in Scan, an axis of one element in CumSum."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import pulsify
import pulsify.ops.scan as rule
from pulsify.backends.reference.rewritten import rewrite
from pulsify.core.errors import NotSupported
from tests.models import close, frames
from tests.recurrence.build import Built, built
from tests.recurrence.scans import Scanned, across, scanned
from tests.side import Batch, streamed
from tests.unit.graphs import graph, run

SCANS = {
    "across": lambda: built(across("point"), batch=2),
    "across backwards": lambda: built(across("conv", reverse=True), batch="B"),
    "time last": lambda: scanned(Scanned(("zero",), (2,), (1,))),
    "negative axes": lambda: scanned(Scanned(("zero", "bool"), (-1, 0, -2), (0, -1))),
}


@pytest.mark.parametrize("written_out", [0, 48])
@pytest.mark.parametrize("name", SCANS)
def test_scans_along_any_axis(name: str, written_out: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule, "WRITTEN_OUT", written_out)
    made: Built = SCANS[name]()
    stream, feeds = pulsify.stream(made.model, pulse=2, verify=False), made.feeds(7)
    want = Batch(made.model).run(feeds)
    got = streamed(stream, feeds, [3, 0, 4], backend="reference")
    for out in stream.outputs:
        close(got[out.name], want[out.name])


@pytest.mark.parametrize("text", ["CumSum x a > y", "CumSum x a > y reverse=1; CumSum y a > z exclusive=1"])
def test_an_axis_of_one_element(text: str) -> None:
    from onnx.reference import ReferenceEvaluator

    last = text[-1] if text[-1] == "y" else "z"
    model = graph(text, {"x": [1, 2, 5]}, last, {"a": np.array([-1])})
    x = frames(1, 2, 5)
    want = run(model, {"x": x})[last]
    rewrite(model)
    close(ReferenceEvaluator(ir.to_proto(model)).run(None, {"x": x})[0], want)


def test_a_scan_of_unknown_rank_is_refused_by_name() -> None:
    made = scanned(Scanned(("zero",), (2,), (1,)))
    model = ir.from_proto(made.model)
    (scan,) = (n for n in model.graph if n.op_type == "Scan")
    model.graph.inputs[0].shape = None
    for node in model.graph:
        for value in node.outputs:
            value.shape = None
    with pytest.raises(NotSupported, match="Scan node 's'"):
        rewrite(model)
    assert scan.name == "s"

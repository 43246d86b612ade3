"""States that are the end of something in one piece: they are not cut out, the next pulse reads them where they are.

joined   [ s0 s1 | x0 x1 x2 x3 ]         an output, in memory
state                  [ x2 x3 ]         a view of its last frames, the input of the next pulse

That takes frames that lie one after the other: only ones in front of time, as in rows or the samples of one stream.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import onnx_ir as ir
from onnx_ir.passes import InvariantError, PassResult

from pulsify.backends.seam import Tail
from pulsify.core.spec import Spec
from pulsify.optimize.rewriting import Change
from pulsify.optimize.views import cut_of, sizes


def tails_of(models: Sequence[ir.Model], spec: Spec) -> dict[str, Tail]:
    """States that are tails in all forms of one model alike; no two are the end of the same value."""
    tails: dict[str, Tail] = {}
    taken: set[ir.Value] = set()
    for s in spec.states:
        found = [f for model in models if (f := _tail(model, s.after)) is not None]
        if len(found) < len(models) or any(tail != found[0][0] for tail, _ in found):
            continue
        if taken.isdisjoint(full for _, full in found):
            tails[s.name] = found[0][0]
            taken.update(full for _, full in found)
    return tails


class ExposeTails(Change[PassResult]):
    """Where a state is a tail, what it is the tail of comes out in its place. tails: by the state's output.

    In place. Requires: those states are such tails (see `tails_of`).
    Ensures: they are no outputs any more, what they are the end of is, in its shape.
    """

    def __init__(self, tails: Mapping[str, Tail]) -> None:
        self.tails = tails

    def requires(self, model: ir.Model) -> None:
        for after, tail in self.tails.items():
            if (found := _tail(model, after)) is None or found[0] != tail:
                raise InvariantError(f"{after} is not the end of anything")

    def call(self, model: ir.Model) -> PassResult:
        from onnx_ir.passes.common import RemoveUnusedNodesPass

        outputs = model.graph.outputs
        for after, tail in self.tails.items():
            found = _tail(model, after)
            assert found is not None
            at = next(i for i, v in enumerate(outputs) if v.name == after)
            outputs[at].name = f"{after}/cut"
            found[1].name = tail.full
            outputs[at] = found[1]
        RemoveUnusedNodesPass()(model)
        return PassResult(model, bool(self.tails))

    def ensures(self, model: ir.Model) -> None:
        super().ensures(model)
        shapes = {v.name: sizes(v) for v in model.graph.outputs}
        for after, tail in self.tails.items():
            if after in shapes or shapes.get(tail.full) != tail.shape:
                raise InvariantError(f"{after} should have made room for {tail.full}")


def _tail(model: ir.Model, after: str) -> tuple[Tail, ir.Value] | None:
    out = next((v for v in model.graph.outputs if v.name == after), None)
    kept = sizes(out)
    cut = None if out is None else out.producer()
    while cut is not None and cut.op_type == "Identity" and cut.inputs[0] is not None:
        cut = cut.inputs[0].producer()
    bounds = None if cut is None else cut_of(cut)
    if kept is None or cut is None or bounds is None:
        return None
    full, dims, (axis, start, stop) = cut.inputs[0], sizes(cut.inputs[0]), bounds
    if full is None or dims is None or full in model.graph.outputs or full.producer() is None:
        return None
    last = stop == dims[axis] and kept == (*dims[:axis], stop - start, *dims[axis + 1 :])
    return (Tail(f"full_{after}", dims, axis), full) if last and math.prod(dims[:axis]) == 1 else None

"""States that are the end of something in one piece: they are not cut out, the next pulse reads them where they are.

joined   [ s0 s1 | x0 x1 x2 x3 ]         an output, in memory
state                  [ x2 x3 ]         a view of its last frames, the input of the next pulse

That takes frames that lie one after the other: only ones in front of time, as in rows or the samples of one stream.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from pulsify.backends.seam import Tail
from pulsify.core.spec import Spec
from pulsify.optimize.views import cut_of, sizes


def expose_tails(models: Sequence[ir.Model], spec: Spec) -> dict[str, Tail]:
    """Changes forms of one model in place, all alike: where a state is a tail, what it is the tail of comes out."""
    from onnx_ir.passes.common import RemoveUnusedNodesPass

    found = [{s.name: _tail(model, s.after) for s in spec.states} for model in models]
    tails: dict[str, Tail] = {}
    for s in spec.states:
        candidates = [f[s.name] for f in found]
        if candidates[0] is None or any(c is None or c[0] != candidates[0][0] for c in candidates):
            continue
        if any(
            c[1] in m.graph.outputs for c, m in zip(candidates, models, strict=True) if c
        ):  # another state's already
            continue
        tails[s.name] = candidates[0][0]
        for model, candidate in zip(models, candidates, strict=True):
            assert candidate is not None
            tail, full = candidate
            outputs = model.graph.outputs
            at = next(i for i, v in enumerate(outputs) if v.name == s.after)
            outputs[at].name = f"{s.after}/cut"
            full.name = tail.full
            outputs[at] = full
    for model in models:
        RemoveUnusedNodesPass()(model)
    return tails


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

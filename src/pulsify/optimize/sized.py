"""A model for so many streams: with the batch filled in, all sizes can be worked out."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import PassResult

from pulsify.core.spec import PAST
from pulsify.optimize.rewriting import Copy, one_stream


class ForStreams(Copy[PassResult]):
    """A copy for `count` streams: a free batch is that, and all sizes are worked out.

    Requires: nothing. Ensures: no size of an input is free, but for caches that grow.
    """

    def __init__(self, count: int = 1) -> None:
        self.count = count

    def call(self, model: ir.Model) -> PassResult:
        from onnx_ir.passes.common import ShapeInferencePass

        model = model.clone()
        ports = [*model.graph.inputs, *model.graph.outputs]
        symbols = {str(d).rpartition("*")[2] for v in ports for d in v.shape or () if not isinstance(d, int)}
        for v in (*ports, *(v for node in model.graph for v in node.outputs)):
            if v.shape is not None:
                v.shape = ir.Shape([d if isinstance(d, int) else self._filled(d.value, symbols) for d in v.shape])
        for v in model.graph.inputs:
            if v.const_value is not None and v.shape is not None and v.shape.is_static():  # a default is for all
                whole = np.broadcast_to(v.const_value.numpy(), v.shape.numpy())
                v.const_value = ir.tensor(whole.copy(), name=v.name)
        for graph in model.graph.subgraphs():
            for v in (*graph.inputs, *graph.outputs, *(v for node in graph for v in node.outputs)):
                if v.shape is not None:
                    v.shape = ir.Shape([None] * len(v.shape))  # what was said of a body was said of one stream
        return PassResult(ShapeInferencePass()(model).model, True)

    def ensures(self, model: ir.Model) -> None:
        super().ensures(model)
        one_stream(model)

    def _filled(self, dim: str | None, symbols: set[str]) -> int | str | None:
        """4 for '4*B', 1 for 'B', if there is one stream; other free sizes (a growing cache's) stay."""
        factor, _, symbol = (dim or "").rpartition("*")
        if dim is None or symbol not in symbols or symbol == PAST:
            return dim
        return int(factor or 1) * self.count

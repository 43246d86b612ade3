"""Small ONNX graphs, node by node, and what is known of the tensor at hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]
LARGE = (1 << 31) - 1
DTYPES = {np.dtype(t): v for t, v in ((np.float32, 1), (np.float16, 10), (np.float64, 11))}


@dataclasses.dataclass(frozen=True)
class Tensor:
    """layout: one letter an axis, of B (batch), C (channels), F (features), T (time).

    exact: whole numbers small enough that no order of summation rounds, so that quantising them is stable.
    """

    name: str
    layout: str = "BCT"
    c: int = 2
    f: int = 1
    exact: bool = True
    rate: Fraction = Fraction(1)

    @property
    def axis(self) -> int:
        return self.layout.index("T")

    def but(self, name: str, **changes: Any) -> Tensor:
        return dataclasses.replace(self, name=name, **changes)


class Graph:
    """Collects nodes and constants. Weights are small whole numbers, made from the node count."""

    def __init__(self, opset: int = 18, dtype: Any = np.float32, batch: int | str = 1, channels: int = 2) -> None:
        self.opset, self.dtype, self.batch, self.channels = opset, np.dtype(dtype), batch, channels
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[TensorProto] = []
        self.may_refuse: list[str] = []  # why no exact stream may exist
        self.least = 1  # below this many frames ONNX Runtime departs from the ONNX standard
        self.rounds = 1.0  # how much more than usual ONNX Runtime rounds the batch model
        self.loose = False  # ONNX Runtime takes lengths that are too short by the standard
        self.text: list[str] = []
        self.input = Tensor("x", c=channels)

    def fresh(self, stem: str) -> str:
        return f"{stem}_{len(self.nodes)}_{len(self.constants)}"

    def const(self, value: Any, dtype: Any = None) -> str:
        array = np.asarray(value)
        array = array.astype(dtype or (np.int64 if array.dtype.kind in "iu" else self.dtype))
        name = self.fresh("c")
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def ints(self, *values: int) -> str:
        return self.const(np.array(values, np.int64))

    def int(self, value: int) -> str:
        return self.const(np.array(value, np.int64))

    def weights(self, *dims: int, dtype: Any = None, low: int = -2, high: int = 3) -> str:
        rng = np.random.default_rng(len(self.nodes) * 31 + len(self.constants))
        values = rng.integers(low, high, dims)
        return self.const(np.where(values == 0, 1, values), dtype or self.dtype)

    def hollow(self, *dims: int, axis: int, front: int, back: int) -> str:
        """Weights of which so many slices at both ends of an axis are zero."""
        name = self.weights(*dims)
        values = numpy_helper.to_array(self.constants[-1]).copy()
        rows = np.moveaxis(values, axis, 0)
        rows[:front], rows[len(rows) - back :] = 0, 0
        self.constants[-1].CopyFrom(numpy_helper.from_array(values, name))
        return name

    def op(self, kind: str, *inputs: str | Tensor, **attrs: Any) -> str:
        return self.ops(kind, 1, *inputs, **attrs)[0]

    def ops(self, kind: str, outputs: int, *inputs: str | Tensor, **attrs: Any) -> list[str]:
        names = [i.name if isinstance(i, Tensor) else i for i in inputs]
        made = [f"{self.fresh(kind)}_{i}" for i in range(outputs)]
        attrs = {k: v for k, v in attrs.items() if v is not None}
        self.nodes.append(helper.make_node(kind, names, made, name=made[0], **attrs))
        self.text.append(f"{kind}({', '.join(self._show(n) for n in names)}) {attrs} -> {made}")
        return made

    def _show(self, name: str) -> str:
        found = next((c for c in self.constants if c.name == name), None)
        if found is None:
            return name
        array = numpy_helper.to_array(found)
        return f"{array.dtype}{list(array.shape)}" if array.size > 8 else str(array.tolist())

    def frames(self, x: Tensor) -> str:
        """The length of the time axis, int64 [1]."""
        return self.op("Gather", self.op("Shape", x), self.ints(x.axis))

    def batch_size(self, x: Tensor) -> str:
        return self.op("Gather", self.op("Shape", x), self.ints(x.layout.index("B")))

    def scalar(self, x: str) -> str:
        return self.op("Squeeze", x, self.ints(0))

    def to(self, x: Tensor, layout: str) -> Tensor:
        """The same data with its axes in another order; F comes and goes (merged into the channels)."""
        if "F" in layout and "F" not in x.layout:
            x = self.to(x, "BCT")
            x = x.but(self.op("Unsqueeze", x, self.ints(2)), layout="BCFT", f=1)
        if "F" not in layout and "F" in x.layout:
            x = self.to(x, "BCFT")
            x = x.but(self.op("Reshape", x, self.ints(0, x.c * x.f, -1)), layout="BCT", c=x.c * x.f, f=1)
        if x.layout == layout:
            return x
        perm = [x.layout.index(a) for a in layout]
        return x.but(self.op("Transpose", x, perm=perm), layout=layout)

    def model(self, outputs: Sequence[Tensor | str]) -> onnx.ModelProto:
        names = list(dict.fromkeys(o.name if isinstance(o, Tensor) else o for o in outputs))
        dims = [self.batch, self.channels, "T"]
        x = helper.make_tensor_value_info("x", DTYPES[self.dtype], dims)
        graph = helper.make_graph(self.nodes, "g", [x], [onnx.ValueInfoProto(name=n) for n in names], self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=9)
        made = onnx.shape_inference.infer_shapes(model, data_prop=True)
        known = {v.name: v for v in [*made.graph.value_info, *made.graph.output]}
        del model.graph.output[:]
        model.graph.output.extend(known.get(n) or onnx.ValueInfoProto(name=n) for n in names)
        return model

    def __repr__(self) -> str:
        head = f"opset {self.opset} {self.dtype} batch {self.batch} channels {self.channels}"
        return "\n    ".join([head, *self.text])

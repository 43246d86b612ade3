"""ONNX graphs written as expressions: x * where(T % 7 == 3, 2, 1) over an input x [1, channels, T]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]
KINDS = {"f": TensorProto.FLOAT, "i": TensorProto.INT64, "b": TensorProto.BOOL}
NUMPY = {"f": np.float32, "i": np.int64, "b": np.bool_}
TRUTHS = {"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Not", "Xor", "IsInf", "IsNaN"}
WHOLE = {"Shape", "Size", "NonZero", "ArgMax", "ArgMin"}
FAR = (1 << 62) + 1  # the end of a slice that has none


class Wire:
    """A value of the graph. kind: f(loat32), i(nt64) or b(ool); `//` and `%` are ONNX's Div and Mod."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, net: Net, name: str, kind: str) -> None:
        self.net, self.name, self.kind = net, name, kind

    def _with(self, op: str, other: Any, swap: bool = False) -> Wire:
        there = other if isinstance(other, Wire) else self.net.const(other, self.kind)
        return self.net.op(op, there, self) if swap else self.net.op(op, self, there)

    def __add__(self, other: Any) -> Wire:
        return self._with("Add", other)

    def __radd__(self, other: Any) -> Wire:
        return self._with("Add", other, swap=True)

    def __sub__(self, other: Any) -> Wire:
        return self._with("Sub", other)

    def __rsub__(self, other: Any) -> Wire:
        return self._with("Sub", other, swap=True)

    def __mul__(self, other: Any) -> Wire:
        return self._with("Mul", other)

    def __rmul__(self, other: Any) -> Wire:
        return self._with("Mul", other, swap=True)

    def __floordiv__(self, other: Any) -> Wire:
        return self._with("Div", other)

    def __truediv__(self, other: Any) -> Wire:
        return self.float()._with("Div", other.float() if isinstance(other, Wire) else other)

    def __mod__(self, other: Any) -> Wire:
        return self._with("Mod", other)

    def __neg__(self) -> Wire:
        return self.net.op("Neg", self)

    def __eq__(self, other: object) -> Wire:  # type: ignore[override]
        return self._with("Equal", other)

    def __ne__(self, other: object) -> Wire:  # type: ignore[override]
        return ~self._with("Equal", other)

    def __lt__(self, other: Any) -> Wire:
        return self._with("Less", other)

    def __le__(self, other: Any) -> Wire:
        return self._with("LessOrEqual", other)

    def __gt__(self, other: Any) -> Wire:
        return self._with("Greater", other)

    def __ge__(self, other: Any) -> Wire:
        return self._with("GreaterOrEqual", other)

    def __and__(self, other: Any) -> Wire:
        return self._with("And", other)

    def __or__(self, other: Any) -> Wire:
        return self._with("Or", other)

    def __invert__(self) -> Wire:
        return self.net.op("Not", self)

    def __matmul__(self, other: Any) -> Wire:
        return self._with("MatMul", other)

    def float(self) -> Wire:
        return self if self.kind == "f" else self.net.op("Cast", self, kind="f", to=KINDS["f"])

    def int(self) -> Wire:
        return self if self.kind == "i" else self.net.op("Cast", self, kind="i", to=KINDS["i"])

    def bool(self) -> Wire:
        return self if self.kind == "b" else self.net.op("Cast", self, kind="b", to=KINDS["b"])

    def by(self, *perm: int) -> Wire:
        return self.net.op("Transpose", self, perm=list(perm))

    def new(self, *axes: int) -> Wire:
        return self.net.op("Unsqueeze", self, list(axes))

    def one(self) -> Wire:
        """A scalar as a vector of one."""
        return self.net.op("Reshape", self, [1])

    def take(self, index: Any, axis: int = 0) -> Wire:
        """Gather."""
        return self.net.op("Gather", self, index, axis=axis)

    def cut(self, start: Any = 0, end: Any = FAR, axis: int = -1, step: Any = 1) -> Wire:
        """Slice of one axis; bounds are numbers or scalars of the graph."""
        bounds = [b.one() if isinstance(b, Wire) else [b] for b in (start, end)]
        by = step.one() if isinstance(step, Wire) else [step]
        return self.net.op("Slice", self, *bounds, [axis], by)

    def shaped(self, *sizes: Any) -> Wire:
        return self.net.op("Reshape", self, self.net.vector(*sizes))


class Net:
    """Collects nodes and constants. x: the input; T: its number of frames, a scalar; pos: 0, 1, .. T - 1."""

    def __init__(self, channels: int = 2, opset: int = 18, root: Net | None = None, prefix: str = "") -> None:
        self.channels, self.opset, self.prefix = channels, opset, prefix
        self.nodes: list[onnx.NodeProto] = []
        self.root = root or self
        self.constants: list[TensorProto] = []
        self.bodies = 0
        self.x = Wire(self, "x", "f")
        if root is None:
            self.T = self.op("Shape", self.x).take(2)

    @property
    def pos(self) -> Wire:
        return self.range(0, self.T, 1)

    def const(self, value: Any, kind: str | None = None) -> Wire:
        array = np.asarray(value)
        if kind is None or (kind != "f" and array.dtype.kind == "f"):
            kind = {"i": "i", "u": "i", "b": "b"}.get(array.dtype.kind, "f")
        name = f"c{len(self.root.constants)}"
        self.root.constants.append(numpy_helper.from_array(array.astype(NUMPY[kind]), name))
        return Wire(self, name, kind)

    def weights(self, *dims: int) -> Wire:
        """Different from one another, in no order."""
        rng = np.random.default_rng(sum(dims) + len(self.root.constants))
        return self.const(rng.permutation(int(np.prod(dims))).reshape(dims).astype(np.float32) * 0.5 + 1)

    def op(self, op: str, *inputs: Any, kind: str | None = None, outputs: int = 1, **attrs: Any) -> Any:
        """A node. Numbers and lists become constants, None leaves an input out."""
        wires = [i if isinstance(i, Wire) or i is None else self.const(i) for i in inputs]
        names = [w.name if w is not None else "" for w in wires]
        made = [f"{self.prefix}{op}{len(self.nodes)}" + (f"_{i}" if outputs > 1 else "") for i in range(outputs)]
        self.nodes.append(helper.make_node(op, names, made, name=made[0], **attrs))
        if kind is None:
            first = wires[1 if op == "Where" else 0]
            kind = "b" if op in TRUTHS else "i" if op in WHOLE else first.kind if first is not None else "f"
        results = [Wire(self, m, kind) for m in made]
        return results[0] if outputs == 1 else results

    def where(self, condition: Wire, yes: Any, no: Any) -> Wire:
        kind = next((v.kind for v in (yes, no) if isinstance(v, Wire)), None)
        return self.op("Where", condition, *(v if isinstance(v, Wire) else self.const(v, kind) for v in (yes, no)))

    def twice_if(self, condition: Wire) -> Wire:
        """x, or two times x: the plainest reader of a condition."""
        return self.x * self.where(condition, 2.0, 1.0)

    def least(self, a: Wire, b: Any) -> Wire:
        return a._with("Min", b)

    def most(self, a: Wire, b: Any) -> Wire:
        return a._with("Max", b)

    def range(self, start: Any, end: Any, step: Any) -> Wire:
        return self.op("Range", start, end, step)

    def vector(self, *sizes: Any) -> Wire:
        """A shape, of numbers and scalars of the graph."""
        if not any(isinstance(s, Wire) for s in sizes):
            return self.const(np.array(sizes, np.int64))
        return self.op("Concat", *(s.one() if isinstance(s, Wire) else [s] for s in sizes), axis=0)

    def filled(self, value: Any, *sizes: Any) -> Wire:
        """ConstantOfShape."""
        array = np.atleast_1d(np.asarray(value))
        kind = "i" if array.dtype.kind in "iu" else "f"
        tensor = numpy_helper.from_array(array.astype(NUMPY[kind]))
        return self.op("ConstantOfShape", self.vector(*sizes), kind=kind, value=tensor)

    def pad(self, x: Wire, before: Any, after: Any, value: float = 0.0, mode: str = "constant") -> Wire:
        """Of the last axis."""
        fill = self.const(np.float32(value)) if mode == "constant" else None
        return self.op("Pad", x, self.vector(before, after), fill, [-1], mode=mode)

    def grid(self) -> tuple[Wire, Wire]:
        """Rows [T, 1] and columns [1, T]."""
        return self.pos.new(1), self.pos.new(0)

    def attend(self, visible: Wire | None = None, bias: Wire | None = None) -> Wire:
        """softmax(q k^T + bias, where visible) v, [1, T, channels]; scores are small, so that every key counts."""
        q = self.x.by(0, 2, 1)
        scores = (q @ self.x) * 0.02
        if bias is not None:
            scores = scores + bias
        if visible is not None:
            scores = self.where(visible, scores, -1e9)
        return self.op("Softmax", scores, axis=-1) @ q

    def near(self, back: int = 8) -> Wire:
        """Row i sees the last few columns, itself included."""
        i, j = self.grid()
        return (j <= i) & (i - j <= back)

    def body(
        self, make: Callable[..., Sequence[Wire]], inputs: Sequence[tuple[str, Sequence[Any] | None]] = ()
    ) -> onnx.GraphProto:
        """A subgraph. inputs: kind and dimensions of each; constants are those of the graph around it."""
        self.root.bodies += 1
        sub = Net(self.channels, self.opset, self.root, f"{self.prefix}b{self.root.bodies}_")
        given = [Wire(sub, f"{sub.prefix}in{i}", kind) for i, (kind, _) in enumerate(inputs)]
        made = [sub.op("Identity", w) for w in make(sub, *given)]
        taken = [helper.make_tensor_value_info(w.name, KINDS[w.kind], d[1]) for w, d in zip(given, inputs)]
        results = [helper.make_tensor_value_info(w.name, KINDS[w.kind], None) for w in made]
        return helper.make_graph(sub.nodes, f"{sub.prefix}body", taken, results)

    def choose(self, condition: Wire, yes: Callable[[Net], Wire], no: Callable[[Net], Wire]) -> Wire:
        """If."""
        branches = {"then_branch": self.body(lambda n: [yes(n)]), "else_branch": self.body(lambda n: [no(n)])}
        return self.op("If", condition, kind="f", **branches)

    def repeat(self, turns: Wire, x: Wire, step: Callable[[Net, Wire], Wire]) -> Wire:
        """Loop with one value that goes around."""

        def make(n: Net, _: Wire, go: Wire, value: Wire) -> list[Wire]:
            return [go, step(n, value)]

        body = self.body(make, [("i", []), ("b", []), (x.kind, None)])
        return self.op("Loop", turns, None, x, kind=x.kind, body=body)

    def here(self, wire: Wire) -> Wire:
        """A value of the graph around this one."""
        return Wire(self, wire.name, wire.kind)

    def model(self, *outputs: Wire) -> onnx.ModelProto:
        """Its outputs are y, y1, .."""
        ends = [Wire(self, f"y{k}" if k else "y", w.kind) for k, w in enumerate(outputs)]
        self.nodes += [helper.make_node("Identity", [w.name], [y.name], y.name) for w, y in zip(outputs, ends)]
        graph = helper.make_graph(
            self.nodes, "g",
            [helper.make_tensor_value_info("x", KINDS["f"], [1, self.channels, "T"])],
            [helper.make_tensor_value_info(w.name, KINDS[w.kind], None) for w in ends],
            self.constants,
        )  # fmt: skip
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=9)

"""Recurrent cells, convolutions and what is around them, node by node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from tests.attention import build
from tests.attention.build import Array
from tests.models import model

STREAMS = 3  # at once, where the batch is free
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
INITIAL = ("", "zero", "constant", "computed", "static", "of_static", "hidden")
LENGTHS = ("", "shape", "filled", "input")


@dataclass(frozen=True)
class Cell:
    """A recurrent operator.

    initial: "" none; zero, constant; computed: from constants, for any batch; static: an input of the model;
    of_static: computed from one; hidden: the LSTM's h is given, its c is not.
    lengths: where sequence_lens comes from: the shape of x by Expand or by a product, or an input `length`.
    """

    op: str = "GRU"
    hidden: int = 3
    direction: str = "forward"
    layout: int = 0
    initial: str = ""
    lengths: str = ""
    bias: bool = True
    peepholes: bool = False
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def directions(self) -> int:
        return 2 if self.direction == "bidirectional" else 1


@dataclass(frozen=True)
class Window:
    """A convolution: so many frames before and ahead are padded."""

    kernel: int = 3
    before: int = 2
    ahead: int = 0
    stride: int = 1

    @property
    def shortest(self) -> int:
        """Fewer frames make no frame."""
        return max(self.kernel - self.before - self.ahead, 1)

    def frames(self, length: int) -> int:
        return max((length + self.before + self.ahead - self.kernel) // self.stride + 1, 0)


@dataclass(frozen=True)
class Built:
    """A model and its inputs: those streamed, by time axis, and those given to the session.

    reference: the same model as ONNX Runtime can run it.
    shortest: fewer frames leave nothing for a recurrence, at which ONNX Runtime ends the process.
    """

    model: onnx.ModelProto
    reference: onnx.ModelProto
    streamed: dict[str, int]
    statics: tuple[str, ...]
    feeds: Callable[[int], dict[str, Array]]
    shortest: int = 1


class Builder(build.Builder):
    """runnable: a layout that ONNX Runtime does not run is written as the other one between transposes."""

    def __init__(self, batch: int | str = 1, runnable: bool = False, opset: int = build.OPSET) -> None:
        super().__init__(seed=2)
        self.batch, self.runnable, self.opset = batch, runnable, opset
        self.inputs: dict[str, build.Port] = {}

    def input(self, name: str, *dims: int | str, dtype: Any = np.float32) -> str:
        self.inputs[name] = (dims, dtype)
        return name

    # ---- operators

    def recurrent(self, x: str, cell: Cell, width: int, called: str = "r") -> str:
        """The operator itself; its outputs are called `called`, `called`_h and, of an LSTM, `called`_c."""
        gates, directions = GATES[cell.op] * cell.hidden, cell.directions
        inputs = [x, self.weight(directions, gates, width, scale=0.7), self.weight(directions, gates, cell.hidden)]
        inputs += [self.weight(directions, 2 * gates) if cell.bias else "", self._lengths(x, cell)]
        both = 2 if cell.op == "LSTM" else 1
        given = 1 if cell.initial == "hidden" else both
        inputs += [self._initial(x, cell, f"{called}_{'hc'[i]}0") if i < given else "" for i in range(both)]
        inputs += [self.weight(directions, 3 * cell.hidden)] if cell.peepholes else []
        while not inputs[-1]:
            inputs.pop()
        outputs = [f"{called}{end}" for end in ("", "_h", "_c")[: 1 + both]]
        self._place(cell, inputs, outputs)
        return called

    def _place(self, cell: Cell, inputs: list[str], outputs: list[str]) -> None:
        attributes = {"hidden_size": cell.hidden, "direction": cell.direction, **cell.attributes}
        if not cell.layout:
            self.node(cell.op, inputs, outputs, **attributes)
        elif not self.runnable:
            self.node(cell.op, inputs, outputs, **attributes, layout=1)
        else:
            turned = [self.transpose(n, 1, 0, 2) if n and i in (0, 5, 6) else n for i, n in enumerate(inputs)]
            self.node(cell.op, turned, [f"{o}_turned" for o in outputs], **attributes)
            for i, o in enumerate(outputs):
                self.op("Transpose", f"{o}_turned", perm=[1, 0, 2] if i else [2, 0, 1, 3], called=o)

    def node(self, kind: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> None:
        """A node of several outputs, named by the first there is."""
        name = next(o for o in outputs if o)
        self.nodes.append(onnx.helper.make_node(kind, inputs, outputs, name=name, **attributes))

    def _initial(self, x: str, cell: Cell, called: str) -> str:
        def dims(batch: Any) -> list[Any]:
            return [batch, cell.directions, cell.hidden] if cell.layout else [cell.directions, batch, cell.hidden]

        if cell.initial in ("zero", "constant"):
            assert isinstance(self.batch, int), "a constant has a batch of its own"
            return self.weight(*dims(self.batch), scale=float(cell.initial == "constant"))
        if cell.initial in ("computed", "hidden"):
            size = self.size(x, 0 if cell.layout else 1)
            return self.op("Expand", self.op("Tanh", self.weight(*dims(1))), self.shape(*dims(size)))
        if cell.initial in ("static", "of_static"):
            given = self.input(called, *dims(self.batch))
            return given if cell.initial == "static" else self.op("Tanh", self.op("Mul", given, self.const(2.0)))
        return ""

    def _lengths(self, x: str, cell: Cell) -> str:
        if cell.lengths == "input":
            return self.cast(self.input("length", self.batch, dtype=np.int64), np.int32)
        if not cell.lengths:
            return ""
        frames, size = self.size(x, cell.layout), self.vector(self.size(x, 1 - cell.layout))
        if cell.lengths == "shape":
            return self.cast(self.op("Expand", frames, size), np.int32)
        ones = self.op("Expand", self.const(np.ones(1, np.int32)), size)
        return self.op("Mul", ones, self.cast(frames, np.int32))

    def conv(self, x: str, window: Window, width: int, out: int, called: str = "") -> str:
        """[B, width, T] to [B, out, T']."""
        w = self.weight(out, width, window.kernel, scale=0.5)
        pads = [window.before, window.ahead]
        return self.op("Conv", x, w, called=called, pads=pads, strides=[window.stride])

    def merged(self, x: str, cell: Cell) -> str:
        """Y [T, D, B, H] as [T, B, D*H]; with layout 1, [B, T, D, H] as [B, T, D*H]."""
        if cell.layout:
            return self.reshape(x, 0, 0, cell.directions * cell.hidden)
        if cell.directions == 1:
            return self.op("Squeeze", x, self.ints(1))
        return self.reshape(self.transpose(x, 0, 2, 1, 3), 0, 0, cell.directions * cell.hidden)

    def over_time(self, x: str, cell: Cell, width: int, called: str = "r") -> str:
        """[B, width, T] to [B, H, T]."""
        if cell.layout:
            y = self.recurrent(self.transpose(x, 0, 2, 1), cell, width, called)
            return self.transpose(self.merged(y, cell), 0, 2, 1)
        y = self.recurrent(self.transpose(x, 2, 0, 1), cell, width, called)
        return self.transpose(self.merged(y, cell), 1, 2, 0)

    # ---- the model

    def proto(self, *outputs: str, dtypes: Mapping[str, Any] | None = None) -> onnx.ModelProto:
        dims = {n: d for n, (d, _) in self.inputs.items()}
        types = {n: t for n, (_, t) in self.inputs.items()} | dict(dtypes or {})
        return model(self.nodes, dims, outputs, self.constants, dtypes=types, opset=self.opset)

    def feeds(self, length: int) -> dict[str, Array]:
        rng = np.random.default_rng(length)
        sizes = {"T": length, "B": STREAMS}
        out: dict[str, Array] = {}
        for name, (dims, dtype) in self.inputs.items():
            concrete = [sizes[d] if isinstance(d, str) else d for d in dims]
            if name == "length":
                out[name] = np.full(concrete, length, dtype)
            elif np.dtype(dtype).kind == "i":
                out[name] = rng.integers(-9, 10, concrete).astype(dtype)
            else:
                out[name] = rng.standard_normal(concrete).astype(dtype)
        return out


def built(
    write: Callable[[Builder], Sequence[str]],
    *,
    batch: int | str = 1,
    shortest: int = 1,
    opset: int = build.OPSET,
    dtypes: Mapping[str, Any] | None = None,
) -> Built:
    """`write` adds inputs and nodes and says which values are the outputs."""
    protos = []
    for runnable in (True, False):
        b = Builder(batch, runnable, opset)
        protos.append(b.proto(*write(b), dtypes=dtypes))
    reference, proto = protos
    streamed = {n: list(d).index("T") for n, (d, _) in b.inputs.items() if "T" in d}
    statics = tuple(n for n in b.inputs if n not in streamed and n != "length")
    return Built(proto, reference, streamed, statics, b.feeds, shortest)

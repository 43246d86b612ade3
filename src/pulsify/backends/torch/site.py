"""A node as an operator's function sees it: inputs as expressions, attributes, and what is known of sizes and types.

A node of which something is `Uncovered` stays on the CPU.
"""

from __future__ import annotations

import builtins
import keyword
import math
import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from pulsify.backends.seam import Array
from pulsify.backends.site import NodeSite, Uncovered
from pulsify.core.spec import Spec

SMALLEST = {"float16": (2.0**-24, 65504.0), "bfloat16": (0.0, 3.3895313892515355e38)}  # and largest: finite, not zero
TORCH = {
    ir.DataType.FLOAT: "float32", ir.DataType.DOUBLE: "float64", ir.DataType.FLOAT16: "float16",
    ir.DataType.BFLOAT16: "bfloat16", ir.DataType.INT8: "int8", ir.DataType.INT16: "int16", ir.DataType.INT32: "int32",
    ir.DataType.INT64: "int64", ir.DataType.UINT8: "uint8", ir.DataType.BOOL: "bool",
}  # fmt: skip
FLOATS = ("float64", "float32", "float16", "bfloat16")
RESERVED = {"torch", "F", "op", "device", "step", "_", "attend", *keyword.kwlist, *dir(builtins)}


@dataclass(frozen=True)
class Need:
    """A constant that the source names. key: equal for what is the same tensor in every form of a step."""

    key: Hashable
    make: Callable[[], Array]
    dtype: str  # as torch calls it
    host: bool = False  # it stays with the CPU: it is about sizes


@dataclass(frozen=True)
class Names:
    """Python names for the values of a graph, each used once."""

    of: dict[ir.Value, str] = field(default_factory=dict)
    used: set[str] = field(default_factory=lambda: set(RESERVED))
    constants: dict[Hashable, str] = field(default_factory=dict)  # by the key of what is needed

    def name(self, value: ir.Value) -> str:
        if value not in self.of:
            self.of[value] = self.fresh(str(value.name or "value"))
        return self.of[value]

    def fresh(self, wish: str) -> str:
        plain = re.sub(r"\W+|(?<=/)out$", "_", wish).strip("_") or "value"
        plain = f"v_{plain}" if plain[0].isdigit() or plain.startswith("ring_") else plain
        name = next(n for n in _numbered(plain) if n not in self.used)
        self.used.add(name)
        return name


def _numbered(name: str) -> Iterator[str]:
    yield name
    number = 2
    while True:
        yield f"{name}_{number}"
        number += 1


@dataclass(frozen=True)
class Scope:
    """What holds for a whole step.

    low: the type that stands for float32, if not that itself. exact: values that stay as they are: those that follow
    from the clock alone, and what is carried from pulse to pulse. host: those that follow from sizes alone, which stay
    with the CPU. compiled: what lies between products becomes one kernel. attention: who has that kernel here.
    keeps: the stream, and for how many, if caches of attention are rings.
    """

    device: str
    opset: int
    low: str | None = None
    exact: frozenset[ir.Value] = frozenset()
    host: frozenset[ir.Value] = frozenset()
    names: Names = field(default_factory=Names)
    constants: Mapping[ir.Value, ir.TensorProtocol] = field(default_factory=dict)
    compiled: bool = False
    attention: str | None = None
    keeps: tuple[Spec, int] | None = None

    def array(self, value: ir.Value | None) -> Array | None:
        """A constant's elements."""
        tensor = None if value is None else self.constants.get(value)
        return None if tensor is None else tensor.numpy()

    def kind(self, value: ir.Value) -> str:
        """The type of a value as torch calls it."""
        if value.dtype is None:
            raise Uncovered(f"the type of {value.name} is not known")
        if value.dtype not in TORCH:
            raise Uncovered(f"torch does not compute in {value.dtype.name.lower()}")
        own = TORCH[value.dtype]
        return self.low if self.low and own == "float32" and value not in self.exact else own


@dataclass(frozen=True)
class Site(NodeSite[Scope]):
    """One node. needs: the constants its lines name, by name."""

    needs: dict[str, Need] = field(default_factory=dict)

    @property
    def device(self) -> str:
        return self.scope.device

    # ---- inputs

    def x(self, i: int = 0) -> str:
        """An input as an expression: a tensor of the type this node computes in, on the device."""
        value = self.given(i)
        if value in self.scope.constants:
            return self.constant(value)
        name = self.scope.names.name(value)
        if value in self.scope.host and not self.host:
            name = f"{name}.to(device)"
        wanted = self.kind(i)
        return name if self.scope.kind(value) == wanted else f"{name}.to(torch.{wanted})"

    def maybe(self, i: int) -> str:
        """An input that may be missing."""
        return self.x(i) if self.has(i) else "None"

    def number(self, i: int) -> str | None:
        """A constant of one element, as Python writes it; None for all others."""
        array = self.const(i)
        if array is None or array.size != 1 or array.dtype.kind not in "fiub":
            return None
        value = array.reshape(-1)[0]
        return literal(narrowed(value, self.kind(i)) if array.dtype == np.float32 else value)

    def constant(self, value: ir.Value) -> str:
        """The name of a constant, in the type this node computes in."""
        tensor, kind = self.scope.constants[value], self.scope.kind(value)
        exact = kind == self.scope.low and value.dtype == ir.DataType.FLOAT and not self.low
        kind, wish = ("float32", f"{value.name}_exact") if exact else (kind, str(value.name))
        return self._need(wish, Need((id(tensor), kind, self.host), tensor.numpy, kind, self.host))

    def put(self, wish: str, array: Array, kind: str | None = None, of: int | None = None) -> str:
        """A constant of this node's own. of: the input it is made of alone, if there is one."""
        source = None if of is None else self.value(of)
        made_of = self.node if source is None else id(self.scope.constants.get(source, self.node))
        wish = f"{self.node.name or self.op}_{wish}"
        own = kind or str(array.dtype)
        return self._need(wish, Need((made_of, wish, own, self.host), lambda: array, own, self.host))

    def _need(self, wish: str, need: Need) -> str:
        kept = self.scope.names.constants
        if need.key not in kept:
            kept[need.key] = self.scope.names.fresh(wish)
        self.needs[kept[need.key]] = need
        return kept[need.key]

    # ---- types and sizes

    def kind(self, i: int = 0) -> str:
        """The type of an input, as this node takes it."""
        value = self.given(i)
        own = self.scope.low and value.dtype == ir.DataType.FLOAT
        return self.low or "float32" if own else self.scope.kind(value)

    def made(self, i: int = 0) -> str:
        """The type of an output."""
        return self.scope.kind(self.node.outputs[i])

    @property
    def host(self) -> bool:
        return any(o in self.scope.host for o in self.node.outputs)

    @property
    def low(self) -> str | None:
        """The low type, if this node computes in it: what it makes is not exact, or what it compares."""
        made, given = (
            [v for v in values if v is not None and v.dtype == ir.DataType.FLOAT and v not in self.scope.constants]
            for values in (self.node.outputs, self.node.inputs)
        )
        return self.scope.low if any(v not in self.scope.exact for v in made or given) else None

    def floating(self, i: int = 0) -> bool:
        return self.kind(i) in FLOATS

    def within(self, number: int, other: int) -> bool:
        """May a constant of one element be a plain number beside another input? Not if it brings axes."""
        value = self.value(other)
        axes = 0 if value is None or value.shape is None else len(value.shape)
        return self.rank(number) <= axes

    # ---- attributes and outputs

    def out(self, i: int = 0) -> str:
        if i >= len(self.node.outputs) or not self.wanted(i):
            return "_"
        return self.scope.names.name(self.node.outputs[i])


def narrowed(values: Any, kind: str) -> Any:
    """Float32 numbers that a lower type has: what is finite stays finite, and what is not zero does not become zero.

    -1e9 hides a score and 1e-10 keeps a logarithm finite; -inf and 0 would not.
    """
    if kind not in SMALLEST:
        return values
    least, most = SMALLEST[kind]
    size = np.abs(values)
    large, small = np.isfinite(values) & (size > most), (size > 0) & (size < least)
    if not large.any() and not small.any():
        return values
    return np.copysign(np.where(large, np.float32(most), np.where(small, np.float32(least), size)), values)


def literal(number: Any) -> str:
    """A number as Python reads it back, to the last bit."""
    if isinstance(number, (bool, np.bool_)):
        return str(bool(number))
    if isinstance(number, (int, np.integer)):
        return str(int(number))
    value = float(number)
    return repr(value) if math.isfinite(value) else f"float('{value}')"

"""Partial evaluation of a model at one concrete length.

Every value is either known (it follows from the length alone) or merely shaped (it depends on data). No data
is ever computed: a node whose inputs are known is executed, of any other only the output shapes are inferred.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from pulsify.core.boundary import foreign, processing
from pulsify.core.custom import CUSTOM, Custom, Shaped
from pulsify.core.errors import NotStreamable, PulsifyError
from pulsify.core.facet import Facet
from pulsify.core.one_node import single_node_model
from pulsify.core.refusal import Kind
from pulsify.core.runner import error_text
from pulsify.core.traits import traits
from pulsify.frontend.loop_ports import Looped, looped
from pulsify.frontend.model import Body, Model, Node
from pulsify.trace.one_node import alike, alone, runner_of
from pulsify.trace.shapes import Inputs, check_inputs, corrected, no_larger, own_shape
from pulsify.trace.tied import too_deep
from pulsify.trace.traced import EAGER_ELEMENTS, Array, CannotRun, Empty, TooLarge, Traced, known, lazy, unknown

MOST_ELEMENTS = 1 << 27  # of a value that is looked at
MOST_DEPTH = 200  # of values that are made when asked for: Python calls no deeper than four times that
AT_ONCE = 1 << 20  # elements of large values that are made by entries are worked out so many at a time

ShapedBy = Literal["values", "data"]
Digits = Callable[[Node], bool | None]


def rounds(_: Node) -> bool:
    """The last digit of a function shows in its output."""
    return True


def exact(_: Node) -> bool:
    """Whatever it reads, no last digit shows in its output."""
    return False


MEASURE = Facet[Callable[[Node, tuple[int, ...]], Array]](
    "measure", "what it says of the shape of its input, if it reads no entries of it"
)
SHAPED_BY = Facet[ShapedBy]("shape by value", "what else than sizes its shape depends on: values it is given, or data")
ARRAYS = Facet[Callable[[Node, Inputs], list[Array]]]("arrays", "what it makes of arrays, quicker than by running it")
DIGITS = Facet[Digits](
    "digits", "whether the last digit of a function shows in its output", lambda t: exact if t.compares else None
)


def measures(node: Node) -> bool:
    """Does it read how large its input is, and no entries?"""
    return MEASURE.of(node) is not None


def iterations(node: Node, values: Mapping[str, Traced]) -> int:
    """How many times a Scan or a Loop turns at this length."""
    parts = looped(node, nested=True)
    if not parts.count:
        counts = {values[along.outer].dims[along.axis] for along in parts.scanned}
        if len(counts) > 1:
            raise NotStreamable(
                f"its inputs have different numbers of frames, {' and '.join(map(str, sorted(counts)))}",
                node=node.name,
                op=node.op,
                hint="let every turn read the frame of its own number, of inputs that are equally long",
                kind=Kind.LENGTH,
            )
        return counts.pop()
    count = values[parts.count]
    if not count.known:
        raise NotStreamable(
            "how often it turns depends on the data",
            node=node.name,
            op=node.op,
            hint="loop over the frames of an input",
            kind=Kind.DATA,
        )
    return int(count.array.reshape(-1)[0])


@dataclass(eq=False)
class Trace:
    """All values of a model at one stream length and batch size."""

    length: int
    batch: int
    values: dict[str, Traced] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Traced:
        return self.values[name]

    def __contains__(self, name: str) -> bool:
        return name in self.values

    @property
    def nbytes(self) -> int:
        """Of the known values that were computed."""
        return sum(v.nbytes for v in self.values.values())


@dataclass(eq=False)
class Evaluator:
    """Executes known nodes and infers the shapes of the others; what it builds per node is kept for other lengths."""

    model: Model
    may_be_empty: Container[str] = ()  # values without entries that are followed all the same
    steps: int = 0  # nodes that were looked at, at all lengths together
    _runners: dict[tuple[Any, ...], Callable[[list[Array | None]], list[Array]]] = field(default_factory=dict)
    _constants: dict[str, Traced] = field(default_factory=dict)
    _inexact: dict[str, bool] = field(default_factory=dict)
    _read: set[str] | None = None
    _lasting: dict[str, Traced] | None = None

    def trace(self, inputs: Mapping[str, Traced], length: int, batch: int) -> Trace:
        """Values for every name. Raises CannotRun if the model has no valid shapes at this length."""
        result = Trace(length, batch, dict(inputs))
        values = result.values
        values.update(self.constants())
        if self._lasting is None:
            self._lasting = self.lasting()
        values.update(self._lasting)
        for node in self.model.nodes:
            if not all(o in values for o in node.outputs if o):
                self.step(node, values)
        return result

    def lasting(self, taken: Callable[[Node], bool] = lambda _: True) -> dict[str, Traced]:
        """What no input has a part in is the same at every length (a mask that was drawn while exporting).

        taken: the nodes that may be computed.
        """
        values = dict(self.constants())
        for node in self.model.nodes:
            alone = node.body is None and not _random(node) and all(i in values for i in node.inputs if i)
            if alone and taken(node):
                with suppress(CannotRun):  # said where the model is run
                    self.step(node, values)
        return values

    def constants(self) -> dict[str, Traced]:
        """The model's constants; none is loaded before its value is needed."""
        if not self._constants:
            self._constants = self.lazy_constants(self.model.constants)
        return self._constants

    def lazy_constants(self, tensors: Mapping[str, ir.TensorProtocol]) -> dict[str, Traced]:
        return {name: _constant(t) for name, t in tensors.items()}

    def step(self, node: Node, values: dict[str, Traced]) -> None:
        """Adds the outputs of one node to `values`."""
        self.steps += 1
        ins = [values[i] if i else None for i in node.inputs]
        try:
            with processing(node):
                self._step(node, ins, values)
        except CannotRun as problem:
            problem.read = problem.read or [v for v in ins if v is not None]
            raise

    def _step(self, node: Node, ins: list[Traced | None], values: dict[str, Traced]) -> None:
        measure = MEASURE.of(node)
        if measure is not None:
            assert ins[0] is not None
            values[node.outputs[0]] = known(measure(node, ins[0].dims))
        elif node.body is not None:
            self._looped(node, node.body, values)
        elif all(v is None or v.known for v in ins) and not _random(node):
            self._known(node, ins, values)
        else:
            for name, (dtype, dims) in self._infer(node, ins).items():
                values[name] = Traced(dtype, dims, False)

    def _looped(self, node: Node, body: Body, values: dict[str, Traced]) -> None:
        """Shapes around a Scan or a Loop: its body is walked once."""
        parts, count = looped(node), iterations(node, values)
        inner = self.inside(node, parts, values)
        for n in body.nodes:
            self.step(n, inner)
        values |= {c.final: unknown(inner[c.after]) for c in parts.carried if c.final}
        for a in parts.collected:
            if a.outer:
                made = inner[a.inner]
                at = a.axis % (len(made.dims) + 1)
                values[a.outer] = Traced(made.dtype, (*made.dims[:at], count, *made.dims[at:]), False)

    def inside(self, node: Node, parts: Looped, values: Mapping[str, Traced]) -> dict[str, Traced]:
        """What the body of a Scan or a Loop is given."""
        assert node.body is not None
        inner = {n: values[n] for n in node.body.captured}
        inner |= {c.before: unknown(values[c.start]) for c in parts.carried}
        inner |= {a.inner: unknown(values[a.outer], without=a.axis) for a in parts.scanned}
        if parts.number:
            inner |= {
                parts.number: Traced(ir.DataType.INT64, (), False),
                parts.going: Traced(ir.DataType.BOOL, (), False),
            }
        return inner

    def _known(self, node: Node, ins: list[Traced | None], values: dict[str, Traced]) -> None:
        if SHAPED_BY.of(node) is None and self._large(node, ins):
            kept, depth = list(ins), 1 + max(v.depth for v in ins if v is not None)
            if depth > MOST_DEPTH:
                raise too_deep(node.name, node.op, self.model.exporter)
            for i, (name, (dtype, dims)) in enumerate(self._infer(node, ins).items()):
                values[name] = lazy(dtype, dims, lambda i=i: self.run(node, kept)[i], depth)  # type: ignore[misc]
                if traits(node.op, node.domain).elementwise and not node.domain:
                    self._by_rows(node, kept, values[name])
            return
        for name, array in zip([o for o in node.outputs if o], self.run(node, ins), strict=False):
            values[name] = known(array)

    def _by_rows(self, node: Node, ins: list[Traced | None], made: Traced) -> None:
        """What is made entry by entry can be had some rows at a time, and of what it is made of nothing else is."""

        def rows(axis: int, which: slice) -> Array:
            cut = [
                None if v is None else known(v.cut(axis + len(v.dims) if -axis <= len(v.dims) else None, which))
                for v in ins
            ]
            return self.run(node, cut)[0]

        def whole() -> Array:
            axis = next((a for a, d in enumerate(made.dims) if d > 1), 0)
            some = max(AT_ONCE * made.dims[axis] // math.prod(made.dims), 1)
            if math.prod(made.dims) > MOST_ELEMENTS:
                raise TooLarge(node, "it would be too large to look at")
            out = np.empty(made.dims, made.dtype.numpy())
            for start in range(0, made.dims[axis], some):
                which = slice(start, start + some)
                out[(slice(None),) * axis + (which,)] = rows(axis - len(made.dims), which)
            return out

        made._rows, made._thunk = rows, whole

    def _large(self, node: Node, ins: list[Traced | None]) -> bool:
        """Worth computing only when asked for: large itself, or made of much (every frame against every other)."""
        elements = sum(math.prod(v.dims) for v in ins if v is not None)
        if elements > EAGER_ELEMENTS or elements < 512 or no_larger(node, ins):
            return elements > EAGER_ELEMENTS
        return any(math.prod(dims) > EAGER_ELEMENTS for _, dims in self._infer(node, ins).values())

    def run(self, node: Node, ins: list[Traced | None]) -> list[Array]:
        quicker = ARRAYS.of(node)
        if quicker is not None:
            return quicker(node, ins)
        if any(v is not None and math.prod(v.dims) > MOST_ELEMENTS for v in ins):
            raise TooLarge(node, "it would be too large to look at")
        if traits(node.op, node.domain).compares and any(self._rounded(i) for i in node.inputs):
            _check_apart(node, [v.array for v in ins if v is not None])
        kind = alike(node)
        runner = self._runners.get(kind)
        if runner is None:
            runner = self._runners[kind] = runner_of(self.model, node)
        try:
            return runner([None if v is None else v.array for v in ins])
        except (CannotRun, PulsifyError, RecursionError, MemoryError):  # of a value it reads, if that is lazy
            raise
        except Exception as error:
            raise CannotRun(node, error_text(error)[:200]) from error

    def _idle(self, name: str) -> bool:
        """Does nobody read it? A part that is left over may be empty."""
        if self._read is None:
            self._read = {*self.model.outputs, *(i for n in self.model.nodes for i in n.reads)}
        return name in self.model.producers and name not in self._read

    def _rounded(self, name: str) -> bool:
        """Is it made of a function that two libraries, or two places in an array, may round otherwise?"""
        todo = [name]
        while todo:  # no recursion: a mask written by Python loops is a chain of tens of thousands of nodes
            node = self.model.producers.get(todo[-1])
            digits = None if node is None else DIGITS.of(node)
            shown = None if node is None or digits is None else digits(node)
            if node is None or shown is not None:
                self._inexact[todo.pop()] = bool(shown)
            elif missing := [i for i in node.inputs if i and i not in self._inexact]:
                todo += missing
            else:
                self._inexact[todo.pop()] = any(self._inexact[i] for i in node.inputs if i)
        return self._inexact[name]

    def _infer(self, node: Node, ins: list[Traced | None]) -> dict[str, tuple[ir.DataType, tuple[int, ...]]]:
        types: dict[str, onnx.TypeProto] = {}
        data: dict[str, onnx.TensorProto] = {}
        by = SHAPED_BY.of(node)
        for name, v in zip(node.inputs, ins, strict=True):
            if v is None:
                continue
            types[name] = helper.make_tensor_type_proto(int(v.dtype), v.dims)
            if v.known and int(np.prod(v.dims)) <= 64 and (v.dtype.is_integer() or by is not None):
                data[name] = numpy_helper.from_array(np.asarray(v.array, order="C"), name)
        check_inputs(node, ins)
        own = own_shape(node, ins)
        if own is not None and ins[0] is not None:
            return {name: (ins[0].dtype, own) for name in node.outputs if name}
        if traits(node.op, node.domain).compares:  # of some versions inference knows nothing
            dims = np.broadcast_shapes(*(v.dims for v in ins if v is not None))
            return dict.fromkeys(node.outputs, (ir.DataType.BOOL, dims))
        inferred = _infer_types(self.model, node, types, data)
        out: dict[str, tuple[ir.DataType, tuple[int, ...]]] = {}
        for name in node.outputs:
            if not name:
                continue
            t = inferred[name].tensor_type if name in inferred else None
            if t is None or not t.HasField("shape"):
                raise NotStreamable(
                    "the shape of its output cannot be inferred",
                    node=node.name,
                    op=node.op,
                    hint="replace it by operators with known shapes",
                )
            dims = tuple(d.dim_value if d.HasField("dim_value") else -1 for d in t.shape.dim)
            if min(dims, default=0) < 0 and (by == "data" or any(v is not None and not v.known for v in ins[1:])):
                raise NotStreamable(
                    "the size of its output depends on the data",
                    node=node.name,
                    op=node.op,
                    hint=CHOOSE if by == "data" and ins[0] is not None and ins[0].dtype == ir.DataType.BOOL else SIZES,
                    kind=Kind.DATA,
                )
            dims = corrected(node, ins, dims)
            if min(dims, default=1) < 0:
                raise CannotRun(node, f"the output would have shape {list(dims)}")
            if 0 in dims and name not in self.may_be_empty and not self._idle(name):
                raise Empty(node, dims)
            out[name] = (ir.DataType(t.elem_type), dims)
        return out


CHOOSE = "choose entry by entry, torch.where(mask, new, x), in place of a list of the entries where a mask holds"
SIZES = "cut, pad and shape by amounts that are constant or follow from the length"


def _random(node: Node) -> bool:
    return traits(node.op, node.domain).random


def _constant(t: ir.TensorProtocol) -> Traced:
    dims = tuple(int(d) for d in t.shape)  # type: ignore[arg-type]
    return lazy(t.dtype, dims, lambda: np.asarray(t.numpy()))


def _infer_types(
    model: Model, node: Node, types: dict[str, onnx.TypeProto], data: dict[str, onnx.TensorProto]
) -> dict[str, onnx.TypeProto]:
    name = node.domain, node.op
    if name in CUSTOM or name in model.bodies:
        return _infer_custom(model, node, CUSTOM.get(name, Custom()), types)
    try:
        schema = onnx.defs.get_schema(node.op, node.version, node.domain)
    except Exception as error:
        raise NotStreamable(
            f"operator {node.domain or 'ai.onnx'}::{node.op} is not known",
            node=node.name,
            op=node.op,
            hint="export the model with standard ONNX operators, or make it known: pulsify.extend",
        ) from error
    opsets = [helper.make_opsetid(k, v) for k, v in model.opset_imports.items()]
    try:
        return onnx.shape_inference.infer_node_outputs(
            schema, node.proto, types, data, opset_imports=opsets, ir_version=model.ir_version
        )
    except Exception as error:
        raise CannotRun(node, str(error)[:200]) from error


def _infer_custom(
    model: Model, node: Node, custom: Custom, types: dict[str, onnx.TypeProto]
) -> dict[str, onnx.TypeProto]:
    """By the function registered for it, else through its body."""
    if custom.shapes is not None:
        given = [_shaped(types[i]) if i else None for i in node.inputs]
        with foreign(f"the shapes of '{node.domain}::{node.op}'"):
            made = custom.shapes(node.attrs, given)
            pairs = zip(node.outputs, made, strict=False)
            return {name: helper.make_tensor_type_proto(int(s.dtype), s.dims) for name, s in pairs if name}
    one = single_node_model(alone(model, node), dict.fromkeys(types))
    for port in one.graph.input:
        port.type.CopyFrom(types[port.name])
    try:
        inferred = onnx.shape_inference.infer_shapes(one, strict_mode=True, data_prop=True)
    except Exception as error:
        raise CannotRun(node, str(error)[:200]) from error
    return {o.name: o.type for o in inferred.graph.output if o.type.tensor_type.HasField("shape")}


def _shaped(t: onnx.TypeProto) -> Shaped:
    return Shaped(ir.DataType(t.tensor_type.elem_type), tuple(d.dim_value for d in t.tensor_type.shape.dim))


APART = 16  # units in the last place


def _check_apart(node: Node, arrays: Sequence[Array]) -> None:
    """Refuse what depends on the last digit of a function: a stream may round it otherwise than batch does."""
    if any(a.dtype.kind != "f" for a in arrays) or len(set(node.inputs)) < 2:
        return
    x, y = arrays
    with np.errstate(all="ignore"):
        size = np.maximum(np.abs(x), np.abs(y))
        close = (np.abs(x - y) <= APART * np.finfo(x.dtype).eps * size) & (size > 0)
    if close.any():
        raise NotStreamable(
            "the numbers it compares are too close to call: the last digit of a function would decide",
            node=node.name,
            op=node.op,
            hint="compare positions, or leave some room between what is compared",
            kind=Kind.NOT_PROVEN,
        )

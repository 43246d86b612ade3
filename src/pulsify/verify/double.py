"""The batch model in float64: the same graph, every float32 a double, on ONNX Runtime.

Operators that it has no such kernel for are computed in float32, as in batch: their own rounding does not show, but all
that follows from it does. What batch is off by is never taken for more than it is.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import AttributeProto, TensorProto, helper, numpy_helper
from onnx.inliner import inline_local_functions

from pulsify.core.arrays import Arrays
from pulsify.core.runner import error_text, open_model, run_model
from pulsify.core.traits import traits

if TYPE_CHECKING:
    import onnxruntime as ort

FLOAT, DOUBLE = TensorProto.FLOAT, TensorProto.DOUBLE
LOW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
TYPES = ("to", "dtype", "output_datatype")  # attributes that name a type
MISSING = re.compile(r"implementation for (\w+)\(")
LARGEST = 256 << 20  # bytes of weights, above which no second model in double is opened


class Double:
    """The batch model in double, opened when it is first run; `why` says why there is none.

    single: operators of it that are computed in float32.
    """

    def __init__(self, source: Any) -> None:
        self.why, self._source = "", source
        self.single: tuple[str, ...] = ()
        self._runner: ort.InferenceSession | None = None

    def run(self, feeds: Arrays) -> Arrays:
        """Outputs by name; none if there is no such model, or it fails."""
        if self._runner is None and not self.why:
            self._open()
        if self._runner is None or self.why:
            return {}
        try:
            return run_model(self._runner, {name: _wide(array) for name, array in feeds.items()})
        except Exception as error:  # some operators have no kernel in double and say so only when they are run
            self.why = _text(error)
            return {}

    def _open(self) -> None:
        single = set[str]()  # operators of which ONNX Runtime says so
        while self._runner is None and not self.why:
            try:
                model, used = _widened(self._source, single)
            except _Narrow as reason:
                self.why = str(reason)
                return
            try:
                self._runner, self.single = open_model(model, optimize=False), tuple(sorted(used))
            except Exception as error:  # ONNX Runtime has no common class for them; most lack a kernel in double
                missing = MISSING.search(str(error))
                if missing is None or missing[1] in single:
                    self.why = _text(error)
                else:
                    single.add(missing[1])


def _text(error: Exception) -> str:
    return error_text(error).splitlines()[0][:160]


TOO_LARGE = "it is too large to be opened in float64 as well"


class _Narrow(Exception):
    """Why a model cannot be had in double."""


def _wide(array: Any) -> Any:
    return array.astype(np.float64) if array.dtype == np.float32 else array


def _widened(source: Any, single: Container[str]) -> tuple[onnx.ModelProto, set[str]]:
    """The model in double, and which of its operators stay in float32: those in `single`, and all known to."""
    proto = _proto(source)
    proto = inline_local_functions(proto) if proto.functions else proto
    if proto.ByteSize() > LARGEST:
        raise _Narrow(TOO_LARGE)
    if not any(o.type.tensor_type.elem_type == FLOAT for o in proto.graph.output):
        raise _Narrow("no output of it is float32")
    widening = _Widening(_types(onnx.shape_inference.infer_shapes(proto).graph), single)
    widening.graph(proto.graph)
    return proto, widening.used


def _types(graph: onnx.GraphProto) -> dict[str, int]:
    """Of all values whose type is known, those in bodies too."""
    ports = (*graph.input, *graph.output, *graph.value_info)
    found = {v.name: v.type.tensor_type.elem_type for v in ports} | {t.name: t.data_type for t in graph.initializer}
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                found |= _types(attribute.g)
    return found


def _proto(source: Any) -> onnx.ModelProto:
    if isinstance(source, str):
        return onnx.load(source)
    if isinstance(source, bytes):
        return onnx.load_from_string(source)
    if sum(t.nbytes for v in source.graph.initializers.values() if (t := v.const_value) is not None) > LARGEST:
        raise _Narrow(TOO_LARGE)
    proto = onnx.ModelProto()
    proto.CopyFrom(ir.to_proto(ir.external_data.load_to_model(source.clone())))  # weights may be in a file of their own
    return proto


@dataclass
class _Widening:
    """Makes graphs double. types: of values as they were. single: further operators that stay; used: all that did."""

    types: Mapping[str, int]
    single: Container[str]
    used: set[str] = field(default_factory=set)

    def graph(self, graph: onnx.GraphProto) -> None:
        del graph.value_info[:]
        for tensor in graph.initializer:
            _widen_tensor(tensor)
        for port in (*graph.input, *graph.output):
            if port.type.tensor_type.elem_type in LOW:
                raise _Narrow("parts of it are in half precision")
            if port.type.tensor_type.elem_type == FLOAT:
                port.type.tensor_type.elem_type = DOUBLE
        nodes = list(graph.node)
        del graph.node[:]
        for node in nodes:
            kind = traits(node.op_type)
            if kind.random or kind.quantizes:
                raise _Narrow(f"{node.op_type} is something else in float64")
            if kind.single or node.op_type in self.single:
                graph.node.extend(self._as_it_is(node))
                continue
            for attribute in node.attribute:
                self._attribute(attribute)
            graph.node.append(node)

    def _as_it_is(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """Between casts."""
        self.used.add(node.op_type)
        mark = next(name for name in node.output if name)
        for i, name in enumerate(node.input):
            if self.types.get(name) == FLOAT:
                node.input[i] = f"{mark}/single_in_{i}"
                yield helper.make_node("Cast", [name], [node.input[i]], to=FLOAT)
        wide = [(i, name) for i, name in enumerate(node.output) if name and self.types.get(name) == FLOAT]
        for i, name in wide:
            node.output[i] = f"{name}/single"
        yield node
        for _, name in wide:
            yield helper.make_node("Cast", [f"{name}/single"], [name], to=DOUBLE)

    def _attribute(self, attribute: AttributeProto) -> None:
        if attribute.name in TYPES and attribute.type == AttributeProto.INT:
            if attribute.i in LOW:
                raise _Narrow("parts of it are in half precision")
            attribute.i = DOUBLE if attribute.i == FLOAT else attribute.i
        elif attribute.name in ("value_float", "value_floats"):
            values: Any = attribute.f if attribute.name == "value_float" else list(attribute.floats)
            attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(np.array(values, np.float64))))
        elif attribute.type == AttributeProto.TENSOR:
            _widen_tensor(attribute.t)
        elif attribute.type == AttributeProto.GRAPH:
            self.graph(attribute.g)


def _widen_tensor(tensor: TensorProto) -> None:
    if tensor.data_type in LOW:
        raise _Narrow("parts of it are in half precision")
    if tensor.data_type == FLOAT:
        name, array = tensor.name, numpy_helper.to_array(tensor)
        tensor.CopyFrom(numpy_helper.from_array(array.astype(np.float64), name))


def outputs_in_double(double: Double, feeds: Arrays, outputs: Mapping[str, Any]) -> Arrays:
    """Those of these outputs that are float32 in the model, of the same shape."""
    made = double.run(feeds)
    return {
        name: made[name]
        for name, want in outputs.items()
        if want.dtype == np.float32 and name in made and made[name].shape == want.shape
    }

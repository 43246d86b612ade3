"""One node on arrays, as batch computes it: by ONNX Runtime, or by NumPy where that is the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from pulsify.core.arrays import Array
from pulsify.core.by_numpy import by_numpy
from pulsify.core.runner import error_text, open_model
from pulsify.core.traits import traits

HELD = frozenset("biufOUS")  # kinds of types that arrays are handed to ONNX Runtime in
CAST_TO = {
    "bfloat16": np.float32,
    "float8": np.float32,
    "int4": np.int8,
    "uint4": np.uint8,
    "int2": np.int8,
    "uint2": np.uint8,
}


class NoKernel(Exception):
    """ONNX Runtime does not take this node with inputs of these types, at any length."""


@dataclass(eq=False)
class OneNode:
    """A node that is run by itself. A session is kept for inputs of the same types and ranks.

    attrs: as onnx_ir has them. functions: bodies of operators of other domains.
    """

    node: onnx.NodeProto
    attrs: Mapping[str, Any]
    opsets: Mapping[str, int]
    ir_version: int
    functions: Sequence[onnx.FunctionProto] = ()
    _sessions: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    def run(self, given: Sequence[Array | None]) -> list[Array]:
        """The outputs that have a name. given: an array for every input, None for one that is left out.

        Raises NoKernel, or whatever NumPy or ONNX Runtime raises for these values.
        """
        if self.node.domain in ("", "ai.onnx"):
            made = by_numpy(self.node.op_type, self.attrs, given)
            if made is not None:
                return made
        feeds = {n: a for n, a in zip(self.node.input, given, strict=True) if n and a is not None}
        return self._by_runtime(feeds)

    def _by_runtime(self, feeds: Mapping[str, Array]) -> list[Array]:
        fed = {n: a for n, a in feeds.items() if a.dtype.kind in HELD}
        if len(fed) < len(feeds) or traits(self.node.op_type).needs_sizes:
            session, widened = self._open(feeds)  # for these arrays alone: what NumPy does not hold is a constant
        else:
            key = tuple((a.dtype, a.ndim) for a in feeds.values())
            if key not in self._sessions:
                self._sessions[key] = self._open(feeds)
            session, widened = self._sessions[key]
        made = session.run(None, fed)
        return [np.asarray(a if t is None else a.astype(t)) for a, t in zip(made, widened, strict=True)]

    def _open(self, feeds: Mapping[str, Array]) -> tuple[Any, list[Any]]:
        """A session, and for every output the type it is cast back to, if NumPy does not know it."""
        try:
            session = open_model(single_node_model(self, feeds), optimize=False)
            types = {o.name: _unheld(o.type) for o in session.get_outputs()}
            if any(types.values()):
                session = open_model(single_node_model(self, feeds, types), optimize=False)
        except Exception as error:  # ONNX Runtime has no common class for them
            raise NoKernel(error_text(error)) from error
        names = [n for n in self.node.output if n]
        return session, [types[n].numpy() if types[n] is not None else None for n in names]  # type: ignore[union-attr]


def _unheld(written: str) -> ir.DataType | None:
    """The type of an output that no array is made of, as ONNX Runtime writes it: tensor(bfloat16)."""
    name = written.removeprefix("tensor(").removesuffix(")").upper()
    found = ir.DataType.__members__.get(name)
    return found if found is not None and _wider(found) is not None else None


def _wider(dtype: ir.DataType) -> Any:
    """A type of NumPy that holds all of one that NumPy does not know."""
    return next((wide for name, wide in CAST_TO.items() if dtype.name.lower().startswith(name)), None)


def single_node_model(
    one: OneNode, arrays: Mapping[str, Array | None], types: Mapping[str, ir.DataType | None] | None = None
) -> onnx.ModelProto:
    """The node as a model. arrays: by input, None for one of any type. types: outputs that are cast to be read."""
    inputs, constants = [], []
    for name, array in arrays.items():
        if array is None:
            inputs.append(onnx.ValueInfoProto(name=name))
        elif array.dtype.kind in HELD:
            dims = list(array.shape) if traits(one.node.op_type).needs_sizes else [None] * array.ndim  # of any size
            inputs.append(helper.make_tensor_value_info(name, int(ir.DataType.from_numpy(array.dtype)), dims))
        else:
            constants.append(numpy_helper.from_array(array, name))
    nodes, outputs = [one.node], []
    for name in filter(None, one.node.output):
        dtype = (types or {}).get(name)
        if dtype is not None:
            wide = helper.np_dtype_to_tensor_dtype(np.dtype(_wider(dtype)))
            nodes.append(helper.make_node("Cast", [name], [f"{name}/wide"], to=wide))
        outputs.append(onnx.ValueInfoProto(name=name if dtype is None else f"{name}/wide"))
    graph = helper.make_graph(nodes, "one", inputs, outputs, constants)
    opsets = [helper.make_opsetid(k, v) for k, v in one.opsets.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=one.ir_version, functions=list(one.functions))

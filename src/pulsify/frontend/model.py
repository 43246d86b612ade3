"""The model as the rest of pulsify sees it: a flat list of plain nodes, constants kept where they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import onnx
import onnx_ir as ir

from pulsify.core.custom import Bodies

Dim = int | str | None  # a size, the name of a symbolic size, or an unnamed unknown
Exporter = Literal["torch.jit", "torch.export", "torch.nn", ""]  # torch's older one, its newer one, pulsify, others


@dataclass(frozen=True, eq=False)
class Body:
    """What a Scan or a Loop does once. Its names are unique in the model; `captured` are those of outer values."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    captured: tuple[str, ...]

    @property
    def branches(self) -> tuple[ir.Graph, ...]:
        """The graphs inside that are no loops' bodies."""
        return tuple(a for n in self.nodes if n.body is None for a in n.attrs.values() if isinstance(a, ir.Graph))

    @property
    def nested(self) -> bool:
        """There are bodies inside."""
        return any(isinstance(a, ir.Graph) for n in self.nodes for a in n.attrs.values())


@dataclass(frozen=True, eq=False)
class Node:
    """One operator application. Names are unique in the model; '' marks an absent optional input."""

    name: str
    op: str
    domain: str
    version: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any]
    written: onnx.NodeProto | Callable[[], onnx.NodeProto]  # as ONNX has it, or how that is made
    body: Body | None = None
    scope: Mapping[str, str] = field(default_factory=dict)  # names in its branches -> those of the values around it

    @cached_property
    def proto(self) -> onnx.NodeProto:
        """Made when it is first asked for: of models with thousands of nodes few are ever."""
        return self.written if isinstance(self.written, onnx.NodeProto) else self.written()

    @property
    def reads(self) -> tuple[str, ...]:
        """All values it depends on, those its body captures included."""
        return self.inputs if self.body is None else (*self.inputs, *self.body.captured)

    def attr(self, name: str, default: Any = None) -> Any:
        return self.attrs.get(name, default)

    def input(self, index: int) -> str:
        return self.inputs[index] if index < len(self.inputs) else ""


def renamed(node: Node, names: Mapping[str, str], name: str) -> Node:
    """The node in terms of other values."""
    inputs, outputs = (tuple(names.get(v, v) for v in values) for values in (node.inputs, node.outputs))
    return _settled(node, name, inputs, outputs)


def make_node(op: str, inputs: Sequence[str], output: str, version: int, **attrs: Any) -> Node:
    """A plain node with one output, named after it."""
    proto = onnx.helper.make_node(op, list(inputs), [output], name=f"{output}/{op}", **attrs)
    return Node(proto.name, op, "", version, tuple(inputs), (output,), attrs, proto)


def _settled(node: Node, name: str, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Node:
    proto = onnx.NodeProto()
    proto.CopyFrom(node.proto)
    del proto.input[:], proto.output[:]
    proto.input.extend(inputs)
    proto.output.extend(outputs)
    proto.name = name
    return replace(node, name=name, inputs=inputs, outputs=outputs, written=proto)


@dataclass(frozen=True)
class Port:
    """A graph input as declared."""

    name: str
    dtype: ir.DataType
    dims: tuple[Dim, ...]


@dataclass(frozen=True)
class Decision:
    """At node `node` the value `name` (or the size of an axis of it) was `taken`.

    everywhere: all of its entries were.
    """

    node: str
    op: str
    name: str
    axis: int | None
    taken: int
    everywhere: bool = False


@dataclass(frozen=True, eq=False)
class Model:
    """A whole model. `constants` are tensors that are not loaded before someone asks for their values."""

    nodes: tuple[Node, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, ir.TensorProtocol]
    opset_imports: Mapping[str, int]
    ir_version: int
    source: str | bytes | onnx.ModelProto | ir.Model
    bodies: Bodies = field(default_factory=dict)  # of operators of other domains that stay whole
    decisions: tuple[Decision, ...] = ()  # what was decided at one length, and must be so at every length
    producers: dict[str, Node] = field(default_factory=dict)
    exporter: Exporter = ""

    @cached_property
    def readers(self) -> Mapping[str, Sequence[tuple[Node, int]]]:
        """The nodes that read a value, and as which of their inputs (behind all of them: their body captures it)."""
        out: dict[str, list[tuple[Node, int]]] = {}
        for node in self.nodes:
            for place, name in enumerate(node.reads):
                if name:
                    out.setdefault(name, []).append((node, place))
        return out

    def __post_init__(self) -> None:
        for node in self.nodes:
            for output in node.outputs:
                if output:
                    self.producers[output] = node

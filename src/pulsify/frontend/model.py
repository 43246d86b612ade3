"""The model as the rest of pulsify sees it: a flat list of plain nodes, constants kept where they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx
import onnx_ir as ir

Dim = int | str | None  # a size, the name of a symbolic size, or an unnamed unknown


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
    proto: onnx.NodeProto

    def attr(self, name: str, default: Any = None) -> Any:
        return self.attrs.get(name, default)

    def input(self, index: int) -> str:
        return self.inputs[index] if index < len(self.inputs) else ""


@dataclass(frozen=True)
class Port:
    """A graph input as declared."""

    name: str
    dtype: ir.DataType
    dims: tuple[Dim, ...]


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
    shortest: int = 1  # shorter streams take another branch of the model
    producers: dict[str, Node] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in self.nodes:
            for output in node.outputs:
                if output:
                    self.producers[output] = node

"""An island: a part of the step that ONNX Runtime runs on the CPU, with copies at its edges only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir

from pulsify.backends.subgraphs import reads
from pulsify.backends.torch.placement import Part
from pulsify.backends.torch.site import Scope
from pulsify.backends.torch.tensors import Wire, to_array, to_wire
from pulsify.core.runner import open_model

if TYPE_CHECKING:
    import onnxruntime as ort


@dataclass(frozen=True, eq=False)
class Island:
    """takes: name and numpy type of what goes in. gives: name, and the type and place of what comes out."""

    runner: ort.InferenceSession
    takes: tuple[tuple[str, Any], ...]
    gives: tuple[tuple[str, str | None, bool], ...]
    device: Any

    def __call__(self, *wires: Wire) -> tuple[Wire, ...]:
        feeds = {name: to_array(wire, kind) for (name, kind), wire in zip(self.takes, wires, strict=True)}
        made = self.runner.run([name for name, _, _ in self.gives], feeds)
        return tuple(
            to_wire(array, kind, "cpu" if host else self.device)
            for array, (_, kind, host) in zip(made, self.gives, strict=True)
        )


def opened(part: Part, model: ir.Model, scope: Scope, device: Any, threads: int = 1, fuse: bool = True) -> Island:
    takes = tuple((str(v.name), None if v.dtype is None else v.dtype.numpy()) for v in part.takes)
    gives = tuple((str(v.name), _kind(v, scope), v in scope.host) for v in part.gives)
    return Island(open_model(_proto(part, model, scope), threads, fuse), takes, gives, device)


def _kind(value: ir.Value, scope: Scope) -> str | None:
    """As torch calls it; None: it has no such type, and the wire stays an array."""
    from pulsify.backends.site import Uncovered

    try:
        return scope.kind(value)
    except Uncovered:
        return None


def _proto(part: Part, model: ir.Model, scope: Scope) -> onnx.ModelProto:
    graph = onnx.GraphProto(name="island")
    graph.node.extend(ir.to_proto(n) for n in part.nodes)
    graph.input.extend(_port(v) for v in part.takes)
    graph.output.extend(_port(v) for v in part.gives)
    for value in dict.fromkeys(v for n in part.nodes for v in reads(n) if v in scope.constants):
        tensor = ir.to_proto(ir.Tensor(scope.constants[value].numpy(), name=value.name))
        graph.initializer.append(tensor)
    opsets = [onnx.helper.make_opsetid(k, v) for k, v in model.opset_imports.items()]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=model.ir_version)


def _port(value: ir.Value) -> onnx.ValueInfoProto:
    """The type and the sizes, as far as they are known."""
    kind = 0 if value.dtype is None else int(value.dtype)
    dims = None if value.shape is None else [d if isinstance(d, int) else None for d in value.shape]
    return onnx.helper.make_tensor_value_info(str(value.name), kind, dims)

"""A node tried before it is placed: does torch have it for these types, on this device?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir
import torch
import torch.nn.functional as F

from pulsify.backends.subgraphs import reads
from pulsify.backends.torch import functions
from pulsify.backends.torch.site import Scope
from pulsify.backends.torch.table import Code
from pulsify.backends.torch.tensors import Weights, Wire

MISSING = ("not implemented for", "not supported", "not yet supported", "unsupported", "could not run")
Known = tuple[Any, ...]


@dataclass(frozen=True)
class Trial:
    """Runs the lines of a node on zeros; the same operator with the same types is tried once."""

    weights: Weights
    _said: dict[Known, str] = field(default_factory=dict)

    def fault(self, node: ir.Node, code: Code, scope: Scope) -> str:
        """What torch says it does not have; empty if it does, or if sizes are not known before."""
        given = [v for v in reads(node) if v not in scope.constants]
        if any(v.shape is None or not v.shape.is_static() for v in given):
            return ""
        settings = str(
            sorted((k, str(a.value)) for k, a in node.attributes.items() if a.type != ir.AttributeType.GRAPH)
        )
        ranks = tuple(len(v.shape) for v in given if v.shape is not None)
        key = node.op_type, tuple(map(scope.kind, given)), ranks, settings, tuple(n.dtype for n in code.needs.values())
        if key not in self._said:
            self._said[key] = self._run(given, code, scope)
        return self._said[key]

    def _run(self, given: list[ir.Value], code: Code, scope: Scope) -> str:
        space: dict[str, Any] = {"torch": torch, "F": F, "op": functions, "device": self.weights.device}
        space |= {name: self.weights.tensor(need) for name, need in code.needs.items()}
        space |= {scope.names.name(v): self._zeros(v, scope) for v in given}
        try:
            with torch.inference_mode():
                exec("\n".join(code.lines), space)
        except NotImplementedError as error:
            return _short(error)
        except Exception as error:  # zeros may be wrong for it in other ways, which say nothing
            return _short(error) if any(word in str(error).lower() for word in MISSING) else ""
        return ""

    def _zeros(self, value: ir.Value, scope: Scope) -> Wire:
        assert value.shape is not None
        device = "cpu" if value in scope.host else self.weights.device
        return torch.zeros(tuple(value.shape.numpy()), dtype=getattr(torch, scope.kind(value)), device=device)


def _short(error: Exception) -> str:
    return str(error).split("\n")[0][:120] or type(error).__name__

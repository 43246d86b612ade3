"""The operators that torch has, and how a node becomes lines of it.

`op` enters a small function in the table. It gets the node (`Site`) and gives an expression, or whole lines; it raises
`Uncovered` where it does not cover a node. The functions are in `ops_*.py`; `written` finds the one for a node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from pulsify.backends.operators import Operators
from pulsify.backends.site import Uncovered
from pulsify.backends.torch.site import Need, Scope, Site

Written = str | list[str]  # an expression for the first output, or lines that make all of them
Writes = Callable[[Site], Written]
op: Operators[Writes] = Operators("pulsify.backends.torch.ops_")


@dataclass(frozen=True)
class Code:
    """What a node becomes, and the constants that are named in it."""

    lines: tuple[str, ...]
    needs: Mapping[str, Need]


@dataclass(frozen=True)
class Reason:
    """Why a node is not on the device."""

    text: str


def written(node: ir.Node, scope: Scope) -> Code | Reason:
    """A node as lines of torch, or why there are none."""
    if node.domain not in ("", "ai.onnx"):
        return Reason(f"no expression for {node.domain}::{node.op_type}")
    function = op.table().get(node.op_type)
    if function is None:
        return Reason(f"no expression for {node.op_type}")
    site = Site(node, scope)
    try:
        for value in (*node.inputs, *node.outputs):
            if value is not None and value.name:
                scope.kind(value)
        made = function(site)
    except Uncovered as reason:
        return Reason(f"{node.op_type}: {reason}")
    except Exception as error:  # a node that is like none before: the runtime has it
        return Reason(f"{node.op_type}: no expression was found ({type(error).__name__}: {error})")
    lines = [f"{site.out()} = {made}"] if isinstance(made, str) else made
    return Code(tuple(lines), dict(site.needs))

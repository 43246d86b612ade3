"""The tables of operators: ONNX's name -> a small function that writes C.

`op`: a function that gets the node (`Site`) and emits kernels, or says where its result lies already.
`expression`: an operator on single elements; a function of the node and its operands as C, which gives C. Chains
of them become one loop (`fuse.py`). Both raise `Uncovered` where they do not cover a node.
"""

from __future__ import annotations

from collections.abc import Callable

from pulsify.backends.native.scope import Site
from pulsify.backends.operators import Operators

Writes = Callable[[Site], None]
Expression = Callable[[Site, list[str]], str]
MODULES = "pulsify.backends.native.c_"
op: Operators[Writes] = Operators(MODULES)
expression: Operators[Expression] = Operators(MODULES)


def operators() -> list[str]:
    """All there is C for."""
    return sorted({*op.table(), *expression.table()})

"""The table of operators: ONNX's name -> a small function that writes C.

`op`: a function that gets the node (`Site`) and emits kernels, or says where its result lies already.
`expression`: an operator on single elements; a function of the node and its operands as C, which gives C. Chains
of them become one loop (`fuse.py`). Both raise `Uncovered` where they do not cover a node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module

from pulsify.backends.native.scope import Site

Writes = Callable[[Site], None]
Expression = Callable[[Site, list[str]], str]
FAMILIES = (
    "elementwise", "shapes", "places", "reductions", "products", "convolutions", "pools", "norms", "recurrent",
    "signal", "quantised", "loops",
)  # fmt: skip
TABLE: dict[str, Writes] = {}
EXPRESSIONS: dict[str, Expression] = {}


def op(*names: str) -> Callable[[Writes], Writes]:
    """Enter a function for operators of these names."""

    def enter(function: Writes) -> Writes:
        TABLE.update(dict.fromkeys(names, function))
        return function

    return enter


def expression(*names: str) -> Callable[[Expression], Expression]:
    """Enter an expression for operators of these names."""

    def enter(function: Expression) -> Expression:
        EXPRESSIONS.update(dict.fromkeys(names, function))
        return function

    return enter


@cache
def _load() -> None:
    for family in FAMILIES:
        import_module(f"pulsify.backends.native.c_{family}")


def table() -> Mapping[str, Writes]:
    _load()
    return TABLE


def expressions() -> Mapping[str, Expression]:
    _load()
    return EXPRESSIONS


def operators() -> list[str]:
    """All there is C for."""
    return sorted({*table(), *expressions()})

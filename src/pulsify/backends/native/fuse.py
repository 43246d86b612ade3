"""Chains of operators on single elements become one loop: what lies between them never reaches memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from pulsify.backends.native.scope import Kernel, Scope, Site
from pulsify.backends.native.table import expression
from pulsify.backends.native.views import View, indices, loops, merged
from pulsify.backends.site import Uncovered
from pulsify.core.boundary import processing

MOST = 48  # nodes in a loop
REDUCTIONS = (
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceSumSquare",
)  # fmt: skip  they look at every element once, so that what makes it can be worked out right there


def literal(number: Any, ctype: str) -> str:
    """A number as C reads it back, to the last bit."""
    if ctype in ("float", "double"):
        value = float(number)
        if math.isnan(value):
            return "NAN" if ctype == "float" else "(double)NAN"
        if math.isinf(value):
            sign = "-" if value < 0 else ""
            return f"({sign}INFINITY)" if ctype == "float" else f"((double){sign}INFINITY)"
        text = repr(value) if ctype == "double" else str(np.float32(number))
        text = text if any(c in text for c in ".en") else f"{text}.0"
        text = f"{text}f" if ctype == "float" else text
        return f"({text})" if text.startswith("-") else text
    value = int(number)
    if ctype == "int64_t":
        return f"INT64_C({value})" if value > -(1 << 63) else "INT64_MIN"
    if ctype == "int32_t":
        return "INT32_MIN" if value == -(1 << 31) else f"({value})" if value < 0 else str(value)
    return f"(({ctype}){value})"


def groups(nodes: Sequence[ir.Node], scope: Scope) -> dict[ir.Node, ir.Node]:
    """For every node that is written inside of another's loop, that other one: all that read it are in there too."""
    table, root, count = expression.table(), dict[ir.Node, ir.Node](), dict[ir.Node, int]()
    for node in reversed(nodes):
        if node.op_type not in table or len(node.outputs) != 1:
            continue
        out = node.outputs[0]
        readers = [u.node for u in out.uses()]
        if any(reader.graph is not node.graph for reader in readers):  # a body: it sees memory, not what makes it
            continue
        if not readers or out.is_graph_output() or out in scope.constants:
            continue
        homes = {_home(reader, out, root, table) for reader in readers}
        home = homes.pop() if len(homes) == 1 else None
        if home is None or scope.shape(out) != _domain(home, scope) or count.get(home, 1) >= MOST:
            continue
        root[node] = home
        count[home] = count.get(home, 1) + 1
    return root


def _home(
    reader: ir.Node, value: ir.Value, root: Mapping[ir.Node, ir.Node], table: Mapping[str, Any]
) -> ir.Node | None:
    if reader in root:
        return root[reader]
    if reader.op_type in table:
        return reader
    inside = reader.op_type in REDUCTIONS and reader.inputs[0] is value and value not in reader.inputs[1:]
    return reader if inside else None


def _domain(home: ir.Node, scope: Scope) -> tuple[int, ...]:
    value = home.inputs[0] if home.op_type in REDUCTIONS else home.outputs[0]
    assert value is not None
    return scope.shape(value)


@dataclass(frozen=True)
class Chain:
    """An element worked out: statements, the result, and what it reads: pieces of memory of the whole shape."""

    lines: tuple[str, ...]
    result: str
    leaves: tuple[View, ...]


def chain(scope: Scope, value: ir.Value, members: Sequence[ir.Node], like: Sequence[int] | None = None) -> Chain:
    """`value` from the members that lead to it. Leaf i is read as `x{i}[@i@]`; like: how constants lie."""
    shape, known = scope.shape(value), dict[ir.Value, str]()
    leaves: list[View] = []
    lines: list[str] = []

    def operand(v: ir.Value | None) -> str:
        if v is None:
            return ""
        if v in known:
            return known[v]
        array = scope.constants.get(v)
        if array is not None and array.size == 1:
            return literal(array.reshape(-1)[0], scope.ctype(v))
        full = array is not None and array.shape == shape
        view = scope.view(v, like if full else None).spread(shape)
        known[v] = f"v{len(leaves)}"
        lines.append(f"const {view.ctype} v{len(leaves)} = x{len(leaves)}[@{len(leaves)}@];")
        leaves.append(view)
        return known[v]

    if not members:
        result = operand(value)
        return Chain(tuple(lines), result, tuple(leaves))
    for number, node in enumerate(members):
        site = Site(node, scope)
        with processing(node):
            text = expression.table()[node.op_type](site, [operand(v) for v in node.inputs])
        lines.append(f"const {scope.ctype(node.outputs[0])} t{number} = {text};")
        known[node.outputs[0]] = f"t{number}"
    return Chain(tuple(lines), known[value], tuple(leaves))


def preferred(scope: Scope, value: ir.Value, members: Sequence[ir.Node]) -> tuple[int, ...]:
    """The order of axes of the largest thing that is read: it goes on as it lies."""
    shape, inside = scope.shape(value), {n.outputs[0] for n in members}
    best: View | None = None
    for node in members:
        for v in node.inputs:
            if v is None or v in inside or v in scope.constants or v not in scope.views:
                continue
            view = scope.views[v]
            if len(view.shape) == len(shape) and (best is None or view.size > best.size):
                best = view
    return tuple(range(len(shape))) if best is None else best.order


def write_chain(scope: Scope, root: ir.Node, members: Sequence[ir.Node]) -> None:
    """One loop for all of them; the last is the root, and the only one that is kept."""
    value = root.outputs[0]
    out = scope.made(value, preferred(scope, value, members))
    found = chain(scope, value, members, out.order)
    emit_loop(scope, found, out, "_".join(dict.fromkeys(n.op_type.lower() for n in members))[:40])


def emit_loop(scope: Scope, found: Chain, out: View, hint: str) -> None:
    if not out.size:
        return
    order = out.order
    views = [v.permuted(order) for v in (*found.leaves, out)]
    sizes, strides = merged(views[-1].shape, [v.strides for v in views])
    sizes, strides = best_inner(sizes, strides)
    names = [f"i{k}" for k in range(len(sizes))]
    lines = list(loops(names, sizes))
    for line in found.lines:
        for i, steps in enumerate(strides[:-1]):
            line = line.replace(f"@{i}@", indices(names, steps))
        lines.append(line)
    lines.append(f"y[{indices(names, strides[-1])}] = {found.result};")
    lines += ["}"] * len(sizes)
    params = [f"const {v.ctype} *restrict x{i}" for i, v in enumerate(found.leaves)]
    params.append(f"{out.ctype} *restrict y")
    scope.emit(Kernel(hint, tuple(params), indented(lines)), (*found.leaves, out))


def best_inner(sizes: tuple[int, ...], strides: list[tuple[int, ...]]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """A short innermost loop that a longer one around it could replace: turned, if that reads no worse."""
    if len(sizes) < 2 or sizes[-1] >= 8 or sizes[-2] < 8:
        return sizes, strides
    if all(s[-2] in (0, 1) or s[-1] not in (0, 1) for s in strides):
        swap = (*range(len(sizes) - 2), len(sizes) - 1, len(sizes) - 2)
        return tuple(sizes[a] for a in swap), [tuple(s[a] for a in swap) for s in strides]
    return sizes, strides


def copy(scope: Scope, source: View, target: View, hint: str = "copy") -> None:
    """Elements of one piece of memory to another of the same shape."""
    spread = source.spread(target.shape)
    if spread.ctype != target.ctype:
        raise Uncovered(f"{source.ctype} where {target.ctype} was expected")
    emit_loop(scope, Chain((f"const {spread.ctype} v0 = x0[@0@];",), "v0", (spread,)), target, hint)


def dense(scope: Scope, view: View, order: Sequence[int] | None = None) -> View:
    """The same elements in one piece of memory, in their own order (or this one): copied if they are not."""
    wanted = tuple(range(len(view.shape))) if order is None else tuple(order)
    if view.permuted(wanted).dense:
        return view
    made = scope.work(view.shape, view.ctype, wanted)
    copy(scope, view, made)
    return made


def indented(lines: Sequence[str]) -> str:
    """By its braces."""
    out, depth = [], 1
    for line in lines:
        if line.startswith("}"):
            depth -= 1
        out.append("    " * depth + line)
        depth += line.count("{") - line.count("}") + line.startswith("}")
    return "\n".join(out)

"""The cells of a field, followed through the operators that it is made of: see `mask_cells`."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pulsify.analysis import mask_cells as cell
from pulsify.analysis.axes import reduced_axes
from pulsify.analysis.facts import Field, Part
from pulsify.analysis.fields.operand import Operand, parts
from pulsify.analysis.mask_cells import CELLS, CellLaw, Cells
from pulsify.analysis.questions import Questions
from pulsify.core.errors import NotStreamable
from pulsify.frontend.model import Node
from pulsify.trace.evaluate import Trace
from pulsify.trace.traced import Array, CannotRun, known


class AllRows(Exception):
    """What cells are cannot be told some rows at a time: they are normalised along the rows."""


ANY = (-math.inf, -cell.FILLED)  # all numbers between


def _operand_cells(ask: Questions, operand: Operand, part: Part, axes: tuple[int, int]) -> Cells:
    """The operand's cells over the output's two time axes."""
    run = part.run
    own = {out: a for a, out in operand.axes.items()}
    fact = operand.fact
    if fact is None and len(operand.axes) == 2 and not run[operand.name].known:
        return _mask_of(ask, operand, part, axes)
    if isinstance(fact, Field):
        straight = operand.axes[fact.sides[0].axis] == axes[0]
        return fact.cells(part) if straight else fact.cells(part.turned).turned
    if run[operand.name].known:  # (what never repeats may be taken for data)
        value = run[operand.name]
        if not math.prod(value.dims):
            raise CannotRun(ask.model.producers[operand.name], f"'{operand.name}' has no frames")
        array = value.cut(own.get(axes[part.second]), part.rows)
        return cell.constants(array, (own.get(axes[0]), own.get(axes[1])))
    return cell.hiding(operand.name) if hides(ask, operand.name) else cell.data()


def hides(ask: Questions, name: str) -> bool:
    """Is it a mask made of data before frames meet frames: none or a large number, about to be added to scores?"""
    node = ask.model.producers.get(name)
    run = ask.traces.runs[0]
    if node is None or run[name].known or not run[name].dtype.is_floating_point():
        return False
    law = CELLS.of(node)
    if law is None:
        return False
    if law.scales or law.kind == "chooses":
        low = cell.ADDED if law.scales else cell.FILLED
        given = [run[i] for i in node.inputs[law.kind == "chooses" :]]
        numbers = [float(v.array.reshape(-1)[0]) for v in given if v.known and math.prod(v.dims) == 1]
        if any(math.isfinite(n) and abs(n) >= low for n in numbers):
            return True
    return (law.same or law.negates or law.kind == "moves") and hides(ask, node.inputs[0])


def _mask_of(ask: Questions, operand: Operand, part: Part, axes: tuple[int, int]) -> Cells:
    """A known value that never repeats counts as data; but where a mask put a number into it, its parts may tell."""
    fills = _fills(ask, operand.name, part.run)
    if not fills:
        return cell.data()
    with contextlib.suppress(NotStreamable):
        fact = parts(ask, ask.model.producers[operand.name], operand.name)
        found = _operand_cells(ask, replace(operand, fact=fact), part, axes)
        low = found.value <= -cell.FILLED if fills is ANY else np.isin(found.value, np.array(fills, np.float32))
        live = found.live | ~low
        return replace(found, live=live, value=np.where(live, np.float32(0), found.value))
    return cell.data()


def _fills(ask: Questions, name: str, run: Trace) -> tuple[float, ...]:
    """Numbers that hide for certain, ANY if all low ones do: a mask that repeats put them in, or the value repeats.

    Whatever else such a value has may be as low at lengths that nobody looked at.
    """
    node = ask.model.producers.get(name)
    if run[name].known:
        return ANY
    if node is None:
        return ()
    law = CELLS.of(node)
    if law is None:
        return ()
    if law.kind == "chooses" and run[node.inputs[0]].known:
        found: list[float] = []
        for branch in node.inputs[1:]:
            value = run[branch]
            if not value.known:
                found += _fills(ask, branch, run)
            elif math.prod(value.dims) == 1 and float(value.array.reshape(-1)[0]) <= -cell.FILLED:
                found.append(float(value.array.reshape(-1)[0]))
        return tuple(found)
    return _fills(ask, node.inputs[0], run) if law.same else ()


def cells_of(ask: Questions, node: Node, operands: list[Operand], axes: tuple[int, int]) -> Callable[[Part], Cells]:
    def at(part: Part) -> Cells:
        key = (node.outputs[0], part.run.length, part.rows.start, part.second)
        if key not in ask.cells:
            ask.cells[key] = _compute_cells(ask, node, operands, axes, part)
        return ask.cells[key]

    return at


def made_of_cells(node: Node) -> bool:
    """Does anything of its inputs' cells show in its own? Else they are data, whatever it is made of."""
    return CELLS.of(node) is not None


def _check_fit(node: Node, operands: list[Operand], run: Trace) -> None:
    """Batch fails where a mask has fewer frames than what it is applied to: the table that it is cut from has ended."""
    dims = run[node.outputs[0]].dims
    for o in operands:
        if isinstance(o.fact, Field) or not run[o.name].known:
            continue
        own = run[o.name].dims
        if any(own[axis] not in (1, dims[out]) for axis, out in o.axes.items()):
            raise CannotRun(node, f"'{o.name}' does not fit")


def _compute_cells(ask: Questions, node: Node, operands: list[Operand], axes: tuple[int, int], part: Part) -> Cells:
    law = CELLS.of(node)
    if law is None:
        return cell.data()
    if law.kind == "weighs":
        fields = [o for o in operands if len(o.axes) == 2]
        return cell.weighed_up(_operand_cells(ask, fields[0], part, axes)) if len(fields) == 1 else cell.data()
    if law.kind in ("entries", "chooses"):
        _check_fit(node, operands, part.run)
    of_first = law.kind in ("moves", "normalises")
    inputs = [_operand_cells(ask, o, part, axes) for o in operands if o.axes or not of_first]
    if law.kind == "joins":
        return cell.joined(inputs)
    if law.kind == "mixes":
        return _mixed(ask, node, law, inputs[0])
    if law.kind == "normalises":
        axis = node.attr("axis", -1) % len(ask.dims(node.outputs[0]))
        if axis not in axes:  # of constants it makes others
            return cell.data()
        if axis == axes[part.second] and not part.whole:
            raise AllRows
        full = [part.run[node.outputs[0]].dims[a] for a in axes]
        full[part.second] = len(range(*part.rows.indices(full[part.second])))
        return cell.softmax(inputs[0].spread(tuple(full)), axes.index(axis), law.logarithm)
    if law.kind == "moves":
        return inputs[0]

    def compute(values: list[Array]) -> Array:
        if not any(np.size(v) for v in values):
            return values[0]
        values = [v.reshape(()) if n and v.size == 1 else v for n, v in enumerate(values)]  # (bounds must be numbers)
        given = [known(v.astype(ask.dtype(o.name).numpy())) for v, o in zip(values, operands, strict=True)]
        placed = dict(zip([o.index for o in operands], given, strict=True))
        full = [placed.get(i) for i in range(len(node.inputs))]
        return np.asarray(ask.traces.tracer.evaluator.run(node, full)[0], np.float32)

    roots = [root_of(ask, o.name) for o in operands] if any(c.live.any() for c in inputs) else ()
    return cell.combine(node.op, inputs, compute, roots)


def _mixed(ask: Questions, node: Node, law: CellLaw, c: Cells) -> Cells:
    """Heads summed up, or the largest of them."""
    dims = ask.dims(node.inputs[0])
    count, of_alike = math.prod(dims[a] for a in reduced_axes(ask, node)), law.of_alike
    assert of_alike is not None
    return cell.mixed(c, lambda v: of_alike(v, count), law.keeps_offset)


def root_of(ask: Questions, name: str) -> cell.Hider:
    """The value that this one is the truth of, or not: masks are cast, negated and given other shapes."""
    truth = True
    while (node := ask.model.producers.get(name)) is not None:
        law = CELLS.of(node)
        if law is None or not (law.same or law.inverts):
            break
        truth = truth != law.inverts
        name = node.inputs[0]
    return name, truth

"""What is known of the cells of a field, operator by operator: see `mask_cells`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pulsify.convert import mask_cells as cell
from pulsify.convert.context import Context
from pulsify.convert.facts import Field
from pulsify.convert.mask_cells import Cells
from pulsify.convert.rules.field_operand import Operand
from pulsify.core.traits import traits
from pulsify.frontend.model import Node
from pulsify.trace.evaluate import Array, CannotRun, Trace, known

NORMALISED = ("Softmax", "LogSoftmax")


def _operand_cells(ctx: Context, operand: Operand, run: Trace, axes: tuple[int, int]) -> Cells:
    """The operand's cells over the output's two time axes."""
    own = {out: a for a, out in operand.axes.items()}
    if isinstance(operand.fact, Field):
        found = operand.fact.cells(run)
        first = operand.axes[operand.fact.sides[0].axis]
        return found if first == axes[0] else found.turned
    if run[operand.name].known:  # (what never repeats may be taken for data)
        array = run[operand.name].array
        if not array.size:
            raise CannotRun(ctx.ask.model.producers[operand.name], f"'{operand.name}' has no frames")
        return cell.constants(array, (own.get(axes[0]), own.get(axes[1])))
    return cell.data()


def cells_of(ctx: Context, node: Node, operands: list[Operand], axes: tuple[int, int]) -> Callable[[Trace], Cells]:
    def at(run: Trace) -> Cells:
        key = (node.outputs[0], run.length)
        if key not in ctx.ask.cells:
            ctx.ask.cells[key] = _compute_cells(ctx, node, operands, axes, run)
        return ctx.ask.cells[key]

    return at


def _compute_cells(ctx: Context, node: Node, operands: list[Operand], axes: tuple[int, int], run: Trace) -> Cells:
    if not traits(node.op).elementwise and not traits(node.op).keeps_cells:
        return cell.data()
    inputs = [_operand_cells(ctx, o, run, axes) for o in operands]
    if node.op in NORMALISED:
        axis = node.attr("axis", -1) % len(ctx.ask.dims(node.outputs[0]))
        if axis not in axes:  # of constants it makes others
            return cell.data()
        full = tuple(run[node.outputs[0]].dims[a] for a in axes)
        return cell.softmax(inputs[0].spread(full), axes.index(axis), node.op == "LogSoftmax")
    if not traits(node.op).elementwise:
        return inputs[0]

    def compute(values: list[Array]) -> Array:
        if not any(np.size(v) for v in values):
            return values[0]
        given = [known(v.astype(ctx.ask.dtype(o.name).numpy())) for v, o in zip(values, operands, strict=True)]
        placed = dict(zip([o.index for o in operands], given, strict=True))
        full = [placed.get(i) for i in range(len(node.inputs))]
        return np.asarray(ctx.ask.traces.tracer.evaluator.run(node, full)[0], np.float32)

    roots = [_root(ctx, o.name) for o in operands] if any(c.live.any() for c in inputs) else ()
    return cell.combine(node.op, inputs, compute, roots)


def _root(ctx: Context, name: str) -> cell.Hider:
    """The value that this one is the truth of, or not: masks are cast, negated and given other shapes."""
    truth = True
    while (node := ctx.ask.model.producers.get(name)) is not None:
        if node.op == "Not":
            truth = not truth
        elif node.op not in ("Cast", "Identity") and not (traits(node.op).keeps_cells and node.op not in NORMALISED):
            break
        name = node.inputs[0]
    return name, truth

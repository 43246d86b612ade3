"""Known arrays over both time axes, cut out at the windows of a sum: see `template`."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from pulsify.convert.context import Context
from pulsify.convert.facts import Window
from pulsify.convert.proof.claims import prove
from pulsify.convert.questions import Unclear
from pulsify.convert.rules.field_operand import Operand
from pulsify.convert.rules.growing import growing_template
from pulsify.convert.template import Template, find
from pulsify.frontend.model import Node
from pulsify.trace.evaluate import Array, Trace

FOLDED_HEADS = "a mask or bias that differs by head or by phase has no room for the batch on the first axis"


def field_template(ctx: Context, node: Node, o: Operand, windows: dict[int, Window]) -> ir.Value:
    """A known array over both axes, cut out at the windows; by phase, if pulses differ."""
    a, b = o.axes
    if any(windows[o.axes[x]].grows for x in (a, b)):
        return growing_template(ctx, node, o.name, {x: windows[o.axes[x]] for x in (a, b)})
    pair = (windows[o.axes[a]], windows[o.axes[b]])

    def array(run: Trace) -> Array:
        out: Array = run[o.name].array
        for i, s in enumerate(ctx.ask.sizes_static(o.name)):
            if s < 0:  # known values do not differ from stream to stream
                one = out[(slice(None),) * i + (slice(0, 1),)]
                if not np.array_equal(np.broadcast_to(one, out.shape), out):
                    ctx.ask.refuse(node, FOLDED_HEADS, 'fix the batch size: set={"B": 1}')
                out = one
        return out

    template = find(array(ctx.ask.traces.longest), (a, b), pair)
    if template is None:
        raise Unclear(
            f"'{o.name}' (a mask, a bias) does not move on with time in a regular way",
            node=node.name, op=node.op,
            hint="masks and biases must depend on the distance of two frames or on chunks; it helps if the pulse "
            "shares a factor with the chunk",
        )  # fmt: skip
    found = template
    prove(ctx.ask, node, f"'{o.name}' moving on with time", lambda run: found.fits(array(run)), **_windowed(ctx, found))
    if len(template.phases) == 1:
        return ctx.builder.constant(template.phases[0], o.name)
    return _by_phase(ctx, node, np.stack(template.phases), o.name)


def _windowed(ctx: Context, template: Template) -> dict[str, Any]:
    """What a template looks at, in frames of the stream: no pair further apart than its windows, phase by phase."""
    rows, cols = template.windows
    stream = ctx.pulse / rows.p, ctx.pulse / cols.p
    apart = max(abs(rows.end * stream[0] - cols.start * stream[1]), abs(cols.end * stream[1] - rows.start * stream[0]))
    start = max(-rows.start * stream[0], -cols.start * stream[1], rows.end * stream[0], cols.end * stream[1], 0)
    near = {"within": float(apart), "pair": float(apart), "start": float(start)}
    return {"near": near, "period": len(template.phases) * ctx.pulse}


def _by_phase(ctx: Context, node: Node, stack: Array, name: str) -> ir.Value:
    b, count = ctx.builder, len(stack)
    phase = ctx.clock.phase(count)
    table = b.constant(stack, name)
    if ctx.clock.batch is None:
        return b.op("Gather", table, b.reshape(phase, []), axis=0)
    rank, dims = len(ctx.ask.dims(node.outputs[0])), stack.shape[1:]
    full = (1,) * (rank - len(dims)) + dims
    if full[0] != 1 or ctx.ask.sizes_static(node.outputs[0])[0] != -1:
        ctx.ask.refuse(
            node, FOLDED_HEADS, 'fix the batch size: set={"B": 1}, or use a pulse that is a multiple of the chunk'
        )
    return b.reshape(b.op("Gather", table, b.reshape(phase, [-1]), axis=0), [-1, *full[1:]])

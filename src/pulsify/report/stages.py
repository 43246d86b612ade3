"""A model as each stage of the conversion left it: traced, windowed. Plain data, as JSON takes it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from pulsify.analysis.facts import Fact, FirstFrames, Static, Varying, Window, Wire
from pulsify.analysis.options import DEFAULT, Options
from pulsify.convert.bindings import bindings_of
from pulsify.convert.pulses import Planned, natural, planned, unfitting
from pulsify.core.errors import NotStreamable
from pulsify.emit.buffer import history_of
from pulsify.frontend.load import load
from pulsify.frontend.time import named_dims
from pulsify.plan.context import Context, Misaligned, OutOfStep
from pulsify.report.figures import Figures, binding_figures
from pulsify.report.plan_text import plan_lines
from pulsify.trace.lengths import Tracer, Traces, choose
from pulsify.trace.roles import settle

SHOWN_ELEMENTS = 8  # known values up to this size are shown
KINDS = {Static: "static", Varying: "length", FirstFrames: "latch"}  # of values that are no stream


def open_batch(
    source: Any,
    time: str | Mapping[str, int] | None = None,
    bind: Mapping[str, str | None] | None = None,
    set: Mapping[str, int | str] | None = None,
) -> Tracer:
    """A batch model, read and settled, with its time axes found: ready to be traced."""
    return settle(load(source), time, bind, set)


def time_figures(tracer: Tracer) -> Figures:
    """Which axes are time, which inputs hold the length, which dimensions are free or fixed."""
    spec = tracer.time
    streamed = [
        {
            "name": p.name,
            "dtype": p.dtype.numpy().name,
            "shape": list(named_dims(p)),
            "axis": spec.streams[p.name][0],
            "frames_per_unit": spec.streams[p.name][1],
        }
        for p in tracer.model.inputs
        if p.name in spec.streams
    ]
    static = [
        {"name": p.name, "dtype": p.dtype.numpy().name, "shape": list(named_dims(p))}
        for p in tracer.model.inputs
        if p.name not in spec.streams and p.name not in spec.bound and p.name not in spec.filled
    ]
    return {
        "symbol": spec.symbol,
        "step": spec.step,
        "streamed": streamed,
        "static": static,
        "length_inputs": list(spec.bound),
        "masks": {name: value for name, (*_, value) in spec.filled.items()},
        "bindings": binding_figures(bindings_of(spec)),
        "batch": spec.batch,
        "fixed": dict(spec.fixed),
        "outputs": list(tracer.model.outputs),
    }


# ---- trace


def trace_figures(tracer: Tracer) -> Figures:
    """Every value at the traced lengths: data, or known from the length alone."""
    traces = choose(tracer)
    rows = [
        _traced(traces, node.name, node.op, output) for node in tracer.model.nodes for output in node.outputs if output
    ]
    known = {r["node"] for r in rows} - {r["node"] for r in rows if r["data"]}
    total = len({r["node"] for r in rows})
    return {
        "lengths": list(traces.lengths),
        "nodes": total,
        "data_nodes": total - len(known),
        "known_nodes": len(known),
        "batch": tracer.time.batch,
        "values": rows,
    }


def _traced(traces: Traces, node: str, op: str, output: str) -> Figures:
    seen = [run[output] for run in traces.runs]
    data = not all(v.known for v in seen)
    small = not data and all(int(np.prod(v.dims)) <= SHOWN_ELEMENTS for v in seen)
    other = traces.other_batch
    return {
        "node": node,
        "op": op,
        "output": output,
        "data": data,
        "dtype": seen[0].dtype.numpy().name,
        "dims": [list(v.dims) for v in seen],
        "batch_axes": [
            i for i, (x, y) in enumerate(zip(seen[0].dims, other[output].dims if other else seen[0].dims)) if x != y
        ],
        "values": [v.array.tolist() for v in seen] if small else None,
    }


# ---- windows


def window_figures(tracer: Tracer, pulse: int | None, options: Options = DEFAULT) -> Figures:
    """Every wire of the streaming graph at one pulse. Where the model is refused, the wires that lead there."""
    refusal: NotStreamable | None = None
    try:
        plan = analysed(tracer, pulse, options)
    except NotStreamable as error:
        refusal = error
        tracer = _up_to(tracer, error.node)
        try:
            plan = analysed(tracer, pulse, options)
        except NotStreamable:
            return {"pulse": pulse, "granularity": None, "wires": [], "refusal": refusal}
    return {
        "pulse": plan.ctx.pulse,
        "granularity": math.lcm(*plan.ctx.ask.ledger.denominators, 1),
        "wires": _wires(plan.ctx),
        "refusal": refusal,
    }


def plan_figures(tracer: Tracer, pulse: int | None, options: Options = DEFAULT) -> Figures:
    """The plan of the streaming graph at one pulse, as text."""
    plan = analysed(tracer, pulse, options)
    return {"pulse": plan.ctx.pulse, "plan": plan_lines(plan)}


def analysed(tracer: Tracer, pulse: int | None, options: Options = DEFAULT) -> Planned:
    """What a conversion does with every wire, at this pulse or the natural one."""
    if pulse is None:
        pulse = natural(tracer, options).pulse
    try:
        return planned(tracer, pulse, options)
    except (Misaligned, OutOfStep) as problem:
        raise unfitting(tracer, pulse, problem, options) from None


def _up_to(tracer: Tracer, name: str) -> Tracer:
    """The model cut off in front of one node: what that node reads becomes the output."""
    model = tracer.model
    at = next((i for i, n in enumerate(model.nodes) if n.name == name), None)
    if at is None:
        raise NotStreamable(f"no node is called '{name}'")
    made = {o for n in model.nodes[:at] for o in n.outputs} | {p.name for p in model.inputs}
    outputs = tuple(dict.fromkeys(i for i in model.nodes[at].inputs if i in made))
    cut = dataclasses.replace(model, nodes=model.nodes[:at], outputs=outputs, producers={})
    return Tracer(cut, tracer.time)


def _kind(fact: Fact) -> str:
    if isinstance(fact, Static) and fact.late:
        return "fold"
    if isinstance(fact, Static) and fact.early:
        return "latch"
    return KINDS.get(type(fact), type(fact).__name__.lower())


def _wires(ctx: Context) -> list[Figures]:
    rows: dict[str, Figures] = {}
    for name in [p.name for p in ctx.ask.model.inputs] + [o for n in ctx.ask.model.nodes for o in n.outputs]:
        fact = ctx.ask.facts.get(name)
        if fact is None:
            continue
        node = ctx.ask.model.producers.get(name)
        row: Figures = {"wire": name, "node": node.name if node else None, "op": node.op if node else "input"}
        if not isinstance(fact, Wire):
            row["kind"] = _kind(fact)
        elif name in ctx.windows:
            inputs = [rows[i] for i in (node.inputs if node else ()) if i in rows]
            row |= {"kind": "stream", **_windowed(ctx, fact, inputs)}
        else:
            row["kind"] = "position"
        rows[name] = row
    return list(rows.values())


def _windowed(ctx: Context, wire: Wire, inputs: list[Figures]) -> Figures:
    """`changes`: the operator reads no wire that holds the same frames as this one."""
    window = ctx.windows[wire.name]
    kept = [
        history_of(stored, ctx.demands.get(name, ()))
        for name, stored in ctx.stored.items()
        if name == wire.name or name.startswith(f"{wire.name}#")
    ]
    same = [i for i in inputs if i["kind"] == "stream" and (i["frames"], i["window"]) == (window.p, [*_ends(window)])]
    return {
        "axis": wire.layout.axis,
        "rate": str(Fraction(window.p, ctx.pulse)),
        "frames": window.p,
        "window": [*_ends(window)],
        "delay": window.p - window.end,
        "kept": max([0, *kept]),
        "changes": not same,
    }


def _ends(window: Window) -> tuple[int, int]:
    return window.start, window.end

"""Scan (and Loop written as one) over time: what it carries goes on from pulse to pulse.

    frames     0 1 2 3 | 4 5 6 7 |
    body       ─▶─▶─▶─▶ carry ─▶─▶─▶─▶        turns for frames that are not real change nothing

A few turns are written out one after the other, which is quicker than a Scan; many stay a Scan.
Those over any other axis never come here: they have been written out before (see frontend/unroll).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from pulsify.analysis.facts import Deferred, Window, Wire, emitted
from pulsify.analysis.proof.decided import DECIDES
from pulsify.core.constants import CHOSEN_AS
from pulsify.core.refusal import Kind
from pulsify.emit.builder import Builder, choose
from pulsify.emit.carry import Carry, carry
from pulsify.emit.frames import real_frames
from pulsify.emit.state import Sizes
from pulsify.frontend.loop_ports import Looped, looped
from pulsify.frontend.model import Body, Node
from pulsify.ops.pointwise import not_zero
from pulsify.ops.registry import rule
from pulsify.plan.context import Context
from pulsify.plan.plan import Plan, Read, Whole
from pulsify.plan.wanted import wanted_by_anyone, zero
from pulsify.trace.evaluate import SHAPED_BY

WRITTEN_OUT = 48  # nodes: up to here all turns of a pulse are written out


@rule("Scan", says="forward over time; over other axes turn by turn. Loops that gather frames by number are scans")
def scan(ctx: Context, node: Node) -> Plan:
    body, parts = node.body, looped(node)
    assert body is not None
    wires = [_scanned(ctx, node, a.outer, a.axis, a.reverse) for a in parts.scanned]
    _check(ctx, node, body, parts)
    lengths = [w.length for w in wires if w.length is not None]
    if not lengths:
        ctx.ask.refuse(node, "it turns for every frame without reading any", "let it read the frames of an input")
    ctx.ask.ledger.require(node.name, lengths[0], at_least=1)  # the runtime takes no empty scan
    finals = [c.final for c in parts.carried if c.final and wanted_by_anyone(ctx, c.final)]
    kept = [_Kept(ctx.ask.dtype(c.start), ctx.ask.sizes_static(c.start)) for c in parts.carried]
    starts = [_start(ctx, node, c.start) for c in parts.carried]
    captured = {n: ctx.ask.operand(node, n) for n in body.captured}

    def emit(values: list[ir.Value], window: Window) -> Sequence[ir.Value | None]:
        length = lengths[0] if finals else None
        real = None
        if finals or window.start < 0:
            real = _one_stream(ctx, real_frames(ctx, window, length, starts=window.start < 0), window)
        b = ctx.builder
        carries = [
            k.carry(ctx, f"{node.name}_{i}", emitted(s), window)
            for i, (k, s) in enumerate(zip(kept, starts, strict=True))
        ]
        before = [k.found(b, c.value) for k, c in zip(kept, carries, strict=True)]
        frames = [_first_stream(ctx, w, v, window) for w, v in zip(wires, values, strict=True)]
        turns = _Iterations(ctx, node, body, parts, frames, window.frames, captured)
        few = window.frames * (len(body.nodes) + 2) <= WRITTEN_OUT
        after, collected = (turns.written_out if few else turns.scan)(before, real)
        for c, k, value in zip(carries, kept, after, strict=True):
            c.keep(k.left(b, value))
        return [*after, *collected]

    layouts = [
        *(None for _ in parts.carried),
        *(ctx.ask.layout(node, a.outer) if a.outer else None for a in parts.collected),
    ]
    reads = tuple(Read(w) for w in wires)
    return Plan(reads, tuple(layouts), lengths[0], emit, exact=True, merges=True, whole=Whole())


@rule("Loop", says="where it is a scan over time; or turns a fixed number of times")
def loop(ctx: Context, node: Node) -> Plan:
    ctx.ask.refuse(
        node,
        "it is no scan over time: it may end early, look at other frames than its own, or carry whole streams",
        "gather the frame by the loop's counter, append results to a list and stack that; or use Scan",
    )


def _scanned(ctx: Context, node: Node, name: str, axis: int, reverse: bool) -> Wire:
    wire = ctx.ask.wire(name)
    if reverse:
        ctx.ask.refuse(
            node, "it runs backwards over time, so it reads the whole future", "scan forwards", kind=Kind.BACKWARDS
        )
    if wire is None or (wire.layout.folded and wire.end is not None) or wire.layout.axis != axis % wire.layout.rank:
        ctx.ask.refuse(
            node,
            f"it scans '{name}' along another axis than time",
            "put time on the axis that is scanned, by itself",
            kind=Kind.AXES,
        )
    return wire


def _check(ctx: Context, node: Node, body: Body, parts: Looped) -> None:
    if any(a.reverse for a in parts.collected):
        ctx.ask.refuse(node, "it writes its frames from the last to the first", "scan forwards", kind=Kind.BACKWARDS)
    for name in body.captured:
        if len(ctx.ask.time_axes(name)):
            ctx.ask.refuse(
                node,
                f"every turn reads all of '{name}', whatever the frame",
                "make it a scan input, or bound what is read",
                kind=Kind.WHOLE_STREAM,
            )
    for c in parts.carried:
        if ctx.ask.time_axes(c.start) or (c.final and ctx.ask.time_axes(c.final)):
            ctx.ask.refuse(
                node,
                f"it carries '{c.before}', which holds the whole stream",
                "carry a state of fixed size",
                kind=Kind.WHOLE_STREAM,
            )
        if c.final and ctx.ask.dims(c.final) != ctx.ask.dims(c.start):
            ctx.ask.refuse(
                node,
                f"'{c.before}' changes its shape from {list(ctx.ask.dims(c.start))} to {list(ctx.ask.dims(c.final))}",
                "start with a state of the shape it keeps",
            )


def _start(ctx: Context, node: Node, name: str) -> Deferred | None:
    """The first state, or None if it is zero."""
    return None if zero(ctx, name) else ctx.ask.operand(node, name)


@dataclass(frozen=True)
class _Kept:
    """How a state is kept between pulses: as a type that can be selected, a number (of each stream) with an axis."""

    dtype: ir.DataType
    sizes: Sizes

    @property
    def bare(self) -> bool:
        return self.sizes in ((), (-1,))

    def carry(self, ctx: Context, name: str, start: ir.Value | None, window: Window) -> Carry:
        first = None if start is None else self.left(ctx.builder, start)
        sizes = (*self.sizes, 1) if self.bare else self.sizes
        return carry(ctx, name, CHOSEN_AS.get(self.dtype, self.dtype), sizes, first, window)

    def left(self, b: Builder, x: ir.Value) -> ir.Value:
        x = _cast(b, x, self.dtype, CHOSEN_AS.get(self.dtype, self.dtype))
        return b.op("Unsqueeze", x, b.ints(-1)) if self.bare else x

    def found(self, b: Builder, x: ir.Value) -> ir.Value:
        x = b.op("Squeeze", x, b.ints(-1)) if self.bare else x
        return _cast(b, x, CHOSEN_AS.get(self.dtype, self.dtype), self.dtype)


def _cast(b: Builder, x: ir.Value, dtype: ir.DataType, to: ir.DataType) -> ir.Value:
    return x if dtype == to else b.op("Cast", x, to=int(to))


def _first_stream(ctx: Context, wire: Wire, x: ir.Value, window: Window) -> ir.Value:
    """A clock has the streams folded in front of time: they go in step, so one will do."""
    return ctx.builder.slice(x, wire.layout.axis, 0, window.frames) if wire.layout.folded else x


def _one_stream(ctx: Context, real: ir.Value, window: Window) -> ir.Value:
    """[B, frames] -> [frames]: streams of a batch go in step."""
    b = ctx.builder
    return b.reshape(b.slice(real, 0, 0, 1), [window.frames])


class _Iterations:
    """The body, turned once for every frame of a window."""

    def __init__(
        self,
        ctx: Context,
        node: Node,
        body: Body,
        parts: Looped,
        scanned: list[ir.Value],
        frames: int,
        captured: Mapping[str, Deferred | None],
    ) -> None:
        self.ctx, self.node, self.body, self.parts = ctx, node, body, parts
        self.scanned, self.frames = scanned, frames
        self.captured = {n: emitted(v) for n, v in captured.items()}
        run = ctx.ask.traces.runs[0]
        self.types = ctx.ask.traces.tracer.evaluator.inside(node, parts, run.values)
        for n in body.nodes:
            ctx.ask.traces.tracer.evaluator.step(n, self.types)

    def written_out(
        self, states: list[ir.Value], real: ir.Value | None
    ) -> tuple[list[ir.Value], list[ir.Value | None]]:
        b, parts = self.ctx.builder, self.parts
        frames: list[list[ir.Value]] = [[] for _ in parts.collected]
        for turn in range(self.frames):
            at = b.constant(np.array(turn, np.int64), "turn")
            names = {
                a.inner: b.op("Gather", x, at, axis=a.axis) for a, x in zip(parts.scanned, self.scanned, strict=True)
            }
            names |= {c.before: s for c, s in zip(parts.carried, states, strict=True)}
            made = self._body(b, names)
            shown = None if real is None else b.op("Gather", real, at)
            states = self._held(b, made, states, shown)
            for found, a in zip(frames, parts.collected, strict=True):
                found.append(b.op("Unsqueeze", made[a.inner], b.ints(a.axis)))
        return states, [
            None if not a.outer else x[0] if len(x) == 1 else b.op("Concat", *x, axis=a.axis)
            for a, x in zip(parts.collected, frames, strict=True)
        ]

    def scan(self, before: list[ir.Value], real: ir.Value | None) -> tuple[list[ir.Value], list[ir.Value | None]]:
        b, parts, ctx = self.ctx.builder, self.parts, self.ctx
        inner = b.inside()
        dtypes = [ctx.ask.dtype(c.start) for c in parts.carried] + [ctx.ask.dtype(a.outer) for a in parts.scanned]
        ports = [ir.Value(name=b.unique(f"{self.node.name}/in"), type=ir.TensorType(t)) for t in dtypes]
        names = dict(zip([*(c.before for c in parts.carried), *(a.inner for a in parts.scanned)], ports, strict=True))
        given, axes = [*self.scanned], [a.axis for a in parts.scanned]
        shown = None
        if real is not None:
            shown = ir.Value(name=b.unique(f"{self.node.name}/real"), type=ir.TensorType(ir.DataType.BOOL))
            ports, given, axes = [*ports, shown], [*given, real], [*axes, 0]
        made = self._body(inner, dict(names))
        states = self._held(inner, made, ports[: len(before)], shown)
        results = [*states, *(made[a.inner] for a in parts.collected)]
        named = [b.unique(f"{self.node.name}/out") for _ in results]  # each a node of its own, also for equal values
        ends = [ir.Node("", "Identity", [v], name=n) for v, n in zip(results, named, strict=True)]
        outputs = [n.outputs[0] for n in ends]
        for value, name in zip(outputs, named, strict=True):
            value.name = name
        graph = ir.Graph(ports, outputs, nodes=[*inner.nodes, *ends], name=f"{self.node.name}/body")
        attrs = {
            "body": graph,
            "num_scan_inputs": len(given),
            "scan_input_axes": axes,
            "scan_output_axes": [a.axis for a in parts.collected] or None,
        }
        after = b.ops("Scan", [*before, *given], attrs, outputs=len(results), name=self.node.name)
        return list(after[: len(before)]), list(after[len(before) :])

    def _body(self, b: Builder, names: dict[str, ir.Value]) -> Mapping[str, ir.Value]:
        """All values of one turn, by name."""
        found: dict[str, ir.Value] = {**{k: v for k, v in self.captured.items() if v is not None}, **names}
        for n in self.body.nodes:
            inputs = [found[i] if i else None for i in n.inputs]
            if (
                n.op in ("Div", "Mod")
                and n.inputs[1] not in self.captured
                and self.types[n.inputs[1]].dtype.is_integer()
            ):
                inputs[1] = not_zero(b, self.types[n.inputs[1]].dtype, inputs[1])
            made = b.ops(n.op, inputs, n.attrs, outputs=len(n.outputs), domain=n.domain, name=n.name)
            found |= {name: value for name, value in zip(n.outputs, made, strict=True) if name}
        return found

    def _held(
        self, b: Builder, made: Mapping[str, ir.Value], before: Sequence[ir.Value], real: ir.Value | None
    ) -> list[ir.Value]:
        """The states after a turn; one for a frame that is not real changes nothing."""
        after = [made[c.after] for c in self.parts.carried]
        if real is None:
            return after
        types = [self.ctx.ask.dtype(c.start) for c in self.parts.carried]
        return [choose(b, real, x, y, t) for x, y, t in zip(after, before, types, strict=True)]


# ---- at one length
SHAPED_BY.add({"If": "values", "Loop": "values"})


# ---- decided at one length
DECIDES.add({"If": "the condition", "Loop": "how often it turns", "Scan": "how often it turns"})

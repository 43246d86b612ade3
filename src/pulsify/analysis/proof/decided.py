"""Branches that were taken and loops that were written out at one length: is it so at every length?"""

from __future__ import annotations

import math

import numpy as np

from pulsify.analysis.proof.claims import Claim, holds_everywhere
from pulsify.analysis.proof.numbers import SHORT, follower, numbers, sizes
from pulsify.analysis.questions import Questions
from pulsify.analysis.values.follow import Fixed
from pulsify.core.errors import NotStreamable
from pulsify.core.facet import Facet
from pulsify.core.length import Length
from pulsify.core.refusal import Kind
from pulsify.frontend.model import Decision
from pulsify.lengths.series import Series, Unsure
from pulsify.trace.evaluate import Trace

DECIDES = Facet[str]("decides", "what a number decides for it, if it is written out", lambda _: "how often it turns")


def check_decisions(ask: Questions) -> None:
    """Streams too short for what was decided are ruled out; whatever else is decided otherwise is refused."""
    for decision in ask.model.decisions:
        if decision.everywhere:
            _check_everywhere(ask, decision)
            continue
        series = _number(ask, decision)
        declared = ask.traces.tracer.time.lengths
        horizon = max(series.horizon, -(-declared.least // series.unit) - 1)
        seen = series.look(horizon + math.lcm(series.period, declared.every)).astype(np.int64)
        lengths = (np.arange(len(seen)) + 1) * series.unit
        there = (lengths >= declared.least) & (lengths % declared.every == declared.remainder)
        other = np.flatnonzero((seen != decision.taken) & there)
        if series.growth or (other.size and other[-1] >= horizon):
            _refuse(ask, decision, series, int(other[-1]) if other.size else series.horizon)
        if not other.size:
            continue
        if (int(other[-1]) + 1) * series.unit > SHORT:
            _refuse(ask, decision, series, int(other[-1]))
        ask.ledger.require(decision.node, Length(), at_least=(int(other[-1]) + 2) * series.unit)


def _check_everywhere(ask: Questions, decision: Decision) -> None:
    """All entries of a value are the number that they were, at every length and for any number of streams."""
    node = ask.model.producers.get(decision.name)

    def holds(run: Trace) -> bool:
        return bool((run[decision.name].array == decision.taken).all())

    runs = [*ask.traces.runs, *([ask.traces.other_batch] if ask.traces.other_batch is not None else [])]
    claim = Claim(node, f"where {decision.op} '{decision.node}' writes", holds)
    if all(map(holds, runs)) and (_throughout(ask, decision) or holds_everywhere(ask, claim)):
        return
    ask.refuse(
        ask.model.producers[decision.name],
        f"the places that '{decision.node}' writes to are not the same at every length",
        "write to a range of places, or join the parts (torch.cat)",
        kind=Kind.LENGTH,
    )


def _throughout(ask: Questions, decision: Decision) -> bool:
    """Is it certain of a value, without looking at it, that it is one number throughout?"""
    try:
        value = follower(ask).value(decision.name)
    except Unsure:
        return False
    if isinstance(value, Fixed):
        return bool((value.array() == decision.taken).all())
    array = follower(ask).spread(value)
    return array.lo == array.hi == decision.taken and not array.slope and array.drift.none


def _number(ask: Questions, decision: Decision) -> Series:
    if decision.axis is not None:
        return sizes(ask, ask.model.producers.get(decision.name), decision.name)[decision.axis]
    found: Series = numbers(ask, ask.model.producers.get(decision.name), decision.name).reshape(-1)[0]
    return found


def _lengths(series: Series) -> str:
    """Lengths of which it is decided alike, as they are declared."""
    if series.period > 1 or series.growth:
        return f"{max(series.period, 8)}*n"
    return f"{(series.horizon + 1) * series.unit}+n"


def _refuse(ask: Questions, decision: Decision, series: Series, n: int) -> None:
    what = DECIDES.named(decision.op)
    raise NotStreamable(
        f"{what} depends on the length of the stream: at {(n + 1) * series.unit} frames it is decided otherwise",
        node=decision.node,
        op=decision.op,
        hint=("export the model with the branch for long inputs only", ask.declare(_lengths(series))),
        kind=Kind.LENGTH,
    )

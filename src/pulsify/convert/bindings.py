"""Inputs that a stream does not have, because they are the length or always the same; and whether time is time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from pulsify.core.errors import InvalidArgument, NotStreamable
from pulsify.core.refusal import Kind, Remedy
from pulsify.core.spec import Binding, Filled, Proof, Spec
from pulsify.frontend.model import Model, Port
from pulsify.frontend.time import FILLS, TimeSpec, name_the_axis

VALUES = {value: word for word, value in FILLS.items()}


def bindings_of(time: TimeSpec) -> tuple[Binding, ...]:
    """All bound inputs, guessed and given."""
    values = {**dict.fromkeys(time.bound, time.symbol), **{n: VALUES[v] for n, (*_, v) in time.filled.items()}}
    return tuple(
        Binding(name, value, "guessed" if name in time.guessed else "given", time.reasons.get(name, ""))
        for name, value in values.items()
    )


def filled_of(time: TimeSpec, dtype: Callable[[str], np.dtype[np.generic]]) -> tuple[Filled, ...]:
    """Masks that are the same at every frame, as the batch model is given them."""
    return tuple(
        Filled(name, axis, Fraction(per), value, dtype(name)) for name, (axis, per, value) in time.filled.items()
    )


def with_bindings(proof: Proof, bindings: tuple[Binding, ...]) -> Proof:
    """The proof holds for inputs that are what they are bound to."""
    return replace(proof, assumed=(*proof.assumed, *(b.assumption for b in bindings)))


def with_free(refusal: NotStreamable, model: Model, time: TimeSpec) -> NotStreamable:
    """A refusal over the length, with a fix for inputs that only look like it."""
    if refusal.kind not in (Kind.LENGTH, Kind.NOT_PROVEN):
        return refusal
    reads = _behind(model, refusal.node)
    free = [n for n in time.bound if n in time.guessed and n in reads]
    refusal.remedies += tuple(
        Remedy(
            f"if '{n}' is not the stream's length but a value of its own: bind={{\"{n}\": None}}", {"bind": {n: None}}
        )
        for n in free
        if not any(r.options.get("bind") == {n: None} for r in refusal.remedies)
    )
    return refusal


def _behind(model: Model, name: str) -> set[str]:
    """All values that a node follows from."""
    found: set[str] = set()
    for node in reversed(model.nodes):
        if node.name == name or found.intersection(node.outputs):
            found.update(node.reads)
    return found


def check_time(spec: Spec, time: TimeSpec, ports: Sequence[Port]) -> None:
    """A single open dimension that may be the batch is the batch if its entries never meet each other."""
    if not time.lone or entries_meet(spec):
        return
    inputs = ", ".join(f"axis {axis} of '{name}'" for name, (axis, _) in time.streams.items())
    raise InvalidArgument(
        f"the only symbolic dimension is '{time.symbol}' ({inputs}), and no entry along it depends on another, so it "
        f"looks like the batch: {name_the_axis([p for p in ports if p.name in time.streams])}; if "
        f"'{time.symbol}' is time, pass time={time.symbol!r}"
    )


def check_place(spec: Spec, time: TimeSpec, converted: Callable[[str], Spec]) -> None:
    """Of several dimensions one was taken because it comes later: not if its entries never meet, and another's do.

    converted: the stream along another dimension, with one entry along this one.
    """
    if not time.others or entries_meet(spec):
        return
    other = next((other for other in time.others if _meet(converted, other)), None)
    if other is not None:
        raise InvalidArgument(
            f"'{time.symbol}' comes later than '{other}' and would be time, but no entry along '{time.symbol}' depends "
            f"on another, and along '{other}' they do: pass time={other!r} and set={{{time.symbol!r}: 1}}, or "
            f"time={time.symbol!r} if that is time"
        )


def _meet(converted: Callable[[str], Spec], other: str) -> bool:
    try:
        return entries_meet(converted(other))
    except NotStreamable:
        return True
    except InvalidArgument:  # the model has more open dimensions
        return False


def entries_meet(spec: Spec) -> bool:
    """Does anything depend on more than one entry along the time axis?"""
    return bool(spec.states) or spec.granularity > 1 or any(o.axis is None for o in spec.outputs)

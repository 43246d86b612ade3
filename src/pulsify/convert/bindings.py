"""Inputs that a stream does not have, because they are the length or always the same; and whether time is time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np

from pulsify.core.errors import InvalidArgument, NotStreamable
from pulsify.core.refusal import Kind, Remedy
from pulsify.core.spec import Binding, Filled, Proof, Spec
from pulsify.frontend.model import Model
from pulsify.frontend.time import FILLS, TimeSpec

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
    """A refusal over the length, with the way out for inputs that only look like it."""
    if refusal.kind not in (Kind.LENGTH, Kind.NOT_PROVEN):
        return refusal
    reads = _behind(model, refusal.node)
    free = [n for n in time.bound if n in time.guessed and n in reads]
    refusal.remedies += tuple(
        Remedy(f"if '{n}' is not the stream's length but a value of its own: bind={{\"{n}\": None}}", {"bind": {n: None}})
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


def check_time(spec: Spec, time: TimeSpec) -> None:
    """A single open dimension that comes first may be the batch, and is if its entries never meet each other."""
    meet = spec.states or spec.granularity > 1 or any(o.axis is None for o in spec.outputs)
    if not time.lone or meet:
        return
    inputs = ", ".join(f"axis 0 of '{name}'" for name in time.streams)
    raise InvalidArgument(
        f"the only symbolic dimension is '{time.symbol}' ({inputs}), and no entry along it depends on another, so it "
        "looks like the batch. If time is a fixed axis, export the model with that axis dynamic; if "
        f"'{time.symbol}' is time, pass time={time.symbol!r}"
    )

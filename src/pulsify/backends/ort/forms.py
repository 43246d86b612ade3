"""The forms of a streaming model that sessions run here: general and steady, with rings for long caches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import onnx_ir as ir
from onnx_ir.passes import PassBase, Sequential

from pulsify.backends.ort.aliased import ExposeTails, tails_of
from pulsify.backends.ort.attention import FuseAttention
from pulsify.backends.ort.ring import ring_form
from pulsify.backends.ort.rows import ForOneStream, row_form
from pulsify.backends.ort.squeeze import SqueezeTokens
from pulsify.backends.seam import Place, Ring, StepProgram, Tail
from pulsify.core.spec import Spec
from pulsify.core.weights import weight_bytes
from pulsify.optimize.steady import Steady, steady_form
from pulsify.optimize.tidy import SIMPLIFY, TIDY

BEFORE_ROWS = Sequential(ForOneStream(), SIMPLIFY)
AFTER_ROWS = Sequential(SqueezeTokens(), TIDY)
TWICE = 64 << 20  # bytes of weights up to which they are held twice; larger models have little to win from it


@dataclass(frozen=True)
class Forms:
    """general: for every pulse. steady: from pulse `since` on, while the end is unknown. Both keep states alike."""

    general: ir.Model
    rings: tuple[Ring, ...] = ()
    steady: ir.Model | None = None
    since: int = 0
    counts: bool = True
    rows: frozenset[str] = frozenset()  # ports that are rows, see `rows`
    tails: Mapping[str, Tail] = field(default_factory=dict)

    def program(self, spec: Spec) -> StepProgram:
        """As the seam has it."""
        rings = {c.state: ring for ring in self.rings for c in ring.caches}
        growing = {s.name for s in spec.states if s.grows}
        places = {
            name: Place(name in self.rows, rings.get(name), self.tails.get(name), name in growing)
            for name in sorted(self.rows | rings.keys() | self.tails.keys() | growing)
        }
        return StepProgram(self.general, self.steady, self.since, self.counts, places)


def forms(model: ir.Model, spec: Spec) -> Forms:
    general, rings = ring_form(model, spec)
    warm = _warm(model, spec)
    if warm is None:
        return Forms(general, rings)
    steady, same = ring_form(warm.model, spec, like=rings)
    if same != rings:
        return Forms(general, rings)
    return Forms(general, rings, FuseAttention()(steady).model, warm.since, warm.counts)


def _warm(model: ir.Model, spec: Spec) -> Steady | None:
    return steady_form(model, spec) if weight_bytes(model) <= TWICE else None


def without_rings(model: ir.Model, spec: Spec) -> Forms:
    """General and steady step, all caches as the model has them."""
    warm = _warm(model, spec)
    if warm is None:
        return Forms(model)
    return Forms(model, (), FuseAttention()(warm.model).model, warm.since, warm.counts)


def single(made: Forms, spec: Spec) -> Forms:
    """The same for one stream, where every size is known: convolutions over rows where that pays, fewer nodes."""
    made = _each(made, BEFORE_ROWS)
    made = _each(_over_rows(made, spec) or made, AFTER_ROWS)
    tails = tails_of([m for m in (made.general, made.steady) if m is not None], spec)
    return replace(_each(made, ExposeTails({spec.after(name): tail for name, tail in tails.items()})), tails=tails)


def _each(made: Forms, change: PassBase) -> Forms:
    steady = None if made.steady is None else change(made.steady).model
    return replace(made, general=change(made.general).model, steady=steady)


def _over_rows(made: Forms, spec: Spec) -> Forms | None:
    apart = frozenset(c.state for ring in made.rings for c in ring.caches)
    general = row_form(made.general, spec, apart)
    steady = None if made.steady is None or general is None else row_form(made.steady, spec, apart, like=general)
    if general is None or (made.steady is not None and steady is None):
        return None
    return replace(made, general=general.model, steady=None if steady is None else steady.model, rows=general.ports)

"""One session as CUDA graphs: inputs, states and results at addresses of their own, both forms of the step on them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pulsify.backends.seam import Array, Rows
from pulsify.backends.torch.graphs import Body
from pulsify.backends.torch.mirror import Mirror, Sent, wait
from pulsify.backends.torch.rings import READ, TURN, WRITE, in_order, put_back
from pulsify.backends.torch.step import at_full_precision
from pulsify.backends.torch.tensors import Wire, to_array, to_wire
from pulsify.core.spec import State, concrete

if TYPE_CHECKING:
    from pulsify.backends.torch.backend import Executable, Form


class RecordedStep:
    """A pulse allocates nothing and waits for its results alone, or for nothing where they stay on the device."""

    def __init__(self, on: Executable, batch: int, statics: Mapping[str, Array]) -> None:
        spec, forms = on.spec, on.forms(batch, batch)
        self._on, self._batch, self._forms, self.placement = on, batch, forms, forms.placement
        self._kinds, self.device = forms.general.source.kinds, on.weights.device
        self._inputs = {i.name: Mirror(concrete(i.dims, batch), i.dtype, self.device) for i in spec.inputs}
        self._outputs = {o.name: Mirror(concrete(o.dims, batch), o.dtype, self.device) for o in spec.outputs}
        self.inputs = {name: mirror.here for name, mirror in self._inputs.items()}
        self.outputs = {name: mirror.here for name, mirror in self._outputs.items()}
        self._statics = {name: to_wire(array, self._kinds.get(name), self.device) for name, array in statics.items()}
        self._rings = {} if forms.steady is None else forms.steady.rings
        starts = {s.name: np.zeros(self._shape(s), s.dtype) for s in spec.states}
        self._states: dict[str, Any] = {n: to_wire(a, self._kinds[n], self.device) for n, a in starts.items()}
        self._rows = torch.arange(batch, device=self.device)
        self._turn = torch.zeros(batch, dtype=torch.int64, device=self.device)  # pulses since the rings were filled
        self._clock = Sent((2,), self.device)  # position and length, where the host knows better
        self._told: int | None = None
        self._at, self._counted = 0, True
        self._since: float = on.program.since * spec.pulse if forms.steady is not None else math.inf
        self._record, self._starts = on.recorder(), dict[bool, Body]()

    def run(self, length: int | None = None, fed: Rows | None = None) -> Rows:
        """One pulse. fed: tensors instead of `inputs`; then results are tensors, the caller's own."""
        steady = self._forms.steady is not None and length is None and self._at >= self._since
        told = self._on.spec.unknown_length if length is None else length
        if not steady and not (self._counted and self._told == told):
            self._tell(told)
        for name, mirror in self._inputs.items():
            if fed is None:
                mirror.send()
            else:
                mirror.there.copy_(fed[name], non_blocking=True)
        if steady not in self._starts:
            self._starts[steady] = self._recorded(self._forms.steady if steady else self._forms.general)
        self._starts[steady]()
        self._counted = not steady or self._on.program.counts
        self._at += self._on.spec.pulse
        given = {n: m for n, m in self._outputs.items() if not steady or n in self._in_steady}
        if fed is not None:
            return {name: mirror.there.clone() for name, mirror in given.items()}
        for mirror in given.values():
            mirror.fetch()
        wait(self.device)
        return self.outputs

    @property
    def _in_steady(self) -> frozenset[str]:
        return frozenset(() if self._forms.steady is None else self._forms.steady.source.gives)

    def _recorded(self, form: Form | None) -> Body:
        """Recording runs the step: states are put back as they were."""
        assert form is not None
        if not self._starts:
            self._arrange()
        places = [*self._states.values(), self._turn]
        before = [tensor.clone() for tensor in places]
        start = self._record(self._body(form))
        for place, tensor in zip(places, before, strict=True):
            place.copy_(tensor)
        return start

    def _shape(self, state: State) -> tuple[int, ...]:
        """In memory: a ring is a row a stream."""
        ring = self._rings.get(state.name)
        return concrete(state.shape, self._batch) if ring is None else (self._batch, *ring.row)

    def _arrange(self) -> None:
        """States lie in memory as the step that runs all the time makes them, unless a compiler asked for an order."""
        if self._on.chosen.mode == "compile":
            return
        rings = {name: self._states[name].clone() for name in self._rings}
        made = self._made(self._forms.steady or self._forms.general)
        for name, tensor in rings.items():
            self._states[name].copy_(tensor)
        for s in self._on.spec.states:
            if s.after in made and s.name not in self._rings and made[s.after].shape == self._states[s.name].shape:
                order = torch.empty_like(made[s.after], memory_format=torch.preserve_format)
                self._states[s.name] = order.copy_(self._states[s.name])

    def _made(self, form: Form) -> dict[str, Any]:
        """The step as it is now: its results by name."""
        spec, source = self._on.spec, form.source
        given: dict[str, Wire] = {**self._statics, **self._states}
        with at_full_precision():
            if form.rings:
                given |= {READ: self._rows, WRITE: self._rows, TURN: self._turn}
            else:
                given |= {n: in_order(r, self._states[n], self._rows, self._turn) for n, r in self._rings.items()}
            for name, mirror in self._inputs.items():
                given[name] = mirror.there.to(getattr(torch, str(source.kinds[name])))
            if spec.length is not None:
                given[spec.length] = self._clock.there[1].to(torch.int32).expand(self._batch, 1)
            return dict(zip(source.gives, form.call(*(given[n] for n in source.takes)), strict=True))

    def _body(self, form: Form) -> Body:
        spec = self._on.spec

        def body() -> None:
            made = self._made(form)
            with at_full_precision():
                places = {t.untyped_storage().data_ptr() for t in self._states.values()}
                for name, value in made.items():  # a state may be another's memory: all are read before one is written
                    if value.untyped_storage().data_ptr() in places:
                        made[name] = value.clone()
                for name, mirror in self._outputs.items():
                    if name in made:
                        mirror.there.copy_(made[name])
                self._turn += 1
                for s in spec.states:
                    if s.after in made and s.name in self._rings:
                        put_back(self._rings[s.name], self._states[s.name], self._rows, self._turn, made[s.after])
                    elif s.after in made:
                        self._states[s.name].copy_(made[s.after])

        return body

    def _tell(self, length: int) -> None:
        """What the clock reads: the length, and the position, which steady pulses may not count."""
        self._clock.send(np.array([self._at, length]))
        if (position := self._on.spec.position) is not None:
            self._states[position].copy_(self._clock.there[0].expand(self._batch, 1))
        self._told, self._counted = length, True

    def reset(self) -> None:
        self._at, self._counted = 0, True
        for tensor in (*self._states.values(), self._turn):
            tensor.zero_()

    def states(self) -> dict[str, Array]:
        kept = dict(self._states)
        kept |= {n: in_order(r, kept[n], self._rows, self._turn) for n, r in self._rings.items()}
        out = {s.name: to_array(kept[s.name], s.dtype).copy() for s in self._on.spec.states}
        position = self._on.spec.position
        return out | ({position: np.full((self._batch, 1), self._at, np.int32)} if position else {})

    def restore(self, states: Mapping[str, Array], position: int) -> None:
        self._at, self._counted = position, True
        self._turn.zero_()
        for name, tensor in self._states.items():
            wire = to_wire(states[name], self._kinds[name], self.device)
            if name in self._rings:
                put_back(self._rings[name], tensor, self._rows, self._turn, wire)
            else:
                tensor.copy_(wire)

    def rebase(self, by: int) -> None:
        self._at, self._counted = self._at - by, False

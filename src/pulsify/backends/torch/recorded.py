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
from pulsify.backends.torch.step import at_full_precision
from pulsify.backends.torch.tensors import Wire, to_array, to_wire
from pulsify.core.spec import concrete

if TYPE_CHECKING:
    from pulsify.backends.torch.backend import Executable, Form


class RecordedStep:
    """A pulse allocates nothing and waits for its results alone, or for nothing where they stay on the device."""

    def __init__(self, on: Executable, batch: int, statics: Mapping[str, Array]) -> None:
        spec, forms = on.spec, on.forms(batch)
        self._on, self._batch, self._forms, self.placement = on, batch, forms, forms.placement
        self._kinds, self.device = forms.general.source.kinds, on.weights.device
        self._inputs = {i.name: Mirror(concrete(i.dims, batch), i.dtype, self.device) for i in spec.inputs}
        self._outputs = {o.name: Mirror(concrete(o.dims, batch), o.dtype, self.device) for o in spec.outputs}
        self.inputs = {name: mirror.here for name, mirror in self._inputs.items()}
        self.outputs = {name: mirror.here for name, mirror in self._outputs.items()}
        self._statics = {name: to_wire(array, self._kinds.get(name), self.device) for name, array in statics.items()}
        starts = {s.name: np.zeros(concrete(s.shape, batch), s.dtype) for s in spec.states}
        self._states: dict[str, Any] = {n: to_wire(a, self._kinds[n], self.device) for n, a in starts.items()}
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
        before = {name: tensor.clone() for name, tensor in self._states.items()}
        start = self._record(self._body(form))
        for name, tensor in before.items():
            self._states[name].copy_(tensor)
        return start

    def _arrange(self) -> None:
        """States lie in memory as the step that runs all the time makes them, unless a compiler asked for an order."""
        if self._on.chosen.mode == "compile":
            return
        made = self._made(self._forms.steady or self._forms.general)
        for s in self._on.spec.states:
            if s.after in made and made[s.after].shape == self._states[s.name].shape:
                order = torch.empty_like(made[s.after], memory_format=torch.preserve_format)
                self._states[s.name] = order.copy_(self._states[s.name])

    def _made(self, form: Form) -> dict[str, Any]:
        """The step as it is now: its results by name."""
        spec, source = self._on.spec, form.source
        given: dict[str, Wire] = {**self._statics, **self._states}
        with at_full_precision():
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
                for s in spec.states:
                    if s.after in made:
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
        for tensor in self._states.values():
            tensor.zero_()

    def states(self) -> dict[str, Array]:
        out = {s.name: to_array(self._states[s.name], s.dtype).copy() for s in self._on.spec.states}
        position = self._on.spec.position
        return out | ({position: np.full((self._batch, 1), self._at, np.int32)} if position else {})

    def restore(self, states: Mapping[str, Array], position: int) -> None:
        self._at, self._counted = position, True
        for name, tensor in self._states.items():
            tensor.copy_(to_wire(states[name], self._kinds[name], self.device))

    def rebase(self, by: int) -> None:
        self._at, self._counted = self._at - by, False

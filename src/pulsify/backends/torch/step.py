"""One session: states are tensors on the device, which every pulse replaces."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pulsify.backends.seam import Array, Rows
from pulsify.backends.torch.tensors import Wire, as_tensor, to_array, to_wire
from pulsify.core.spec import concrete

if TYPE_CHECKING:
    from pulsify.backends.torch.backend import Executable, Form


class Step:
    """Inputs and outputs are arrays; states and statics are on the device all the time."""

    def __init__(self, on: Executable, batch: int, statics: Mapping[str, Array]) -> None:
        spec, forms = on.spec, on.forms(batch)
        self._on, self._batch, self._forms, self.placement = on, batch, forms, forms.placement
        self._kinds = forms.general.source.kinds
        self.device = on.weights.device
        self.inputs = {i.name: np.zeros(concrete(i.dims, batch), i.dtype) for i in spec.inputs}
        self.outputs = {o.name: np.zeros(concrete(o.dims, batch), o.dtype) for o in spec.outputs}
        self._statics = {name: self._sent(name, array) for name, array in statics.items()}
        self._states: dict[str, Wire] = {}
        self._unknown = self._length(spec.unknown_length)
        self._since: float = on.program.since * spec.pulse if forms.steady is not None else math.inf
        self.reset()

    def _sent(self, name: str, array: Array) -> Wire:
        return to_wire(array, self._kinds.get(name), self.device)

    def _length(self, length: int) -> Wire:
        return to_wire(np.full((self._batch, 1), length, np.int32), "int32", self.device)

    def run(self, length: int | None = None, fed: Rows | None = None) -> Rows:
        """One pulse. fed: tensors instead of `inputs`; then results are tensors. If it fails, states are as before."""
        spec = self._on.spec
        steady = self._forms.steady if length is None and self._at >= self._since else None
        if steady is None:
            self._count()
        given = {name: self._given(name, fed) for name in self.inputs}
        if spec.length:
            given[spec.length] = self._unknown if length is None else self._length(length)
        made = self._called(steady or self._forms.general, given)
        results = {name: made[name] for name in self.outputs if name in made}  # a steady step may have fewer
        if fed is None:
            for name, wire in results.items():
                self.outputs[name][...] = to_array(wire, self.outputs[name].dtype)
        self._states = {s.name: made.get(s.after, self._states[s.name]) for s in spec.states}
        self._counted = steady is None or self._on.program.counts
        self._at += spec.pulse
        if fed is None:
            return self.outputs
        return {name: as_tensor(wire, self.outputs[name].dtype, self.device) for name, wire in results.items()}

    def _given(self, name: str, fed: Rows | None) -> Wire:
        """A copy, of the type the step takes: a state may be a part of it."""
        kind = self._kinds.get(name)
        if fed is None:
            return self._sent(name, self.inputs[name])
        if kind is None:
            return to_array(fed[name], None)
        return fed[name].to(device=self.device, dtype=getattr(torch, kind), copy=True)

    def _called(self, form: Form, fed: Mapping[str, Wire]) -> dict[str, Wire]:
        given = {**fed, **self._statics, **self._states}
        with at_full_precision():
            made = form.call(*(given[name] for name in form.source.takes))
        return dict(zip(form.source.gives, made, strict=True))

    def _count(self) -> None:
        """Bring the position's state up to date after steady pulses, which may not count."""
        position = self._on.spec.position
        if not self._counted and position is not None:
            like = self._states[position]
            self._states[position] = torch.full_like(like, self._at)
        self._counted = True

    def reset(self) -> None:
        self._at, self._counted = 0, True
        starts = {s.name: np.zeros(concrete(s.shape, self._batch), s.dtype) for s in self._on.spec.states}
        self._states = {name: self._sent(name, array) for name, array in starts.items()}

    def states(self) -> dict[str, Array]:
        self._count()
        return {s.name: to_array(self._states[s.name], s.dtype).copy() for s in self._on.spec.states}

    def restore(self, states: Mapping[str, Array], position: int) -> None:
        self._at, self._counted = position, True
        self._states = {s.name: self._sent(s.name, states[s.name]) for s in self._on.spec.states}

    def rebase(self, by: int) -> None:
        self._count()
        self._at -= by
        if (position := self._on.spec.position) is not None:
            self._states[position] = self._states[position] - by


@contextmanager
def at_full_precision() -> Iterator[None]:
    """As a step runs: with nothing noted for gradients."""
    with torch.inference_mode(), full_precision():
        yield


@contextmanager
def full_precision() -> Iterator[None]:
    """Products of float32 in float32 on a card too, whatever was set outside; that is put back."""
    if not torch.cuda.is_available():
        yield
        return
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    full: Any
    switches, name, full = [products, convolutions], "allow_tf32", False
    if hasattr(products, "fp32_precision"):  # torch 2.9 and later; the older words do not mix with these
        switches, name, full = [products, convolutions.conv, convolutions.rnn], "fp32_precision", "ieee"
    before = [getattr(switch, name) for switch in switches]
    try:
        for switch in switches:
            setattr(switch, name, full)
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            setattr(switch, name, value)

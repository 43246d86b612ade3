"""Many streams on a device: a row of every state for each slot, and one call of the step for any of them.

arena    [most + 2, *one stream's shape]    a row a slot, then zeros, then a sink that nobody reads
batch    read -> step -> write              rows by index; a block says which, and where each stream is and ends
rings    step                               caches of attention: the steady step reads and writes them where they lie
sizes    1, 2, 4, ...                       what is missing is the first stream once more, written to the sink

A new stream reads the row of zeros, so that whatever its slot held is never seen. Read, step and write are one body
of work with addresses of its own, which may be recorded (`graphs`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pulsify.backends.counting import counts_streams
from pulsify.backends.grouping import alike, apart, at_most
from pulsify.backends.neighbours import COUNT, OWN, Run, Scene, kept_apart, mixed_places, same_place, warm_places
from pulsify.backends.seam import Array, Rows, Which, joined, parted
from pulsify.backends.torch.graphs import Body
from pulsify.backends.torch.mirror import Mirror, Sent, shared, wait
from pulsify.backends.torch.rings import PER_STREAM, in_order, put_back
from pulsify.backends.torch.step import at_full_precision
from pulsify.backends.torch.tensors import Wire, to_array, to_wire
from pulsify.core.spec import Dims, State, concrete

if TYPE_CHECKING:
    from pulsify.backends.torch.backend import Executable, Form

BATCH_BYTES = 4 << 30  # of states read for one batch, at the most
READ, WRITE, POSITION, LENGTH, TURN = range(5)


@dataclass(frozen=True, eq=False)
class Call:
    """A form of the step for so many streams, bound to the pool's memory."""

    size: int
    block: Sent  # [READ, WRITE, POSITION, LENGTH, TURN] x streams
    start: Body
    whole: bool  # nothing can be told of its states once it has begun


class Slots:
    """Rows for up to `most` streams. Nothing here knows which of them are open.

    together: streams of a batch are kept apart if they are at the same place. mixed: wherever they are.
    """

    def __init__(self, on: Executable, most: int) -> None:
        spec = on.spec
        self._on, self._spec, self._most, self.device = on, spec, most, on.weights.device
        forms = on.as_written().forms(1)
        kinds, self.placement = forms.general.source.kinds, forms.placement
        self._kept = {s.name: s for s in spec.states if s.name != spec.position}
        self._kinds = kinds
        self._rings = on.rings()
        self._arena: dict[str, Any] = {name: self._memory(s, most + 2) for name, s in self._kept.items()}
        self._turns = np.zeros(most, np.int64)  # pulses since a slot's rings were filled
        self._zeros, self._sink = most, most + 1
        self._new = np.ones(most, bool)  # reads zeros
        self.together = self.mixed = most > 1
        if most > 1:
            self.together, self.mixed = _tried(on.as_written())
        self.largest = self._largest() if self.together else 1
        self.rows = {i.name: np.zeros((most, *concrete(i.dims, 1)), i.dtype) for i in spec.inputs}
        self._inputs = {i.name: self._mirror(i.dims, i.dtype) for i in spec.inputs}
        self._outputs = {o.name: self._mirror(o.dims, o.dtype) for o in spec.outputs}
        self._calls: dict[tuple[bool, int], Call] = {}
        self._recorder = on.recorder()
        self.since: float = on.program.since * spec.pulse if on.program.steady is not None else math.inf
        self.intact = True

    def _memory(self, state: State, rows: int) -> Any:
        ring = self._rings.get(state.name)
        each = concrete(state.shape, 1) if ring is None else ring.row
        return torch.zeros((rows, *each), dtype=getattr(torch, str(self._kinds[state.name])), device=self.device)

    def _largest(self) -> int:
        """A power of two, or all of them."""
        each = sum(a[0].nbytes for a in self._arena.values())
        fits = max(1, BATCH_BYTES // max(1, each))
        return self._most if fits >= self._most else 1 << (fits.bit_length() - 1)

    def _mirror(self, dims: Dims, dtype: np.dtype[Any]) -> Mirror:
        return Mirror((self.largest, *concrete(dims, 1)), dtype, self.device)

    # ---- pulses

    def groups(self, positions: Array, lengths: Array | None) -> list[Which]:
        """Those that are warm and away from the end; all others, or those of them at the same place."""
        if not self.together:
            return apart(len(positions))
        steady = self._steady(positions, lengths)
        if self.mixed:
            return at_most(alike(steady), self.largest)
        far = np.full(len(positions), self._spec.unknown_length) if lengths is None else lengths
        at = positions if self._on.program.counts else np.where(steady, 0, positions)
        return at_most(alike(steady, at, far), self.largest)

    def _steady(self, positions: Array, lengths: Array | None) -> Array:
        warm: Array = positions >= self.since
        return warm if lengths is None else warm & (lengths == self._spec.unknown_length)

    def run(self, slots: Array, positions: Array, lengths: Array | None, fed: Rows | None = None) -> Rows:
        """One pulse of a group. Tensors in, tensors out: nothing is waited for then."""
        self.intact = True
        count = len(slots)
        size = min(1 << (count - 1).bit_length(), self.largest)
        steady = bool(self._steady(positions[:1], None if lengths is None else lengths[:1])[0])
        stays = fed is not None and all(isinstance(v, torch.Tensor) for v in fed.values())
        block = np.empty((5, size), np.int64)
        block[READ, :count] = np.where(self._new[slots], self._zeros, slots)
        block[WRITE, :count], block[WRITE, count:] = slots, self._sink
        block[POSITION, :count] = positions
        block[LENGTH, :count] = self._spec.unknown_length if lengths is None else lengths
        block[TURN, :count] = self._turns[slots]
        block[READ, count:], block[POSITION:, count:] = block[READ, 0], block[POSITION:, :1]
        self._load(slots, fed, stays, size)
        call = self._calls.get((steady, size)) or self._called(steady, size, block)
        call.block.send(block)
        if steady and self._rings and (new := slots[self._new[slots]]).size:  # only what is new is written to a ring
            for name in self._rings:
                self._arena[name][torch.from_numpy(new).to(self.device)] = 0
        self.intact = not call.whole
        call.start()
        self._new[slots] = False
        self._turns[slots] += 1
        made = self._given(count, stays, steady)
        self.intact = True  # no call from here on: whoever asked has the outputs, or states are not worth anything
        return made

    def _load(self, slots: Array, fed: Rows | None, stays: bool, size: int) -> None:
        """Inputs in their places; what is missing in the batch is the first stream once more."""
        count = len(slots)
        for name, mirror in self._inputs.items():
            if stays and fed is not None:
                mirror.there[:count].copy_(fed[name], non_blocking=True)
                mirror.there[count:size].copy_(mirror.there[:1].expand_as(mirror.there[count:size]))
                continue
            if fed is None:
                np.take(self.rows[name], slots, axis=0, out=mirror.here[:count], mode="clip")
            else:
                mirror.here[:count] = fed[name]
            mirror.here[count:size] = mirror.here[:1]
            mirror.send(size)

    def _given(self, count: int, stays: bool, steady: bool) -> Rows:
        made = {n: m for n, m in self._outputs.items() if not steady or n in self._last_free}
        if stays:
            return {name: mirror.there[:count] for name, mirror in made.items()}
        for mirror in made.values():
            mirror.fetch(count)
        wait(self.device)
        return {name: mirror.here[:count] for name, mirror in made.items()}

    @property
    def _last_free(self) -> set[str]:
        """Outputs that a steady step has: not those that come out of flush alone."""
        return {o.name for o in self._spec.outputs if o.axis is not None}

    # ---- the body of work

    def _called(self, steady: bool, size: int, block: Array) -> Call:
        """Made when it is first needed. Recording runs it: on what these streams read, with nothing kept."""
        forms = self._on.forms(size, self._most + 2)
        form = forms.steady if steady else forms.general
        if steady and form is not None and form.rings and form.rings != self._rings:
            form = self._on.forms(size).steady  # other caches in rings than the pool's
        assert form is not None
        sent = Sent((5, size), self.device)
        body = self._body(form, size, sent.there)
        if form.recorded:
            idle = block.copy()
            idle[WRITE] = self._sink
            sent.send(idle)
            body = self._recorder(body)
        made = self._calls[steady, size] = Call(size, sent, body, form.recorded or bool(form.rings))
        return made

    def _body(self, form: Form, size: int, block: Any) -> Body:
        spec, source = self._spec, form.source
        after = {s.after: name for name, s in self._kept.items()}
        outputs = {o.name: o.dims for o in spec.outputs}

        def body() -> None:
            with at_full_precision():
                given: dict[str, Wire] = {name: self._taken(name, form, size, block) for name in self._arena}
                given |= dict(zip(PER_STREAM, (block[READ], block[WRITE], block[TURN]), strict=True))
                for i in spec.inputs:
                    kind = getattr(torch, str(source.kinds[i.name]))
                    # a copy: what is kept must not be a view of memory that the next batch is written to
                    given[i.name] = joined(self._inputs[i.name].there[:size], i.dims, size).to(kind, copy=True)
                for port, row in ((spec.position, POSITION), (spec.length, LENGTH)):
                    if port is not None:
                        given[port] = block[row].to(torch.int32)[:, None]
                made = dict(zip(source.gives, form.call(*(given[n] for n in source.takes)), strict=True))
                self.intact = False
                for name, value in made.items():
                    if name in after:
                        self._kept_on(after[name], value, size, block)
                    elif name in outputs:
                        self._outputs[name].there[:size].copy_(parted(value, outputs[name], size))

        return body

    def _taken(self, name: str, form: Form, size: int, block: Any) -> Any:
        """A state of a batch: all slots if it is a ring that the step takes as such."""
        arena, ring = self._arena[name], self._rings.get(name)
        if ring is None:
            return joined(arena.index_select(0, block[READ]), self._kept[name].shape, size)
        return arena if form.rings else in_order(ring, arena, block[READ], block[TURN])

    def _kept_on(self, name: str, value: Any, size: int, block: Any) -> None:
        arena, ring = self._arena[name], self._rings.get(name)
        if ring is not None:
            put_back(ring, arena, block[WRITE], block[TURN] + 1, value)
            return
        arena.index_copy_(0, block[WRITE], parted(value, self._kept[name].shape, size).to(arena.dtype))

    # ---- single slots

    def reset(self, slot: int) -> None:
        self._new[slot], self._turns[slot] = True, 0

    def states(self, slot: int, position: int) -> dict[str, Array]:
        """Copies, as the portable model has them."""
        row = self._zeros if self._new[slot] else slot
        out = {
            name: to_array(self._one(name, row, self._turns[slot]), s.dtype).copy() for name, s in self._kept.items()
        }
        counter = self._spec.position
        return out | ({counter: np.full((1, 1), position, np.int32)} if counter else {})

    def restore(self, slot: int, states: Mapping[str, Array], position: int) -> None:
        self._turns[slot] = 0
        for name, arena in self._arena.items():
            wire = to_wire(states[name], self._kinds[name], self.device)
            if (ring := self._rings.get(name)) is None:
                arena[slot] = wire
            else:
                put_back(ring, arena, self._at(slot), self._at(0), wire)
        self._new[slot] = False

    def _one(self, name: str, row: int, turn: int) -> Any:
        """A stream's state as the portable model has it."""
        arena, ring = self._arena[name], self._rings.get(name)
        return arena[row] if ring is None else in_order(ring, arena, self._at(row), self._at(turn))

    def _at(self, number: int) -> Any:
        return torch.tensor([number], device=self.device)


def pooled(on: Executable, most: int) -> Slots | None:
    """None where a port has a type that torch or numpy does not have: every stream is a stepper of its own then."""
    spec, kinds = on.spec, on.as_written().forms(1).general.source.kinds
    types = {i.name: i.dtype for i in spec.inputs} | {o.name: o.dtype for o in spec.outputs}
    if any(kinds[name] is None for name in (*types, *(s.name for s in spec.states))) or not shared(*types.values()):
        return None
    return Slots(on, most)


# ---- are streams kept apart?


def _tried(on: Executable) -> tuple[bool, bool]:
    """Streams at the same place, streams anywhere."""
    if counts_streams(on.program.general):
        return False, False
    spec, program, forms, fewer = on.spec, on.program, on.forms(COUNT), on.forms(len(OWN))
    warm = program.since * spec.pulse if forms.steady is not None else 0

    def runs(form: Form | None) -> Run | None:
        return None if form is None else lambda feeds: _outcome(on, form, feeds)

    def holds(form: Form | None, scenes: list[Scene], last: bool = False, fewer: Form | None = None) -> bool:
        run = runs(form)
        return run is None or kept_apart(run, spec, scenes, last, runs(fewer))

    begun, later = (same_place(at, spec.unknown_length) for at in (0, warm))
    general = holds(forms.general, [begun, later], fewer=fewer.general)
    if not (general and holds(forms.steady, [later], fewer=fewer.steady)):
        return False, False
    if spec.position is None and spec.length is None:
        return True, True
    anywhere = [*mixed_places(spec, warm), *warm_places(spec, warm)]
    return True, holds(forms.general, anywhere, last=True) and holds(forms.steady, warm_places(spec, warm))


def _outcome(on: Executable, form: Form, feeds: Mapping[str, Array]) -> dict[str, Array]:
    source = form.source
    given = [to_wire(feeds[name], source.kinds[name], on.weights.device) for name in source.takes]
    with at_full_precision():
        made = form.call(*given)
    return {name: to_array(wire, None) for name, wire in zip(source.gives, made, strict=True)}

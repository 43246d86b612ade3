"""A pulse of each of many streams in one call, or a few: the bookkeeping of thousands as a few operations on arrays.

held      who has a stream's counters: FREE nobody, LANE its lane, HERE these arrays, BUSY an exchange has it
pulses    of a stream that is HERE this is all there is to know, with `rebased`: nothing waits, nothing was flushed

A lane that is used by itself takes its counters back (`Standing.told`), and the next exchange fetches them again. What
is left BUSY behind an exchange was interrupted, and its lane says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

from pulsify.backends.seam import Array, Which, joined, parted, stream_axis
from pulsify.core.arrays import as_input
from pulsify.core.errors import InvalidArgument, InvalidChunk, PulsifyError
from pulsify.core.framing import NEVER, place
from pulsify.core.runner import error_text
from pulsify.core.spec import Input, Output, Spec, concrete
from pulsify.runtime.framer import Framer, Result, check_table, finite, longer
from pulsify.runtime.tensors import (
    as_arrays,
    as_tensors,
    checked_dense,
    copied,
    device_in,
    emptied,
    finite_rows,
    is_tensor,
    type_name,
)

if TYPE_CHECKING:
    from pulsify.runtime.lane import Lane
    from pulsify.runtime.pool import Pool

FREE, LANE, HERE, BUSY = range(4)
places: Callable[..., Array] = FunctionType(place.__code__, {"min": np.minimum, "max": np.maximum})  # of arrays


@dataclass(frozen=True)
class Exchange:
    """A pulse of many streams, or a few pulses, in the order in which they were asked for.

    frames: as a session of so many streams gives them: an array, or arrays by name if there are several outputs (or
    none that has frames: results about a whole stream come when it is flushed). What has no axis of streams (positions,
    say) has one in front here: streams are at different places.
    real: likewise, [streams, 2]: from which of these frames to which they are the stream's. The others are nothing: a
    delay is waited for at the start, or the output has come to its end.
    failures: by row, of streams that are closed now; none of their frames from the pulse on that failed is real.
    """

    frames: Result
    real: Any
    failures: Mapping[int, PulsifyError]
    spec: Spec
    pulses: int = 1

    @property
    def whole(self) -> bool:
        """Are all frames real?"""
        ends = {o.name: o.frames * self.pulses for o in self.spec.outputs if o.axis is not None}
        return all((real[:, 0] == 0).all() and (real[:, 1] == ends[n]).all() for n, real in self._named(self.real))

    def of(self, row: int) -> Result:
        """The real frames of one stream, as its lane would have given them."""
        out, axes, reals = {}, {o.name: o.axis or 0 for o in self.spec.outputs}, dict(self._named(self.real))
        for name, each in self.rows().items():
            out[name] = each[row][(*(slice(None),) * axes[name], slice(*reals[name][row].tolist()))]
        return out if isinstance(self.frames, Mapping) else next(iter(out.values()))

    def rows(self) -> dict[str, Any]:
        """All frames by output, the streams in front."""
        dims, reals = {o.name: o.dims for o in self.spec.outputs}, dict(self._named(self.real))
        return {
            name: frames if stream_axis(dims[name]) is None else parted(frames, dims[name], len(reals[name]))
            for name, frames in self._named(self.frames)
        }

    def _named(self, values: Any) -> Iterable[tuple[str, Any]]:
        if isinstance(values, Mapping):
            return values.items()
        return [(next(o.name for o in self.spec.outputs if o.axis is not None), values)]


class Standing:
    """Counters by slot. `held` is read a byte at a time by lanes, and all at once here."""

    def __init__(self, most: int) -> None:
        self.held = bytearray(most)
        self.all = np.frombuffer(self.held, np.uint8)
        self.pulses, self.rebased, self.until = (np.zeros(most, np.int64) for _ in range(3))
        self.order = np.zeros(most, np.int64)  # for finding a slot that is given twice

    def told(self, slot: int, framer: Framer) -> None:
        """The lane has its counters again."""
        framer.pulses, framer.rebased = int(self.pulses[slot]), int(self.rebased[slot])
        framer.until = int(self.until[slot])
        taken = zip(framer.spec.inputs, framer.spec.ahead, strict=True)
        framer.received = {i.name: framer.pulses * i.frames - ahead for i, ahead in taken}
        self.held[slot] = LANE

    def fetch(self, slot: int, framer: Framer) -> None:
        """What a lane has. Whose it is is said by `held`."""
        self.pulses[slot], self.rebased[slot], self.until[slot] = framer.pulses, framer.rebased, framer.until


class Request:
    """One exchange: everything is looked at before anything is taken."""

    def __init__(self, pool: Pool, streams: Any, frames: Any) -> None:
        self.pool, self.standing, self.spec = pool, pool._standing, pool.spec
        self.slots = _slots(pool, streams)
        self.count = len(self.slots)
        self.device = device_in(frames)  # where results go; None: arrays
        self.turns = 1  # pulses of each
        self.fed = self._rows(frames)
        self.failures: dict[int, PulsifyError] = {}
        self.failed_at: dict[int, int] = {}  # in which turn
        self.odd: dict[int, Lane] = {}  # those with frames in their lane, by row
        self._stand()

    # ---- looked at

    def _rows(self, frames: Any) -> dict[str, Any]:
        """Inputs with the streams in front, on the pool's side."""
        inputs, count = self.spec.inputs, self.count
        given = dict(frames) if isinstance(frames, Mapping) else {inputs[0].name: frames}
        if set(given) != {i.name for i in inputs}:
            raise InvalidChunk(f"an exchange takes a pulse of every input: {[i.name for i in inputs]}, got {[*given]}")
        home = self.pool._home if self.device is not None else None
        values = {n: checked_dense(v) if is_tensor(v) else as_input(n, v) for n, v in given.items()}
        self.turns = self._turns(values[inputs[0].name])
        out = {}
        for i in inputs:
            value, want = values[i.name], longer(concrete(i.dims, count), i.axis, self.turns)
            if tuple(value.shape) != want or not _is_of(value, i.dtype):
                raise InvalidChunk(
                    f"input '{i.name}': {_pulses(self.turns)} of {count} streams {'is' if self.turns == 1 else 'are'} "
                    f"{i.dtype} {list(want)}, got {type_name(value)} {list(value.shape)}"
                )
            value = as_arrays(value) if home is None else as_tensors(value, home)
            out[i.name] = parted(value, i.dims, count) if count else value[None]
        if self.pool._check:
            self._check_finite(out)
        return out

    def _turns(self, value: Any) -> int:
        """How many pulses these are; one where they are none, or where time and streams share an axis."""
        first = self.spec.inputs[0]
        if any(stream_axis(i.dims) in (None, i.axis) for i in self.spec.inputs) or len(value.shape) != len(first.dims):
            return 1
        pulses, more = divmod(value.shape[first.axis], first.frames)
        return 1 if more else max(pulses, 1)

    def _check_finite(self, rows: Mapping[str, Any]) -> None:
        for name, value in rows.items():
            if not _finite(value):
                bad = self.slots[~finite_rows(value)].tolist()
                failed = InvalidChunk(
                    f"input '{name}' has numbers that are not finite for {_named(bad)}",
                    advice="nothing was taken. Clean the input, or make the pool with check=False to let it through",
                )
                failed.not_finite = True
                raise failed

    def _stand(self) -> None:
        """Whose counters are not here yet; who may not go on."""
        standing, slots = self.standing, self.slots
        for row in np.flatnonzero(standing.all[slots] != HERE).tolist():
            self._fetch(row, int(slots[row]))
        for condition in self.pool._ports.tables:
            for pulses in np.unique(standing.pulses[slots]).tolist():
                check_table(condition, (pulses + self.turns) * self.spec.pulse - self.spec.phase)
        for row in np.flatnonzero(standing.pulses[slots] >= standing.until[slots]).tolist():
            slot = int(slots[row])
            lane = self.pool._lane(slot)
            framer = lane._framer
            if row not in self.odd:
                standing.told(slot, framer)
            with _of(lane):
                framer.rebase()
            standing.fetch(slot, framer)
            standing.held[slot] = LANE if row in self.odd else HERE
        if self.turns > 1 and self.count:
            last = (standing.pulses[slots] + self.turns) * self.spec.pulse - standing.rebased[slots]
            if self.spec.position is not None and last.max() >= self.spec.unknown_length:
                raise InvalidArgument(f"{self.turns} pulses at once are too many for the counter; give fewer")

    def _fetch(self, row: int, slot: int) -> None:
        lane = self.pool._lane(slot)
        framer = lane._framer
        with _of(lane):
            lane._check_open()
            lane._absorb()
            if framer.step > 1:
                raise InvalidArgument(
                    f"{_named([slot])} begins with {framer.step} pulses in one call, which is more than an exchange "
                    "takes: push them to its lane and run the pool first, or convert with opening=False"
                )
            if lane._loaded or framer.ready() or lane in self.pool._made:
                raise InvalidArgument(
                    f"{_named([slot])} has frames that were pushed and not given out yet; run the pool first"
                )
            if framer.waits:
                framer.counted({name: as_arrays(rows[row]) for name, rows in self.fed.items()})
                self.odd[row] = lane
        self.standing.fetch(slot, framer)
        if row not in self.odd:
            self.standing.held[slot] = HERE

    # ---- computed

    def run(self) -> Exchange:
        """From here on streams are BUSY. The last that is done with them is for whoever calls: `settle`."""
        standing, slots, spec = self.standing, self.slots, self.spec
        standing.all[slots] = BUSY
        self._mix_in()
        out: dict[str, Any] = {}
        for turn in range(self.turns):
            positions = (standing.pulses[slots] + turn) * spec.pulse - standing.rebased[slots]
            left = np.setdiff1d(np.arange(self.count), list(self.failures)) if self.failures else None
            for group in self.pool._slots.groups(positions if left is None else positions[left], None):
                self._run(group if left is None else left[group], positions, out, turn)
        real = self._real()
        names = [o for o in spec.outputs if o.axis is not None]
        frames = {o.name: as_tensors(self._joined(o, out), self.device) for o in names}
        if len(spec.outputs) == 1 and names:
            return Exchange(frames[names[0].name], real[names[0].name], self.failures, spec, self.turns)
        return Exchange(frames, real, self.failures, spec, self.turns)

    def _joined(self, output: Output, out: Mapping[str, Any]) -> Any:
        rows = out.get(output.name)
        if rows is None:  # no stream, or none that did not fail
            shape = longer(concrete(output.dims, 1), output.axis, self.turns)
            rows = np.zeros((self.count, *shape), output.dtype)
        return rows if stream_axis(output.dims) is None else joined(rows, output.dims, self.count)

    def _mix_in(self) -> None:
        """Frames that wait in a lane come first; as many of the new ones wait then."""
        for row, lane in self.odd.items():
            framer = lane._framer
            given = {name: as_arrays(rows[row]).copy() for name, rows in self.fed.items()}
            framer.received = framer.counted(given)
            framer.queue(given)
        if self.odd:
            self.fed = {name: copied(rows) for name, rows in self.fed.items()}  # the caller's stay as they are
        for row, lane in self.odd.items():
            for turn in range(self.turns):
                lane._framer.load(lane._inputs, padded=False)
                for i in self.spec.inputs:
                    rows, loaded = self._turn(self.fed[i.name], i, turn), lane._inputs[i.name]
                    rows[row] = as_tensors(loaded, rows.device) if is_tensor(rows) else loaded

    def _turn(self, rows: Any, port: Input | Output, turn: int) -> Any:
        """One pulse of all that there is, with the streams in front."""
        if self.turns == 1:
            return rows
        head, frames = (slice(None),) * ((port.axis or 0) + 1), port.frames
        return rows[(*head, slice(turn * frames, (turn + 1) * frames))]

    def _run(self, group: Which, positions: Array, out: dict[str, Any], turn: int) -> None:
        fed = {i.name: self._turn(self.fed[i.name], i, turn)[group] for i in self.spec.inputs}
        try:
            made = self.pool._slots.run(self.slots[group], positions[group], None, fed)
        except Exception as error:  # runtimes have no common class for them
            rows = np.arange(self.count)[group]
            alone = len(rows) == 1 or not self.pool._slots.intact
            for row in rows.tolist():  # nothing has been kept of it: each by itself, and only those that fail end
                self._fail(row, error, turn) if alone else self._run(slice(row, row + 1), positions, out, turn)
            return
        for o in self.spec.outputs:
            if o.axis is None:
                continue
            rows = made[o.name]
            if self.turns == 1 and len(rows) == self.count and isinstance(group, slice):
                out[o.name] = copied(rows)
                continue
            if o.name not in out:
                shape = longer(tuple(rows.shape), o.axis + 1, self.turns)
                out[o.name] = emptied(rows, (self.count, *shape[1:]))
            self._turn(out[o.name], o, turn)[group] = rows

    def _fail(self, row: int, error: Exception, turn: int) -> None:
        self.failed_at[row] = turn
        slot, what = int(self.slots[row]), f"the model failed on a pulse ({error_text(error)})"
        made = InvalidChunk(what, advice=f"{_named([slot])} is closed")
        made.model_failed, made.lane, self.failures[row], made.__cause__ = True, self.pool._lane(slot), made, error
        self.pool._lane(slot)._why = what

    def _real(self) -> dict[str, Array]:
        """From which frame to which: what was late at the start is not the stream's."""
        pulses, out = self.standing.pulses[self.slots], {}
        for t in self.pool._ports.timed:
            o = t.out
            made, real = o.frames * self.turns, np.empty((self.count, 2), np.int64)
            real[:, 1] = made if o.cap == NEVER else places(o.cap, pulses, o.frames, o.delay, made)
            for row, turn in self.failed_at.items():
                real[row, 1] = min(real[row, 1], turn * o.frames)
            real[:, 0] = places(0, pulses, o.frames, o.delay, real[:, 1])
            out[t.name] = real
        return out

    def settle(self) -> Array:
        """Counters go on. What `held` is to be then: stored by whoever gives the frames out, as the last thing."""
        self.standing.pulses[self.slots] += self.turns
        after = np.full(self.count, HERE, np.uint8)
        for row, lane in self.odd.items():
            lane._framer.pulses += self.turns
            after[row] = LANE
        after[list(self.failures)] = FREE  # they are closed by then
        return after


@contextmanager
def _of(lane: Lane) -> Iterator[None]:
    """Whatever is refused here is refused for this stream."""
    try:
        yield
    except PulsifyError as error:
        error.lane = lane
        raise


def _slots(pool: Pool, streams: Any) -> Array:
    """Numbers of slots, each once, of lanes that are open or by number."""
    if not isinstance(streams, np.ndarray):
        if not isinstance(streams, Iterable):
            raise InvalidArgument(f"streams: expected lanes of this pool, or their slots, got {type(streams).__name__}")
        streams = list(streams)
        if streams and not isinstance(streams[0], (int, np.integer)):
            streams = [_slot(pool, lane) for lane in streams]
    slots = np.asarray(streams)
    if slots.ndim != 1 or (slots.size and slots.dtype.kind not in "iu"):
        raise InvalidArgument(f"streams: expected lanes of this pool, or their slots, got {slots.dtype} {slots.shape}")
    slots = slots.astype(np.int64)
    if slots.size and (slots.min() < 0 or slots.max() >= pool.most):
        bad = slots[(slots < 0) | (slots >= pool.most)].tolist()
        raise InvalidArgument(f"there are slots 0 to {pool.most - 1}, not {bad[:8]}")
    order, places = pool._standing.order, np.arange(len(slots))
    order[slots] = places
    if (twice := slots[order[slots] != places]).size:
        raise InvalidArgument(f"{_named(twice[:1].tolist())} is given twice: a stream has one place in an exchange")
    return slots


def _slot(pool: Pool, lane: Any) -> int:
    if getattr(lane, "_pool", None) is not pool:
        raise InvalidArgument(f"{lane!r} is no lane of this pool")
    if lane.closed:
        lane._refuse()
    return int(lane.slot)


def _finite(value: Any) -> bool:
    if is_tensor(value):
        return not value.is_floating_point() or bool(value.isfinite().all())
    kind = value.dtype.kind
    return not (kind == "f" or (kind == "V" and type_name(value).startswith(("float", "bfloat")))) or finite(value)


def _is_of(value: Any, dtype: np.dtype[Any]) -> bool:
    return (not is_tensor(value) and value.dtype == dtype) or type_name(value) == dtype.name


def _pulses(count: int) -> str:
    return "a pulse" if count == 1 else f"{count} pulses"


def _named(slots: Sequence[int]) -> str:
    shown = ", ".join(map(str, slots[:8])) + ", ..." * (len(slots) > 8)
    return f"the stream{'s' * (len(slots) > 1)} in slot{'s' * (len(slots) > 1)} {shown}"

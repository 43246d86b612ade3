"""Frames in, windows of frames out: all of a stream that is not the model. Sessions and lanes of a pool have one each.

chunks  --checked, queued-->  backlog  --a pulse at a time-->  inputs | model | outputs  --delay and ends cut-->  parts
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pulsify.core.errors import InvalidArgument, InvalidChunk, InvalidLength
from pulsify.core.framing import NEVER, Backlog, Out, back, left, pad, pad_front, ready, whole_pulses
from pulsify.core.spec import Condition, Input, Output, Spec, concrete
from pulsify.runtime.blame import first_stream, said

Array = np.ndarray[Any, Any]
Parts = dict[str, list[Array]]
Result = Any  # an array, or a dict of arrays by name
SHORT = 1 << 14  # truth values up to which looking for a zero byte is quicker than a reduction
LOOKED_AHEAD = 4096  # lengths after one that is not taken, among which the next one is looked for


@dataclass(frozen=True)
class Timed:
    """An output with frames. before: the axes in front of time. settled: when a whole pulse of it is real."""

    name: str
    out: Out
    before: tuple[slice, ...]
    settled: int


@dataclass(frozen=True)
class Direct:
    """The one input and the one output of a simple model; `settled`: pulses until all of an output is frames.

    output: None if none has frames, and all comes out of flush.
    """

    port: Input
    output: str | None
    settled: int


@dataclass(frozen=True)
class Ports:
    """What follows from the spec and the number of streams, worked out once for all of them."""

    spec: Spec
    batch: int
    inputs: Mapping[str, Input]
    shapes: Mapping[str, tuple[int, ...]]
    axes: Mapping[str, int]
    nothing: Mapping[str, Array]
    filler: Mapping[str, Array]  # what stands in front of a stream, at a phase
    timed: tuple[Timed, ...]
    tables: tuple[Condition, ...]
    direct: Direct | None


def ports(spec: Spec, batch: int) -> Ports:
    timed = tuple(
        Timed(o.name, o.framing, (slice(None),) * o.axis, o.framing.settled) for o in spec.outputs if o.axis is not None
    )
    tables = tuple(c for c in spec.conditions if c.at_most is not None)
    direct, begun = None, spec.opening or int(spec.phase > 0)
    if len(spec.inputs) == 1 and not timed and not tables:
        direct = Direct(spec.inputs[0], None, begun)
    elif len(spec.inputs) == len(timed) == 1 and not tables and timed[0].out.cap == NEVER:
        direct = Direct(spec.inputs[0], timed[0].name, max(timed[0].settled, begun))
    shapes = {i.name: concrete(i.dims, batch) for i in spec.inputs}
    return Ports(
        spec,
        batch,
        {i.name: i for i in spec.inputs},
        shapes,
        {i.name: i.axis for i in spec.inputs},
        {i.name: np.empty(longer(shapes[i.name], i.axis, 0), i.dtype) for i in spec.inputs},
        {i.name: _filler(shapes[i.name], i, frames) for i, frames in zip(spec.inputs, spec.ahead, strict=True)},
        timed,
        tables,
        direct,
    )


def longer(shape: tuple[int, ...], axis: int | None, times: int) -> tuple[int, ...]:
    """So many times as long in time."""
    return shape if axis is None or times == 1 else (*shape[:axis], shape[axis] * times, *shape[axis + 1 :])


def _filler(shape: tuple[int, ...], port: Input, frames: int) -> Array:
    return np.zeros((*shape[: port.axis], frames, *shape[port.axis + 1 :]), port.dtype)


def _number(padding: object) -> float:
    try:
        return float(padding)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise InvalidArgument(f"padding={padding!r}: expected a number") from None


class Framer:
    """The frames of one stream (or of several in step).

    padding: what fills the part of the last pulse that no frame has come for. check: look for what is not finite.
    """

    __slots__ = (
        "_check", "_padding", "_ports", "backlog", "by_name", "closed", "parts", "pulses", "rebased", "received",
        "spec", "step", "until",
    )  # fmt: skip

    def __init__(self, known: Ports, padding: float, check: bool) -> None:
        self._ports, self.spec, self._padding, self._check = known, known.spec, _number(padding), check
        self.by_name = len(known.spec.outputs) > 1  # results are dicts, not the array of the one output
        self.backlog = {i.name: Backlog(known.nothing[i.name], i.axis, i.frames) for i in known.spec.inputs}
        self.reset()

    def reset(self) -> None:
        """Nothing has come yet."""
        for name, backlog in self.backlog.items():
            backlog.clear()
            filler = self._ports.filler[name]
            backlog.put(filler, filler.shape[backlog.axis])
        self.received = dict.fromkeys(self._ports.axes, 0)
        self.parts: Parts = self.no_parts()  # frames that have come out and were not given out yet
        self.pulses = 0
        self.step = self.spec.opening or 1  # pulses that the next call of the model takes
        self.rebased = 0
        self.until = self._next_rebase()
        self.closed = False

    @property
    def batch(self) -> int:
        """Streams in step."""
        return self._ports.batch

    def fork(self) -> Framer:
        """The same stream once more. Pieces are never written to, so both may have them."""
        out = Framer(self._ports, self._padding, self._check)
        for name, backlog in self.backlog.items():
            out.backlog[name].clear()
            out.backlog[name].pieces.extend(backlog.pieces)
            out.backlog[name].frames = backlog.frames
        out.received = dict(self.received)
        out.pulses, out.rebased, out.until, out.closed = self.pulses, self.rebased, self.until, self.closed
        out.step, out.by_name = self.step, self.by_name
        return out

    # ---- chunks in

    def checked(self, chunk: Any, chunks: Mapping[str, Any]) -> dict[str, Array]:
        """The chunk by input, or InvalidChunk. Nothing is taken."""
        names = list(self._ports.inputs)
        if chunk is not None and not isinstance(chunk, Mapping):
            if len(names) > 1:
                raise InvalidChunk(f"this model has several inputs: push a dict with {names}")
            chunks = {names[0]: chunk, **chunks}
        elif isinstance(chunk, Mapping):
            chunks = {**chunk, **chunks}
        unknown = set(chunks) - set(names)
        if unknown:
            raise InvalidChunk(f"no streamed input is called {sorted(unknown)}; they are {sorted(names)}")
        return {name: self._one_checked(name, value) for name, value in chunks.items()}

    def _one_checked(self, name: str, value: Any) -> Array:
        port, want = self._ports.inputs[name], self._ports.shapes[name]
        try:
            array = np.asarray(value)
        except (ValueError, TypeError, RuntimeError) as error:  # lists of unequal length; tensors unlike any array
            kind = getattr(value, "dtype", None)
            way = "convert it with .detach().float().cpu()"
            what = f"a tensor of {kind}: {way}" if kind is not None else f"none ({error})"
            raise InvalidChunk(f"input '{name}' takes an array of {port.dtype}, and this is {what}") from error
        if array.dtype != port.dtype:
            raise InvalidChunk(f"input '{name}' takes {port.dtype}, got {array.dtype}: {converted(array, port)}")
        axis = port.axis
        if array.ndim != len(want) or (*array.shape[:axis], want[axis], *array.shape[axis + 1 :]) != want:
            shown = ", ".join("time" if i == axis else str(w) for i, w in enumerate(want))
            raise InvalidChunk(
                f"input '{name}' takes chunks of shape [{shown}] (time is axis {axis}), got {list(array.shape)}"
            )
        if self._check and array.dtype.kind == "f" and not finite(array):
            raise self._not_finite(port, array)
        return array

    def _not_finite(self, port: Input, array: Array) -> InvalidChunk:
        """Where it is: the first frame, and of several streams the first that has it there."""
        at = int(np.argwhere(~np.isfinite(array))[:, port.axis].min())
        frame = array.take([at], port.axis)
        what = "NaN" if np.isnan(frame).any() else "an infinite number"
        row = first_stream(~np.isfinite(frame), port.dims, self._ports.batch)
        stream = "the stream" if row is None else said((row,), self._ports.batch)
        failed = InvalidChunk(
            f"input '{port.name}' has {what} at frame {self.received[port.name] + at} of {stream}",
            advice="nothing was taken. Clean the input, or open the session with check=False to let it through",
        )
        failed.lane, failed.not_finite = row, True
        return failed

    def counted(self, given: Mapping[str, Array]) -> dict[str, int]:
        """How many frames there will have been with these; InvalidLength if a table does not go so far."""
        axes = self._ports.axes
        received = {n: c + (given[n].shape[axes[n]] if n in given else 0) for n, c in self.received.items()}
        for condition in self._ports.tables:
            check_table(condition, min(received[i.name] // int(i.rate) for i in self.spec.inputs))
        return received

    def queue(self, given: Mapping[str, Array]) -> None:
        """Put pieces in line. They may still be the caller's memory: see `own`."""
        for name, array in given.items():
            backlog = self.backlog[name]
            backlog.put(array, array.shape[backlog.axis])

    def own(self, given: Mapping[str, Array]) -> None:
        """What is left of a chunk is the caller's memory until copied; older pieces are ours."""
        for name in given:
            self.backlog[name].own()

    def fits(self, chunk: Any, into: Array, flat: Array | None) -> bool:
        """Just one pulse, nothing waiting: put it straight into the model's input. False: nothing was taken."""
        if type(chunk) is not np.ndarray or chunk.shape != into.shape or chunk.dtype != into.dtype:
            return False
        into[...] = chunk
        return flat is None or finite(flat)

    # ---- pulses

    @property
    def waits(self) -> bool:
        """Are there frames in line?"""
        for b in self.backlog.values():  # noqa: SIM110  a generator costs as much as all of it
            if b.frames:
                return True
        return False

    def ready(self) -> bool:
        """Is there a whole pulse of frames, or all of the opening's?"""
        return ready(self.backlog.values(), self.step)

    def due(self, total: int | None) -> int:
        """Pulses that can be computed with what is there, an opening's counted; total: its length, if it has ended."""
        if not total and not self.ready():
            return 0
        whole = whole_pulses(self.backlog.values())
        return whole + left(self.pulses + whole, self._needed(total)) if total else whole

    def load(self, inputs: Mapping[str, Array], padded: bool) -> None:
        """Move the frames of one call from the backlog to the model's inputs."""
        for name, backlog in self.backlog.items():
            frames = backlog.pulse * self.step
            at = backlog.load(inputs[name], frames)
            if not self.pulses:
                pad_front(inputs[name], backlog.axis, self._ports.filler[name].shape[backlog.axis])
            if at < frames and padded:
                pad(inputs[name], backlog.axis, at, self._padding)

    def clear(self, inputs: Mapping[str, Array]) -> None:
        """Nothing of another stream's stays in the model's inputs: it may be no index here, and pads the last pulse."""
        for port in self.spec.inputs:
            inputs[port.name].fill(0)

    def unload(self, inputs: Mapping[str, Array]) -> None:
        """A pulse that was in place waits in line after all, as the first."""
        for port in self.spec.inputs:
            self.backlog[port.name].unput(inputs[port.name].copy())

    def collect(self, out: Mapping[str, Array], total: int | None) -> None:
        """Add the real frames of a call's outputs to `parts`; at the end also what has no frames."""
        parts, step, pulses = self.parts, self.step, self.pulses
        ends = None if total is None else self._frames(total)
        for t in self._ports.timed:
            if pulses >= t.settled and ends is None:
                parts[t.name].append(out[t.name].copy())
                continue
            first, last = t.out.real(pulses, step, t.out.cap if ends is None else ends[t.name])
            if last > first:
                parts[t.name].append(out[t.name][(*t.before, slice(first, last))].copy())
        self.pulses += step
        self.step = 1
        for o in self.spec.outputs if total is not None else ():
            if o.axis is None:
                parts[o.name] = [out[o.name].copy()]

    # ---- counters

    @property
    def position(self) -> int:
        """Frames that have passed, as the counters have them, which may have been set back."""
        return self.pulses * self.spec.pulse - self.rebased

    def relative(self, total: int | None) -> int | None:
        """The length as the counters have it."""
        return None if total is None else total - self.rebased

    def _next_rebase(self) -> int:
        """The number of the pulse before which counters have to be looked at."""
        return (self.spec.unknown_length // 2 + self.rebased) // self.spec.pulse

    def rebase(self) -> int:
        """Counters are 32 bits wide: by how much they are set back now (nothing but both ends depends on them)."""
        spec, at = self.spec, self.position
        if spec.position is None or at < spec.unknown_length // 2:
            return 0
        if not spec.rebase:
            if at >= spec.unknown_length - spec.pulse:
                raise InvalidLength(
                    f"this model counts absolute positions in 32 bits and {at} frames have passed; end this "
                    "stream and begin another (reset)"
                )
            return 0
        less = back(at, spec.rebase)
        self.rebased += less
        self.until = self._next_rebase()
        return less

    # ---- the end

    def ending(self) -> int:
        """The length of the stream, if it may end here."""
        total = self._total()
        if total:
            _check_length(self.spec, total)
        return total

    def _frames(self, total: int) -> dict[str, int]:
        return {o.name: max(o.length.at(total), 0) for o in self.spec.outputs}

    def unfinished(self, total: int) -> bool:
        """Are there frames that have not come out yet?"""
        return self.pulses < self._needed(total)

    def _needed(self, total: int) -> int:
        frames = self._frames(total)  # final states wait for the last frame too, though they have no time axis
        return self.spec.framing.needed([frames[o.name] for o in self.spec.outputs])

    def _total(self) -> int:
        """The stream's length in units of time; all inputs must agree."""
        units = {i.name: self.received[i.name] / i.rate for i in self.spec.inputs}
        if len(set(units.values())) > 1 or any(u.denominator != 1 for u in units.values()):
            counts = {i.name: f"{self.received[i.name]} frames at {i.rate} per unit" for i in self.spec.inputs}
            raise InvalidLength(f"the inputs have not the same length: {counts}; push the missing frames, then flush")
        return int(next(iter(units.values())))

    # ---- frames out

    def no_parts(self) -> Parts:
        return {o.name: [] for o in self.spec.outputs}

    def joined(self, parts: Mapping[str, list[Array]], final: bool) -> Result:
        """Parts as they are given out; final: with what has no frames."""
        if not self.by_name and len(self._ports.timed) == 1:
            (alone,) = parts.values()
            if len(alone) == 1:
                return alone[0]
        batch = self._ports.batch
        out = {o.name: _join(o, parts[o.name], batch) for o in self.spec.outputs if o.axis is not None or final}
        return out if self.by_name else next(iter(out.values()), None)

    # ---- snapshots

    def waiting_frames(self) -> dict[str, Array]:
        """The backlog, each input in one piece."""
        return {name: backlog.all() for name, backlog in self.backlog.items()}

    def counts(self) -> dict[str, int]:
        own = {"pulses": self.pulses, "rebased": self.rebased, "closed": int(self.closed), "batch": self._ports.batch}
        return own | {f"received.{n}": v for n, v in self.received.items()}

    def restore(self, backlog: Mapping[str, Array], counts: Mapping[str, int]) -> None:
        for own in self.backlog.values():
            own.clear()
        self.queue(backlog)
        self.received = {n: counts[f"received.{n}"] for n in self.backlog}
        self.parts = self.no_parts()
        self.pulses, self.rebased, self.closed = counts["pulses"], counts["rebased"], bool(counts["closed"])
        self.step = 1 if self.pulses else self.spec.opening or 1
        self.until = self._next_rebase()


def finite(array: Array) -> bool:
    """Is every number finite?"""
    which = np.isfinite(array)
    return b"\0" not in which.tobytes() if which.size <= SHORT else bool(which.all())


def _join(o: Output, parts: list[Array], batch: int) -> Array:
    if len(parts) == 1:
        return parts[0]
    if parts and o.axis is not None:
        return np.concatenate(parts, o.axis)
    shape = list(concrete(o.dims, batch))
    if o.axis is not None:
        shape[o.axis] = 0
    return np.empty(shape, o.dtype)


def check_table(condition: Condition, units: int) -> None:
    """A finite table (learned positions, float32) must not run out: said before anything is taken."""
    assert condition.at_most is not None
    if condition.length.at(units) <= condition.at_most:
        return
    if not condition.node:
        raise InvalidLength(
            f"streams of at most {condition.at_most} frames were declared when the model was converted, and this "
            "chunk makes it longer. Nothing was taken; flush, then reset"
        )
    raise InvalidLength(
        f"node '{condition.node}' goes no further than {condition.at_most} rows (of its table, or frames that "
        "float32 can tell apart), and this chunk needs more. Nothing was taken; flush, then reset"
    )


def converted(array: Array, port: Input) -> str:
    """How it becomes what the model takes. Whole samples of sound are scaled, as models are trained on -1 to 1."""
    plain = f"convert it with .astype(np.{port.dtype})"
    if array.dtype.name == "bfloat16":  # numpy has no such type of its own: it was a tensor
        return f"convert it with .to(torch.{port.dtype})"
    if not (array.dtype.kind == "i" and array.dtype.itemsize in (2, 4) and port.dtype.kind == "f"):
        return plain
    sound = f"sound is scaled to -1...1 with x / np.float32({1 << (8 * array.dtype.itemsize - 1)})"
    return sound if one_number(port) else f"{sound}; what is no sound: {plain}"


def one_number(port: Input | Output) -> bool:
    """One number a frame, as sound has it?"""
    return all(d == 1 or not isinstance(d, int) for axis, d in enumerate(port.dims) if axis != port.axis)


def _taken(spec: Spec, total: int) -> bool:
    return total >= spec.shortest and total % spec.step == 0 and all(c.met(total) for c in spec.conditions)


def _of_the_stream(condition: Condition, total: int) -> bool:
    """Is it about the stream's own length, and not that of something inside of the model?"""
    at = condition.length.at
    return all(at(total + n) - at(total) == n for n in (1, 2, 64))


def _check_length(spec: Spec, total: int) -> None:
    limit = spec.proof.limit
    if limit is not None and total > limit:
        raise InvalidLength(
            f"the batch model counts in numbers that are exact up to {limit}, and this stream has {total}: "
            "how it would end there nobody can say. All frames given out so far are right; reset"
        )
    broken = next((c for c in spec.conditions if not c.met(total)), None)
    if not _taken(spec, total):
        node = f" (node '{broken.node}')" if broken and broken.node else ""
        counted = [c for c in spec.conditions if _of_the_stream(c, total)]
        multiples = max([spec.step, *(c.multiple for c in counted)])
        off = next((-c.length.at(0) for c in counted if c.multiple == multiples and not c.node), 0) % multiples
        more = f" and {f'{off} more than ' if off else ''}a multiple of {multiples}" if multiples > 1 else ""
        if total >= spec.shortest and total % multiples == off:
            after = next((n for n in range(total + 1, total + LOOKED_AHEAD) if _taken(spec, n)), None)
            more += ", and this one it cannot run at" + (f"; the next is {after}" if after is not None else "")
        frames = "1 frame is" if total == 1 else f"{total} frames are"
        what = "too few" if total < spec.shortest else "a length this model does not take"
        raise InvalidLength(
            f"{frames} {what}: this model needs at least {spec.shortest}{more}{node}. Push more frames before flush, "
            "or reset"
        )

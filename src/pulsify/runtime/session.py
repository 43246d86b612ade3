"""One live stream (or a batch of them): chunks of any size in, the frames that are ready out."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pulsify.backends.ort.slots import Slot
from pulsify.backends.ort.step import Step
from pulsify.core.errors import InvalidArgument, InvalidChunk, InvalidLength, SessionClosed
from pulsify.core.runner import said
from pulsify.core.spec import Condition, Input, Output, concrete
from pulsify.runtime import snapshot

if TYPE_CHECKING:
    from pulsify.core.spec import Spec

Array = np.ndarray[Any, Any]
Result = Any  # an array, or a dict of arrays by name


@dataclass(frozen=True)
class Direct:
    """A model's one input and one output in memory; `checked` is looked at for NaN; `settled`: pulses of delay.

    out: None if the model is run by someone else.
    """

    port: Input
    into: Array
    checked: Array | None
    name: str
    out: Array | None
    settled: int


class Session:
    """Feeds a streaming model pulse by pulse.

        push(chunk) ... push(chunk) flush()       the results, concatenated, are the batch model's output

    padding: what fills the part of the last pulse that no frame has come for. It never shows in the output;
    tests set it to NaN to prove that. check: look for NaN in the chunks.
    """

    _closed: bool

    def __init__(
        self, step: Step | Slot, spec: Spec, *, batch: int = 1, padding: float = 0.0, check: bool = True
    ) -> None:
        self.spec, self.batch = spec, batch
        self._padding, self._check, self._step = padding, check, step
        self._shapes = {i.name: concrete(i.dims, self.batch) for i in spec.inputs}
        self._ports = {i.name: i for i in spec.inputs}
        self._axis = {i.name: i.axis for i in spec.inputs}
        self._timed = [
            (o.name, o.frames, o.delay, (slice(None),) * o.axis, o.length.cap)
            for o in spec.outputs
            if o.axis is not None
        ]
        self._tables = [c for c in spec.conditions if c.at_most is not None]
        self._direct = self._direct_ports()
        self.reset()

    @property
    def closed(self) -> bool:
        """Has it been flushed?"""
        return self._closed

    # ---- the public contract

    def push(self, chunk: Any = None, /, **chunks: Any) -> Result:
        """Take frames (any number, also none) and return the output frames that are now ready."""
        if not chunks and (out := self._whole_pulse(chunk)) is not None:
            return out
        if self._closed:
            raise SessionClosed("this stream has been flushed; call reset() to start another")
        parts, given = self.no_parts(), self._given(chunk, chunks)
        self._queue(given)
        self._run_full_pulses(parts)
        self._own(given)
        return self.result(parts, final=False)

    def flush(self) -> Result:
        """End the stream: the frames still inside come out, and the last chunk need not be a whole pulse."""
        if self._closed:
            raise SessionClosed("this stream has been flushed already; call reset() to start another")
        parts, total = self.no_parts(), self.ending()
        if total:
            self._run_full_pulses(parts)
            started = False
            while not started or self.unfinished(total):
                self.load(pad=True)
                self._run(parts, total)
                started = True
        self._closed = True
        return self.result(parts, final=total > 0)

    def reset(self) -> None:
        """Forget everything: the next push starts a new stream."""
        self._step.reset()
        self._backlog: dict[str, deque[Array]] = {i.name: deque() for i in self.spec.inputs}
        self._waiting = {i.name: 0 for i in self.spec.inputs}  # frames in the backlog
        self._received = {i.name: 0 for i in self.spec.inputs}
        self._pulses = 0
        self._rebased = 0
        self._until = self._pulses_left()
        self._closed = False

    def state(self) -> bytes:
        """All there is to know of the stream, as bytes (safetensors)."""
        backlog = {n: self._joined(n) for n in self._backlog}
        counts = {"pulses": self._pulses, "rebased": self._rebased, "closed": int(self._closed), "batch": self.batch}
        counts.update({f"received.{n}": v for n, v in self._received.items()})
        return snapshot.save(self._step.states(), backlog, counts, self.spec)

    def restore(self, blob: bytes) -> None:
        """Go on from a `state()` of this model, here or in another process."""
        states, backlog, counts = snapshot.load(blob, self.spec, self.batch)
        self.reset()
        self._step.restore(states, counts["pulses"] * self.spec.pulse - counts["rebased"])
        self._backlog = {n: deque([a] if a.shape[self._axis[n]] else []) for n, a in backlog.items()}
        self._waiting = {n: a.shape[self._axis[n]] for n, a in backlog.items()}
        self._received = {n: counts[f"received.{n}"] for n in self._received}
        self._pulses, self._rebased, self._closed = counts["pulses"], counts["rebased"], bool(counts["closed"])
        self._until = self._pulses_left()

    # ---- chunks in

    def take(self, chunk: Any, chunks: Mapping[str, Any]) -> None:
        """Take frames without computing anything."""
        given = self._given(chunk, chunks)
        self._queue(given)
        self._own(given)

    def check(self, chunks: Mapping[str, Any]) -> None:
        """Raises what `push` would, without taking anything."""
        given = self._given(None, chunks)
        for condition in self._tables:
            self._check_table(condition, given)

    def _queue(self, given: Mapping[str, Array]) -> None:
        for condition in self._tables:
            self._check_table(condition, given)
        for name, array in given.items():
            if array.shape[self._axis[name]]:
                self._backlog[name].append(array)
                self._waiting[name] += array.shape[self._axis[name]]
                self._received[name] += array.shape[self._axis[name]]

    def _own(self, given: Mapping[str, Array]) -> None:
        """What is left of a chunk is the caller's memory until copied; older pieces are ours."""
        for name in given:
            if self._backlog[name]:
                self._backlog[name][-1] = self._backlog[name][-1].copy()

    def _direct_ports(self) -> Direct | None:
        """Where a whole pulse goes in and out, if there is but one way."""
        spec, step = self.spec, self._step
        given = [o for o in spec.outputs if o.axis is not None]
        if len(spec.inputs) != 1 or len(given) != 1 or self._tables or given[0].length.cap is not None:
            return None
        taken, made = spec.inputs[0], given[0]
        into = step.inputs[taken.name]
        flat = into.reshape(-1) if into.flags.c_contiguous else into[0].T.reshape(-1)
        checked = flat if self._check and taken.dtype.kind == "f" else None
        out = None if isinstance(step, Slot) else step.outputs[made.name]
        return Direct(taken, into, checked, made.name, out, -(-made.delay // made.frames))

    def place(self, chunk: Any) -> bool:
        """Just one pulse, nothing waiting: straight to the model's input. False: nothing was taken."""
        direct = self._direct
        if direct is None or type(chunk) is not np.ndarray or self._waiting[direct.port.name]:
            return False
        into = direct.into
        if chunk.shape != into.shape or chunk.dtype != into.dtype:
            return False
        into[...] = chunk
        if direct.checked is not None and _has_nan(direct.checked):
            return False
        self._received[direct.port.name] += direct.port.frames
        return True

    def displace(self) -> None:
        """A pulse that was placed waits in line after all."""
        assert self._direct is not None
        name = self._direct.port.name
        self._backlog[name].appendleft(self._direct.into.copy())
        self._waiting[name] += self._direct.port.frames

    def _whole_pulse(self, chunk: Any) -> Result:
        """One pulse while both ends are out of sight: straight through the model.

        Little is done here, because after a model has run nothing of Python is in the processor's caches any more.
        None: nothing was taken; the long way does it, or says what is wrong.
        """
        direct = self._direct
        if direct is None or direct.out is None or not direct.settled <= self._pulses < self._until or self._closed:
            return None
        if not self.place(chunk):
            return None
        self._stepped(None)
        self._pulses += 1
        out = direct.out.copy()
        return out if len(self.spec.outputs) == 1 else {direct.name: out}

    def _given(self, chunk: Any, chunks: Mapping[str, Any]) -> dict[str, Array]:
        if chunk is not None and not isinstance(chunk, Mapping):
            if len(self.spec.inputs) > 1:
                raise InvalidChunk(
                    f"this model has several inputs: push a dict with {[i.name for i in self.spec.inputs]}"
                )
            chunks = {self.spec.inputs[0].name: chunk, **chunks}
        elif isinstance(chunk, Mapping):
            chunks = {**chunk, **chunks}
        unknown = set(chunks) - set(self._shapes)
        if unknown:
            raise InvalidChunk(f"no streamed input is called {sorted(unknown)}; they are {sorted(self._shapes)}")
        return {name: self._checked(name, value) for name, value in chunks.items()}

    def _checked(self, name: str, value: Any) -> Array:
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise InvalidChunk(f"input '{name}' takes an array, and this is none ({error})") from error
        port = self._ports[name]
        if array.dtype != port.dtype:
            raise InvalidChunk(
                f"input '{name}' takes {port.dtype}, got {array.dtype}: convert it with .astype(np.{port.dtype})"
            )
        want = self._shapes[name]
        axis = port.axis
        fits = array.ndim == len(want) and all(
            d == w for i, (d, w) in enumerate(zip(array.shape, want, strict=True)) if i != axis
        )
        if not fits:
            shown = ", ".join("time" if i == axis else str(w) for i, w in enumerate(want))
            raise InvalidChunk(
                f"input '{name}' takes chunks of shape [{shown}] (time is axis {axis}), got {list(array.shape)}"
            )
        if self._check and array.dtype.kind == "f" and _has_nan(array):
            where = int(np.argwhere(np.isnan(array))[:, axis].min())
            raise InvalidChunk(
                f"input '{name}' has NaN at frame {self._received[name] + where} of the stream; nothing was taken. "
                "Clean the input, or open the session with check=False to let it through"
            )
        return array

    def _check_table(self, condition: Condition, given: Mapping[str, Array]) -> None:
        """A finite table (learned positions, float32) must not run out: said before anything is taken."""
        assert condition.at_most is not None
        units = [
            (self._received[i.name] + (given[i.name].shape[i.axis] if i.name in given else 0)) // int(i.rate)
            for i in self.spec.inputs
        ]
        if condition.length.at(min(units)) <= condition.at_most:
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

    # ---- pulses

    def _joined(self, name: str) -> Array:
        parts = self._backlog[name]
        if not parts:
            shape = list(self._shapes[name])
            shape[self._axis[name]] = 0
            return np.empty(shape, self._ports[name].dtype)
        return np.ascontiguousarray(parts[0] if len(parts) == 1 else np.concatenate(list(parts), self._axis[name]))

    def no_parts(self) -> dict[str, list[Array]]:
        return {o.name: [] for o in self.spec.outputs}

    def ready(self) -> bool:
        """Is there a whole pulse of frames?"""
        return all(self._waiting[i.name] >= i.frames for i in self.spec.inputs)

    def _run_full_pulses(self, parts: dict[str, list[Array]]) -> None:
        while self.ready():
            self.load(pad=False)
            self._run(parts)

    def load(self, pad: bool) -> None:
        """Move one pulse of frames from the backlog to the model's input."""
        for port in self.spec.inputs:
            buffer, at = self._step.inputs[port.name], 0
            backlog = self._backlog[port.name]
            while at < port.frames and backlog:
                piece = backlog[0]
                n = min(port.frames - at, piece.shape[port.axis])
                head = (slice(None),) * port.axis
                buffer[(*head, slice(at, at + n))] = piece[(*head, slice(0, n))]
                if n == piece.shape[port.axis]:
                    backlog.popleft()
                else:
                    backlog[0] = piece[(*head, slice(n, None))]
                at += n
                self._waiting[port.name] -= n
            if at < port.frames and pad:
                head = (slice(None),) * port.axis
                if port.dtype.kind == "f":
                    buffer[(*head, slice(at, None))] = self._padding
                elif at:  # a real frame once more: whole numbers may be indices, or divisors. Older ones do as well
                    buffer[(*head, slice(at, None))] = buffer[(*head, slice(at - 1, at))]

    def _run(self, parts: dict[str, list[Array]], total: int | None = None) -> None:
        """One pulse; its real frames are added to `parts`. total: the stream's length, at its end."""
        self.rebase()
        self.collect(self._stepped(self.relative(total)), parts, total)

    def _stepped(self, length: int | None) -> Mapping[str, Array]:
        """One run of the model."""
        assert isinstance(self._step, Step)
        try:
            return self._step.run(length)
        except Exception as error:  # ONNX Runtime has no common class for them
            self._closed = True
            raise InvalidChunk(
                f"the model failed on this chunk ({said(error)}); the stream ends here: reset(), or restore() "
                "an earlier state()"
            ) from error

    def collect(self, out: Mapping[str, Array], parts: dict[str, list[Array]], total: int | None) -> None:
        """Add the real frames of a pulse's outputs to `parts`; at the end also what has no frames."""
        for name, frames, delay, before, cap in self._timed:
            begin = self._pulses * frames - delay
            if begin >= 0 and total is None and cap is None:
                parts[name].append(out[name].copy())
                continue
            first = max(0, -begin)
            most = cap if total is None else self._frames(total)[name]
            last = frames if most is None else min(frames, most - begin)
            if last > first:
                parts[name].append(out[name][(*before, slice(first, last))].copy())
        self._pulses += 1
        for o in self.spec.outputs if total is not None else ():
            if o.axis is None:
                parts[o.name] = [out[o.name].copy()]

    def relative(self, total: int | None) -> int | None:
        """The length as the counters have it, which may have been set back."""
        return None if total is None else total - self._rebased

    def _pulses_left(self) -> int:
        """The number of the pulse before which counters have to be looked at."""
        return (self.spec.unknown_length // 2 + self._rebased) // self.spec.pulse

    def rebase(self) -> None:
        """Counters are 32 bits wide: set them back before they run over (nothing but both ends depends on them)."""
        spec = self.spec
        at = self._pulses * spec.pulse - self._rebased
        if spec.position is None or at < spec.unknown_length // 2:
            return
        if not spec.rebase:
            if at >= spec.unknown_length - spec.pulse:
                raise InvalidLength(
                    f"this model counts absolute positions in 32 bits and {at} frames have passed; flush, then reset"
                )
            return
        back = (at // 2) // spec.rebase * spec.rebase
        self._step.set_back(back)
        self._rebased += back
        self._until = self._pulses_left()

    # ---- the end

    def ending(self) -> int:
        """The length of the stream, if it may end here."""
        total = self._total()
        if total:
            self._check_length(total)
        return total

    def _frames(self, total: int) -> dict[str, int]:
        return {o.name: max(o.length.at(total), 0) for o in self.spec.outputs}

    def unfinished(self, total: int) -> bool:
        """Are there frames that have not come out yet?"""
        frames = self._frames(total)
        return any(o.frames and self._pulses * o.frames - o.delay < frames[o.name] for o in self.spec.outputs)

    def _total(self) -> int:
        """The stream's length in units of time; all inputs must agree."""
        units = {i.name: self._received[i.name] / i.rate for i in self.spec.inputs}
        if len(set(units.values())) > 1 or any(u.denominator != 1 for u in units.values()):
            counts = {i.name: f"{self._received[i.name]} frames at {i.rate} per unit" for i in self.spec.inputs}
            raise InvalidLength(f"the inputs have not the same length: {counts}; push the missing frames, then flush")
        return int(next(iter(units.values())))

    def _check_length(self, total: int) -> None:
        limit = self.spec.proof.limit
        if limit is not None and total > limit:
            raise InvalidLength(
                f"the batch model counts in numbers that are exact up to {limit}, and this stream has {total}: "
                "how it would end there nobody can say. All frames given out so far are right; reset"
            )
        broken = next((c for c in self.spec.conditions if not c.met(total)), None)
        if total < self.spec.shortest or total % self.spec.step or broken is not None:
            node = f" (node '{broken.node}')" if broken else ""
            multiples = max([self.spec.step, *(c.multiple for c in self.spec.conditions)])
            more = f" and a multiple of {multiples}" if multiples > 1 else ""
            raise InvalidLength(
                f"a stream of {total} frames is none this model takes{node}: it needs at least "
                f"{self.spec.shortest}{more}. Push more frames before flush, or reset"
            )

    # ---- frames out

    def result(self, parts: Mapping[str, list[Array]], final: bool) -> Result:
        out = {
            o.name: _join(o, parts[o.name], self.spec, self.batch)
            for o in self.spec.outputs
            if o.axis is not None or final
        }
        if len(self.spec.outputs) == 1:
            return next(iter(out.values()), None)
        return out


def _has_nan(array: Array) -> bool:
    top = np.maximum.reduce(array.reshape(-1), initial=-np.inf)
    return bool(top != top)


def _join(o: Output, parts: list[Array], spec: Spec, batch: int) -> Array:
    if len(parts) == 1:
        return parts[0]
    if parts and o.axis is not None:
        return np.concatenate(parts, o.axis)
    shape = list(concrete(o.dims, batch))
    if o.axis is not None:
        shape[o.axis] = 0
    return np.empty(shape, o.dtype)


def check_batch(spec: Spec, batch: int | None) -> int:
    """How many streams go in step."""
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        raise InvalidArgument(f"batch={batch!r}: expected a whole number of streams, at least 1")
    if batch not in (None, 1) and spec.batch is None:
        raise InvalidArgument(
            f"batch={batch}: this model's batch size is fixed; export it with a dynamic batch axis, "
            "or open one session per stream"
        )
    return batch or 1


def check_statics(spec: Spec, given: Mapping[str, Any], batch: int) -> dict[str, Array]:
    names = {s.name for s in spec.statics}
    if set(given) != names:
        missing, unknown = sorted(names - set(given)), sorted(set(given) - names)
        parts = [f"missing: {missing}"] * bool(missing) + [f"unknown: {unknown}"] * bool(unknown)
        raise InvalidArgument(f"static inputs are given when the session is opened, by name; {'; '.join(parts)}")
    out = {}
    for s in spec.statics:
        array = np.array(given[s.name], order="C")  # the caller's may change while the session lives
        want = concrete(s.dims, batch)
        if array.shape != want or array.dtype != s.dtype:
            raise InvalidArgument(
                f"static input '{s.name}' must be {s.dtype} {list(want)}, got {array.dtype} {list(array.shape)}"
            )
        out[s.name] = array
    return out

"""One live stream (or several in step): chunks of any size in, the frames that are ready out."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, Generic, NoReturn

import numpy as np
from numpy import ndarray

from pulsify.backends.seam import Array, Placement, Stepper, TakesTensors, placement_of
from pulsify.core.boundary import converted, foreign, public
from pulsify.core.chunks import entries
from pulsify.core.errors import InvalidArgument, InvalidChunk, PulsifyError, SessionBusy, SessionClosed
from pulsify.core.runner import error_text
from pulsify.core.spec import Spec, concrete
from pulsify.runtime import snapshot
from pulsify.runtime.blame import guilty, said
from pulsify.runtime.framer import Framer, Ports, Result
from pulsify.runtime.framer import finite as all_finite
from pulsify.runtime.opening import run_opening
from pulsify.runtime.tensors import as_arrays, as_tensors, device_in, is_tensor, type_name
from pulsify.runtime.way import Way, moved, way_through

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # with a default, which Python itself has from 3.13 on

    Out = TypeVar("Out", default=Any)
else:
    from typing import TypeVar

    Out = TypeVar("Out")

INTERRUPTED = "a call was interrupted before its frames were given out"
MEND = "reset() starts anew, restore() goes on from an earlier state()"
MET = "another thread is in this stream: one at a time, or one session per thread"


NOTHING: Any = object()  # frames were taken, and none come out


class Session(Generic[Out]):
    """Feeds a streaming model pulse by pulse.

        push(chunk) ... push(chunk) flush()       the results, concatenated, are the batch model's output

    A call that fails on its arguments takes nothing. One that the model fails in, or that is interrupted (Ctrl-C),
    leaves a session that says so until `reset` or `restore`; `made` has the frames that came out before.
    A session is one thread's at a time: where two meet, the second gets SessionBusy.
    What comes out is the array of the one output, or a dict of arrays by output; `stream.session(by_name=...)` says
    which, and type checkers know it then (`Session[Array]`, `Session[dict[str, Array]]`).
    """

    __slots__ = (
        "__weakref__", "_device", "_first", "_framer", "_intact", "_open", "_stepper", "_users", "_way", "_why",
        "batch", "spec",
    )  # fmt: skip

    def __init__(
        self,
        opened: Callable[[], Stepper],
        framer: Framer,
        known: Ports,
        check: bool,
        first: Callable[[], Stepper] | None = None,
    ) -> None:
        """first: what runs the opening, where the stream has one."""
        self.spec, self.batch = known.spec, known.batch
        self._open, self._stepper, self._framer, self._first = opened, opened(), framer, first
        self._way = way_through(self._stepper, known, check, not framer.by_name)
        self._users: dict[int, int] = {}  # the thread that is in here; setdefault and del are one instruction each
        self._intact = True  # False while frames are on their way: whatever ends a call then leaves it so
        self._why = INTERRUPTED
        self._device: Any = None  # where the last chunk was, if it was a tensor

    @property
    def closed(self) -> bool:
        """Has it been flushed?"""
        return self._framer.closed

    @property
    @public
    def placement(self) -> tuple[Placement, ...]:
        """Where each node of the step runs, and why not on the device; empty if there is one place only."""
        return placement_of(self._stepper)

    def push(self, chunk: Any = None, /, **chunks: Any) -> Out:
        """Take frames (any number, also none) and return the output frames that are now ready.

        Torch's tensors are taken as arrays are, and results are tensors then, on the same device. Whole pulses on a
        back end's own device stay there; opened with check=False, nothing waits for it.
        """
        users, me = self._users, get_ident()
        if users.setdefault(0, me) != me or not self._intact:
            self._refuse(me)
        try:
            out: Any = None if chunks else self._whole_pulse(chunk)
            if out is None:
                out = self._any_chunk(chunk, chunks)
            elif out is NOTHING:
                out = None
        except BaseException as error:
            self._leave()
            if (outward := converted(error)) is not None:
                raise outward from error
            raise
        # no call from here on: an interruption comes before this, or after the caller has the frames
        del users[0]
        self._intact = True
        return out

    def flush(self) -> Out:
        """End the stream: the frames still inside come out, and the last chunk need not be a whole pulse."""
        self._enter()
        framer = self._framer
        try:
            if framer.closed:
                raise SessionClosed("this stream has been flushed already, or its with block has ended; call reset()")
            total = framer.ending()
            self._intact = False
            if total:
                while framer.ready():
                    self._pulse()
                started = False
                while not started or framer.unfinished(total):
                    self._pulse(total)
                    started = True
            out = as_tensors(framer.joined(framer.parts, final=total > 0), self._device)
            framer.parts = framer.no_parts()
            framer.closed = True
        except BaseException as error:
            self._leave()
            if (outward := converted(error)) is not None:
                raise outward from error
            raise
        del self._users[0]
        self._intact = True
        return out

    def reset(self) -> None:
        """Forget everything: the next push starts a new stream."""
        self._enter(mending=True)
        try:
            self._intact, self._why = False, INTERRUPTED
            self._stepper.reset()
            self._framer.clear(self._stepper.inputs)
            self._framer.reset()
        except BaseException as error:
            self._leave()
            if (outward := converted(error)) is not None:
                raise outward from error
            raise
        del self._users[0]
        self._intact = True

    @public
    def state(self) -> bytes:
        """All there is to know of the stream, as bytes (safetensors): any back end takes it."""
        self._enter()
        try:
            framer = self._framer
            return snapshot.save(self._stepper.states(), framer.waiting_frames(), framer.counts(), self.spec)
        finally:
            self._leave()

    def restore(self, blob: bytes) -> None:
        """Go on from a `state()` of this model, here or in another process, on this back end or another."""
        self._enter(mending=True)
        try:
            states, backlog, counts = snapshot.load(blob, self.spec, self.batch)
            self._intact, self._why = False, INTERRUPTED
            self._framer.restore(backlog, counts)
            self._stepper.reset()
            self._framer.clear(self._stepper.inputs)
            self._stepper.restore(states, self._framer.position)
        except BaseException as error:
            self._leave()
            if (outward := converted(error)) is not None:
                raise outward from error
            raise
        del self._users[0]
        self._intact = True

    @public
    def fork(self) -> Session[Out]:
        """Another session at the same place of the same stream; from here on they know nothing of each other."""
        self._enter()
        try:
            out: Session[Out] = object.__new__(Session)
            out.spec, out.batch, out._open, out._first = self.spec, self.batch, self._open, self._first
            out._stepper, out._framer = self._open(), self._framer.fork()
            out._stepper.restore(self._stepper.states(), self._framer.position)
            out._way = moved(self._way, out._stepper)
            out._users, out._intact, out._why, out._device = {}, True, INTERRUPTED, self._device
            return out
        finally:
            self._leave()

    @public
    def peek(self) -> Out:
        """What `flush` would give if the stream ended now; it goes on as if nobody had asked.

        Raises what `flush` would. Frames that it shows come out again as they are in the end.
        """
        return self.fork().flush()

    def iterate(self, chunks: Iterable[Any]) -> Iterator[Out]:
        """What comes out of every chunk, and at the end what `flush` gives."""
        for chunk in entries(chunks):
            yield self.push(chunk)
        yield self.flush()

    async def aiterate(self, chunks: AsyncIterable[Any] | Iterable[Any]) -> AsyncIterator[Out]:
        """As `iterate`, for `async for`: the model runs in a thread, so that the event loop is not held up.

        A task that is cancelled while the model runs waits for that call, whose frames are lost: `reset()` then.
        """
        from pulsify.runtime.in_thread import in_thread

        try:
            async for chunk in _in_turn(chunks):
                yield await in_thread(partial(self.push, chunk))
            yield await in_thread(self.flush)
        except BaseException as error:
            if outward := converted(error):
                raise outward from error
            raise

    @public
    def made(self) -> Out:
        """Frames that came out in a call that failed or was interrupted, before it did."""
        return self._framer.joined(self._framer.parts, final=False)

    __copy__ = fork

    def __deepcopy__(self, memo: Any) -> Session[Out]:
        return self.fork()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a session is not pickled: send session.state(), and restore() it where the stream is open")

    def __enter__(self) -> Session[Out]:
        return self

    def __exit__(self, *error: object) -> None:
        """The stream ends here, whatever is still inside; flush before for the rest."""
        self._framer.closed = True

    @public
    def __repr__(self) -> str:
        framer = self._framer
        frames = ", ".join(f"{n}: {c} frames in" for n, c in framer.received.items())
        said = "" if self._intact else ", broken" if not self._users else ", busy"
        streams = f" x {self.batch}" if self.batch > 1 else ""
        return f"<pulsify.Session pulse={self.spec.pulse}{streams} [{frames}]{', flushed' * framer.closed}{said}>"

    # ---- who is in here

    def _enter(self, mending: bool = False) -> None:
        me = get_ident()
        if self._users.setdefault(0, me) != me or not (self._intact or mending):
            self._refuse(me)

    def _refuse(self, me: int) -> NoReturn:
        if self._users.get(0) != me:
            raise SessionBusy(MET)
        self._users.pop(0, None)
        raise SessionClosed(f"{self._why}; {MEND}")

    def _leave(self) -> None:
        """Out of a call that did not come to its end. What was left of a chunk is the caller's memory: it goes."""
        if not self._intact:
            for backlog in self._framer.backlog.values():
                backlog.clear()
        self._users.pop(0, None)

    # ---- pulses

    def _whole_pulse(self, chunk: Any) -> Result:
        """One pulse while both ends are out of sight: straight through the model.

        Little is done here, because after a model has run nothing of Python is in the processor's caches any more.
        None: nothing was taken; the long way does it, or says what is wrong.
        """
        way, framer = self._way, self._framer
        if way is None or not way.settled <= framer.pulses < framer.until or framer.closed:
            return None
        name, careful = way.port.name, way.careful
        if type(chunk) is not ndarray or chunk.shape != way.shape:
            return None
        if chunk.dtype is not way.dtype:  # one that is equal but another object goes the long way
            return None
        if framer.backlog[name].frames:
            return self._across(way, chunk)
        way.into[...] = chunk
        if way.flat is not None and not all_finite(way.flat):
            return None
        self._intact = False
        try:
            if careful is None:
                self._stepper.run()
            elif not careful():
                self._intact = True
                return None
        except Exception as error:  # runtimes have no common class for them
            raise self._failed(error, None) from error
        return self._came(way)

    def _came(self, way: Way) -> Result:
        """A pulse has been computed: what it made."""
        framer = self._framer
        framer.received[way.port.name] += way.frames
        framer.pulses += 1
        if way.out is None:
            return NOTHING if way.alone else {}
        out = way.out.copy()
        return out if way.alone else {way.name: out}

    def _across(self, way: Way, chunk: Array) -> Result:
        """As `_whole_pulse`, behind frames that wait: as many of the chunk's do then. None: nothing was taken."""
        framer, head = self._framer, way.before
        backlog = framer.backlog[way.port.name]
        pieces, waits = backlog.pieces, backlog.frames
        if len(pieces) > 1 or waits >= way.frames or (way.looks and not all_finite(chunk)):
            return None
        way.into[(*head, slice(0, waits))] = pieces[0]
        way.into[(*head, slice(waits, None))] = chunk[(*head, slice(0, way.frames - waits))]
        rest = chunk[(*head, slice(way.frames - waits, None))].copy()
        self._intact = False
        try:
            self._stepper.run()
        except Exception as error:  # as above
            raise self._failed(error, None) from error
        pieces[0] = rest
        return self._came(way)

    def _any_chunk(self, chunk: Any, chunks: Mapping[str, Any]) -> Result:
        framer = self._framer
        if framer.closed:
            raise SessionClosed(
                "this stream has been flushed, or its with block has ended; call reset() to start another"
            )
        self._device = device_in(chunk, chunks)
        if self._device is not None:
            if not chunks and (out := self._whole_tensor(chunk)) is not None:
                return out
            chunk, chunks = as_arrays(chunk), as_arrays(chunks)
        given = framer.checked(chunk, chunks)
        received = framer.counted(given)
        self._intact = False
        framer.received = received
        framer.queue(given)
        while framer.ready():
            self._pulse()
        framer.own(given)
        out = as_tensors(framer.joined(framer.parts, final=False), self._device)
        framer.parts = framer.no_parts()
        return out

    def _whole_tensor(self, chunk: Any) -> Result:
        """As `_whole_pulse`, with nothing copied to the host. None: nothing was taken."""
        way, framer = self._way, self._framer
        if way is None or way.tensors is None or way.name is None or not way.settled <= framer.pulses < framer.until:
            return None
        port = way.port
        if not is_tensor(chunk) or chunk.shape != way.into.shape or type_name(chunk) != port.dtype.name:
            return None
        looks = way.flat is not None or way.careful is not None
        if framer.backlog[port.name].frames or (looks and not bool(chunk.isfinite().all())):
            return None
        self._intact = False
        framer.received[port.name] += port.frames
        made = self._stepped(None, way.tensors, {port.name: chunk.detach()})[way.name]
        framer.pulses += 1
        out = as_tensors(made, self._device)
        return out if way.alone else {way.name: out}

    def _pulse(self, total: int | None = None) -> None:
        """One pulse; its real frames are kept. total: the stream's length, at its end."""
        framer = self._framer
        if framer.step > 1:
            self._opening(total)
            return
        framer.load(self._stepper.inputs, padded=total is not None)
        if framer.pulses >= framer.until:
            self._rebase()
        framer.collect(self._stepped(framer.relative(total)), total)

    def _opening(self, total: int | None) -> None:
        """The first pulses, in one call."""
        assert self._first is not None
        try:
            states = run_opening(self._first(), self._framer, total)
        except InvalidChunk as error:
            self._why = str(error)
            failed = InvalidChunk(str(error), advice=f"the stream ends here: {MEND}")
            failed.model_failed, failed.lane = True, error.lane
            raise failed from error
        self._stepper.restore(states, self._framer.position)

    def _rebase(self) -> None:
        try:
            back = self._framer.rebase()
        except PulsifyError as error:
            self._why = str(error)
            raise
        if back:
            self._stepper.rebase(back)

    def _stepped(
        self, length: int | None, tensors: TakesTensors | None = None, fed: Mapping[str, Any] | None = None
    ) -> Mapping[str, Any]:
        """One run of the model. tensors: the stepper, where `fed` are some."""
        try:
            return self._stepper.run(length) if tensors is None else tensors.run(length, fed)
        except Exception as error:  # as above
            raise self._failed(error, length) from error

    def _failed(self, error: Exception, length: int | None) -> InvalidChunk:
        """What is said of a model that failed, here and from now on."""
        what = error_text(error)
        if rows := guilty(self._stepper, self.spec, self.batch, length):
            what = f"{said(rows, self.batch)}: {what}"
        self._why = f"the model failed on an earlier chunk ({what})"
        failed = InvalidChunk(f"the model failed on this chunk ({what})", advice=f"the stream ends here: {MEND}")
        failed.model_failed, failed.lane = True, rows[0] if rows else None
        return failed


async def _in_turn(chunks: AsyncIterable[Any] | Iterable[Any]) -> AsyncIterator[Any]:
    """The chunks, however they come."""
    with foreign("the iterable of chunks"):
        if isinstance(chunks, AsyncIterable):
            async for chunk in chunks:
                yield chunk
        else:
            for chunk in entries(chunks):
                yield chunk


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

"""Many streams of one model, each at its own pace, computed in batches.

    a  ##--##--##        streams start, wait and end whenever they like; what is ready at the same time
    b    ######--        is one call of the model:  [a b]  [a b]  [b]  [a c] ...
    c  --------####

Streams that are warm, away from both ends, run together wherever they are. At the ends, and if a model counts
positions, those that are at the same place do: some of what follows from the position is worked out once a batch.
A lane is what its stream would be alone: where streams of a batch are not kept apart, each is a call of its own.

Threads: any thread pushes to lanes (each lane from one thread at a time) while one runs the pool.

Interruptions: a round notes what it is at. What it left behind is finished or given back by the next call, and only a
stream whose memory was just being written is broken until `reset` or `restore`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from operator import attrgetter
from threading import Lock, get_ident
from time import perf_counter
from typing import Any, NoReturn, Protocol
from weakref import WeakValueDictionary

import numpy as np

from pulsify.backends.registry import DEFAULT
from pulsify.backends.seam import (
    Array,
    Executable,
    OnDevice,
    Own,
    Placement,
    Rows,
    Settling,
    SlotStepper,
    Stepper,
    placement_of,
    stream_axis,
)
from pulsify.core.boundary import converted, public
from pulsify.core.errors import InvalidArgument, InvalidChunk, PulsifyError, SessionClosed
from pulsify.core.runner import error_text
from pulsify.core.spec import Spec
from pulsify.runtime.apart import Apart
from pulsify.runtime.framer import Framer, Parts, Result, ports
from pulsify.runtime.lane import Lane
from pulsify.runtime.many import BUSY, FREE, Exchange, Request, Standing
from pulsify.runtime.session import INTERRUPTED, MEND, Session

MOST = 64
Made = tuple[Parts, bool]  # frames on their way to the caller; True: with what comes at the end only
Places = tuple[Array, Array, Array | None]  # slots, positions and lengths
_number = attrgetter("number")


class Source(Protocol):
    """What a pool needs of a stream."""

    @property
    def spec(self) -> Spec: ...

    def quickest(self, pooled: bool = False) -> str: ...

    def pooled(
        self, backend: str, portable: bool, fuse_quantised: bool, threads: int, own: Mapping[str, Own] | None = None
    ) -> Executable: ...

    def opened_by(
        self, backend: str, fuse_quantised: bool, threads: int, own: Mapping[str, Own] | None = None
    ) -> Executable | None: ...


@dataclass(frozen=True)
class Outcome:
    """What a step of a pool gave, by stream: frames of those that have any, and errors of those that failed."""

    results: dict[Lane, Result]
    failures: dict[Lane, PulsifyError]


class Pool:
    """Up to `most` streams at a time.

    pool = Pool(stream)
    a, b = pool.open(), pool.open()
    a.push(chunk); b.push(chunk); a.flush()     frames are taken, nothing is computed yet
    pool.run()                                  {a: frames, b: frames}: everything that is ready, in few calls
    pool.step(rounds=1)                         at most one pulse of every stream: frames and failures by stream
    pool.exchange([a, b], chunks)               one pulse of each, in and out as one array
    """

    @public
    def __init__(
        self,
        stream: Source,
        most: int = MOST,
        *,
        padding: float = 0.0,
        check: bool = True,
        threads: int = 1,
        backend: str | None = DEFAULT,
        portable: bool = False,
        fuse_quantised: bool = True,
        options: Mapping[str, Own] | None = None,
        **named: Own,
    ) -> None:
        """backend: as of `Stream.session`. As C streams are computed one by one, and up to some ten million
        multiply-adds a pulse that is quicker than all of them at once elsewhere; None takes C there.
        options, or by name: what a back end has for itself (as of `Stream.session`): device="cuda".
        """
        if not hasattr(stream, "pooled"):
            raise InvalidArgument(
                f"expected a stream made by pulsify.stream or pulsify.load, got {type(stream).__name__}"
            )
        options = {**(options or {}), **named}
        spec = stream.spec
        check_pooled(spec, most)
        if backend is None:
            backend = stream.quickest(pooled=True) if threads == 1 else DEFAULT
        self.backend = backend
        self.spec, self.most = spec, most
        self._padding, self._check, self._ports = padding, check, ports(spec, 1)
        executable = stream.pooled(backend, portable, fuse_quantised, threads, options)
        self._first = stream.opened_by(backend, fuse_quantised, threads, options) if spec.opening else None
        self._executable = executable
        self._slots: SlotStepper = executable.slots(most) or Apart(executable, spec, most)
        self._home = self._slots.device if isinstance(self._slots, OnDevice) else None  # where tensors stay
        self._free: dict[int, None] = dict.fromkeys(range(most))
        self._standing = Standing(most)
        self._exchanger: int | None = None  # the thread that is in an exchange
        self._lanes: WeakValueDictionary[int, Lane] = WeakValueDictionary()  # by slot
        self._numbers = count()
        self._computing = Lock()  # held while a round is computed
        self._ready: dict[Lane, None] = {}  # streams that may have a pulse; what is idle is not held by the pool
        self._working: dict[Lane, None] = {}  # those of the round
        self._group: Sequence[Lane] = ()  # those in the model's hands
        self._outputs: Rows | None = None  # what it made of them, until all is collected
        self._touched: Lane | None = None  # the one whose frames are being moved
        self._made: dict[Lane, None] = {}  # streams with frames to give out
        self._failed: dict[Lane, PulsifyError] = {}
        self._pending: dict[int, tuple[dict[Lane, Made], dict[Lane, PulsifyError]]] = {}  # by thread, until it has them

    def __len__(self) -> int:
        """How many streams are open."""
        return self.most - len(self._free)

    @property
    @public
    def placement(self) -> tuple[Placement, ...]:
        """Where each node of the step runs, as `Session.placement`; known from the first stream on."""
        return placement_of(self._slots)

    @property
    @public
    def settles(self) -> int:
        """Pulses of a new stream before it runs the form of the step that it runs all the time."""
        since = self._slots.since if isinstance(self._slots, Settling) else 0.0
        return 0 if math.isinf(since) else math.ceil(since / self.spec.pulse)

    @public
    def open(self) -> Lane:
        """A new stream. One that is dropped gives its place back, as `close` does."""
        slot = self._free_slot()
        try:
            if self._standing.held[slot] == BUSY:  # its lane was dropped in the middle of an exchange
                with self._computing:
                    pass
            self._slots.reset(slot)
            lane = Lane(self, slot, next(self._numbers), Framer(self._ports, self._padding, self._check))
            self._lanes[slot] = lane
            return lane
        except BaseException:
            self._free[slot] = None
            raise

    def _alone(self, blob: bytes) -> Session:
        """A session at the place of a stream of this pool."""
        framer = Framer(self._ports, self._padding, self._check)
        first = self._opening if self._first is not None else None
        out = Session(lambda: self._executable.stepper(1, {}), framer, self._ports, self._check, first)
        out.restore(blob)
        return out

    def _opening(self) -> Stepper:
        """What runs the first pulses of a stream."""
        assert self._first is not None
        return self._first.stepper(1, {})

    def _free_slot(self) -> int:
        """One that is free no more. Other threads may be at the same, or give one back."""
        while self._free:
            try:
                slot = next(iter(self._free))
                del self._free[slot]
                return slot
            except (KeyError, RuntimeError, StopIteration):
                continue
        raise InvalidArgument(f"all {self.most} streams of this pool are open: close one, or make a larger pool")

    def run(self) -> dict[Lane, Result]:
        """Compute all that is ready. The results by stream, of those that have any; flushed streams are closed.

        If streams failed, the first one's error is raised (`.lane` says whose) when all others are through; what they
        gave comes with the next run. `step` gives results and failures side by side.
        """
        try:
            if self._ready or self._working:
                with self._computing:
                    self._recover()
                    due = max((self._due(lane) for lane in list(self._ready)), default=0)
                self._compute(max(due, 1), None)  # what is pushed meanwhile is for the next run
            if self._failed:
                with self._computing:
                    lane = next(iter(self._failed))
                    raise self._failed.pop(lane)
            return self._handed().results
        except BaseException as error:
            if (outward := converted(error)) is not None:
                raise outward from error
            raise

    def step(self, rounds: int | None = 1, budget: float | None = None) -> Outcome:
        """Compute so much at most: `rounds` pulses of every stream that has them (None: all), `budget` seconds.

        One call of the model is made in any case, and a call that has begun is waited for. Streams that had to wait
        are the first of the next step, so none holds the others back, however much of it there is.
        """
        if rounds is not None and (isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1):
            raise InvalidArgument(f"rounds={rounds!r}: expected a number of pulses, at least 1, or None")
        if budget is not None and (isinstance(budget, bool) or not isinstance(budget, (int, float))):
            raise InvalidArgument(f"budget={budget!r}: expected seconds, or None")
        try:
            self._compute(rounds, None if budget is None else perf_counter() + budget)
            return self._handed()
        except BaseException as error:
            if (outward := converted(error)) is not None:
                raise outward from error
            raise

    def exchange(self, streams: Sequence[Lane] | Sequence[int] | Array, frames: Any) -> Exchange:
        """A pulse of each of these streams, in one call: much quicker than lane by lane where there are thousands.

            made = pool.exchange(slots, frames)     frames: as a session of so many streams takes them, a pulse or a few
            made.frames, made.real, made.of(row)    all of them; which are the streams'; those of one

        streams: lanes, or their slots (`Lane.slot`) as an array. Frames are an array (by name if there are several
        inputs) or tensors; results are the same, on the same device. On the pool's own device tensors are not copied to
        the host, and with check=False nothing waits for it. All is looked at first: a call that is refused takes
        nothing. A stream on which the model fails is closed and in `failures`; the others do not notice. Between
        exchanges lanes are pushed, flushed, saved and closed as ever.
        """
        try:
            with self._computing:
                self._recover()
                request = Request(self, streams, frames)
                self._exchanger = get_ident()
                try:
                    made, after = request.run(), request.settle()
                finally:
                    self._exchanger = None
                for row in made.failures:
                    self._close(self._lane(int(request.slots[row])))
                held, slots = self._standing.all, request.slots
        except BaseException as error:
            if (outward := converted(error)) is not None:
                raise outward from error
            raise
        # no call from here on: an interruption comes before this, or after the caller has the frames (if he calls from
        # Python: behind a function written in C, such as a partial, signals are looked for before its result is kept)
        held[slots] = after
        return made

    def _lane(self, slot: int) -> Lane:
        lane = self._lanes.get(slot)
        if lane is None or lane.closed:
            raise InvalidArgument(f"no stream is open in slot {slot}")
        return lane

    def _due(self, lane: Lane) -> int:
        self._touched = lane
        due = 0 if lane.closed or lane._why is not None else lane._due()
        self._touched = None
        return due

    def _compute(self, rounds: int | None, end: float | None) -> None:
        done = 0
        while (self._ready or self._working) and (rounds is None or done < rounds):
            self._round(end)
            done += 1
            if end is not None and perf_counter() >= end:
                break

    def _round(self, end: float | None) -> None:
        """One pulse of every stream that has one."""
        with self._computing:
            self._recover()
            self._working, self._ready = self._ready, {}
            lanes = [lane for lane in self._working if self._loaded(lane)]
            left: dict[Lane, None] = {}
            for i, (group, places) in enumerate(self._grouped(lanes)):
                if i and end is not None and perf_counter() >= end:
                    left.update(dict.fromkeys(group))
                else:
                    self._run_group(group, places)
            more = {x: None for x in lanes if x not in left and not x.closed and x._more()}
            # those that had to wait come first; whoever pushed meanwhile is in `_ready` already
            self._ready = {**left, **self._ready, **more}
            self._working = {}

    def _loaded(self, lane: Lane) -> bool:
        """Has it a pulse in place now?"""
        if lane.closed or lane._why is not None:
            return False
        self._touched = lane
        try:
            loaded = lane._load()
        except PulsifyError as error:
            self._fail(lane, error)
            loaded = False
        self._touched = None
        if not loaded and lane._end is not None and not lane.closed and lane._drained():
            self._made[lane] = None
        return loaded

    def _grouped(self, lanes: Sequence[Lane]) -> list[tuple[Sequence[Lane], Places]]:
        """Those that run together, and where they are."""
        if not lanes:
            return []
        slots, positions, lengths = self._places(lanes)
        out: list[tuple[Sequence[Lane], Places]] = []
        for g in self._slots.groups(positions, lengths) if len(lanes) > 1 else [slice(0, 1)]:
            group = lanes[g] if isinstance(g, slice) else [lanes[i] for i in g]
            out.append((group, (slots[g], positions[g], None if lengths is None else lengths[g])))
        return out

    def _places(self, lanes: Sequence[Lane]) -> Places:
        """Slots, positions and lengths."""
        lengths, unknown = [lane._length() for lane in lanes], self.spec.unknown_length
        known = any(n is not None for n in lengths)
        return (
            np.array([lane.slot for lane in lanes]),
            np.array([lane._framer.position for lane in lanes]),
            np.array([unknown if n is None else n for n in lengths]) if known else None,
        )

    def _run_group(self, group: Sequence[Lane], places: Places) -> None:
        slots, positions, lengths = places
        self._outputs = None
        self._group = group
        try:
            self._outputs = self._slots.run(slots, positions, lengths)  # no `*`: signals are looked for behind one
        except Exception as error:  # runtimes have no common class for them
            self._group = ()
            if not self._slots.intact:
                for lane in group:
                    self._break(lane)
                return
            if len(group) > 1:  # nothing has been kept of it: each by itself, and only those that fail end
                for lane in group:
                    self._run_group([lane], self._places([lane]))
                return
            what = f"the model failed on a chunk ({error_text(error)})"
            failed = InvalidChunk(what, advice="the stream it belongs to is closed")
            failed.model_failed, failed.__cause__ = True, error
            self._fail(group[0], failed, what)
            return
        self._collect()

    def _collect(self) -> None:
        """Keep the frames of the group, of each lane once."""
        outputs = self._outputs or {}
        for i, lane in enumerate(self._group):
            if lane._loaded:
                self._made[lane] = None
                self._touched = lane
                lane._collect({name: rows[i] for name, rows in outputs.items()})
                lane._loaded = False
                self._touched = None
        self._group, self._outputs = (), None

    def _recover(self) -> None:
        """What an interrupted round left behind: finished, given back or declared broken."""
        if self._touched is not None:
            self._break(self._touched)
            self._touched = None
        if self._outputs is not None:
            self._collect()
        elif self._group and not self._slots.intact:
            for lane in self._group:
                self._break(lane)
        self._group = ()
        if self._working:
            self._ready = {**self._working, **self._ready}
            self._working = {}

    def _break(self, lane: Lane) -> None:
        if lane._why is None and not lane.closed:
            error = SessionClosed(f"{INTERRUPTED}; {MEND}")
            error.lane = lane
            self._failed[lane] = error  # no call from here on: broken and said so, or neither
            lane._why, lane._loaded = INTERRUPTED, False

    def _fail(self, lane: Lane, error: PulsifyError, why: str | None = None) -> None:
        why, error.lane = why or str(error), lane
        self._failed[lane], lane._why = error, why
        self._close(lane, keep=True)

    def _handed(self) -> Outcome:
        """Frames and failures go to the caller. They are noted until he has them."""
        if not self._made and not self._failed and not self._pending:
            return Outcome({}, {})
        me = get_ident()
        with self._computing:
            self._recover()
            made, failed = self._pending.setdefault(me, ({}, {}))
            for lane in sorted(self._made, key=_number):
                framer = lane._framer
                fresh, parts = framer.no_parts(), framer.parts
                if lane in made:
                    parts = {n: [*made[lane][0][n], *p] for n, p in parts.items()}
                final = lane._end is not None and lane._drained()
                if final:
                    self._close(lane, keep=True)
                taken = parts, final and bool(lane._end)
                made[lane], framer.parts = taken, fresh
                del self._made[lane]
            failed.update(self._failed)
            self._failed = {}
        results = {lane: lane._framer.joined(*m) for lane, m in made.items()}
        outcome = Outcome(results, dict(failed))
        del self._pending[me]
        return outcome

    @contextmanager
    def _at_rest(self, lane: Lane) -> Iterator[None]:
        """No round is being computed, and nothing of the last is left; the lane breaks if this is interrupted."""
        with self._computing:
            self._recover()
            self._touched = lane
            try:
                yield
            except Exception:
                self._touched = None  # refused: nothing was changed
                raise
            self._touched = None

    def _settle(self) -> None:
        """Find out what an interruption has broken, unless a round is being computed."""
        if not self._computing.locked():
            with self._computing:
                self._recover()

    def _close(self, lane: Lane, keep: bool = False) -> None:
        """keep: frames it has made are still given out."""
        if not lane.closed:
            lane.closed = True
            self._standing.held[lane.slot] = FREE
            self._free[lane.slot] = None
        self._ready.pop(lane, None)
        if not keep:
            self._made.pop(lane, None)

    def __copy__(self) -> NoReturn:
        raise TypeError("a pool is not copied: make another one, and move streams by state() and restore()")

    def __reduce__(self) -> NoReturn:
        raise TypeError("a pool is not pickled: send the stream, and state() of its lanes")

    @public
    def __repr__(self) -> str:
        return (
            f"<pulsify.Pool pulse={self.spec.pulse}, {len(self)} of {self.most} streams open, {len(self._ready)} ready>"
        )


def check_pooled(spec: Spec, most: Any) -> None:
    """Can streams of it be computed together, so many? InvalidArgument says why not."""
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise InvalidArgument(f"most={most!r}: expected a number of streams, at least 1")
    if spec.batch is None:
        raise InvalidArgument(
            "this model's batch size is fixed, so its streams cannot be computed together; export it with a "
            "dynamic batch axis, or open one session per stream"
        )
    if spec.statics or any(s.grows for s in spec.states):
        what = "static inputs" if spec.statics else "states that grow with the stream"
        raise InvalidArgument(f"this model has {what}, and a pool takes none; open one session per stream")
    shared = next((i.name for i in spec.inputs if stream_axis(i.dims) is None), None)
    if shared is not None:
        raise InvalidArgument(f"input '{shared}' has no batch axis, so streams share it; open one session per stream")

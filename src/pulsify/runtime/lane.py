"""One stream of a pool. Two sides use it: whoever pushes, and whoever runs the pool.

push    checks a chunk, copies it and hands it over (`_inbox`, or straight into the model's input): never waits
run     takes what was handed over, computes, keeps the frames
others  (state, restore, reset, close) wait for the round that is being computed

Handing over is a few instructions with no call between them: an interruption comes before it, and nothing was taken,
or after it. The runner's side says what it is at (`Pool._touched`), so that only a stream it was just at breaks.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import get_ident
from typing import TYPE_CHECKING, Any, NoReturn

from pulsify.backends.seam import Array
from pulsify.core.boundary import converted, public
from pulsify.core.errors import SessionBusy, SessionClosed
from pulsify.runtime import snapshot
from pulsify.runtime.framer import Framer, Result
from pulsify.runtime.many import BUSY, FREE, HERE, LANE
from pulsify.runtime.opening import run_opening
from pulsify.runtime.session import INTERRUPTED, MEND, MET
from pulsify.runtime.way import flat_memory

if TYPE_CHECKING:
    from pulsify.runtime.pool import Pool
    from pulsify.runtime.session import Session


class Lane:
    """One stream of a pool: what a session does, but `Pool.run` computes."""

    __slots__ = (
        "__weakref__", "_end", "_ended", "_flat", "_framer", "_frames", "_held", "_inbox", "_inputs", "_into",
        "_loaded", "_pool", "_sent", "_users", "_why", "closed", "number", "slot",
    )  # fmt: skip

    def __init__(self, pool: Pool, slot: int, number: int, framer: Framer) -> None:
        self.closed = True  # until all is in place
        self._pool, self.slot, self.number, self._framer = pool, slot, number, framer
        self._inputs = {name: rows[slot] for name, rows in pool._slots.rows.items()}
        self._flat: Array | None = None
        self._into: Array | None = None  # where a whole pulse goes, if there is but one way
        direct = pool._ports.direct
        if direct is not None:
            self._into, self._frames = self._inputs[direct.port.name], direct.port.frames
            if pool._check and direct.port.dtype.kind == "f":
                self._flat = flat_memory(self._into)
        self._users: dict[int, int] = {}
        self._restart()
        self.closed = False

    def _restart(self) -> None:
        self._framer.clear(self._inputs)
        self._pool._standing.held[self.slot] = LANE
        self._inbox: dict[int, Mapping[str, Array]] = {}  # chunks handed over, by number
        self._sent = 0
        self._end: int | None = None  # the stream's length, once it has been flushed
        self._loaded = False  # a pulse is in the model's input
        self._ended = False  # that pulse is one behind the last whole one
        self._held = False  # the runner is at it
        self._why: str | None = None  # what broke it

    # ---- for whoever pushes

    def push(self, chunk: Any = None, /, **chunks: Any) -> None:
        """Take frames (any number, also none). Nothing is computed, and nothing waits for what is."""
        users, me, framer = self._users, get_ident(), self._framer
        if users.setdefault(0, me) != me:
            raise SessionBusy(MET)
        try:
            self._check_open()
            straight = not chunks and self._fits(chunk)
            if straight:
                received = {n: c + self._frames for n, c in framer.received.items()}
            else:
                given = framer.checked(chunk, chunks)
                received = framer.counted(given)
                given = {name: array.copy() for name, array in given.items()}
        except BaseException as error:
            users.pop(0, None)
            if (outward := converted(error)) is not None:
                raise outward from error
            raise
        framer.received = received
        if straight:
            self._loaded = True
        else:
            self._inbox[self._sent] = given
            self._sent += 1
        self._pool._ready[self] = None
        del users[0]

    def _fits(self, chunk: Any) -> bool:
        """Can a chunk go straight into the model's input? Not if the runner has, or may have, a pulse of it."""
        into, framer = self._into, self._framer
        if into is None or self._loaded or self._held or self._inbox or framer.step > 1 or framer.waits:
            return False
        return framer.fits(chunk, into, self._flat)

    @property
    @public
    def live(self) -> bool:
        """Does it take frames?"""
        busy = self._pool._standing.held[self.slot] == BUSY
        return not (self.closed or busy or self._framer.closed) and self._end is None and self._why is None

    @public
    def check(self, chunks: Mapping[str, Any]) -> None:
        """Raises what `push` would, without taking anything."""
        self._check_open()
        self._framer.counted(self._framer.checked(None, chunks))

    @public
    def check_end(self) -> None:
        """Raises what `flush` would, without ending anything."""
        self._check_open()
        self._framer.ending()

    def flush(self) -> None:
        """End the stream: the next run gives all that is still inside, and closes it."""
        users, me = self._users, get_ident()
        if users.setdefault(0, me) != me:
            raise SessionBusy(MET)
        try:
            self._check_open()
            end = self._framer.ending()
        except BaseException as error:
            users.pop(0, None)
            if (outward := converted(error)) is not None:
                raise outward from error
            raise
        self._end = end
        self._pool._ready[self] = None
        del users[0]

    @public
    def reset(self) -> None:
        """Forget everything: the next push starts a new stream. Others do not notice."""
        with self._pool._at_rest(self):
            if self.closed:
                self._refuse()
            self._pool._made.pop(self, None)
            self._pool._slots.reset(self.slot)
            self._framer.reset()
            self._restart()

    @public
    def close(self) -> None:
        """Give the place in the pool back."""
        with self._pool._at_rest(self):
            self._pool._close(self)

    @public
    def state(self) -> bytes:
        """All there is to know of the stream; a session of this model takes it too, on any back end."""
        with self._pool._at_rest(self):
            self._check_open()
            framer = self._framer
            self._absorb()
            if self._loaded:
                framer.unload(self._inputs)
                self._loaded = False
                self._pool._ready[self] = None
            states = self._pool._slots.states(self.slot, framer.position)
            return snapshot.save(states, framer.waiting_frames(), framer.counts(), framer.spec)

    @public
    def restore(self, blob: bytes) -> None:
        """Go on from a state of a lane or a session (of one stream)."""
        if self.closed:
            self._refuse()
        states, backlog, counts = snapshot.load(blob, self._framer.spec, 1)
        with self._pool._at_rest(self):
            if self.closed:
                self._refuse()
            self._pool._made.pop(self, None)
            self._framer.restore(backlog, counts)
            self._pool._slots.restore(self.slot, states, self._framer.position)
            self._restart()
            self._pool._ready[self] = None

    @public
    def fork(self) -> Lane:
        """Another lane of the pool at the same place of the same stream."""
        blob, other = self.state(), self._pool.open()
        try:
            other.restore(blob)
        except BaseException:
            other.close()
            raise
        return other

    @public
    def peek(self) -> Result:
        """What flushing it would give if the stream ended now, by itself: it goes on as if nobody had asked.

        Frames that wait to be computed are computed for this alone; those that have been, and were not given out yet,
        are not among them.
        """
        return self.alone().flush()

    @public
    def alone(self) -> Session:
        """A session at the same place of the same stream; the lane goes on as if nobody had asked."""
        return self._pool._alone(self.state())

    def __copy__(self) -> NoReturn:
        raise TypeError("a lane is a place in its pool: fork() makes another one at the same place of the stream")

    def __reduce__(self) -> NoReturn:
        raise TypeError("a lane is not pickled: send lane.state(), and restore() it where the stream is open")

    def __del__(self) -> None:
        """Nobody can push to it or ask for its frames any more: its place is free."""
        if not getattr(self, "closed", True):
            self.closed = True
            if self._pool._standing.held[self.slot] != BUSY:
                self._pool._standing.held[self.slot] = FREE
            self._pool._free[self.slot] = None

    @public
    def __repr__(self) -> str:
        if not self.closed and self._pool._standing.held[self.slot] == HERE:
            self._take_back()
        frames = ", ".join(f"{n}: {c} frames in" for n, c in self._framer.received.items())
        said = "closed" if self.closed else "broken" if self._why else "flushed" if self._end is not None else "open"
        return f"<pulsify.Lane {self.number} [{frames}] {said}>"

    def _check_open(self) -> None:
        if self._pool._standing.held[self.slot] > LANE and not self.closed:
            self._take_back()
        if self._pool._touched is not None or self._pool._group:
            self._pool._settle()
        if self.closed or self._why is not None:
            self._refuse()
        if self._end is not None or self._framer.closed:
            raise SessionClosed("this stream has been flushed; run the pool for the rest, or reset() to start another")

    def _take_back(self) -> None:
        """Counters that an exchange has had."""
        pool, slot = self._pool, self.slot
        if pool._standing.held[slot] == HERE:
            pool._standing.told(slot, self._framer)
        elif pool._exchanger not in (None, get_ident()):
            raise SessionBusy(MET)
        else:
            self._why = INTERRUPTED
            pool._standing.held[slot] = LANE

    def _refuse(self) -> NoReturn:
        if self.closed:
            raise SessionClosed(f"{self._why + ': ' if self._why else ''}this stream is closed; open another one")
        raise SessionClosed(f"{self._why}; {MEND}")

    # ---- for whoever runs the pool

    def _absorb(self) -> None:
        """Queue what was handed over."""
        for number in list(self._inbox):
            self._framer.queue(self._inbox[number])
            del self._inbox[number]

    def _load(self) -> bool:
        """Put the next pulse in place, if there is one."""
        framer, end = self._framer, self._end  # the end first: whatever was pushed before it is in the inbox then
        if self._loaded:
            if framer.pulses >= framer.until:
                framer.rebase()
            return True
        self._held = True
        self._absorb()
        if framer.step > 1 and (end or framer.ready()):
            self._opening(None if framer.ready() else end)
        whole = framer.ready()
        if not whole and not (end and (framer.unfinished(end) or not self._ended)):
            self._held = False
            return False
        framer.rebase()
        framer.load(self._inputs, padded=not whole)
        self._ended = not whole
        self._loaded, self._held = True, False
        return True

    def _opening(self, total: int | None) -> None:
        """The first pulses, in one call that no other stream takes part in; total: as `Framer.collect` has it."""
        pool, framer = self._pool, self._framer
        states = run_opening(pool._opening(), framer, total)
        pool._slots.restore(self.slot, states, framer.position)
        self._ended = total is not None
        pool._made[self] = None

    def _due(self) -> int:
        """Pulses that can be computed now."""
        end = self._end
        if self._inbox:
            self._absorb()
        return self._framer.due(end) + self._loaded

    def _length(self) -> int | None:
        """The length if this is one of the last pulses, as the counters have it."""
        return self._framer.relative(self._end) if self._ended else None

    def _collect(self, out: Mapping[str, Array]) -> None:
        self._framer.collect(out, self._end if self._ended else None)

    def _drained(self) -> bool:
        """Flushed, and all of it has come out."""
        end = self._end
        if end is None or self._loaded:
            return False
        return not end or (self._ended and not self._framer.unfinished(end))

    def _more(self) -> bool:
        """May there be something to do?"""
        if self._loaded or self._inbox or self._end is not None:
            return self._end is None or not self._drained()
        return self._framer.ready()

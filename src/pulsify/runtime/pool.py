"""Many streams of one model, each at its own pace, computed in batches.

    a  ##--##--##        streams start, wait and end whenever they like; what is ready at the same time
    b    ######--        is one call of the model:  [a b]  [a b]  [b]  [a c] ...
    c  --------####

Streams that are warm, away from both ends, run together wherever they are. At the ends, and if a model counts
positions, those that are at the same place do: some of what follows from the position is worked out once a batch.

A lane is what its stream would be alone. Where streams of a batch are not apart, in the model or in the runtime, each
is a call of its own: that is tried when the pool is made, see `pulsify.backends.ort.slots`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pulsify.backends.ort.slots import Engine, Slot, stream_axis
from pulsify.core.errors import InvalidArgument, InvalidChunk, PulsifyError, SessionClosed
from pulsify.core.runner import said
from pulsify.runtime.session import Session

if TYPE_CHECKING:
    from pulsify.api import Stream

MOST = 64


class Pool:
    """Up to `most` streams at a time.

    pool = Pool(stream)
    a, b = pool.open(), pool.open()
    a.push(chunk); b.push(chunk); a.flush()     frames are taken, nothing is computed yet
    pool.run()                                  {a: frames, b: frames}: everything that is ready, in few calls
    """

    def __init__(
        self, stream: Stream, most: int = MOST, *, padding: float = 0.0, check: bool = True, threads: int = 1
    ) -> None:
        spec = stream.spec
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
        self.spec, self.most = spec, most
        self._padding, self._check = padding, check
        self._engine = Engine(stream._opened("pool", threads), spec, most)
        self._free = list(range(most - 1, -1, -1))
        self._lanes: list[Lane] = []

    def __len__(self) -> int:
        """How many streams are open."""
        return len(self._lanes)

    def open(self) -> Lane:
        """A new stream."""
        if not self._free:
            raise InvalidArgument(f"all {self.most} streams of this pool are open: close one, or make a larger pool")
        slot = Slot(self._engine, self._free.pop())
        self._lanes.append(Lane(self, slot, Session(slot, self.spec, padding=self._padding, check=self._check)))
        return self._lanes[-1]

    def run(self) -> dict[Lane, Any]:
        """Compute all that is ready. The results by stream, of those that have any; flushed streams are closed."""
        failed: list[PulsifyError] = []
        while ready := [lane for lane in list(self._lanes) if self._loaded(lane, failed)]:
            groups: dict[Hashable, list[Lane]] = {}
            for lane in ready:
                groups.setdefault(self._engine.place(*lane._where()), []).append(lane)
            for group in groups.values():
                self._run_group(group, failed)
        if failed:  # those that can go on have; their results come with the next run
            raise failed[0]
        return {lane: result for lane in list(self._lanes) if (result := lane._result()) is not None}

    def _loaded(self, lane: Lane, failed: list[PulsifyError]) -> bool:
        try:
            return lane._load()
        except PulsifyError as error:
            lane.close()
            failed.append(error)
            return False

    def _run_group(self, group: Sequence[Lane], failed: list[PulsifyError]) -> None:
        try:
            outputs = self._engine.run([lane._slot.number for lane in group], *group[0]._where())
        except Exception as error:  # ONNX Runtime has no common class for them
            if len(group) > 1:  # nothing has been kept of it: each by itself, and only those that fail end
                for lane in group:
                    self._run_group([lane], failed)
                return
            group[0].close()
            failed.append(
                InvalidChunk(f"the model failed on a chunk ({said(error)}); the stream it belongs to is closed")
            )
            return
        for lane, out in zip(group, outputs, strict=True):
            lane._collect(out)

    def _close(self, lane: Lane) -> None:
        if not lane.closed:
            lane.closed = True
            self._lanes.remove(lane)
            self._free.append(lane._slot.number)


class Lane:
    """One stream of a pool: what a session does, but `Pool.run` computes."""

    def __init__(self, pool: Pool, slot: Slot, session: Session) -> None:
        self._pool, self._slot, self._session = pool, slot, session
        self.closed = False
        self._restart()

    def _restart(self) -> None:
        self._parts = self._session.no_parts()
        self._new = False  # anything to report since the last run
        self._end: int | None = None
        self._placed = False  # a pulse is in the model's input already

    def push(self, chunk: Any = None, /, **chunks: Any) -> None:
        """Take frames (any number, also none)."""
        self._check_open()
        if not chunks and not self._placed and self._session.place(chunk):
            self._placed = True
        else:
            self._session.take(chunk, chunks)

    @property
    def live(self) -> bool:
        """Does it take frames?"""
        return not self.closed and self._end is None and not self._session.closed

    def check(self, chunks: Mapping[str, Any]) -> None:
        """Raises what `push` would, without taking anything."""
        self._check_open()
        self._session.check(chunks)

    def flush(self) -> None:
        """End the stream: the next run gives all that is still inside, and closes it."""
        self._check_open()
        self._end, self._new = self._session.ending(), True

    def reset(self) -> None:
        """Forget everything: the next push starts a new stream. Others do not notice."""
        if self.closed:
            raise SessionClosed("this stream is closed; open another one")
        self._session.reset()
        self._restart()

    def close(self) -> None:
        """Give the place in the pool back."""
        self._pool._close(self)

    def state(self) -> bytes:
        """All there is to know of the stream; a session of this model takes it too."""
        self._check_open()
        if self._placed:
            self._session.displace()
            self._placed = False
        return self._session.state()

    def restore(self, blob: bytes) -> None:
        """Go on from a state of a lane or a session (of one stream)."""
        self._check_open()
        self._session.restore(blob)
        self._restart()

    def _check_open(self) -> None:
        if self.closed:
            raise SessionClosed("this stream is closed; open another one")
        if self._end is not None or self._session.closed:
            raise SessionClosed("this stream has been flushed; run the pool for the rest, or reset() to start another")

    # ---- driven by the pool

    def _load(self) -> bool:
        """Put the next pulse in place, if there is one."""
        session = self._session
        if self._placed:
            session.rebase()
            self._placed = self._slot.ended = False
            return True
        whole = session.ready()
        if not whole and not (self._end and (session.unfinished(self._end) or not self._slot.ended)):
            return False
        session.rebase()
        session.load(pad=not whole)
        self._slot.ended = not whole
        return True

    def _where(self) -> tuple[int, int | None]:
        """The position, and the length if this is one of the last pulses."""
        return self._slot.at, self._session.relative(self._end if self._slot.ended else None)

    def _collect(self, out: Mapping[str, Any]) -> None:
        self._session.collect(out, self._parts, self._end if self._slot.ended else None)
        self._slot.at += self._pool.spec.pulse
        self._new = True

    def _result(self) -> Any:
        """What has come out since the last run, or None."""
        if not self._new:
            return None
        final = self._end is not None
        result = self._session.result(self._parts, final=bool(self._end))
        self._parts, self._new = self._session.no_parts(), False
        if final:
            self.close()
        return result


class Streams:
    """A fixed number of streams side by side, each with a start and an end of its own.

    together = stream.session(batch=3, independent=True)
    together.push(chunk, active=[True, False, True])    [frames, None, frames]: the second one waits
    together.flush([0]); together.reset([0])            the first one ends, and starts anew
    """

    def __init__(self, pool: Pool) -> None:
        self._pool, self._lanes = pool, [pool.open() for _ in range(pool.most)]
        self.batch, self.spec = pool.most, pool.spec

    def push(self, chunk: Any = None, /, *, active: Sequence[bool] | None = None, **chunks: Any) -> list[Any]:
        """Take frames for all streams (those of inactive ones are ignored). What came out, by stream; None: nothing."""
        given = (
            {self.spec.inputs[0].name: chunk} if chunk is not None and not isinstance(chunk, Mapping) else chunk or {}
        )
        rows = {name: self._by_stream(name, value) for name, value in {**given, **chunks}.items()}
        chosen = self._chosen(None if active is None else np.flatnonzero(self._mask(active)).tolist())
        pieces = {i: {name: values[i] for name, values in rows.items()} for i in chosen}
        for i, piece in pieces.items():  # all are looked at before any is taken
            self._lanes[i].check(piece)
        for i, piece in pieces.items():
            self._lanes[i].push(piece)
        return self._run()

    def flush(self, which: Sequence[int] | None = None) -> list[Any]:
        """End these streams (all, if not told which): what was still inside, by stream."""
        chosen = [i for i in range(self.batch) if self._lanes[i].live] if which is None else self._chosen(which)
        for i in chosen:
            self._lanes[i].check({})
        for i in chosen:
            self._lanes[i].flush()
        return self._run()

    def reset(self, which: Sequence[int] | None = None) -> None:
        """Start these streams anew. The others go on."""
        for i in self._chosen(which):
            self._lanes[i].close()
            self._lanes[i] = self._pool.open()

    def _run(self) -> list[Any]:
        results = self._pool.run()
        return [results.get(lane) for lane in self._lanes]

    def _mask(self, active: Sequence[bool]) -> Any:
        mask = np.asarray(active)
        if mask.shape != (self.batch,) or mask.dtype != bool:
            raise InvalidArgument(f"active: expected {self.batch} truth values, one a stream")
        return mask

    def _chosen(self, which: Sequence[int] | None) -> list[int]:
        chosen = list(range(self.batch)) if which is None else [int(i) for i in which]
        if any(not 0 <= i < self.batch for i in chosen):
            raise InvalidArgument(f"there are streams 0 to {self.batch - 1}, not {chosen}")
        return chosen

    def _by_stream(self, name: str, value: Any) -> list[Any]:
        port = next((i for i in self.spec.inputs if i.name == name), None)
        array = np.asarray(value)
        axis = None if port is None else stream_axis(port.dims)
        if port is None or axis is None or array.ndim != len(port.dims) or array.shape[axis] != self.batch:
            names = [i.name for i in self.spec.inputs]
            raise InvalidChunk(
                f"'{name}': expected frames of {self.batch} streams for one of {names}, got {array.shape}"
            )
        return np.split(array, self.batch, axis)

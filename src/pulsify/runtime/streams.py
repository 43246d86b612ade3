"""A fixed number of streams side by side, each with a start and an end of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pulsify.backends.seam import stream_axis
from pulsify.core.arrays import as_input
from pulsify.core.boundary import public
from pulsify.core.errors import InvalidArgument, InvalidChunk, PulsifyError
from pulsify.runtime.framer import Result
from pulsify.runtime.pool import Pool


class Streams:
    """Arrays with a row per stream in, results by stream out.

    together = stream.session(batch=3, independent=True)
    together.push(chunk, active=[True, False, True])    [frames, None, frames]: the second one waits
    together.flush([0]); together.reset([0])            the first one ends, and starts anew

    A call that cannot be for one stream (a bad chunk, a length that is none) does nothing at all. If the model fails
    on a stream, the error says on which (`.lane`) and has what came out of the others (`.results`, by stream).
    """

    @public
    def __init__(self, pool: Pool) -> None:
        self._pool, self._lanes = pool, [pool.open() for _ in range(pool.most)]
        self.batch, self.spec = pool.most, pool.spec

    @public
    def push(self, chunk: Any = None, /, *, active: Sequence[bool] | None = None, **chunks: Any) -> list[Result]:
        """Take frames for all streams (those of inactive ones are ignored). What came out, by stream; None: nothing."""
        given = (
            {self.spec.inputs[0].name: chunk} if chunk is not None and not isinstance(chunk, Mapping) else chunk or {}
        )
        rows = {name: self._by_stream(name, value) for name, value in {**given, **chunks}.items()}
        chosen = self._chosen(None if active is None else np.flatnonzero(self._mask(active)).tolist())
        pieces = {i: {name: values[i] for name, values in rows.items()} for i in chosen}
        for i, piece in pieces.items():  # all are looked at before any is taken
            self._ask(i, lambda i=i, piece=piece: self._lanes[i].check(piece))
        for i, piece in pieces.items():
            self._lanes[i].push(piece)
        return self._run()

    @public
    def flush(self, which: Sequence[int] | None = None) -> list[Result]:
        """End these streams (all, if not told which): what was still inside, by stream."""
        chosen = [i for i in range(self.batch) if self._lanes[i].live] if which is None else self._chosen(which)
        for i in chosen:  # if one cannot end here, none does
            self._ask(i, self._lanes[i].check_end)
        for i in chosen:
            self._lanes[i].flush()
        return self._run()

    @public
    def peek(self) -> list[Result]:
        """What ending them now would give, by stream; None: it has ended already. All go on."""
        return [lane.peek() if lane.live else None for lane in self._lanes]

    @public
    def reset(self, which: Sequence[int] | None = None) -> None:
        """Start these streams anew. The others go on."""
        for i in self._chosen(which):
            self._lanes[i].close()
            self._lanes[i] = self._pool.open()

    @public
    def __repr__(self) -> str:
        live = sum(lane.live for lane in self._lanes)
        return f"<pulsify.Streams pulse={self.spec.pulse}, {live} of {self.batch} live>"

    def _ask(self, i: int, question: Any) -> None:
        try:
            question()
        except PulsifyError as error:
            error.lane = i
            raise

    def _run(self) -> list[Result]:
        outcome = self._pool.step(rounds=None)
        results = [outcome.results.get(lane) for lane in self._lanes]
        for i, lane in enumerate(self._lanes):
            if (error := outcome.failures.get(lane)) is not None:
                error.lane, error.results = i, results
                raise error
        return results

    def _mask(self, active: Sequence[bool]) -> Any:
        mask = as_input("active", active)
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
        array = as_input(name, value)
        axis = None if port is None else stream_axis(port.dims)
        if port is None or axis is None or array.ndim != len(port.dims) or array.shape[axis] != self.batch:
            names = [i.name for i in self.spec.inputs]
            raise InvalidChunk(
                f"'{name}': expected frames of {self.batch} streams for one of {names}, got {array.shape}"
            )
        return np.split(array, self.batch, axis)

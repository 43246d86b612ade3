"""One model of a recogniser as a stream, and the same model run at once."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pulsify.api import Stream, load, stream
from pulsify.asr.kept import kept
from pulsify.core.errors import InvalidArgument, InvalidModel
from pulsify.core.runner import open_model
from pulsify.core.spec import Input, Output, is_streaming
from pulsify.frontend.load import read
from pulsify.report.batch import INTEGERS

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Stage:
    """One streamed input, one output with time; a length may come out at the end."""

    name: str
    path: Path
    stream: Stream
    input: Input
    output: Output
    length: str | None
    batch_model: bool  # else the file is a stream already

    @staticmethod
    def open(name: str, path: Path, options: Mapping[str, Any], verify: bool, keep: bool = False) -> Stage:
        """Convert a batch model; a stream made before is taken as it is. keep: look for it in the cache folder."""
        batch_model = not is_streaming(read(path).metadata_props)
        if not batch_model and options:
            raise InvalidArgument(f"{path.name} is a stream already: {sorted(options)} are for batch models")
        if not batch_model:
            made = load(path)
        elif keep:
            made = kept(path, (sorted(options.items()), verify), lambda: stream(path, **options, verify=verify))
        else:
            made = stream(path, **options, verify=verify)
        outputs = [o for o in made.outputs if o.axis is not None and o.dtype.kind == "f"]
        if len(made.inputs) != 1 or made.statics or not outputs:
            names = [i.name for i in made.inputs] + [s.name for s in made.statics]
            raise InvalidModel(
                f"{path.name}: the {name} takes {names} and gives {[o.name for o in made.outputs]}; expected are one "
                "input with time (and its length), and an output with time (and its length)"
            )
        lengths = [o.name for o in made.outputs if o.axis is None and o.dtype.kind == "i" and len(o.dims) <= 1]
        return Stage(name, path, made, made.inputs[0], outputs[0], lengths[0] if lengths else None, batch_model)

    @property
    def size(self) -> int:
        """Numbers in an output frame."""
        sizes = [d for axis, d in enumerate(self.output.dims) if axis != self.output.axis and isinstance(d, int)]
        return int(np.prod(sizes))

    def given(self, frames: int) -> int:
        """Output frames that are out once so many frames have come in."""
        return self.output.framing.given(self.stream.spec.framing.pulses([frames]))

    def check_feeds(self, following: Stage) -> None:
        """Frames of this stage must be frames of the next."""
        made, taken = (
            [d for axis, d in enumerate(port.dims) if axis != port.axis and isinstance(d, int) and d != 1]
            for port in (self.output, following.input)
        )
        if made != taken or len(self.output.dims) != len(following.input.dims):
            raise InvalidModel(
                f"the {self.name}'s output '{self.output.name}' {_shown(self.output)} does not fit the "
                f"{following.name}'s input '{following.input.name}' {_shown(following.input)}"
            )

    def into(self, following: Stage, frames: Array) -> Array:
        """Output frames as the next stage takes them: time may be another axis there."""
        given, taken = self.output.axis, following.input.axis
        assert given is not None
        frames = frames if given == taken else np.moveaxis(frames, given, taken)
        return frames.astype(following.input.dtype, copy=False)

    def rows(self, frames: Array) -> Array:
        """Output frames of the one stream there is, [frames, size]."""
        axis = self.output.axis
        assert axis is not None
        count = frames.shape[axis]
        if math.prod(frames.shape[:axis]) != 1:  # else time is in front already, in all but name
            frames = np.moveaxis(frames, axis, 0)
        return frames.reshape(count, self.size)

    def batch(self) -> Batch:
        """The offline side."""
        if not self.batch_model:
            raise InvalidArgument(
                f"{self.path.name} is a stream: running the {self.name} at once takes the batch model it was made from"
            )
        return Batch(self)


class Running:
    """A stage at work: one stream's session, and how many of its frames have come out."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self._session, self._given = stage, stage.stream.session(), 0

    def push(self, chunk: Array) -> Array:
        return self._taken(self._session.push(chunk))

    def flush(self) -> Array:
        """The rest. What the model's own length leaves out at the end is not given out."""
        result = self._session.flush()
        before, frames = self._given, self._taken(result)
        if self.stage.length is None or self.stage.length not in result:
            return frames
        keep = int(np.ravel(result[self.stage.length])[0]) - before
        if keep < 0:
            raise InvalidModel(
                f"the {self.stage.name} says it has {before + keep} frames ('{self.stage.length}') but gives "
                f"{before} before the end: frames beyond its length cannot be told in time"
            )
        return frames[(slice(None),) * int(self.stage.output.axis or 0) + (slice(0, keep),)]

    def reset(self) -> None:
        self._session.reset()
        self._given = 0

    def _taken(self, result: Any) -> Array:
        frames: Array = result[self.stage.output.name] if isinstance(result, dict) else result
        self._given += frames.shape[int(self.stage.output.axis or 0)]
        return frames


class Batch:
    """A stage's batch model, run on everything at once."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self._runner = stage, open_model(os.fspath(stage.path))

    def run(self, frames: Array, length: int) -> tuple[Array, int]:
        """All output frames, and how many are real. length: how many of the input's are."""
        feeds: dict[str, Array] = {self.stage.input.name: frames}
        others = [p for p in self._runner.get_inputs() if p.name not in feeds]
        for port in others:
            feeds[port.name] = np.full([1] * len(port.shape), length, INTEGERS[port.type])
        if not others:  # nobody tells it which frames are real
            axis = self.stage.input.axis
            feeds[self.stage.input.name] = frames[(slice(None),) * axis + (slice(0, length),)]
        output, counted = self.stage.output, self.stage.length
        made = self._runner.run([output.name, *([counted] if counted else [])], feeds)
        return made[0], int(np.ravel(made[1])[0]) if counted else made[0].shape[output.axis]


def _shown(port: Input | Output) -> str:
    return f"[{', '.join('time' if axis == port.axis else str(d) for axis, d in enumerate(port.dims))}]"

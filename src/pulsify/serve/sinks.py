"""Both ends of a flow: a client's bytes as frames, and frames (or text) as messages for the client."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pulsify.asr.sound import one_channel, shape_sound
from pulsify.asr.text import Words
from pulsify.core.spec import Input, Output
from pulsify.serve import sound
from pulsify.serve.engine import Array, Chunks, shape_of
from pulsify.serve.protocol import Refused, said

if TYPE_CHECKING:
    from pulsify.asr.recogniser import Recogniser

HEAD = 4  # bytes in front of a chunk that say which port it is for, where there are several


@dataclass(frozen=True)
class Source:
    """How binary messages are read. form: raw, or how samples are written; ports: the model's, or the resampler's.

    names: the ports as the client knows them; feeds: what each is called by the first stage.
    """

    ports: tuple[Input, ...]
    form: str
    names: tuple[str, ...]

    @cached_property
    def feeds(self) -> dict[str, str]:
        return dict(zip(self.names, (p.name for p in self.ports), strict=True))

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Bytes of a frame, as the client sends it."""
        return {name: self._size(port) for name, port in zip(self.names, self.ports, strict=True)}

    @property
    def head(self) -> int:
        """Bytes of a message that are no frames."""
        return HEAD if len(self.ports) > 1 else 0

    def _size(self, port: Input) -> int:
        if self.form != "raw":
            return sound.WIDTH[self.form]
        return int(np.prod(shape_of(port, 1), dtype=np.int64)) * port.dtype.itemsize

    @cached_property
    def _whole(self) -> dict[int, tuple[str, str, np.dtype[Any], tuple[int, ...], int]]:
        """How a message that is one pulse is read, by its size: nearly all are, and this is paid once a message."""
        if len(self.ports) > 1 or self.form not in ("raw", "float32"):
            return {}
        (port,), (name,) = self.ports, self.names
        if self.form != "raw" and port.dtype != np.float32:
            return {}
        shape = shape_of(port, port.frames)
        return {self.sizes[name] * port.frames: (name, port.name, little(port.dtype), shape, port.frames)}

    @cached_property
    def _sound(self) -> list[int] | None:
        """The shape of samples as they are read, where that is all there is to do."""
        port = self.ports[0]
        alone = len(self.ports) == 1 and self.form != "raw" and port.dtype == np.float32 and one_channel(port)
        return [-1 if axis == port.axis else 1 for axis in range(len(port.dims))] if alone else None

    def read(self, data: bytes | memoryview) -> tuple[str, str, Array, int]:
        """Which port, what the first stage calls it, the chunk, and how many frames it has."""
        if (whole := self._whole.get(len(data))) is not None:
            name, feeds, dtype, shape, frames = whole
            return name, feeds, np.frombuffer(data, dtype).reshape(shape), frames
        if self._sound is not None:
            samples = sound.read(data, self.form)
            return self.names[0], self.ports[0].name, samples.reshape(self._sound), len(samples)
        at = 0
        if len(self.ports) > 1:
            at = int.from_bytes(data[:HEAD], "little") if len(data) >= HEAD else -1
            if not 0 <= at < len(self.ports):
                raise Refused("bad_frames", f"a chunk begins with {HEAD} bytes: the number of its input, from 0")
            data = memoryview(data)[HEAD:]
        port = self.ports[at]
        if self.form != "raw":
            samples = sound.read(data, self.form)
            return self.names[at], port.name, shape_sound(samples, port), len(samples)
        size = self.sizes[self.names[at]]
        frames, more = divmod(len(data), size)
        if more:
            raise Refused("bad_frames", f"{len(data)} bytes are no whole frames of '{port.name}': one is {size} bytes")
        array = np.frombuffer(data, little(port.dtype)).reshape(shape_of(port, frames))
        return self.names[at], port.name, array, frames


class Sink(Protocol):
    """What comes out, as messages. `sent`: how much of each output, from the start of the stream."""

    @property
    def sent(self) -> dict[str, int]: ...
    def messages(self, made: Chunks, last: bool) -> list[bytes | str]: ...
    def fork(self) -> Sink: ...
    def facts(self) -> dict[str, Any]: ...
    def arrays(self) -> dict[str, Array]: ...
    def restore(self, facts: Mapping[str, Any], arrays: Mapping[str, Array], have: Mapping[str, int]) -> None: ...
    def skip(self, have: Mapping[str, int]) -> None: ...
    def again(self, received: Mapping[str, int]) -> None: ...
    def done(self) -> dict[str, Any]: ...


class Frames:
    """Frames as bytes."""

    def __init__(self, outputs: tuple[Output, ...], form: str, names: tuple[str, ...]) -> None:
        self._outputs, self._form, self._names = outputs, form, names
        self.sent = {name: 0 for name, o in zip(names, outputs, strict=True) if o.axis is not None}
        self._skip = dict.fromkeys(self.sent, 0)  # frames that the client has already
        o = outputs[0]
        alone = len(outputs) == 1 and o.axis is not None and little(o.dtype) == o.dtype
        plain = form == "raw" or (form == "float32" and o.dtype == np.float32)
        self._plain = (o.name, names[0], o.axis) if alone and plain and o.axis is not None else None

    def messages(self, made: Chunks, last: bool) -> list[bytes | str]:
        if self._plain is not None:
            name, key, axis = self._plain
            array = made.get(name)
            if array is not None and not self._skip[key] and array.shape[axis]:
                self.sent[key] += array.shape[axis]
                return [array.tobytes()]
        out: list[bytes | str] = []
        for at, (name, o) in enumerate(zip(self._names, self._outputs, strict=True)):
            array = made.get(o.name)
            if array is None:
                continue
            if o.axis is not None:
                array = self._fresh(name, array, o.axis)
                if not array.shape[o.axis]:
                    continue
            data = (
                array.astype(little(array.dtype), copy=False).tobytes()
                if self._form == "raw"
                else sound.write(array, self._form)
            )
            out.append(data if len(self._outputs) == 1 else at.to_bytes(HEAD, "little") + data)
        return out

    def _fresh(self, name: str, array: Array, axis: int) -> Array:
        """Without what the client has."""
        if skip := self._skip[name]:
            known = min(skip, array.shape[axis])
            self._skip[name] -= known
            array = array[(*(slice(None),) * axis, slice(known, None))]
        self.sent[name] += array.shape[axis]
        return array

    def fork(self) -> Frames:
        out = Frames(self._outputs, self._form, self._names)
        out.sent, out._skip = dict(self.sent), dict(self._skip)
        return out

    def facts(self) -> dict[str, Any]:
        return {"made": {name: count - self._skip[name] for name, count in self.sent.items()}}

    def arrays(self) -> dict[str, Array]:
        return {}

    def restore(self, facts: Mapping[str, Any], arrays: Mapping[str, Array], have: Mapping[str, int]) -> None:
        self.skip(have)
        for name in self.sent:
            self._skip[name] -= int(facts["made"][name])

    def skip(self, have: Mapping[str, int]) -> None:
        """Leave out what the client has, from the start of the stream."""
        for name in self.sent:
            self.sent[name] = self._skip[name] = have.get(name, 0)

    def again(self, received: Mapping[str, int]) -> None:
        """The next utterance begins: frames are counted on."""

    def done(self) -> dict[str, Any]:
        return {}


class Text:
    """A transcript that grows, an utterance at a time. Counted in characters, from the start of the stream.

    A word goes out with the message in which the next one begins, or at the end of its utterance. Its times are seconds
    of the sound that the client has sent. rate: of that sound.
    """

    def __init__(self, recogniser: Recogniser, rate: int) -> None:
        self._recogniser, self._rate = recogniser, rate
        self._before = 0  # characters of earlier utterances
        self._skip = 0  # characters that the client has already
        self._begin(0.0)

    def _begin(self, since: float) -> None:
        self._heard = self._recogniser.decoder.start()
        self._words = Words(self._recogniser.vocabulary, self._recogniser.frame_seconds, since)
        self.text = ""

    @property
    def _made(self) -> int:
        return self._before + len(self.text)

    @property
    def sent(self) -> dict[str, int]:
        return {"text": max(self._made, self._skip)}

    def messages(self, made: Chunks, last: bool) -> list[bytes | str]:
        recogniser = self._recogniser
        stage = recogniser.stages[-1]
        frames = made.get(stage.output.name)
        if frames is None:
            return []
        start, added, words = self._made, "", []
        for token in recogniser.decoder.decode(stage.rows(frames), self._heard):
            complete = self._words.push(token)
            if self._made >= self._skip:  # else they came with a message that the client has
                words += [vars(word) for word in complete]
            piece = recogniser.vocabulary.added(self.text, [token.unit])
            self.text, added = self.text + piece, added + piece
        added = added[max(self._skip - start, 0) :]
        return [said("text", added=added, words=words)] if added else []

    def fork(self) -> Text:
        out = Text(self._recogniser, self._rate)
        out._heard, out._words = deepcopy(self._heard), replace(self._words)
        out.text, out._before, out._skip = self.text, self._before, self._skip
        return out

    def facts(self) -> dict[str, Any]:
        heard, words = self._heard, self._words
        return {
            "made": {"text": self._made},
            "text": self.text,
            "before": self._before,
            "last": heard.last,
            "states": len(heard.states),
            "frames": heard.frames,
            "word": [words.since, words.partial, words.first, words.last],
        }

    def arrays(self) -> dict[str, Array]:
        heard = self._heard
        out = {f"state{i}": array for i, array in enumerate(heard.states)}
        return out if heard.prediction is None else {**out, "prediction": heard.prediction}

    def restore(self, facts: Mapping[str, Any], arrays: Mapping[str, Array], have: Mapping[str, int]) -> None:
        from pulsify.asr.greedy import Heard

        states = tuple(arrays[f"state{i}"].copy() for i in range(int(facts["states"])))
        self._heard = Heard(int(facts["last"]), states, arrays.get("prediction"), int(facts["frames"]))
        since, partial, first, last = facts["word"]
        self._words = replace(self._words, since=float(since), partial=str(partial), first=int(first), last=int(last))
        self.text, self._before = str(facts["text"]), int(facts["before"])
        self.skip(have)

    def skip(self, have: Mapping[str, int]) -> None:
        self._skip = have.get("text", 0)

    def again(self, received: Mapping[str, int]) -> None:
        self._before = self._made
        self._begin(sum(received.values()) / self._rate)

    def done(self) -> dict[str, Any]:
        return {"text": self.text, "words": [vars(word) for word in self._words.flush()]}


def little(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The same type, little-endian."""
    return dtype.newbyteorder("<") if dtype.kind in "iufc" else dtype


def shaped(port: Input) -> Any:
    """Sound [1, samples] in the shape of another input."""
    return lambda array: shape_sound(array.reshape(-1), port)

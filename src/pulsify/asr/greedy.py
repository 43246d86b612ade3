"""Greedy decoding, frame by frame: the same tokens in any chunks. The models are shared, a stream has its own state."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from pulsify.asr.settings import Names, Settings
from pulsify.core.errors import InvalidModel
from pulsify.core.runner import error_text, open_model
from pulsify.frontend.load import read

Array = np.ndarray[Any, Any]
DTYPES = {
    "tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64,
    "tensor(int32)": np.int32, "tensor(int64)": np.int64,
}  # fmt: skip


class Token(NamedTuple):
    """A unit of the vocabulary, and the frame in which it was emitted."""

    unit: int
    frame: int


@dataclass
class Heard:
    """All that decoding remembers of one stream: the last token, and a prediction network's states and output."""

    last: int
    states: tuple[Array, ...] = ()
    prediction: Array | None = None
    frames: int = 0  # decoded so far


class Decoder(Protocol):
    """Shared by all streams, changes nothing but the state it is given."""

    size: int  # scores a frame

    def start(self) -> Heard: ...

    def decode(self, rows: Array, heard: Heard) -> list[Token]: ...


class Ctc:
    """The best unit of each frame; repeats count once, blanks not at all."""

    def __init__(self, size: int, blank: int | None) -> None:
        self.size, self._blank = size, size - 1 if blank is None else blank

    def start(self) -> Heard:
        return Heard(self._blank)

    def decode(self, rows: Array, heard: Heard) -> list[Token]:
        if not len(rows):
            return []
        best = rows.argmax(1)
        before = np.concatenate([[heard.last], best[:-1]])
        heard.last = int(best[-1])
        new = np.flatnonzero((best != before) & (best != self._blank))
        first, heard.frames = heard.frames, heard.frames + len(rows)
        return [Token(int(best[row]), first + int(row)) for row in new]


class Transducer:
    """RNNT: at each frame tokens are taken until the blank is best, `max_symbols` at most."""

    def __init__(self, parts: TwoFiles | OneFile, width: int, blank: int | None, max_symbols: int) -> None:
        self._parts, self._most = parts, max_symbols
        zeros = np.zeros(width, np.float32)
        if blank is None:  # the last: known once the joint has been seen to run
            blank = parts.scores(zeros, parts.start(0))[0].size - 1
        self._blank, self._first = blank, parts.start(blank)
        self.size = parts.scores(zeros, self._first)[0].size

    def start(self) -> Heard:
        return Heard(self._blank, self._first.states, self._first.prediction)

    def decode(self, rows: Array, heard: Heard) -> list[Token]:
        tokens: list[Token] = []
        for frame in rows:
            for _ in range(self._most):
                scores, after = self._parts.scores(frame, heard)
                best = int(scores.argmax())
                if best == self._blank:
                    break
                tokens.append(Token(best, heard.frames))
                self._parts.advance(heard, best, after)
            heard.frames += 1
        return tokens


class TwoFiles:
    """Prediction network and joint in a file each: the network runs once a token, the joint once a step."""

    def __init__(self, decoder: Path, joint: Path, names: Names) -> None:
        self._network = _Network(decoder, names, ())
        self._joint = _Model(joint, [names.encoder, names.prediction], [names.joint_outputs])
        self._names = names

    def start(self, blank: int) -> Heard:
        return self._predicted(blank, self._network.zeros())

    def scores(self, frame: Array, heard: Heard) -> tuple[Array, tuple[Array, ...]]:
        assert heard.prediction is not None
        feeds = {self._names.encoder: frame, self._names.prediction: heard.prediction}
        shaped = {name: self._joint.fitted(name, vector) for name, vector in feeds.items()}
        return self._joint.run([self._names.joint_outputs], shaped)[0].ravel(), ()

    def advance(self, heard: Heard, token: int, after: tuple[Array, ...]) -> None:
        new = self._predicted(token, heard.states)
        heard.last, heard.states, heard.prediction = new.last, new.states, new.prediction

    def _predicted(self, token: int, states: tuple[Array, ...]) -> Heard:
        output, after = self._network.step(token, states, {})
        return Heard(token, after, output.ravel())


class OneFile:
    """Both in one file, as NeMo exports `decoder_joint`: new states count only if a token is taken."""

    def __init__(self, path: Path, names: Names) -> None:
        self._network, self._names = _Network(path, names, (names.encoder,)), names

    def start(self, blank: int) -> Heard:
        return Heard(blank, self._network.zeros())

    def scores(self, frame: Array, heard: Heard) -> tuple[Array, tuple[Array, ...]]:
        output, after = self._network.step(heard.last, heard.states, {self._names.encoder: frame})
        return output.ravel(), after

    def advance(self, heard: Heard, token: int, after: tuple[Array, ...]) -> None:
        heard.last, heard.states = token, after


class _Model:
    """An ONNX file with the names it must have. Only one frame and one token ever go in."""

    def __init__(self, path: Path, inputs: list[str], outputs: list[str]) -> None:
        read(path)  # an unreadable file is said in pulsify's words, not the runtime's
        self._path, self._runner = path, open_model(os.fspath(path))
        self.inputs = {p.name: p for p in self._runner.get_inputs()}
        self.outputs = [o.name for o in self._runner.get_outputs()]
        for kind, wanted, there in (("input", inputs, list(self.inputs)), ("output", outputs, self.outputs)):
            for name in wanted:
                if name not in there:
                    raise InvalidModel(
                        f"{path.name} has no {kind} {name!r}; it has {there}: say which it is under [names]"
                    )

    def fitted(self, name: str, vector: Array) -> Array:
        """One frame in the shape of an input: its size on the axis declared so (else the second), 1 elsewhere."""
        port = self.inputs[name]
        axes = [axis for axis, d in enumerate(port.shape) if d == vector.size] or [min(1, len(port.shape) - 1)]
        dims = [1] * len(port.shape)
        dims[axes[0]] = vector.size
        return vector.reshape(dims).astype(DTYPES[port.type], copy=False)

    def filled(self, name: str, value: int) -> Array:
        """A number in the shape of an input; what is symbolic is a batch or a time of 1."""
        port = self.inputs[name]
        return np.full([d if isinstance(d, int) else 1 for d in port.shape], value, DTYPES[port.type])

    def run(self, outputs: list[str], feeds: dict[str, Array]) -> list[Array]:
        try:
            made: list[Array] = self._runner.run(outputs, feeds)
        except Exception as error:  # ONNX Runtime has no common class for them
            raise InvalidModel(
                f"{self._path.name} does not run on one frame and one token ({error_text(error)})"
            ) from error
        return made


class _Network(_Model):
    """A prediction network: a token and states in, an output and new states out."""

    def __init__(self, path: Path, names: Names, others: tuple[str, ...]) -> None:
        super().__init__(path, [names.targets, *others], [names.outputs])
        self._names = names
        self._states = [n for n in self.inputs if n not in (names.targets, names.target_length, *others)]
        self._after = [n for n in self.outputs if n not in (names.outputs, names.lengths)]
        if len(self._states) != len(self._after):
            raise InvalidModel(
                f"{path.name}: as states go in {self._states} and come out {self._after}; name the other inputs and "
                "outputs under [names]"
            )

    def zeros(self) -> tuple[Array, ...]:
        return tuple(self.filled(name, 0) for name in self._states)

    def step(self, token: int, states: tuple[Array, ...], frames: dict[str, Array]) -> tuple[Array, tuple[Array, ...]]:
        feeds = {self._names.targets: self.filled(self._names.targets, token)}
        if self._names.target_length in self.inputs:
            feeds[self._names.target_length] = self.filled(self._names.target_length, 1)
        feeds |= {name: self.fitted(name, vector) for name, vector in frames.items()}
        feeds |= dict(zip(self._states, states, strict=True))
        output, *after = self.run([self._names.outputs, *self._after], feeds)
        return output, tuple(after)


def open_decoder(settings: Settings, width: int) -> Decoder:
    """width: numbers in one frame of the encoder's output."""
    if settings.kind == "ctc":
        return Ctc(width, settings.blank)
    parts: TwoFiles | OneFile
    if settings.decoder_joint is not None:
        parts = OneFile(settings.decoder_joint, settings.names)
    else:
        assert settings.decoder is not None and settings.joint is not None
        parts = TwoFiles(settings.decoder, settings.joint, settings.names)
    return Transducer(parts, width, settings.blank, settings.max_symbols)

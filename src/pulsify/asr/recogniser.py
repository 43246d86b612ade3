"""A recogniser: models shared by all streams, and one small object per stream.

recogniser = Recogniser.open("model.toml")          once
heard = recogniser.transcriber()                    for every stream
heard.push(samples) ... heard.push(samples)         the text they add
heard.flush(); heard.text                           what the batch models and the decoder say of all samples
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from pulsify.asr.greedy import Decoder, open_decoder
from pulsify.asr.settings import BUILT_IN, Settings, read_settings
from pulsify.asr.sound import shape_sound
from pulsify.asr.stages import Array, Running, Stage
from pulsify.asr.text import Vocabulary, Word, Words, read_vocabulary
from pulsify.core.boundary import public
from pulsify.core.errors import InvalidChunk, InvalidModel

DECODER = "decoder"


@dataclass(frozen=True)
class Recogniser:
    """Read-only: any number of transcribers, in any threads, use it at once."""

    settings: Settings
    stages: tuple[Stage, ...]  # the preprocessor, if there is one, and the encoder
    decoder: Decoder
    vocabulary: Vocabulary

    @staticmethod
    @public
    def open(
        path: str | os.PathLike[str] | None = None, *, pulse: int | None = None, verify: bool = True
    ) -> Recogniser:
        """Convert the models named in a TOML file; without one, a small recogniser of digits and commands.

        pulse: frames of the encoder's input per call, in place of the file's. verify: check each stream against its
        batch model.
        """
        file = Path(BUILT_IN / "model.toml" if path is None else path)
        settings, keep = read_settings(file), file.resolve().parent == BUILT_IN.resolve()
        stages = []
        if settings.preprocessor is not None:
            given = settings.preprocessor_options
            stages.append(Stage.open("preprocessor", settings.preprocessor, given, verify, keep))
        options = dict(settings.encoder_options)
        if chosen := pulse or settings.pulse:
            options["pulse"] = chosen
        stages.append(Stage.open("encoder", settings.encoder, options, verify, keep))
        for stage, following in pairwise(stages):
            stage.check_feeds(following)
        try:
            shape_sound(np.zeros(0, np.float32), stages[0].input)
        except InvalidChunk as error:
            hint = "; name a preprocessor that makes it of sound" if len(stages) == 1 else ""
            raise InvalidModel(f"{stages[0].path.name}: {error}{hint}") from error
        decoder = open_decoder(settings, stages[-1].size)
        vocabulary = read_vocabulary(settings.vocabulary, decoder.size, settings.blank, settings.words)
        made = Recogniser(settings, tuple(stages), decoder, vocabulary)
        made.transcriber()  # makes what sessions share
        return made

    @property
    def sample_rate(self) -> int:
        return self.settings.sample_rate

    @property
    @public
    def parts(self) -> tuple[str, ...]:
        """The models by name, in the order in which sound passes them."""
        return (*(s.name for s in self.stages), DECODER)

    @public
    def delay(self, chunk: int = 1) -> float:
        """Seconds by which a frame of the encoder's output comes later, at the most, than the sound it stands for.

        chunk: samples per push. All frames wait for their stage's pulse to fill, and for what the stage looks ahead.
        """
        rate = self._rate
        given, worst = 0, 0.0
        for samples in range(chunk, int(64 * self.stages[-1].stream.pulse / rate) + chunk, chunk):
            out = samples
            for stage in self.stages:
                out = stage.given(out)
            if out > given:
                worst = max(worst, samples - float((given + 1) / rate))
                given = out
        return worst / self.sample_rate

    @property
    def _rate(self) -> Fraction:
        """Frames of the encoder's output for one sample."""
        return math.prod((stage.output.rate / stage.input.rate for stage in self.stages), start=Fraction(1))

    @property
    @public
    def frame_seconds(self) -> float:
        """How long a frame of the encoder's output lasts."""
        return float(1 / (self._rate * self.sample_rate))

    @public
    def transcriber(self) -> Transcriber:
        """A new stream."""
        return Transcriber(self)

    @public
    def batch(self, samples: Any) -> Transcript:
        """The offline path: each batch model once, over everything, then the decoder."""
        models = [stage.batch() for stage in self.stages]
        clock = Clock(self.parts)
        frames, length = _sound(samples, self.stages[0]), int(np.size(samples))
        for model, following in zip(models, [*self.stages[1:], None], strict=True):
            if not length:  # as a stream without frames: nothing comes out
                return Transcript("", (), clock.seconds)
            with clock.running(model.stage.name):
                frames, length = model.run(frames, length)
                if following is not None:
                    frames = model.stage.into(following, frames)
        with clock.running(DECODER):
            tokens = self.decoder.decode(self.stages[-1].rows(frames)[:length], self.decoder.start())
            timed = Words(self.vocabulary, self.frame_seconds)
            words = [word for token in tokens for word in timed.push(token)] + timed.flush()
        units = tuple(token.unit for token in tokens)
        return Transcript(self.vocabulary.added("", units), units, clock.seconds, tuple(words))


@dataclass(frozen=True)
class Transcript:
    """What was said, and the seconds each model took."""

    text: str
    tokens: tuple[int, ...]
    seconds: dict[str, float]
    words: tuple[Word, ...] = ()


class Transcriber:
    """One stream of sound and the text it has become. `seconds`: the work of each model so far."""

    @public
    def __init__(self, recogniser: Recogniser) -> None:
        self.recogniser = recogniser
        self._stages = [Running(stage) for stage in recogniser.stages]
        self.reset()

    @public
    def reset(self) -> None:
        """Forget everything: the next push starts another stream."""
        for running in self._stages:
            running.reset()
        self._heard = self.recogniser.decoder.start()
        self._clock = Clock(self.recogniser.parts)
        self._timed = Words(self.recogniser.vocabulary, self.recogniser.frame_seconds)
        self.tokens: list[int] = []
        self.words: list[Word] = []  # that are complete
        self.text = ""

    @property
    def seconds(self) -> dict[str, float]:
        return dict(self._clock.seconds)

    @public
    def push(self, samples: Any) -> str:
        """Take samples (one channel, any number) and return the text they add."""
        return self._decoded(self._passed(0, _sound(samples, self.recogniser.stages[0])))

    @public
    def flush(self) -> str:
        """End the stream: the text that was still inside."""
        added = ""
        for at, running in enumerate(self._stages):
            with self._clock.running(running.stage.name):
                rest = running.flush()
            added += self._decoded(self._passed(at + 1, self._onward(at, rest)))
        self.words += self._timed.flush()
        return added

    def _passed(self, first: int, frames: Array) -> Array:
        """Frames through the stages from `first` on."""
        for at, running in enumerate(self._stages[first:], first):
            with self._clock.running(running.stage.name):
                frames = self._onward(at, running.push(frames))
        return frames

    def _onward(self, at: int, frames: Array) -> Array:
        """A stage's output as the next takes it; the last one's stays as it is."""
        last = at + 1 == len(self._stages)
        return frames if last else self._stages[at].stage.into(self._stages[at + 1].stage, frames)

    def _decoded(self, frames: Array) -> str:
        recogniser = self.recogniser
        with self._clock.running(DECODER):
            tokens = recogniser.decoder.decode(recogniser.stages[-1].rows(frames), self._heard)
        units = [token.unit for token in tokens]
        added = recogniser.vocabulary.added(self.text, units)
        self.words += [word for token in tokens for word in self._timed.push(token)]
        self.tokens += units
        self.text += added
        return added


class Clock:
    """Seconds by name."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.seconds = dict.fromkeys(names, 0.0)

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - start


def _sound(samples: Any, stage: Stage) -> Array:
    array = np.asarray(samples)
    if array.ndim != 1 or array.dtype.kind != "f":
        raise InvalidChunk(
            f"samples are one channel of floats in [-1, 1], an array with one axis; got {array.dtype} "
            f"{list(array.shape)}"
        )
    return shape_sound(array, stage.input)

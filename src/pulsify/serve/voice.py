"""When somebody speaks: from a probability a frame to where utterances begin and end, the same for any chunks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pulsify.serve.detectors import frame_samples
from pulsify.serve.protocol import Refused, Sound
from pulsify.serve.scheduler import LEAST, Live, News

if TYPE_CHECKING:
    from pulsify.serve.flow import Chain
    from pulsify.serve.hosted import Hosted
    from pulsify.serve.transcribe import Transcription

LESS = 0.15  # by how much the probability may fall below the threshold before it counts as silence
PREFIX_MOST, SILENCE_MOST = 10_000, 60_000  # milliseconds


@dataclass(frozen=True)
class TurnDetection:
    """threshold: the probability from which on somebody speaks. prefix: milliseconds before that, which belong to the
    utterance. silence: milliseconds after which it is over, which belong to it too."""

    threshold: float = 0.5
    prefix: int = 300
    silence: int = 500

    def facts(self) -> dict[str, Any]:
        """As sessions show it."""
        return {
            "type": "server_vad",
            "threshold": self.threshold,
            "prefix_padding_ms": self.prefix,
            "silence_duration_ms": self.silence,
        }


@dataclass(frozen=True)
class Started:
    """Speech begins: milliseconds of the sound that was listened to."""

    when: int


@dataclass(frozen=True)
class Stopped:
    """The silence after it has been long enough."""

    when: int


@dataclass
class Listening:
    """frame: milliseconds. speaking: now. frames: heard so far. voiced: the end of the last one with speech."""

    frame: float
    speaking: bool = False
    frames: int = 0
    voiced: int = 0

    def push(self, probabilities: Iterable[float], how: TurnDetection) -> list[Started | Stopped]:
        """What the next frames change."""
        out: list[Started | Stopped] = []
        for probability in probabilities:
            start, self.frames = self.frames, self.frames + 1
            if probability >= how.threshold or (self.speaking and probability >= how.threshold - LESS):
                self.voiced = self.frames
                if not self.speaking:
                    self.speaking = True
                    out.append(Started(round(start * self.frame)))
            elif self.speaking and (self.frames - self.voiced) * self.frame >= how.silence:
                self.speaking = False
                out.append(Stopped(self.now))
        return out

    @property
    def now(self) -> int:
        """Milliseconds that are decided."""
        return round(self.frames * self.frame)


class Detector:
    """A stream of the detector's for one session: sound in, verdicts out. All of it is the event loop's."""

    def __init__(self, session: Transcription, sound: Sound) -> None:
        self.session, self.sound = session, sound
        self.listening: Listening | None = None  # once the detector is open
        self.samples = 0
        self._live: Live | None = None
        self._hosted: Hosted | None = None
        self._early: list[bytes] = []
        self._small = bytearray()  # pieces that are too small for a message of their own
        self._over = False
        task = asyncio.ensure_future(self._open())
        session.service.tasks.add(task)
        task.add_done_callback(session.service.tasks.discard)

    async def _open(self) -> None:
        service = self.session.service
        try:
            hosted = await asyncio.shield(service.detector())
            chain = hosted.known(self.sound, Sound())
            if chain is None:
                loop = asyncio.get_running_loop()
                chain = await loop.run_in_executor(service.aside, hosted.chain, self.sound, Sound())
        except Refused as refused:
            self.refuse(refused)
            return
        except Exception as error:
            self.refuse(Refused("failed", f"turn detection could not be opened ({type(error).__name__})"))
            raise
        if not self._over:
            self._begin(hosted, chain)

    def _begin(self, hosted: Hosted, chain: Chain) -> None:
        rate = hosted.served.sample_rate or 1
        self.listening = Listening(1000 * frame_samples(hosted.served) / rate)
        self._hosted, self._live = hosted, Live(chain, self)
        self.session.service.listeners += 1
        hosted.scheduler.post(self._live, "open")
        early, self._early = self._early, []
        for data in early:
            hosted.scheduler.post(self._live, "data", data)
        self.session.heard([])

    def feed(self, data: bytes, samples: int) -> None:
        self.samples += samples
        self._small += data
        if len(self._small) >= LEAST:
            self._post()

    def _post(self) -> None:
        data = bytes(self._small)
        self._small.clear()
        if self._live is None or self._hosted is None:
            self._early.append(data)
        else:
            self._hosted.scheduler.post(self._live, "data", data)

    def decided(self) -> bool:
        """Is there a verdict on all that has one without more sound?"""
        if not self.samples:
            return True
        if self._small:
            self._post()
        if self._live is None or self.listening is None:
            return False
        frames = self.samples
        for link in self._live.chain.links:
            spec = link.stage.spec
            frames = spec.outputs[0].framing.given(spec.framing.pulses([frames]))
        return self.listening.frames >= frames

    def sample(self, when: int) -> int:
        """The first one at so many milliseconds."""
        return when * (self.sound.rate or 1) // 1000

    def close(self) -> None:
        self._over = True
        if self._live is not None and self._hosted is not None:
            self._hosted.scheduler.post(self._live, "close")
            self._live = None
            self.session.service.listeners -= 1

    # ---- from the thread

    def hear(self, news: list[News]) -> None:
        if self._over or self.listening is None:
            return
        parts = [each for each in news if isinstance(each, bytes)]
        failed = next((each for each in news if isinstance(each, Refused)), None)
        if parts:
            verdicts = np.frombuffer(b"".join(parts), "<f4").tolist()
            self.session.heard(self.listening.push(verdicts, self.session.settings.detection or TurnDetection()))
        if failed is not None:
            self.refuse(failed)

    def refuse(self, refused: Refused) -> None:
        if not self._over:
            self.close()
            self.session.refuse(Refused("failed", f"turn detection: {refused.message}"))

"""The subset of OpenAI's realtime transcription that existing clients need, spoken over a plain stream.

A session is one stream, which keeps its place from the first utterance to the last: `append` is data, `commit` ends an
utterance of it. What a client says that cannot be is answered by an `error` event, and the session continues.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import secrets
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pulsify.serve import sound
from pulsify.serve.access import NOBODY, Client
from pulsify.serve.connection import PATIENCE, Connection
from pulsify.serve.dialect import LONGEST, Dialect, SessionSettings, default_detection, updated
from pulsify.serve.protocol import CLOSE, NORMAL, Refused, json_object
from pulsify.serve.voice import Detector, Started, Stopped

if TYPE_CHECKING:
    from pulsify.serve.connection import Peer
    from pulsify.serve.hosted import Hosted
    from pulsify.serve.service import Service

TRANSCRIPTION = "conversation.item.input_audio_transcription."
UPDATES = ("session.update", "transcription_session.update")
BUFFER = "input_audio_buffer."
FATAL = ("slow_reader", "too_large", "failed", "going_away")  # what ends a session, whoever says it
SERVERS = ("failed", "going_away", "too_many_streams")  # faults that are not the client's
END = json.dumps({"type": "end_utterance"})


@dataclass(eq=False)
class Item:
    """An utterance. first: its first sample, in all sound of the session; moved: by how much later that is than in the
    stream; samples: how many it has."""

    name: str
    before: str | None
    first: int
    moved: int
    samples: int = 0
    dropped: bool = False


class Recognition:
    """The stream's peer: what it says goes on as events about the oldest item. Its format never changes."""

    def __init__(self, session: Transcription, hosted: Hosted) -> None:
        self.session, self.hosted = session, hosted
        self.sound = session.settings.sound
        self.items: deque[Item] = deque()  # that have begun and are not through
        self.samples = 0
        self.dropped = False
        self.words: list[dict[str, Any]] = []
        self.connection = Connection(session.service, hosted, self, session.client)

    def open(self) -> None:
        opening = {"type": "open", "format": self.sound.format, "rate": self.sound.rate}
        self.connection.text(json.dumps(opening))

    def send(self, message: bytes | str) -> None:
        if self.dropped or not isinstance(message, str):
            return
        said = json.loads(message)
        if said["type"] == "text":
            self._text(said)
        elif said["type"] == "utterance":
            self._utterance(said)
        elif said["type"] == "error":
            self.session.refuse(Refused(said["code"], said["message"]))

    def _text(self, said: Mapping[str, Any]) -> None:
        item = self.items[0]
        self.words += said["words"]
        if not item.dropped:
            self.session.say(f"{TRANSCRIPTION}delta", item_id=item.name, content_index=0, delta=said["added"])

    def _utterance(self, said: Mapping[str, Any]) -> None:
        item, words = self.items.popleft(), [*self.words, *said["words"]]
        self.words = []
        about = {"item_id": item.name, "content_index": 0}
        if not item.dropped and "error" in said:  # a sound that is too short to say anything
            error = {"type": "invalid_request_error", **said["error"]}
            self.session.say(f"{TRANSCRIPTION}failed", **about, error=error)
        elif not item.dropped:
            rate = self.sound.rate or 1
            for word in words:
                word["start"], word["end"] = (round(word[k] + item.moved / rate, 3) for k in ("start", "end"))
            usage = {"type": "duration", "seconds": round(item.samples / rate, 3)}
            self.session.say(f"{TRANSCRIPTION}completed", **about, transcript=said["text"], usage=usage, words=words)
        self.session.proceed()

    def close(self, code: int, reason: str) -> None:
        self.leave()

    def abort(self) -> None:
        self.leave()

    def leave(self) -> None:
        self.dropped = True
        if self.connection in self.session.service.connections:
            self.connection.gone()

    def pause(self, paused: bool) -> None:
        self.session.pause("computing", paused)

    def waiting(self) -> int:
        return self.session.peer.waiting()


class Transcription:
    """One websocket at /v1/realtime. As `Connection`, for whoever moves the bytes."""

    def __init__(
        self,
        service: Service,
        hosted: Hosted,
        peer: Peer,
        client: Client = NOBODY,
        dialect: Dialect | None = None,
        model: str | None = None,
    ) -> None:
        """model: as the client names it."""
        self.service, self.peer, self.client = service, peer, client
        self.dialect = dialect or Dialect()
        detection = default_detection(model, ours=model in service.models)
        self.settings = SessionSettings(model or hosted.served.name, detection=detection)
        self.over = False
        self.name = f"sess_{secrets.token_hex(8)}"
        self._expires = int(time.time() + service.settings.limits.total_seconds)
        self._events = 0
        self._line: deque[dict[str, Any] | None] = deque()  # what the client said and cannot be done yet; None: its end
        self._paused: set[str] = set()  # why nothing more is read
        self._samples = 0  # of all sound of the session
        self._detector: Detector | None = None
        self._origin = 0  # the sample at which it began to listen
        self._held = bytearray()  # sound that waits for its verdict, or may precede an utterance
        self._held_first = 0  # its first sample
        self._item: Item | None = None  # what is being said
        self._before: str | None = None  # the last item that was committed
        self._closing = False
        self.say("session.created", session=self._session())
        self._stream = Recognition(self, hosted)
        self._stream.open()
        self._listen()

    # ---- to the client

    def say(self, kind: str, /, **values: Any) -> None:
        if not self.over:
            self._events += 1
            self.peer.send(json.dumps({"type": kind, "event_id": f"event_{self._events}", **values}))

    def _complain(self, refused: Refused, event: Any = None) -> None:
        kind = "server_error" if refused.code in SERVERS else "invalid_request_error"
        error = {"type": kind, "code": refused.code, "message": refused.message, "param": None, "event_id": event}
        self.say("error", error=error)

    def _session(self) -> dict[str, Any]:
        return self.dialect.session(self.name, self._expires, self.settings)

    # ---- from the client

    def text(self, text: str) -> None:
        if self.over:
            return
        try:
            if (waiting := self.peer.waiting()) > self.service.settings.limits.waiting_bytes:
                raise Refused("slow_reader", f"{waiting} bytes wait to be read")
            event = json_object(text)
        except Refused as refused:
            self._refused(refused, None)
            return
        self._stream.connection.alive()
        self._line.append(event)
        self.proceed()

    def binary(self, data: bytes) -> None:
        self._refused(Refused("bad_message", "sound is base64, in input_audio_buffer.append"), None)

    def half_closed(self) -> None:
        self._line.append(None)
        self.proceed()

    def alive(self) -> None:
        self._stream.connection.alive()

    def proceed(self) -> None:
        """Do what can be done now, in order."""
        while self._line and not self.over and not self._must_wait(self._line[0]):
            event = self._line.popleft()
            if event is None:
                self._end()
                continue
            try:
                self._heard(event)
            except Refused as refused:
                self._refused(refused, event.get("event_id"))
        self.pause("events", bool(self._line))
        if self._closing and not self._stream.items and not self.over:
            self.finish(NORMAL, "")

    def _must_wait(self, event: dict[str, Any] | None) -> bool:
        """For verdicts on the sound before it; and a stream of another format begins when the one before is through."""
        kind = None if event is None else event.get("type")
        if kind == f"{BUFFER}append":
            return False
        if self._detector is not None and not self._detector.decided():
            return True
        return kind in UPDATES and len(self._stream.items) > (self._item is not None)

    def _refused(self, refused: Refused, event: Any) -> None:
        if refused.code in FATAL:
            self.refuse(refused)
        else:
            self._complain(refused, event if isinstance(event, str) and len(event) <= LONGEST else None)

    def refuse(self, refused: Refused) -> None:
        """The session is over, and the client is told why."""
        if not self.over:
            self._complain(refused)
            self.finish(CLOSE[refused.code], refused.code)

    def finish(self, code: int, reason: str) -> None:
        self.over = True
        self.peer.close(code, reason)
        asyncio.get_running_loop().call_later(PATIENCE, self.peer.abort)  # it may never answer
        self.gone()

    def gone(self) -> None:
        self.over = True
        self._stream.leave()
        if self._detector is not None:
            self._detector.close()
        self._line.clear()
        self._held.clear()

    def pause(self, reason: str, paused: bool) -> None:
        """Stop reading, or go on if there is no other reason not to."""
        before = bool(self._paused)
        (self._paused.add if paused else self._paused.discard)(reason)
        if bool(self._paused) != before and not self.over:
            self.peer.pause(bool(self._paused))

    # ---- one by one

    def _heard(self, event: dict[str, Any]) -> None:
        kind = event.get("type")
        if kind in UPDATES:
            self._update(event.get("session"))
            self.say(f"{kind}d", session=self._session())
        elif kind == f"{BUFFER}append":
            self._append(event.get("audio"))
        elif kind == f"{BUFFER}commit":
            if self._item is not None:
                self._take_all()
            self._commit()
        elif kind == f"{BUFFER}clear":
            self._clear()
        else:
            kinds = ", ".join((*UPDATES, *(f"{BUFFER}{name}" for name in ("append", "commit", "clear"))))
            raise Refused("bad_message", f"type {str(kind)[:60]!r}: there are {kinds}")

    def _append(self, audio: Any) -> None:
        if not isinstance(audio, str):
            raise Refused("bad_message", "audio: expected base64")
        try:
            data = base64.b64decode(audio, validate=True)
        except (binascii.Error, ValueError) as error:
            raise Refused("bad_message", "audio: not base64") from error
        samples, more = divmod(len(data), sound.WIDTH[self.settings.sound.format])
        if more:
            raise Refused("bad_frames", f"audio: {len(data)} bytes are no whole number of samples")
        self._samples += samples
        if self._detector is not None:
            self._held += data
            self._detector.feed(data, samples)
            self._check_undecided()
        elif samples:
            self._forward(data, samples, self._item or self._begin(self._samples - samples))

    def _forward(self, data: bytes, samples: int, item: Item) -> None:
        """Sound of what is being said."""
        item.samples += samples
        self._stream.samples += samples
        self._stream.connection.binary(data)

    def _begin(self, first: int) -> Item:
        self._item = Item(f"item_{secrets.token_hex(8)}", self._before, first, first - self._stream.samples)
        self._stream.items.append(self._item)
        return self._item

    def _commit(self) -> None:
        """By the client, or as its speech has stopped."""
        item = self._item
        if item is None:
            self._complain_empty()
            return
        self._item, self._before = None, item.name
        self.say(f"{BUFFER}committed", item_id=item.name, previous_item_id=item.before)
        content = [{"type": "input_audio", "transcript": None}]
        about = {"id": item.name, "object": "realtime.item", "type": "message", "role": "user", "status": "completed"}
        for kind in self.dialect.item_events:
            self.say(kind, previous_item_id=item.before, item={**about, "content": content})
        self._stream.connection.text(END)

    def _complain_empty(self) -> None:
        error = {"type": "invalid_request_error", "code": "input_audio_buffer_commit_empty"}
        self.say("error", error={**error, "message": "there is no sound to commit", "param": None, "event_id": None})

    def _clear(self) -> None:
        """Forget what is being said."""
        self._take_all()
        if self._item is not None:
            self._item.dropped, self._item = True, None
            self._stream.connection.text(END)
        self.say(f"{BUFFER}cleared")

    def _update(self, session: Any) -> None:
        settings = updated(self.settings, session)
        hosted = self._stream.hosted
        if settings.model != self.settings.model:
            hosted = self._model(settings.model)
            if not settings.chosen:
                usual = default_detection(settings.model, ours=settings.model in self.service.models)
                settings = replace(settings, detection=usual)
        sounds = settings.sound != self.settings.sound
        switched = (settings.detection is None) != (self.settings.detection is None)
        moves = sounds or hosted is not self._stream.hosted
        if self._item is not None and (moves or switched):
            what = "format, model and turn detection cannot change in an utterance"
            raise Refused("bad_message", f"{what}; commit or clear first")
        for model in (hosted, self.service.detecting if settings.detection is not None else None):
            if model is not None:
                model.check_rate(settings.sound)
        before, self.settings = self.settings.sound.rate or 1, settings
        if moves:
            self._samples = round(self._samples * (settings.sound.rate or 1) / before)
            self._stream.leave()
            self._stream = Recognition(self, hosted)
            self._stream.open()
        if sounds or switched:
            self._listen()

    def _model(self, name: str) -> Hosted:
        """The recogniser of that name, if it has room for one more."""
        hosted = self.service.hosted(self.service.named(name))
        if hosted.served.kind != "text":
            raise Refused("unknown_model", f"{hosted.served.name!r} is no recogniser")
        return hosted if hosted is self._stream.hosted else self.service.admit(hosted.served.name)

    def _end(self) -> None:
        """The client has closed its side: what it said is an utterance, and with its transcript the session is over."""
        self._take_all()
        if self._item is not None:
            self._commit()
        self._closing = True

    # ---- turn detection

    def _listen(self) -> None:
        """From here on, or not at all."""
        if self._detector is not None:
            self._detector.close()
        self._held.clear()
        self._origin = self._held_first = self._samples
        self._detector = None if self.settings.detection is None else Detector(self, self.settings.sound)
        self._check_undecided()

    def heard(self, turns: Sequence[Started | Stopped]) -> None:
        """The detector has decided more."""
        detector, how = self._detector, self.settings.detection
        if self.over or detector is None or detector.listening is None or how is None:
            return
        prefix = detector.sample(how.prefix)
        for turn in turns:
            sample = self._origin + detector.sample(turn.when)
            if isinstance(turn, Started):
                self._drop(sample - prefix)
                item = self._begin(self._held_first)
                self.say(f"{BUFFER}speech_started", audio_start_ms=self._milliseconds(item.first), item_id=item.name)
            elif self._item is not None:
                self._take(sample)
                end = self._milliseconds(sample)
                self.say(f"{BUFFER}speech_stopped", audio_end_ms=end, item_id=self._item.name)
                self._commit()
        decided = self._origin + detector.sample(detector.listening.now)
        if detector.listening.speaking:
            self._take(decided)
        else:
            self._drop(decided - prefix)
        self._check_undecided()
        self.proceed()

    def _milliseconds(self, sample: int) -> int:
        return round(1000 * sample / (self.settings.sound.rate or 1))

    def _cut(self, sample: int) -> tuple[bytes, int]:
        """What is held before a sample."""
        samples = max(min(sample, self._samples) - self._held_first, 0)
        size = samples * sound.WIDTH[self.settings.sound.format]
        data = bytes(self._held[:size])
        del self._held[:size]
        self._held_first += samples
        return data, samples

    def _drop(self, sample: int) -> None:
        self._cut(sample)

    def _take(self, sample: int) -> None:
        """It belongs to what is being said."""
        data, samples = self._cut(sample)
        if samples and self._item is not None:
            self._forward(data, samples, self._item)

    def _take_all(self) -> None:
        """The client says that an utterance ends here, or is forgotten: nobody speaks any more."""
        if self._detector is not None:
            self._take(self._samples)
            if self._detector.listening is not None:
                self._detector.listening.speaking = False

    def _check_undecided(self) -> None:
        """Read no more while too much waits for its verdict."""
        detector, waiting = self._detector, 0
        if detector is not None:
            decided = 0 if detector.listening is None else detector.sample(detector.listening.now)
            waiting = (detector.samples - decided) * sound.WIDTH[self.settings.sound.format]
        self.pause("undecided", waiting > self.service.settings.limits.waiting_bytes)

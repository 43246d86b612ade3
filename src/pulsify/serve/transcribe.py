"""The subset of OpenAI's realtime transcription that existing clients need, spoken over plain streams.

An utterance is a stream: `append` is data, `commit` is flush. The next one is opened before it is needed, so a client
always has its place.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import secrets
from typing import TYPE_CHECKING, Any

from pulsify.serve.access import NOBODY, Client
from pulsify.serve.connection import PATIENCE, Connection
from pulsify.serve.protocol import CLOSE, NORMAL, Refused, json_object

if TYPE_CHECKING:
    from pulsify.serve.connection import Peer
    from pulsify.serve.hosted import Hosted
    from pulsify.serve.service import Service

RATE = 24000
TRANSCRIPTION = "conversation.item.input_audio_transcription."
UPDATES = ("session.update", "transcription_session.update")


class Utterance:
    """A stream's peer: what it says goes on as events. `begun`: sound has come."""

    def __init__(self, session: Transcription, before: str | None) -> None:
        self.session, self.before = session, before
        self.item = f"item_{secrets.token_hex(8)}"
        self.begun = self.committed = self.dropped = False
        self.connection = Connection(session.service, session.hosted, self, session.client)
        opening = {"type": "open", "format": "pcm16", "rate": session.rate}
        self.connection.text(json.dumps(opening))

    def send(self, message: bytes | str) -> None:
        if self.dropped or not isinstance(message, str):
            return
        said = json.loads(message)
        about = {"item_id": self.item, "content_index": 0}
        if said["type"] == "text":
            self.session.say(f"{TRANSCRIPTION}delta", **about, delta=said["added"])
        elif said["type"] == "done":
            self.session.say(f"{TRANSCRIPTION}completed", **about, transcript=said["text"])
        elif said["type"] == "warning":
            self.session.say("error", error={"type": "warning", "code": said["code"], "message": said["message"]})
        elif said["type"] == "error" and said["code"] == "bad_frames" and self.committed:
            # a sound that is too short to say anything: the session goes on
            error = {"type": "invalid_request_error", "code": said["code"], "message": said["message"]}
            self.session.say(f"{TRANSCRIPTION}failed", **about, error=error)
        elif said["type"] == "error":
            self.session.refuse(Refused(said["code"], said["message"]))

    def close(self, code: int, reason: str) -> None:
        self.leave()

    def abort(self) -> None:
        self.leave()

    def leave(self) -> None:
        self.session.left(self)
        if self.connection in self.session.service.connections:
            self.connection.gone()

    def pause(self, paused: bool) -> None:
        self.session.peer.pause(paused)

    def waiting(self) -> int:
        return self.session.peer.waiting()


class Transcription:
    """One websocket at /v1/realtime. As `Connection`, for whoever moves the bytes."""

    def __init__(self, service: Service, hosted: Hosted, peer: Peer, client: Client = NOBODY) -> None:
        self.service, self.hosted, self.peer, self.client = service, hosted, peer, client
        self.rate, self.over, self._last = RATE, False, False
        self.ending: set[Utterance] = set()  # committed, and not through
        self._events = 0
        self.say("session.created", session=self._session())
        self._now = Utterance(self, None)

    def say(self, kind: str, /, **values: Any) -> None:
        if not self.over:
            self._events += 1
            self.peer.send(json.dumps({"type": kind, "event_id": f"event_{self._events}", **values}))

    def text(self, text: str) -> None:
        if self.over:
            return
        try:
            if (waiting := self.peer.waiting()) > self.service.settings.limits.waiting_bytes:
                raise Refused("slow_reader", f"{waiting} bytes wait to be read")
            self._heard(json_object(text))
        except Refused as refused:
            self.refuse(refused)

    def binary(self, data: bytes) -> None:
        self.refuse(Refused("bad_message", "sound is base64, in input_audio_buffer.append"))

    def half_closed(self) -> None:
        self._last = True
        if self._now.begun:
            self._commit()
        if not self.ending:
            self.finish(NORMAL, "")

    def left(self, utterance: Utterance) -> None:
        """It is through; with the last one of a client that has closed its side, so is the session."""
        if utterance in self.ending:
            self.ending.discard(utterance)
            if self._last and not self.ending and not self.over:
                self.finish(NORMAL, "")

    def refuse(self, refused: Refused) -> None:
        if self.over:
            return
        server = refused.code in ("failed", "going_away", "too_many_streams")
        kind = "server_error" if server else "invalid_request_error"
        self.say("error", error={"type": kind, "code": refused.code, "message": refused.message})
        self.finish(CLOSE[refused.code], refused.code)

    def finish(self, code: int, reason: str) -> None:
        self.over = True
        self.peer.close(code, reason)
        asyncio.get_running_loop().call_later(PATIENCE, self.peer.abort)  # it may never answer
        self.gone()

    def alive(self) -> None:
        self._now.connection.alive()

    def gone(self) -> None:
        self.over = True
        for utterance in [self._now, *self.ending]:
            utterance.dropped = True
            utterance.leave()

    # ---- what clients say

    def _heard(self, event: dict[str, Any]) -> None:
        kind = event.get("type")
        if kind in UPDATES:
            self._update(event.get("session"))
            self.say(f"{kind}d", session=self._session())
        elif kind == "input_audio_buffer.append":
            self._append(event.get("audio"))
        elif kind == "input_audio_buffer.commit":
            self._commit()
        elif kind == "input_audio_buffer.clear":
            self._restart()
            self.say("input_audio_buffer.cleared")
        else:
            message = f"there are {', '.join(UPDATES)}, input_audio_buffer.append, .commit and .clear"
            self.say("error", error={"type": "invalid_request_error", "code": "bad_message", "message": message})

    def _append(self, audio: Any) -> None:
        if not isinstance(audio, str):
            raise Refused("bad_message", "audio: expected base64")
        try:
            data = base64.b64decode(audio, validate=True)
        except (binascii.Error, ValueError) as error:
            raise Refused("bad_message", "audio: not base64") from error
        self._now.begun = self._now.begun or bool(data)
        self._now.connection.binary(data)

    def _commit(self) -> None:
        now = self._now
        if not now.begun:
            message = "there is no sound to commit"
            self.say("error", error={"type": "invalid_request_error", "code": "input_audio_buffer_commit_empty",
                                     "message": message})  # fmt: skip
            return
        now.committed = True
        self.say("input_audio_buffer.committed", item_id=now.item, previous_item_id=now.before)
        content = [{"type": "input_audio", "transcript": None}]
        item = {"id": now.item, "type": "message", "role": "user", "status": "completed", "content": content}
        self.say("conversation.item.added", previous_item_id=now.before, item=item)
        self.ending.add(now)
        now.connection.text('{"type": "flush"}')
        if not self.over:
            self._now = Utterance(self, now.item)

    def _restart(self) -> None:
        """Forget the utterance."""
        self._now.dropped = True
        self._now.leave()
        self._now = Utterance(self, self._now.before)

    def _update(self, session: Any) -> None:
        if not isinstance(session, dict):
            raise Refused("bad_message", "session: expected an object")
        rate = RATE
        form: Any = session.get("input_audio_format", "pcm16")
        heard = session.get("audio")
        if isinstance(heard, dict) and isinstance(heard.get("input"), dict) and "format" in heard["input"]:
            form = heard["input"]["format"]
        if isinstance(form, dict):
            rate = form.get("rate", RATE)
            form = "pcm16" if form.get("type") == "audio/pcm" else form.get("type")
        whole = isinstance(rate, int) and not isinstance(rate, bool) and 1 <= rate <= 1_000_000
        if form != "pcm16" or not whole:
            raise Refused("unsupported", "sound is pcm16, at a whole number of samples a second")
        if rate != self.rate:
            if self._now.begun:
                raise Refused("bad_message", "the rate cannot change in an utterance; commit or clear first")
            self.rate = rate
            self._restart()

    def _session(self) -> dict[str, Any]:
        heard = {
            "format": {"type": "audio/pcm", "rate": self.rate},
            "transcription": {"model": self.hosted.served.name},
            "turn_detection": None,
        }
        return {"type": "transcription", "object": "realtime.transcription_session", "audio": {"input": heard}}

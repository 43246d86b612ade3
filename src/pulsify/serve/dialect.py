"""OpenAI's realtime transcription in two dialects: which settings a session has, and what its events look like.

The beta says `input_audio_format: "pcm16"` where the newer one says `audio: {input: {format: {...}}}`. Either is
understood in both; answers are in the client's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pulsify.serve.protocol import Refused, Sound
from pulsify.serve.voice import PREFIX_MOST, SILENCE_MOST, TurnDetection

RATE = 24000
FORMATS = {
    "audio/pcm": "pcm16",
    "audio/pcmu": "g711_ulaw",
    "audio/pcma": "g711_alaw",
}  # as the newer dialect names them
PLAIN = {form: name for name, form in FORMATS.items()}
TELEPHONE = 8000  # samples a second of G.711
LONGEST = 200  # characters of a name
RATES = 1000, 192_000  # samples a second of PCM
DEFAULT = Sound("pcm16", RATE)
WITHOUT_DETECTION = ("gpt-realtime-whisper", "gpt-live-transcribe")  # models of OpenAI's that have none
BETA_HEADER, BETA_SUBPROTOCOL = "realtime=v1", "openai-beta.realtime-v1"


@dataclass(frozen=True)
class SessionSettings:
    """model: as the client names it. sound: what it sends. detection: None: the client says where utterances end.

    chosen: the client has said so itself.
    """

    model: str
    sound: Sound = DEFAULT
    detection: TurnDetection | None = None
    chosen: bool = False


def default_detection(model: str | None, ours: bool) -> TurnDetection | None:
    """What a client that says nothing about it expects: with OpenAI's names what OpenAI does, with ours to commit."""
    manual = ours or (model is not None and model.startswith(WITHOUT_DETECTION))
    return None if manual else TurnDetection()


def updated(settings: SessionSettings, session: Any) -> SessionSettings:
    """With what an update says; what it does not mention stays. Refused if this is no session there can be."""
    if not isinstance(session, dict):
        raise Refused("bad_message", "session: expected an object")
    kind = session.get("type", "transcription")
    if kind != "transcription":
        raise Refused(
            "unsupported", f"session.type {str(kind)[:40]!r}: this server transcribes; expected transcription"
        )
    heard = _part(_part(session, "audio"), "input")
    form = heard.get("format", session.get("input_audio_format"))
    if form is not None:
        settings = replace(settings, sound=_sound(form))
    transcription = _part(heard, "transcription") or _part(session, "input_audio_transcription")
    model = transcription.get("model")
    if model is not None:
        if not isinstance(model, str) or len(model) > LONGEST:
            raise Refused("bad_message", f"transcription.model: expected a name of {LONGEST} characters at the most")
        settings = replace(settings, model=model)
    told = next((part for part in (heard, session) if "turn_detection" in part), None)
    if told is not None:
        settings = replace(settings, detection=_detection(told["turn_detection"]), chosen=True)
    return settings


def _detection(given: Any) -> TurnDetection | None:
    if given is None:
        return None
    if not isinstance(given, dict):
        raise Refused("bad_message", "turn_detection: expected an object or null")
    kind = given.get("type", "server_vad")
    if kind != "server_vad":
        raise Refused("unsupported", f"turn_detection.type {str(kind)[:40]!r}: expected server_vad, or null for none")
    if given.get("idle_timeout_ms") is not None:
        raise Refused("unsupported", "turn_detection.idle_timeout_ms: expected null")
    usual = TurnDetection()
    return TurnDetection(
        _number(given, "threshold", usual.threshold, 1),
        round(_number(given, "prefix_padding_ms", usual.prefix, PREFIX_MOST)),
        round(_number(given, "silence_duration_ms", usual.silence, SILENCE_MOST)),
    )


def _number(given: Mapping[str, Any], name: str, usual: float, most: float) -> float:
    value = given.get(name)
    if value is None:
        return usual
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
        raise Refused("unsupported", f"turn_detection.{name}: expected a number from 0 to {most:g}")
    return float(value)


def _part(whole: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = whole.get(name)
    if part is None:
        return {}
    if not isinstance(part, dict):
        raise Refused("bad_message", f"{name}: expected an object")
    return part


def _sound(form: Any) -> Sound:
    """One of the beta's names, or the newer dialect's object."""
    if isinstance(form, str):
        name, rate = form, None
    elif isinstance(form, dict):
        name, rate = FORMATS.get(str(form.get("type", "audio/pcm")), str(form.get("type"))), form.get("rate")
    else:
        raise Refused("bad_message", "format: expected an object with type and rate")
    if name not in PLAIN:
        raise Refused("unsupported", f"format {name[:40]!r}: there are {', '.join(FORMATS)}")
    if name != "pcm16":
        if rate not in (None, TELEPHONE):
            raise Refused("unsupported", f"{PLAIN[name]} has {TELEPHONE} samples a second")
        return Sound(name, TELEPHONE)
    rate = RATE if rate is None else rate
    if isinstance(rate, bool) or not isinstance(rate, int) or not RATES[0] <= rate <= RATES[1]:
        raise Refused("unsupported", f"rate: expected a whole number of samples a second from {RATES[0]} to {RATES[1]}")
    return Sound(name, rate)


@dataclass(frozen=True)
class Dialect:
    """beta: what the client speaks."""

    beta: bool = False

    def session(self, name: str, expires: int, settings: SessionSettings) -> dict[str, Any]:
        """A session, as its events show it."""
        about = {"id": name, "object": "realtime.transcription_session", "expires_at": expires}
        transcription = {"model": settings.model}
        detection = None if settings.detection is None else settings.detection.facts()
        if self.beta:
            sound = settings.sound.format
            return {**about, "input_audio_format": sound, "input_audio_transcription": transcription,
                    "turn_detection": detection}  # fmt: skip
        form: dict[str, Any] = {"type": PLAIN[settings.sound.format]}
        if settings.sound.format == "pcm16":
            form["rate"] = settings.sound.rate
        heard = {"format": form, "transcription": transcription, "turn_detection": detection}
        return {**about, "type": "transcription", "audio": {"input": heard}}

    @property
    def item_events(self) -> tuple[str, ...]:
        """What is said of an item of the conversation once its sound is committed."""
        return ("conversation.item.created",) if self.beta else ("conversation.item.added", "conversation.item.done")


def dialect(headers: Mapping[str, str], subprotocols: Sequence[str]) -> Dialect:
    """What a client speaks, by what it said when it connected."""
    return Dialect(BETA_HEADER in headers.get("openai-beta", "") or BETA_SUBPROTOCOL in subprotocols)

"""What client and server say to each other, as docs/serve.md has it. Nothing is sent or received here.

parse(text)     what a client said, or Refused with a code
said(...)       what the server says, as text
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

VERSION = 1
SUBPROTOCOL = "pulsify.v1"
TOKEN_PREFIX = "pulsify.token."
FORMATS = ("raw", "pcm16", "float32")
TELEPHONE = ("g711_ulaw", "g711_alaw")  # of what comes in
MOST_VALUES = 5000  # in a text message
TOKEN = re.compile(r"[A-Za-z0-9_-]{1,200}")

# code -> how a websocket is closed; before it is accepted: the HTTP status
CLOSE = {
    "unauthorized": 401,
    "forbidden_origin": 403,
    "forbidden_host": 403,
    "unknown_model": 404,
    "too_many_streams": 1013,
    "too_many_requests": 4429,
    "starting": 1013,
    "bad_message": 4400,
    "bad_frames": 4422,
    "unsupported": 4415,
    "too_large": 1009,
    "slow_reader": 4408,
    "idle": 4409,
    "too_long": 4410,
    "unknown_stream": 4404,
    "going_away": 1012,
    "store_failed": 1013,
    "failed": 1011,
}
NORMAL = 1000


class Refused(Exception):
    """A stream ends here, and this is why. code: one of CLOSE."""

    def __init__(self, code: str, message: str) -> None:
        assert code in CLOSE, code
        self.code, self.message = code, message
        super().__init__(f"{code}: {message}")


def too_many(what: str, limit: float) -> Refused:
    """A client asks for more than a live stream needs."""
    return Refused("too_many_requests", f"more than {limit:g} {what} a second")


@dataclass(frozen=True)
class Sound:
    """How samples are written, and how many there are a second (None: as the model has them)."""

    format: str = "raw"
    rate: int | None = None

    @property
    def sound(self) -> bool:
        return self.format != "raw"


@dataclass(frozen=True)
class Open:
    """resume: a token is wanted. token: of the stream to go on with; have: what has arrived of its outputs."""

    input: Sound = Sound()
    output: Sound = Sound()
    resume: bool = False
    token: str | None = None
    have: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Flush:
    pass


@dataclass(frozen=True)
class EndUtterance:
    pass


@dataclass(frozen=True)
class Peek:
    pass


@dataclass(frozen=True)
class Ping:
    id: Any = None


@dataclass(frozen=True)
class Ack:
    mark: int


Message = Open | Flush | EndUtterance | Peek | Ping | Ack


def parse(text: str) -> Message:
    """A text message of a client. Refused("bad_message") if it is none."""
    given = json_object(text)
    kind = given.pop("type", None)
    make = _PARSERS.get(kind) if isinstance(kind, str) else None
    if make is None:
        raise Refused("bad_message", f"type {_shown(kind)}: expected one of {', '.join(_PARSERS)}")
    return make(given)


def json_object(text: str) -> dict[str, Any]:
    """The JSON object in a text message."""
    if sum(map(text.count, ",[{")) > MOST_VALUES:  # parsing them would hold everyone up
        raise Refused("bad_message", f"a text message has {MOST_VALUES} values at the most")
    try:
        given = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Refused("bad_message", f"a text message is a JSON object, and this is none ({_shown(error)})") from None
    if not isinstance(given, dict):
        raise Refused("bad_message", "a text message is a JSON object")
    return given


def said(kind: str, /, **values: Any) -> str:
    """A text message of the server's."""
    return json.dumps({"type": kind, **values}, separators=(",", ":"), allow_nan=False)


def error(refused: Refused) -> str:
    return said("error", code=refused.code, message=refused.message)


# ---- one by one


def _open(given: dict[str, Any]) -> Open:
    _known(given, ("format", "rate", "output", "resume", "have"))
    resume, have = given.get("resume", False), given.get("have")
    if not isinstance(resume, (bool, str)) or (isinstance(resume, str) and not TOKEN.fullmatch(resume)):
        raise Refused("bad_message", "resume: expected true, false or a token")
    token = resume if isinstance(resume, str) else None
    if have is not None and token is None:
        raise Refused("bad_message", "have: goes with the token of a stream to go on with, as resume")
    if token is not None and {"format", "rate", "output"} & set(given):
        raise Refused("bad_message", "a stream that goes on has its format already: give resume and have alone")
    output = given.get("output", {})
    if not isinstance(output, dict):
        raise Refused("bad_message", 'output: expected an object, as {"format": "pcm16", "rate": 16000}')
    _known(output, ("format", "rate"), "output.")
    return Open(
        _sound(given, (*FORMATS, *TELEPHONE)),
        _sound(output, FORMATS, "output."),
        bool(resume),
        token,
        _have(have or {}),
    )


def _sound(given: Mapping[str, Any], formats: tuple[str, ...], where: str = "") -> Sound:
    name, rate = given.get("format", "raw"), given.get("rate")
    if name not in formats:
        raise Refused("unsupported", f"{where}format {_shown(name)}: expected one of {', '.join(formats)}")
    if rate is not None and (isinstance(rate, bool) or not isinstance(rate, int) or not 1 <= rate <= 1_000_000):
        raise Refused("unsupported", f"{where}rate {_shown(rate)}: expected samples a second, a whole number")
    if rate is not None and name == "raw":
        raise Refused("bad_message", f"{where}rate goes with sound: format pcm16 or float32")
    return Sound(name, rate)


def _have(given: Any) -> dict[str, int]:
    if not isinstance(given, dict) or len(given) > 1000:
        raise Refused("bad_message", "have: expected frames by output")
    for value in given.values():
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 62:
            raise Refused("bad_message", "have: expected numbers of frames")
    return dict(given)


def _flush(given: dict[str, Any]) -> Flush:
    _known(given, ())
    return Flush()


def _end_utterance(given: dict[str, Any]) -> EndUtterance:
    _known(given, ())
    return EndUtterance()


def _peek(given: dict[str, Any]) -> Peek:
    _known(given, ())
    return Peek()


def _ping(given: dict[str, Any]) -> Ping:
    _known(given, ("id",))
    name = given.get("id")
    if not isinstance(name, (str, int, type(None))) or len(str(name)) > 200:
        raise Refused("bad_message", "id: expected a short text or a whole number")
    return Ping(name)


def _ack(given: dict[str, Any]) -> Ack:
    _known(given, ("mark",))
    mark = given.get("mark")
    if isinstance(mark, bool) or not isinstance(mark, int) or not 0 <= mark < 1 << 62:
        raise Refused("bad_message", "mark: expected the number of a mark")
    return Ack(mark)


_PARSERS: Mapping[str, Any] = {
    "open": _open,
    "flush": _flush,
    "end_utterance": _end_utterance,
    "peek": _peek,
    "ping": _ping,
    "ack": _ack,
}


def _known(given: Mapping[str, Any], names: tuple[str, ...], where: str = "") -> None:
    for key in given:
        if key not in names:
            raise Refused("bad_message", f"unknown key {where}{_shown(key)}; there are {', '.join(names) or 'none'}")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _shown(value: Any) -> str:
    """Whatever a client sent, short enough to be said back."""
    text = str(value) if isinstance(value, Exception) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."

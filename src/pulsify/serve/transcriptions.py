"""POST /v1/audio/transcriptions, as clients of OpenAI's send it: a form with a .wav file, and what was said in it.

Also what they expect of /v1/models.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, PlainTextResponse, Response

from pulsify.serve import wav
from pulsify.serve.protocol import Refused
from pulsify.serve.whole import CHUNK, collected

if TYPE_CHECKING:
    from pulsify.serve.access import Client
    from pulsify.serve.service import Service
    from pulsify.serve.uploads import Held

FORMATS = ("json", "text", "verbose_json")
PARTS, LONGEST = 100, 1 << 16  # of a form; bytes of a field
HEAD = 2048  # bytes in front of a field: what they take to parse grows with their square


@dataclass(frozen=True)
class Form:
    """Fields by name, and the file."""

    fields: Mapping[str, list[str]]
    file: memoryview | None

    def one(self, name: str, usual: str = "") -> str:
        return self.fields.get(name, [usual])[-1]


def read_form(body: bytearray | memoryview, kind: str) -> Form:
    """multipart/form-data; Refused if it is none. The file stays where it is."""
    head = Message()
    head["content-type"] = kind if len(kind) <= HEAD else ""
    boundary = head.get_boundary()
    if head.get_content_type() != "multipart/form-data" or not boundary:
        raise Refused("unsupported", "expected multipart/form-data with a file")
    mark, fields, file = b"--" + boundary.encode("latin-1", "replace"), dict[str, list[str]](), None
    view = memoryview(body)
    at = 0 if bytes(view[: len(mark)]) == mark else _place(view, b"\r\n" + mark) + 2
    for _ in range(PARTS):
        at += len(mark)
        if bytes(view[at : at + 2]) == b"--":
            return Form(fields, file)
        begins, ends = _place(view, b"\r\n\r\n", at), _place(view, b"\r\n" + mark, at)
        if not 0 <= begins < ends or begins - at > HEAD:
            break
        about = _disposition(bytes(view[at:begins]))
        name, value = about.get_param("name", header="content-disposition"), view[begins + 4 : ends]
        if name == "file":
            file = value
        elif isinstance(name, str) and len(value) <= LONGEST:
            fields.setdefault(name.removesuffix("[]"), []).append(bytes(value).decode("utf-8", "replace"))
        at = ends + 2
    raise Refused("bad_message", "the form is not whole, or has too many parts")


def _place(view: memoryview, what: bytes, at: int = 0) -> int:
    """Where it is found first, or -1. Piece by piece: nothing else runs while a search goes on."""
    for start in range(at, len(view), CHUNK):
        place = bytes(view[start : start + CHUNK + len(what) - 1]).find(what)
        if place >= 0:
            return start + place
    return -1


def _disposition(head: bytes) -> Message:
    about = Message()
    for line in head.decode("utf-8", "replace").splitlines():
        name, colon, value = line.partition(":")
        if colon and name.strip().lower() == "content-disposition":
            about["content-disposition"] = value.strip()
    return about


async def transcribed(service: Service, body: memoryview, kind: str, client: Client, held: Held) -> Response:
    """The reply."""
    form = await asyncio.to_thread(read_form, body, kind)
    model, shape = form.one("model"), form.one("response_format", "json")
    if form.file is None:
        raise Refused("bad_message", "file: expected a .wav file")
    if shape not in FORMATS:
        raise Refused("unsupported", f"response_format {shape[:40]!r}: expected one of {', '.join(FORMATS)}")
    hosted = service.admit(service.named(model) if model else service.recogniser())
    if hosted.served.kind != "text":
        raise Refused("unknown_model", f"{hosted.served.name!r} is no recogniser")
    sound = wav.read(form.file)
    said = await collected(service, hosted, sound.opening, sound.pieces(CHUNK), client, held)
    texts = [each for each in said.said if each["type"] in ("text", "done")]
    words: list[Any] = [word for each in texts for word in each["words"]]  # type: ignore[attr-defined]
    text, seconds = str(texts[-1]["text"]), len(sound.samples) // (2 * sound.channels) / sound.rate
    if form.one("stream").lower() == "true":
        return _events([str(each["added"]) for each in texts[:-1]], text)
    if shape == "text":
        return PlainTextResponse(f"{text}\n")
    reply: dict[str, Any] = {"text": text, "usage": {"type": "duration", "seconds": round(seconds, 3)}}
    if shape == "verbose_json":
        reply |= _verbose(form, text, words, seconds)
    return JSONResponse(reply)


def _verbose(form: Form, text: str, words: list[Any], seconds: float) -> dict[str, Any]:
    """With times. The language is the one that was asked for: a recogniser knows none."""
    out: dict[str, Any] = {"task": "transcribe", "language": form.one("language"), "duration": round(seconds, 3)}
    detail = form.fields.get("timestamp_granularities", ["segment"])
    if "word" in detail:
        out["words"] = words
    if "segment" in detail:
        spans = {"start": words[0]["start"], "end": words[-1]["end"]} if words else {}
        out["segments"] = [{"id": 0, "seek": 0, **spans, "text": text, "tokens": []}] if words else []
    return out


def _events(added: list[str], text: str) -> Response:
    """For who asks for a stream."""
    events: list[dict[str, str]] = [{"type": "transcript.text.delta", "delta": each} for each in added]
    events.append({"type": "transcript.text.done", "text": text})
    lines = "".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in events)
    return Response(lines, media_type="text/event-stream")


def listed(service: Service, since: int) -> list[dict[str, Any]]:
    """Models, and their other names, in OpenAI's shape. since: seconds since 1970."""
    names = [*service.models, *(alias for alias, _ in service.settings.aliases if not set(alias) & set("*?["))]
    return [{"id": name, "object": "model", "created": since, "owned_by": "pulsify"} for name in dict.fromkeys(names)]

"""What a client may say, and what is said back."""

from __future__ import annotations

import json

import pytest

from pulsify.serve.protocol import CLOSE, Ack, Flush, Open, Peek, Ping, Refused, Sound, error, parse, said


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ('{"type": "open"}', Open()),
        ('{"type": "open", "format": "pcm16", "rate": 48000}', Open(Sound("pcm16", 48000))),
        ('{"type": "open", "output": {"format": "float32"}}', Open(output=Sound("float32"))),
        ('{"type": "open", "resume": true}', Open(resume=True)),
        ('{"type": "open", "resume": "abc", "have": {"y": 7}}', Open(resume=True, token="abc", have={"y": 7})),
        ('{"type": "flush"}', Flush()),
        ('{"type": "peek"}', Peek()),
        ('{"type": "ping"}', Ping()),
        ('{"type": "ping", "id": "x"}', Ping("x")),
        ('{"type": "ack", "mark": 3}', Ack(3)),
    ],
)
def test_what_is_understood(text: str, want: object) -> None:
    assert parse(text) == want


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "bad_message"),
        ("[]", "bad_message"),
        ("{", "bad_message"),
        ("[" * 100_000, "bad_message"),
        ('{"type": []}', "bad_message"),
        ('{"type": "nothing"}', "bad_message"),
        ('{"type": "open", "path": "/etc"}', "bad_message"),
        ('{"type": "open", "rate": 16000}', "bad_message"),
        ('{"type": "open", "format": "mp3"}', "unsupported"),
        ('{"type": "open", "format": ["pcm16"]}', "unsupported"),
        ('{"type": "open", "format": "pcm16", "rate": 0}', "unsupported"),
        ('{"type": "open", "format": "pcm16", "rate": true}', "unsupported"),
        ('{"type": "open", "format": "pcm16", "rate": 1e400}', "unsupported"),
        ('{"type": "open", "output": 3}', "bad_message"),
        ('{"type": "open", "resume": 1}', "bad_message"),
        ('{"type": "open", "resume": ""}', "bad_message"),
        ('{"type": "open", "have": {}}', "bad_message"),
        ('{"type": "open", "resume": "t", "format": "raw"}', "bad_message"),
        ('{"type": "open", "resume": "t", "have": {"y": -1}}', "bad_message"),
        ('{"type": "flush", "now": 1}', "bad_message"),
        ('{"type": "ack"}', "bad_message"),
        ('{"type": "ack", "mark": "1"}', "bad_message"),
        ('{"type": "ping", "id": NaN}', "bad_message"),
        ('{"type": "ping", "id": {}}', "bad_message"),
        (f'{{"type": "ack", "mark": {"9" * 5000}}}', "bad_message"),
    ],
)
def test_what_is_not(text: str, code: str) -> None:
    with pytest.raises(Refused) as refused:
        parse(text)
    assert refused.value.code == code and len(refused.value.message) < 300


def test_what_the_server_says() -> None:
    assert json.loads(said("pong", id="\ud800")) == {"type": "pong", "id": "\ud800"}
    assert json.loads(error(Refused("idle", "nothing came"))) == {
        "type": "error", "code": "idle", "message": "nothing came",
    }  # fmt: skip


def test_every_code_is_on_the_page() -> None:
    from pathlib import Path

    page = (Path(__file__).parents[3] / "docs" / "serve.md").read_text()
    assert [code for code in CLOSE if f"| `{code}` |" not in page] == []

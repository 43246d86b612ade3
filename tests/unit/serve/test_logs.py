"""Log lines: one per event, whatever is in them."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from pulsify.serve import logs


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root, own = logging.getLogger(), logging.getLogger("pulsify")
    before = list(root.handlers), root.level, own.level
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    own.setLevel(before[2])


def logged(form: str, level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    logs.configure(level, form, stream)
    return stream


def test_a_line_for_people() -> None:
    stream = logged("text")
    logging.getLogger("pulsify.serve").info("ended", extra=logs.fields(stream="a-1", client="10.0.0.1:5", token=None))
    (line,) = stream.getvalue().splitlines()
    time, rest = line.split(" ", 1)
    assert time.endswith("Z") and len(time) == len("2026-01-31T12:00:00.123Z")
    assert rest == "INFO ended stream=a-1 client=10.0.0.1:5"


def test_what_clients_send_cannot_forge_a_line() -> None:
    stream = logged("text")
    log = logging.getLogger("pulsify.serve")
    log.warning("refused a\nb", extra=logs.fields(model='x\n2026 INFO fake="1"', empty=""))
    (line,) = stream.getvalue().splitlines()
    assert line.endswith(r'WARNING refused a\nb model="x\n2026 INFO fake=\"1\"" empty=""')


def test_json_lines_and_exceptions() -> None:
    stream = logged("json")
    log = logging.getLogger("pulsify.serve")
    log.info("ended", extra=logs.fields(seconds=1.5, model="m\n"))
    try:
        raise ValueError("why")
    except ValueError:
        log.exception("failed")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert {k: first[k] for k in ("level", "message", "seconds", "model")} == {
        "level": "info", "message": "ended", "seconds": 1.5, "model": "m\n",
    }  # fmt: skip
    assert second["level"] == "error" and "ValueError: why" in second["exception"]


def test_levels() -> None:
    stream = logged("text", "warning")
    logging.getLogger("pulsify.serve").info("not shown")
    logging.getLogger("another").info("not shown")
    logging.getLogger("another").error("shown")
    assert [line.split(" ", 1)[1] for line in stream.getvalue().splitlines()] == ["ERROR shown"]
    stream = logged("text", "debug")
    logging.getLogger("pulsify.serve").debug("shown")
    logging.getLogger("another").info("not shown")
    assert len(stream.getvalue().splitlines()) == 1

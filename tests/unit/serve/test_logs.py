"""Log lines: one per event, whatever is in them."""

from __future__ import annotations

import io
import json
import logging
import threading
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


def written(stream: io.StringIO) -> str:
    logging.getLogger().handlers[0].flush()
    return stream.getvalue()


def test_a_line_for_people() -> None:
    stream = logged("text")
    logging.getLogger("pulsify.serve").info("ended", extra=logs.fields(stream="a-1", client="10.0.0.1:5", token=None))
    (line,) = written(stream).splitlines()
    time, rest = line.split(" ", 1)
    assert time.endswith("Z") and len(time) == len("2026-01-31T12:00:00.123Z")
    assert rest == "INFO ended stream=a-1 client=10.0.0.1:5"


def test_what_clients_send_cannot_forge_a_line() -> None:
    stream = logged("text")
    log = logging.getLogger("pulsify.serve")
    log.warning("refused a\nb", extra=logs.fields(model='x\n2026 INFO fake="1"', empty=""))
    (line,) = written(stream).splitlines()
    assert line.endswith(r'WARNING refused a\nb model="x\n2026 INFO fake=\"1\"" empty=""')


def test_json_lines_and_exceptions() -> None:
    stream = logged("json")
    log = logging.getLogger("pulsify.serve")
    log.info("ended", extra=logs.fields(seconds=1.5, model="m\n"))
    try:
        raise ValueError("why")
    except ValueError:
        log.exception("failed")
    first, second = map(json.loads, written(stream).splitlines())
    assert {k: first[k] for k in ("level", "message", "seconds", "model")} == {
        "level": "info", "message": "ended", "seconds": 1.5, "model": "m\n",
    }  # fmt: skip
    assert second["level"] == "error" and "ValueError: why" in second["exception"]


def test_levels() -> None:
    stream = logged("text", "warning")
    logging.getLogger("pulsify.serve").info("not shown")
    logging.getLogger("another").info("not shown")
    logging.getLogger("another").error("shown")
    assert [line.split(" ", 1)[1] for line in written(stream).splitlines()] == ["ERROR shown"]
    stream = logged("text", "debug")
    logging.getLogger("pulsify.serve").debug("shown")
    logging.getLogger("another").info("not shown")
    assert len(written(stream).splitlines()) == 1


class Stuck(io.StringIO):
    """Nobody reads what is written to it, until `go`."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def write(self, text: str) -> int:
        self.go.wait(30)
        return super().write(text)


def test_a_log_that_nobody_reads_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "WAITING", 50)
    stream = Stuck()
    logs.configure("info", "text", stream)
    log = logging.getLogger("pulsify.serve")
    for number in range(1000):
        log.warning("line %d", number)  # not one of them waits
    stream.go.set()
    (handler,) = logging.getLogger().handlers
    handler.flush()
    log.info("the next one")
    lines = written(stream).splitlines()
    assert "line 0" in lines[0] and lines[-1].endswith("the next one")
    left_out = sum(int(line.split("WARNING ")[1].split()[0]) for line in lines if "were left out" in line)
    kept = sum(" WARNING line " in line for line in lines)
    assert kept + left_out == 1000 and left_out > 800


def test_one_message_does_not_fill_a_disk() -> None:
    stream = logged("text")
    (handler,) = logging.getLogger().handlers

    def at(second: float, text: str, count: int, level: int) -> None:
        for _ in range(count):
            record = logging.LogRecord("pulsify.serve", level, "", 0, text, (), None)
            record.created = second
            handler.handle(record)

    at(1000.5, "rejected", logs.OFTEN + 95, logging.INFO)
    at(1000.6, "a fault", logs.OFTEN + 95, logging.WARNING)
    at(1000.7, "opened", 1, logging.INFO)
    at(1001.0, "rejected", 1, logging.INFO)
    said = [line.split(" ", 1)[1] for line in written(stream).splitlines()]
    left_out = "WARNING 95 lines like 'rejected' were left out: too many in a second"
    faults = ["WARNING a fault"] * (logs.OFTEN + 95)
    assert said == [*["INFO rejected"] * logs.OFTEN, *faults, "INFO opened", left_out, "INFO rejected"]

"""Log lines on stderr: time, level, message and fields, for people or as a JSON object each.

log.info("stream ended", extra=fields(stream="c0ffee-7", client="10.0.0.3:51234", seconds=2.5))

2026-01-31T12:00:00.123Z INFO stream ended stream=c0ffee-7 client=10.0.0.3:51234 seconds=2.5
{"time": "2026-01-31T12:00:00.123Z", "level": "info", "message": "stream ended", "stream": "c0ffee-7", ...}
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from typing import Any, TextIO

PLAIN = re.compile(r"[!#-<>-\[\]-~]+")  # printed without quotes: no spaces, quotes, equals signs or control characters

WAITING, AT_ONCE = 10_000, 256  # lines that may wait to be written, and those that are written in one call
PATIENCE = 1.0  # seconds for the last lines
OFTEN = 200  # lines a second of one message
log = logging.getLogger("pulsify.serve")


def fields(**values: Any) -> dict[str, Any]:
    """Facts of a log line, by name; None is left out."""
    return {"fields": {name: value for name, value in values.items() if value is not None}}


def configure(level: str = "info", form: str = "text", stream: TextIO | None = None) -> None:
    """All loggers of this process, uvicorn's too, in one format."""
    root = logging.getLogger()
    root.handlers[:] = [Aside(stream or sys.stderr, JsonLines() if form == "json" else TextLines())]
    root.setLevel(max(getattr(logging, level.upper()), logging.WARNING))  # other packages: warnings only
    logging.getLogger("pulsify").setLevel(level.upper())


class Aside(logging.Handler):
    """Lines are written by a thread of their own: whoever reads them slowly, or not at all, holds up nobody."""

    def __init__(self, stream: TextIO, lines: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(lines)
        self._stream, self._left_out = stream, 0
        self._waiting: SimpleQueue[str] = SimpleQueue()
        self.addFilter(Seldom())
        self._taken = self._written = 0  # lines; the first is the caller's to write, the second the thread's
        threading.Thread(target=self._write, name="pulsify-log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        if self._waiting.qsize() >= WAITING:
            self._left_out += 1
            return
        if self._left_out:
            left, self._left_out = self._left_out, 0
            log.warning("%d lines were left out: the log is not read", left)
        self._taken += 1
        self._waiting.put(self.format(record))

    def flush(self) -> None:
        """For a moment, until everything is written. Called as the process ends, too."""
        end = time.monotonic() + PATIENCE
        while self._written < self._taken and time.monotonic() < end:
            time.sleep(0.002)

    def _write(self) -> None:
        while True:
            lines = [self._waiting.get()]
            with suppress(Empty):
                while len(lines) < AT_ONCE:
                    lines.append(self._waiting.get_nowait())
            with suppress(OSError, ValueError):  # nobody reads it any more
                self._stream.write("".join(f"{line}\n" for line in lines))
                self._stream.flush()
            self._written += len(lines)


class Seldom(logging.Filter):
    """Of one message, so many lines a second: a flood of clients that may not come in does not fill a disk."""

    def __init__(self, most: int = OFTEN) -> None:
        super().__init__()
        self._most, self._second, self._counts = most, 0, Counter[str]()

    def filter(self, record: logging.LogRecord) -> bool:
        """Faults are let through always."""
        if record.levelno > logging.INFO:
            return True
        if int(record.created) != self._second:
            counts, self._second, self._counts = self._counts, int(record.created), Counter()
            for text, count in counts.items():
                if count > self._most:
                    log.warning("%d lines like '%s' were left out: too many in a second", count - self._most, text)
        self._counts[str(record.msg)] += 1
        return self._counts[str(record.msg)] <= self._most


class TextLines(logging.Formatter):
    """For people. What clients sent cannot break a line."""

    def format(self, record: logging.LogRecord) -> str:
        facts = "".join(f" {name}={_shown(value)}" for name, value in _fields(record).items())
        text = f"{_time(record)} {record.levelname} {_one_line(record.getMessage())}{facts}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class JsonLines(logging.Formatter):
    """For machines."""

    def format(self, record: logging.LogRecord) -> str:
        facts = {"time": _time(record), "level": record.levelname.lower(), "message": record.getMessage()}
        facts |= _fields(record)
        if record.exc_info:
            facts["exception"] = self.formatException(record.exc_info)
        return json.dumps(facts, default=str)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return getattr(record, "fields", {})


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _shown(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if PLAIN.fullmatch(text) else json.dumps(text)


def _one_line(text: str) -> str:
    return text if text.isprintable() else json.dumps(text)[1:-1]

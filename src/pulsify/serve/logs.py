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
from datetime import UTC, datetime
from typing import Any, TextIO

PLAIN = re.compile(r"[!#-<>-\[\]-~]+")  # printed without quotes: no spaces, quotes, equals signs or control characters


def fields(**values: Any) -> dict[str, Any]:
    """Facts of a log line, by name; None is left out."""
    return {"fields": {name: value for name, value in values.items() if value is not None}}


def configure(level: str = "info", form: str = "text", stream: TextIO | None = None) -> None:
    """All loggers of this process, uvicorn's too, in one format."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(getattr(logging, level.upper()), logging.WARNING))  # other packages: warnings only
    logging.getLogger("pulsify").setLevel(level.upper())


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

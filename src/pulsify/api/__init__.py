"""The public face: `stream`, `load`, `verify`, `export`, and the `Stream` they work on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsify.api.arguments import check_rate
from pulsify.api.making import stream
from pulsify.api.model import Stream
from pulsify.api.reading import load
from pulsify.api.using import export, verify

if TYPE_CHECKING:
    from pulsify.api.making import Example, Model

    __all__ = ["Example", "Model", "Stream", "check_rate", "export", "load", "stream", "verify"]
else:
    __all__ = ["Stream", "check_rate", "export", "load", "stream", "verify"]

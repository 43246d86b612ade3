"""The page about a stream that is there already: `Stream.report`."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pulsify.core.errors import InvalidArgument
from pulsify.core.progress import tell
from pulsify.report.document import Asked, report_figures
from pulsify.report.page import page

if TYPE_CHECKING:
    from pulsify.api import Stream


def write_page(
    stream: Stream, source: Any, meaning: Mapping[str, Any], path: str | os.PathLike[str], seconds: float
) -> None:
    """Write one HTML file. seconds: for each of the measurements."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < math.inf:
        raise InvalidArgument(f"seconds={seconds!r}: expected a number of seconds, at least 0")
    target = Path(path)
    if not target.absolute().parent.is_dir():  # said before the work
        raise InvalidArgument(f"{target.name!r} cannot be written: there is no folder {target.parent.name!r}")
    asked = Asked(source, stream.pulse, meaning, stream.sample_rate, seconds, tell, stream)
    target.write_text(page(report_figures(asked)), "utf-8")

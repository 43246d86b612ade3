"""Where things are kept that can be made again: the user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache() -> Path:
    """pulsify's own part of it."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "pulsify"

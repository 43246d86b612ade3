"""Exported pages, opened in a real browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import pulsify
from pulsify.core.cache import user_cache
from pulsify.export.web import PARTS, RUNTIME
from tests.browser import hosted

FLAGS = (  # a microphone that needs no leave, and sound that needs no click
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
    "--autoplay-policy=no-user-gesture-required",
)


def exported(stream: pulsify.Stream, folder: Path, native: bool) -> None:
    """The page, or a skip that says what is missing."""
    there = all((user_cache() / f"onnxruntime-web-{RUNTIME}" / name).is_file() for name in PARTS)
    if native:
        pytest.importorskip("ziglang", reason="pip install ziglang")
    elif not there and shutil.which("npm") is None:
        pytest.skip("neither onnxruntime-web nor npm is here")
    stream.export(folder, "web", native=native)


@contextmanager
def shown(browser: Any, folder: Path) -> Iterator[Any]:
    """The page, ready; nothing may have failed in it."""
    faults: list[str] = []
    with hosted(folder) as url:
        page = browser.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
        page.goto(url)
        page.wait_for_selector("body[data-state=ready]", timeout=60_000)
        yield page
        page.close()
    assert not faults

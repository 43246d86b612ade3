"""Streams of models that come with pulsify, kept converted in the user's cache folder.

A kept stream is used only for the same model, the same options, the same pulsify and the same packages that convert and
check it: all of that is in its name. Whatever is wrong with the folder, the model is converted again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pulsify.api import Stream, load
from pulsify.core.cache import user_cache
from pulsify.core.errors import PulsifyError

PACKAGES = ("onnx", "onnx-ir", "onnxruntime", "numpy")
FILE = "stream.onnx"
MOST = 8  # streams that are kept: older ones are of an earlier pulsify


def kept(model: Path, options: object, convert: Callable[[], Stream]) -> Stream:
    """The stream of a model file as it was kept, or converted now, and kept if there is a place."""
    try:
        folder = cache_folder()
        place = folder / _name(model.read_bytes(), repr(options))
    except (OSError, RuntimeError):  # no home, or files that cannot be read
        return convert()
    with suppress(OSError, PulsifyError), warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        found = load(place / FILE, check="full")
        os.utime(place)
        return found
    made = convert()
    with suppress(OSError, PulsifyError):
        _keep(made, folder, place)
    return made


def cache_folder() -> Path:
    own = os.environ.get("PULSIFY_CACHE")
    return (Path(own) if own else user_cache()) / "streams"


def _name(model: bytes, options: str) -> str:
    return hashlib.sha256("\0".join([hashlib.sha256(model).hexdigest(), options, _made_by()]).encode()).hexdigest()


@cache
def _made_by() -> str:
    """What a conversion depends on beside the model: this very code, and the packages it calls."""
    root, digest = Path(__file__).parent.parent, hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        digest.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes())
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            digest.update(f"{package} {version(package)}\0".encode())
    return digest.hexdigest()


def _keep(made: Stream, folder: Path, place: Path) -> None:
    """In one step: another process sees all of it or nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".new-") as temporary:
        inside = Path(temporary) / "kept"
        inside.mkdir()
        made.save(inside / FILE, share=False)
        if place.exists():  # damaged, or another process was quicker
            shutil.rmtree(place, ignore_errors=True)
        os.replace(inside, place)
    by_age = sorted((p for p in folder.iterdir() if not p.name.startswith(".")), key=lambda p: -p.stat().st_mtime)
    for old in by_age[MOST:]:
        shutil.rmtree(old, ignore_errors=True)

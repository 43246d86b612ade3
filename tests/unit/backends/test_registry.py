"""Back ends by name: an unknown one lists those there are, a missing dependency says what to install."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from pulsify.backends import registry
from pulsify.core.errors import InvalidArgument


@pytest.mark.parametrize("name", ["cuda", "", None, ["ort"]])
def test_an_unknown_name_lists_those_there_are(name: Any) -> None:
    with pytest.raises(InvalidArgument, match="there are ort, reference"):
        registry.backend(name)


@pytest.mark.parametrize("name", registry.names())
def test_every_name_is_a_back_end(name: str) -> None:
    found = registry.backend(name)
    assert callable(found.lower) and callable(found.compile)


def test_a_missing_dependency_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    registry.register("toy", "no_such_package.backend", "pulsify[toy]")
    with pytest.raises(InvalidArgument, match=r"needs no_such_package, .* pip install 'pulsify\[toy\]'"):
        registry.backend("toy")


@pytest.mark.parametrize(
    ("code", "error", "said"),
    [
        ("from pulsify.backends.seam import misspelt", ImportError, "cannot import name 'misspelt'"),
        ("Backend = object()", InvalidArgument, "toy_backend has no BACKEND"),
    ],
)
def test_a_fault_of_the_module_is_not_a_missing_dependency(
    code: str, error: type[Exception], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "toy_backend.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "toy_backend", raising=False)
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    registry.register("toy", "toy_backend", "pulsify[toy]")
    with pytest.raises(error, match=said):
        registry.backend("toy")

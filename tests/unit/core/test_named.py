"""What is missing is named, with the command that installs it."""

from __future__ import annotations

import sys

import pytest

import pulsify
from pulsify.core.named import Entry, imported, install_hint


def test_torch_is_not_brought_with_cuda_by_surprise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    from pulsify.frontend.program import as_onnx
    from pulsify.frontend.torch import export

    for call in (lambda: export(object(), None, None), lambda: as_onnx("model.pt2")):
        with pytest.raises(pulsify.InvalidArgument, match=r"pulsify\[torch\]'; without a GPU, install PyTorch's CPU"):
            call()


def test_other_extras_are_plain() -> None:
    assert install_hint("pulsify[native]") == "pip install 'pulsify[native]'"
    entries = {"x": Entry("no_such_module_at_all", "what-it-needs")}
    with pytest.raises(pulsify.InvalidArgument, match=r"needs no_such_module_at_all, .*: pip install 'what-it-needs'"):
        imported("backend", "BACKEND", entries, "x")

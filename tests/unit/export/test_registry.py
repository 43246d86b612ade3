"""Export targets by name, and the one there is: plain ONNX."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from pulsify.backends.seam import Opening
from pulsify.core.errors import InvalidArgument
from pulsify.core.spec import Spec
from pulsify.export import registry
from pulsify.export.onnx import TARGET, Onnx
from tests.models import close, frames, run_batch
from tests.unit.graphs import ops
from tests.unit.specs import remembers


@pytest.mark.parametrize("name", ["tflite", "", None, ["onnx"]])
def test_an_unknown_name_lists_those_there_are(name: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"target=.*there are onnx"):
        registry.target(name)


def test_a_target_from_outside_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    class Text:
        def write(self, model: ir.Model, spec: Spec, path: Path) -> None:
            path.write_text(" ".join(ops(model)))

    module = ModuleType("outside")
    module.TARGET = Text()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "outside", module)
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    before = registry.names()
    registry.register("text", "outside", "pulsify[text]")
    assert registry.target("text") is module.TARGET and registry.names() == [*before, "text"]


def test_a_missing_dependency_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    registry.register("toy", "no_such_package.target", "pulsify[toy]")
    with pytest.raises(InvalidArgument, match=r"needs no_such_package, .* pip install 'pulsify\[toy\]'"):
        registry.target("toy")


def test_what_is_written_is_a_plain_file_that_computes_the_same_and_the_model_stays(tmp_path: Path) -> None:
    model, spec = remembers()
    model.metadata_props["own"] = "kept"
    before = ops(model)
    TARGET.write(model, spec, tmp_path / "step.onnx")
    written = onnx.load(tmp_path / "step.onnx")
    onnx.checker.check_model(written)
    assert ops(model) == before and model.metadata_props == {"own": "kept"}
    feeds = {"x": frames(1, 2, 4), "s": np.zeros((1, 2, 2), np.float32)}
    close(run_batch(written, feeds)["y"], run_batch(ir.to_proto(model), feeds)["y"])


@pytest.mark.parametrize("opened", [None, Opening(*remembers())])
def test_an_opening_goes_to_targets_that_hold_one(opened: Opening | None) -> None:
    class Alone:
        def write(self, model: ir.Model, spec: Spec, path: Path) -> None: ...

    for name in ("onnx", "c"):
        held: Any = registry.with_opening(name, registry.target(name), opened)
        assert held.opening is opened
    alone = Alone()
    if opened is None:
        assert registry.with_opening("alone", alone, opened) is alone
    else:
        with pytest.raises(InvalidArgument, match=r"'alone' takes one graph.*opening=False"):
            registry.with_opening("alone", alone, opened)


@pytest.mark.parametrize("share", [True, False])
def test_weights_that_lie_beside_the_file_are_read_there_if_they_are_shared(share: bool, tmp_path: Path) -> None:
    model, spec = remembers()
    ir.save(model, tmp_path / "batch.onnx", external_data="batch.data", size_threshold_bytes=1)
    own = ir.load(tmp_path / "batch.onnx")
    Onnx(share).write(own, spec, tmp_path / "step.onnx")
    kept = {e.value for t in onnx.load(tmp_path / "step.onnx", load_external_data=False).graph.initializer
            for e in t.external_data if e.key == "location"}  # fmt: skip
    assert ("batch.data" in kept) is share
    feeds = {"x": frames(1, 2, 4), "s": np.zeros((1, 2, 2), np.float32)}
    close(run_batch(onnx.load(tmp_path / "step.onnx"), feeds)["y"], run_batch(ir.to_proto(model), feeds)["y"])

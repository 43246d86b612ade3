"""Programs of torch.export: a file, or in memory; what is no such file, or has no time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import pulsify

torch = pytest.importorskip("torch")


class Normalised(torch.nn.Module):  # type: ignore[misc, name-defined]
    def forward(self, x: Any) -> Any:
        return x - x.mean(-1, keepdim=True)


def program(free: bool = True) -> object:
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv1d(2, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv1d(4, 3, 5, padding=2)
    ).eval()
    shapes = ({2: torch.export.Dim("T", min=2)},) if free else None
    return torch.export.export(module, (torch.randn(1, 2, 50),), dynamic_shapes=shapes)


def test_a_program_streams_as_it_is_and_from_its_file(tmp_path: Path) -> None:
    made, path = program(), tmp_path / "m.pt2"
    torch.export.save(made, path)
    for source in (made, path, str(path)):
        stream = pulsify.stream(source, pulse=4)
        for length in (2, 3, 9, 41):
            x = torch.randn(1, 2, length)
            got = stream.run(x.numpy(), chunks=3, padding=float("nan"))
            np.testing.assert_allclose(got, made.module()(x).detach().numpy(), atol=1e-5)  # type: ignore[attr-defined]
    assert pulsify.verify(path, stream).error < 1e-6


def test_what_cannot_be_meant_is_said(tmp_path: Path) -> None:
    (tmp_path / "junk.pt2").write_bytes(b"junk")
    with pytest.raises(pulsify.InvalidModel, match=r"'junk\.pt2' is no program that torch\.export\.load reads"):
        pulsify.stream(tmp_path / "junk.pt2")
    with pytest.raises(pulsify.InvalidModel, match=r"no such model file: 'none\.pt2'"):
        pulsify.stream(tmp_path / "none.pt2")
    with pytest.raises(pulsify.InvalidModel, match=r"all sizes of the program are fixed.*dynamic_shapes"):
        pulsify.stream(program(free=False))  # type: ignore[arg-type]


def test_a_program_is_compared_at_other_sizes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """An export that is the program at the example's length only is none of it."""
    export = torch.onnx.export

    def fixed(given: object, **options: object) -> object:
        made = export(given, **options)
        (conv,) = [n for n in made.model.graph if n.op_type == "Conv" and n.inputs[0].name == "relu"]
        size = ir.tensor(np.array([0, 0, 50], np.int64), name="size")
        cut = ir.Node("", "Reshape", [conv.inputs[0], ir.Value(name="size", const_value=size)], num_outputs=1)
        made.model.graph.register_initializer(cut.inputs[1])
        made.model.graph.insert_before(conv, cut)
        conv.replace_input_with(0, cut.outputs[0])
        return made

    monkeypatch.setattr(torch.onnx, "export", fixed)
    with pytest.raises(pulsify.InvalidModel, match="the export fails at length 51, where the module runs"):
        pulsify.stream(program())  # type: ignore[arg-type]


def test_a_refused_program_names_the_line_of_its_module() -> None:
    free = ({2: torch.export.Dim("T", min=2)},)
    made = torch.export.export(Normalised(), (torch.randn(1, 2, 50),), dynamic_shapes=free)
    with pytest.raises(pulsify.NotStreamable) as error:
        pulsify.stream(made)
    assert error.value.line.endswith("in forward: `return x - x.mean(-1, keepdim=True)`")

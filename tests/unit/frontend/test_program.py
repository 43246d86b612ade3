"""Programs of torch.export: a file, or in memory; what is no such file, or has no time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import pulsify

torch = pytest.importorskip("torch")


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

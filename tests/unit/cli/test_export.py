"""`pulsify export`: every target by its name, its own options, and what it tells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner

import pulsify
from pulsify.cli.export import export
from pulsify.cli.main import main
from tests import models
from tests.unit.export.test_onnx import front_end


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    onnx.save(models.look_ahead(1), tmp_path / "batch.onnx")
    pulsify.stream(tmp_path / "batch.onnx", pulse=4, verify=False).save(tmp_path / "stream.onnx")
    return tmp_path / "stream.onnx"


def told(*given: str) -> Any:
    done = CliRunner().invoke(main, ["export", *given, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


def test_half_precision_tells_its_error(stream: Path) -> None:
    facts = told(str(stream), "--to", "onnx", "-o", str(stream.parent / "half.onnx"), "--fp16", "--opset", "15")
    assert 0 < facts["rounding"]["y"] < 5e-3 and set(facts["files"]) == {"half.onnx"}
    shown = CliRunner().invoke(
        main, ["export", str(stream), "--to", "onnx", "-o", str(stream.parent / "h.onnx"), "--fp16"]
    )
    assert "relative error of y" in shown.output and "scale" not in shown.output


def test_a_repository_s_files_are_listed_with_their_folders(stream: Path) -> None:
    facts = told(
        str(stream), "--to", "triton", "-o", str(stream.parent / "out"), "--name", "net", "--strategy", "direct"
    )
    assert set(facts["files"]) == {
        "models/net/config.pbtxt", "models/net/1/model.onnx", "stream.json", "frames.py", "client.py"
    }  # fmt: skip
    assert "direct {" in (stream.parent / "out" / "models" / "net" / "config.pbtxt").read_text()


def test_a_front_end_is_merged(stream: Path) -> None:
    onnx.save(front_end(), stream.parent / "front.onnx")
    given = ["--merge-front-end", str(stream.parent / "front.onnx"), "--model", str(stream.parent / "batch.onnx")]
    told(str(stream), "--to", "onnx", "-o", str(stream.parent / "whole.onnx"), *given)
    assert [i.name for i in pulsify.load(stream.parent / "whole.onnx").inputs] == ["samples"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--to", "tflite"], "there are onnx, c, openvino, web, triton, sherpa-onnx"),
        (["--to", "c", "--fp16"], "unknown ['fp16']: the target 'c' takes weights, name"),
        (["--to", "sherpa-onnx"], "--tokens FILE is missing"),
        (["--to", "onnx", "--ort-format"], "is called *.ort"),
    ],
)
def test_what_does_not_fit_says_what_does(given: list[str], says: str, stream: Path) -> None:
    done = CliRunner().invoke(main, ["export", str(stream), "-o", str(stream.parent / "out"), *given])
    assert done.exit_code and says in " ".join(done.output.split())


def test_every_option_belongs_to_a_target_and_the_other_way_round() -> None:
    from dataclasses import fields

    from pulsify.export import registry

    here = {p.name for p in export.params} - {
        "stream",
        "target",
        "output",
        "as_json",
        "quiet",
        "merge_front_end",
        "model",
    }
    targets: list[Any] = [registry.target(n) for n in registry.names()]
    theirs = {f.name for t in targets for f in fields(t) if f.type in registry.KINDS}
    assert here == theirs - {"share"}

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
        (["--to", "c", "--fp16"], "--fp16 is no option of --to c: it takes --weights, --name"),
        (["--to", "sherpa-onnx"], "--tokens FILE is missing"),
        (["--to", "onnx", "--ort-format"], "is called *.ort"),
        (["--to", "onnx", "--native"], "--native is no option of --to onnx: it takes --fp16, --opset, --ort-format"),
        (["--to", "triton", "--batch", "0"], "0 is not in the range x>=1"),
        (["--to", "triton", "--sequences", "0"], "0 is not in the range x>=1"),
        (["--to", "onnx", "--opset", "0"], "0 is not in the range x>=1"),
        (["--to", "triton", "--model", "m.onnx"], "--model FILE goes with --merge-front-end"),
        (["--to", "triton", "--sample-rate", "8000"], "--sample-rate N goes with --merge-front-end"),
    ],
)
def test_what_does_not_fit_says_what_does(given: list[str], says: str, stream: Path) -> None:
    done = CliRunner().invoke(main, ["export", str(stream), "-o", str(stream.parent / "out"), *given])
    assert done.exit_code and says in " ".join(done.output.split())


def test_a_front_end_that_does_not_fit_says_so_without_python_s_words(stream: Path) -> None:
    given = ["--merge-front-end", str(stream.parent / "batch.onnx"), "--model", str(stream.parent / "batch.onnx")]
    done = CliRunner().invoke(main, ["export", str(stream), "--to", "triton", "-o", str(stream.parent / "out"), *given])
    assert done.exit_code and "the front end does not fit: 'y' (float [1, 3" in " ".join(done.output.split())


def test_only_files_of_this_export_are_listed(stream: Path) -> None:
    out = stream.parent / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    own = {"models/net/config.pbtxt", "models/net/1/model.onnx", "stream.json", "frames.py", "client.py"}
    for _ in range(2):
        assert set(told(str(stream), "--to", "triton", "-o", str(out), "--name", "net")["files"]) == own


def test_a_folder_is_no_file(stream: Path) -> None:
    done = CliRunner().invoke(main, ["export", str(stream), "--to", "onnx", "-o", str(stream.parent)])
    assert done.exit_code and "is a folder: onnx takes a file" in " ".join(done.output.split())


def test_a_repository_here_is_called_as_the_folder_is(stream: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (stream.parent / "here").mkdir()
    monkeypatch.chdir(stream.parent / "here")
    assert "models/here/config.pbtxt" in told(str(stream), "--to", "triton", "-o", ".")["files"]


def test_half_precision_in_the_runtime_s_own_format_tells_its_error(stream: Path) -> None:
    plain = told(str(stream), "--to", "onnx", "-o", str(stream.parent / "s.onnx"))
    half = told(str(stream), "--to", "onnx", "-o", str(stream.parent / "half.onnx"), "--fp16")
    own = told(str(stream), "--to", "onnx", "-o", str(stream.parent / "half.ort"), "--fp16", "--ort-format")
    assert own["rounding"] == half["rounding"] and 0 < own["rounding"]["y"] < 5e-3
    assert own["state_bytes"] == half["state_bytes"] < plain["state_bytes"]


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
        "sample_rate",
    }
    targets: list[Any] = [registry.target(n) for n in registry.names()]
    theirs = {f.name for t in targets for f in fields(t) if f.type in registry.KINDS}
    assert here == theirs - {"share"}

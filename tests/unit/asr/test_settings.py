"""The file that describes a recogniser: read, or told what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsify.asr.settings import Names, read_settings
from pulsify.core.errors import InvalidModel

CTC = 'kind = "ctc"\nsample_rate = 16000\nencoder = "e.onnx"\nvocabulary = "v.txt"\n'
RNNT = CTC.replace("ctc", "rnnt")


def written(folder: Path, text: str) -> Path:
    for name in ("e.onnx", "v.txt", "d.onnx", "j.onnx"):
        (folder / name).touch()
    (folder / "asr.toml").write_text(text)
    return folder / "asr.toml"


def test_paths_are_relative_to_the_file_and_the_rest_has_defaults(tmp_path: Path) -> None:
    found = read_settings(written(tmp_path, CTC))
    assert found.encoder == tmp_path / "e.onnx" and found.names == Names() and found.max_symbols == 10
    assert found.preprocessor is None and found.blank is None and found.pulse is None
    two = read_settings(written(tmp_path, RNNT + 'decoder = "d.onnx"\njoint = "j.onnx"\n[names]\ntargets = "t"\n'))
    assert two.decoder == tmp_path / "d.onnx" and two.names.targets == "t"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kind = ", "is not a readable TOML file"),
        ('kind = "ctc"', "the key 'sample_rate' is missing"),
        (CTC + "extra = 1", "unknown key 'extra'; they are kind"),
        (CTC.replace('"ctc"', '"llm"'), 'kind = "llm": expected "ctc" or "rnnt"'),
        (CTC.replace("16000", "0"), "sample_rate = 0: expected 1 or more"),
        (CTC.replace("16000", "true"), "sample_rate = True: expected a whole number"),
        (CTC.replace("e.onnx", "f.onnx"), "encoder = 'f.onnx': no such file"),
        (CTC + 'joint = "j.onnx"', "'joint' is for kind = \"rnnt\""),
        (RNNT + 'decoder = "d.onnx"', "takes either decoder and joint"),
        (CTC + "pulse = 4\n[encoder_options]\npulse = 4", "pulse is given twice"),
        (CTC + "[encoder_options]\nspeed = 4", r"unknown key in \[encoder_options\] 'speed'"),
        (CTC + "[preprocessor_options]\npulse = 4", "without a preprocessor"),
        (CTC + "[names]\ntargets = 1", "names.targets: expected text"),
    ],
)
def test_what_is_wrong_is_told_with_the_files_name(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match=says) as refused:
        read_settings(written(tmp_path, text))
    assert "asr.toml" in str(refused.value)


def test_no_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match=r"no such file: 'none\.toml'"):
        read_settings(tmp_path / "none.toml")

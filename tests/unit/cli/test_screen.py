"""Progress: every command that may take long says what it does and how far it is, on a terminal and nowhere else."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import pulsify
from pulsify.cli.main import main
from pulsify.core.status_line import TerminalLine
from tests import models
from tests.unit.export import test_sherpa

BRIEFLY = ["--seconds", "0.01"]
COMMANDS = {
    "stream": (
        ["stream", "{batch}", "-p", "4"],
        ["converting batch.onnx: node 1 of", "checking against the batch model: by pulses, stream 1 of"],
    ),
    "verify": (
        ["verify", "{batch}", "{stream}"],
        ["side by side: batch model, length 1 of", "side by side: by pulses, stream 1 of"],
    ),
    "bench": (
        ["bench", "{batch}", "-p", "4", *BRIEFLY],
        ["converting batch.onnx: node 1 of", "timing the stream"],
    ),
    "sweep": (["bench", "{batch}", *BRIEFLY], ["trying pulses: node 1 of", "checking pulse "]),
    "run": (["run", "{batch}", "{sound}", "-p", "4"], ["opening batch.onnx: node 1 of"]),
    "inspect": (["inspect", "{batch}", "-p", "4"], ["looking at batch.onnx: ", "finding windows"]),
    "report": (["report", "{batch}", *BRIEFLY, "-o", "{page}"], ["converting: node 1 of", "timing every node"]),
    "c": (["export", "{stream}", "--to", "c", "-o", "{out}"], ["writing {out}: computing stream 1 of"]),
    "openvino": (
        ["export", "{stream}", "--to", "openvino", "-o", "{out}"],
        ["writing {out}: computing stream 1 of", "writing {out}: compiling it with OpenVINO", "checking stream 1 of"],
    ),
    "web": (
        ["export", "{stream}", "--to", "web", "--native", "-o", "{out}"],
        ["writing {out}: as C", "writing {out}: compiling it to WebAssembly"],
    ),
    "triton": (["export", "{stream}", "--to", "triton", "-o", "{out}"], ["writing {out}: trying whether streams"]),
    "fp16": (["export", "{stream}", "--to", "onnx", "--fp16", "-o", "{file}"], ["computing stream 1 of"]),
    "sherpa": (
        ["export", "{heard}", "--to", "sherpa-onnx", "--tokens", "{tokens}", "-o", "{out}"],
        ["writing {out}: checking pulse 1 of"],
    ),
    "opset": (["export", "{stream}", "--to", "onnx", "--opset", "16", "-o", "{file}"], ["computing stream 1 of"]),
}  # fmt: skip
NEEDS = {"openvino": "openvino", "web": "ziglang"}


class Screen(io.StringIO):
    """Something that takes text, a terminal or not."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    batch = models.look_ahead(1)
    onnx.save(batch, tmp_path / "batch.onnx")
    pulsify.stream(batch, pulse=4, verify=False).save(tmp_path / "stream.onnx")
    shape = [d.dim_value or 50 for d in batch.graph.input[0].type.tensor_type.shape.dim]
    np.save(tmp_path / "in.npy", models.frames(*shape))
    names = {"batch": "batch.onnx", "stream": "stream.onnx", "sound": "in.npy", "page": "r.html", "file": "f.onnx"}
    names |= {"heard": "ctc.onnx", "tokens": "units.txt", "out": "out"}
    return {key: str(tmp_path / name) for key, name in names.items()}


def ran(arguments: list[str], terminal: bool, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], str]:
    """What the line said, one after the other, and all that came to stderr."""
    said: list[str] = []
    plain = TerminalLine.update

    def update(self: TerminalLine, text: str) -> None:
        said.append(text)
        plain(self, text)

    screen = Screen(terminal)
    with monkeypatch.context() as patched:
        patched.setenv("TERM", "xterm")
        patched.setattr(sys, "stderr", screen)
        patched.setattr(sys, "stdout", Screen(False))
        patched.setattr(TerminalLine, "update", update)
        main.main(arguments, standalone_mode=False)
    return said, screen.getvalue()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_terminal_is_told_what_is_done_and_how_far(
    name: str, places: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason=f"pip install {NEEDS[name]}")
    if name == "sherpa":
        test_sherpa.aligned(test_sherpa.ctc(), test_sherpa.PULSE).save(places["heard"])
        test_sherpa.tokens(Path(places["tokens"]).parent)
    arguments, wanted = COMMANDS[name]
    said, shown = ran([a.format(**places) for a in arguments], True, monkeypatch)
    for text in wanted:
        assert any(text.format(**places) in line for line in said), (text, said[:50])
    assert shown, "the line is drawn"


@pytest.mark.parametrize("name", ["stream", "verify", "bench", "report", "c"])
@pytest.mark.parametrize("how", ["pipe", "quiet", "json"])
def test_nobody_else_is(name: str, how: str, places: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = [a.format(**places) for a in COMMANDS[name][0]]
    arguments += {"pipe": [], "quiet": ["--quiet"], "json": ["--json"]}[how]
    said, shown = ran(arguments, how != "pipe", monkeypatch)
    assert said == [] and shown == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["report", "{batch}", *BRIEFLY, "-o", "{page}"],
        ["inspect", "{stream}", "--stage", "stream"],
        ["export", "{stream}", "-o", "{out}"],
    ],
    ids=["report", "graph", "export"],
)
def test_quiet_is_quiet(arguments: list[str], places: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    main.main([a.format(**places) for a in [*arguments, "--quiet"]], standalone_mode=False)
    assert capsys.readouterr() == ("", "")

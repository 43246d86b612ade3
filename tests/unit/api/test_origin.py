"""`Stream.report` writes the page of `pulsify report`, from whatever the stream was made of."""

from __future__ import annotations

import pickle
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

import pulsify
from tests import models


@pytest.mark.parametrize("kind", ["path", "bytes", "proto", "ir"])
def test_a_page_about_a_stream(kind: str, tmp_path: Path) -> None:
    proto = models.look_ahead()
    onnx.save(proto, tmp_path / "look <ahead>.onnx")
    source = {
        "path": tmp_path / "look <ahead>.onnx", "bytes": proto.SerializeToString(), "proto": proto,
        "ir": ir.from_proto(proto),
    }[kind]  # fmt: skip
    stream = pulsify.stream(source, pulse=3, sample_rate=1000)
    stream.report(tmp_path / "page.html", seconds=0.0)
    text = (tmp_path / "page.html").read_text("utf-8")
    assert text.startswith("<!doctype html>") and "pulse" in text
    assert "not streamable" not in text
    if kind == "path":
        assert "look &lt;ahead&gt;.onnx" in text


def test_the_meaning_is_the_streams_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pulsify.report import document, writing

    asked: list[document.Asked] = []
    monkeypatch.setattr(writing, "report_figures", lambda a: asked.append(a) or {})
    monkeypatch.setattr(writing, "page", lambda facts: "a page")
    stream = pulsify.stream(models.look_ahead("B"), 4, set={"B": 1}, unbounded="grow", verify=False)
    stream.report(str(tmp_path / "p.html"))
    assert (tmp_path / "p.html").read_text() == "a page"
    (one,) = asked
    assert one.stream is stream and one.pulse == 4
    assert (one.meaning["set"], one.meaning["unbounded"]) == ({"B": 1}, "grow")


def test_streams_without_a_batch_model_say_so(tmp_path: Path) -> None:
    stream = pulsify.stream(models.look_ahead(), pulse=4, verify=False)
    stream.save(tmp_path / "s.onnx")
    for other in (pulsify.load(tmp_path / "s.onnx"), pickle.loads(pickle.dumps(stream))):
        with pytest.raises(pulsify.InvalidArgument, match="does not know its batch model: convert that"):
            other.report(tmp_path / "p.html")


def test_wrong_arguments_are_said_before_the_work(tmp_path: Path) -> None:
    stream = pulsify.stream(models.look_ahead(), pulse=4, verify=False)
    with pytest.raises(pulsify.InvalidArgument, match="there is no folder 'none'"):
        stream.report(tmp_path / "none" / "p.html")
    with pytest.raises(pulsify.InvalidArgument, match="seconds=-1"):
        stream.report(tmp_path / "p.html", seconds=-1)
    assert not list(tmp_path.iterdir())

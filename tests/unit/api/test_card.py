"""What a notebook shows of a stream."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pulsify
from pulsify.api.card import MOST_STATES, card
from pulsify.core.report import Deviation, Report
from tests import models


class Tags(HTMLParser):
    """Every tag that is opened is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def shown(html: str) -> str:
    """The text, one space between the cells."""
    tags = Tags()
    tags.feed(html)
    assert not tags.open
    return " ".join(re.sub("<[^>]*>", " ", html).split())


def test_ports_delays_states_and_the_check() -> None:
    stream = pulsify.stream(models.look_ahead(), pulse=4, sample_rate=100)
    text = shown(stream._repr_html_())
    (y,), (x,) = stream.outputs, stream.inputs
    assert f"pulses of 4 frames (40 ms), latency {stream.latency} frames ({stream.latency * 10} ms)" in text
    assert f"in x float32 1 x 2 x 4 {x.rate}" in text
    assert f"out y float32 1 x {y.dims[1]} x 4 1 {y.delay} frames ({y.delay * 10} ms)" in text
    assert f"{len(stream.states)} states, {stream.state_bytes:,} bytes a stream" in text
    assert stream.states[0].name in text and stream.verification is not None
    assert f"largest relative error {stream.verification.error:.2g}, limit 0.0001, " in text
    assert text.endswith('stream.report("report.html")'.replace('"', "&quot;"))


def test_without_a_rate_or_a_check(tmp_path: Path) -> None:
    stream = pulsify.stream(models.look_ahead(), pulse=1, verify=False)
    text = shown(stream._repr_html_())
    assert "pulses of 1 frame, latency" in text and " ms" not in text
    assert "not checked against the batch model" in text
    stream.save(tmp_path / "s.onnx")
    assert "stream.report" not in pulsify.load(tmp_path / "s.onnx")._repr_html_(), "it has no batch model"


def test_names_are_escaped_and_long_lists_cut() -> None:
    spec = pulsify.stream(models.look_ahead(), pulse=4, verify=False).spec
    state = replace(spec.states[0], name="<b>", node="a&b")
    many = replace(spec, states=(state,) * (MOST_STATES + 5), exact_up_to=99, opening=3)
    html = card(many, Report((9,), 2, {"y": Deviation(1e-7, 1e-4)}))
    assert (
        html.count("<td>&lt;b&gt;</td>") == MOST_STATES and "a&amp;b" in html and "<b>" not in html.partition("</p>")[2]
    )
    text = shown(html)
    assert "... and 5 more" in text and "exact up to 99 frames" in text and "the first 3 pulses in one call" in text


def test_what_is_known_at_the_end_and_nothing_is_remembered() -> None:
    assert "at the end (flush)" in shown(pulsify.stream(models.with_length(), pulse=4, verify=False)._repr_html_())
    alike = models.model([models.node("Relu", "x", "y")], {"x": [1, 2, "T"]}, ["y"], {})
    assert "no state" in shown(pulsify.stream(alike, pulse=4, verify=False)._repr_html_())

"""The page: one file, drawn from the facts that it holds."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import onnx
import pytest

from pulsify.report.document import Asked, report_figures
from pulsify.report.figures import Figures
from pulsify.report.markup import bar, bytes_text, decades, error_text, ms_text, name, number, percent, tag
from pulsify.report.page import page
from tests.models import conditioned, look_ahead, model, two_rates
from tests.unit.graphs import parsed

VOID = {"meta", "input", "wbr", "br"}


class Reader(HTMLParser):
    """Elements as they nest, all attributes, and all text that a person reads."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.read: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, k, v) for k, v in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "script" not in self.open and "style" not in self.open:
            self.read.append(data)


def whole() -> onnx.ModelProto:
    return model(parsed("ReduceMean x > y axes=[2]"), {"x": [1, 2, "T"]}, ["y"])


def refused() -> onnx.ModelProto:
    return model(parsed("ReduceMean x > m axes=[2] keepdims=1; Sub x m > y"), {"x": [1, 2, "T"]}, ["y"])


@pytest.fixture(params=[look_ahead, conditioned, two_rates, whole, refused], ids=lambda make: make.__name__)
def facts(request: pytest.FixtureRequest, tmp_path: Path) -> Figures:
    onnx.save(request.param(), tmp_path / "a<b>&.onnx")
    return report_figures(Asked(str(tmp_path / "a<b>&.onnx"), seconds=0.02, sample_rate=100))


def test_the_page_is_one_file_that_says_what_the_facts_say(facts: Figures) -> None:
    made = page(facts)
    reader = Reader()
    reader.feed(made)
    assert reader.open == [], "every element is closed"
    assert not [a for a in reader.attributes if a[1] in ("src", "href")] and "http" not in made.replace(
        "http-equiv", ""
    )
    held = re.search(r'<script type="application/json" id="facts">(.*?)</script>', made, re.S)
    assert held is not None and json.loads(held[1].replace("<\\/", "</")) == json.loads(json.dumps(facts))
    shown = " ".join(reader.read)
    assert "a<b>&.onnx" in shown and "None" not in shown and "nan" not in shown.split()
    assert all(label for t, k, label in reader.attributes if k == "aria-label")
    assert [v for t, k, v in reader.attributes if (t, k) == ("svg", "role")].count("img") >= 1 or facts["refusal"]


def test_sections_follow_from_what_it_is(facts: Figures) -> None:
    made = page(facts)
    if facts["refusal"] is not None:
        assert "Ways out" in made and "Not streamable" in made and "How long a pulse" not in made
        return
    assert "Streams exactly" in made and facts["left_out"] == {}
    assert sum(made.count(f'data-output="{n}"') for n in range(4)) == len(facts["plan"]["reading"])
    for d in facts["plan"]["delays"]:
        assert f"<code>{d['output']}</code>" in made
    assert [row["length"] for row in facts["check"]["lengths"]] == sorted(
        r["length"] for r in facts["check"]["lengths"]
    )
    assert all(r["error"] <= r["limit"] for r in facts["check"]["lengths"]) and facts["cost"]["nodes"]


def test_a_section_that_could_not_be_made_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pulsify.core.errors import InvalidModel
    from pulsify.report import document

    def fail(*_: Any, **__: Any) -> Any:
        raise InvalidModel("no time for this\nat all")

    monkeypatch.setattr(document, "sweep_figures", fail)
    onnx.save(look_ahead(), tmp_path / "m.onnx")
    found = report_figures(Asked(str(tmp_path / "m.onnx"), seconds=0.02))
    assert found["left_out"] == {"pulses": "no time for this"} and "Left out: no time for this." in page(found)


def test_the_page_warns_of_what_departs_or_forgets(tmp_path: Path) -> None:
    onnx.save(look_ahead(), tmp_path / "m.onnx")
    found = report_figures(Asked(str(tmp_path / "m.onnx"), seconds=0.02))
    found["check"]["lengths"][-1]["error"] = "inf"
    assert "The stream departs from the model" in page(found)
    found["check"]["lengths"][-1]["error"] = 0.0
    found["stream"]["exact_up_to"] = 300
    assert "Exact up to 300 frames" in page(found)


def test_files_of_the_page_come_with_the_package() -> None:
    for which in ("page.css", "page.js"):
        assert (files("pulsify.report") / which).read_text("utf-8").strip()


def test_small_pieces() -> None:
    assert tag("p", "x", class_="a", data_head='"') == '<p class="a" data-head="&quot;">x</p>'
    assert 'title="/layers.0/attn/MatMul_2"' in name("/layers.0/attn/MatMul_2", "attention")
    assert ">layers.0/<wbr>attn<" in name("/layers.0/attn/MatMul_2", "MatMul")
    assert (number(1234567), number(0.12345), number(2.0), number(None)) == ("1,234,567", "0.123", "2", "none")
    assert (bytes_text(12), bytes_text(39000), ms_text(12500)) == ("12 bytes", "38.1 KB", "12.5 s")
    assert [percent(n) for n in (699.2, 1234.0, 12.34, 0.0151, 2e-5)] == [
        "699 %", "1,234 %", "12 %", "0.015 %", "less than 0.001 %",
    ]  # fmt: skip
    assert (error_text(0.0), error_text("inf"), error_text(3.2e-7)) == ("none", "inf", "3.2e-07")
    assert (decades(0.0, 1e-4), decades(1e-4, 1e-4), decades("inf", 1e-4)) == (0.0, 1.0, 1.0)
    assert bar([(1, "a"), (3, "b")], 4, "x").count("<rect") == 2


def test_the_card_says_of_work_what_the_table_of_pulses_says(tmp_path: Path) -> None:
    """A whole call, not the nodes alone: those are told as such."""
    onnx.save(look_ahead(), tmp_path / "m.onnx")
    facts = report_figures(Asked(str(tmp_path / "m.onnx"), seconds=0.02, sample_rate=100))
    (own,) = (p for p in facts["pulses"]["sweep"] if p["pulse"] == facts["stream"]["pulse"])
    own["p50_us"], facts["cost"]["total_us"] = 4321.0, 5.0
    reader = Reader()
    reader.feed(page(facts))
    read = " ".join("".join(reader.read).split())
    assert "Work4.32 msa pulse" in read and "5 µs inside the nodes for" in read and "A whole call takes 4.32 ms" in read

"""The documentation says what the code does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import pulsify
import pulsify.ops
from pulsify.ops.registry import RULES
from pulsify.report.operators import markdown, without_rule
from tests.models import model, node, weights

DOCS = Path(__file__).parent.parent / "docs"


ROOT = DOCS.parent


def test_the_readme_shows_the_lines_that_are_tested() -> None:
    tested = (ROOT / "tests" / "test_artefact.py").read_text()
    lines = tested.split("# README: begin\n")[1].split("# README: end")[0]
    assert lines in (ROOT / "README.md").read_text()


def test_operators_page_is_up_to_date() -> None:
    assert (DOCS / "operators.md").read_text() == markdown(), (
        "run: python -m pulsify.report.operators > docs/operators.md"
    )


def listed() -> set[str]:
    """Operators named in the first column of a table."""
    rows = [line.split("|")[1] for line in (DOCS / "operators.md").read_text().splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def test_the_operators_page_and_the_code_agree() -> None:
    assert listed() == {op for op in RULES if "::" not in op} | set(without_rule())
    families = set(re.findall(r"^## (\w+)$", (DOCS / "operators.md").read_text(), re.M))
    families_of_operators = Path(pulsify.__file__).parent / "ops"
    assert all((families_of_operators / f"{family}.py").is_file() for family in families)


def branched() -> onnx.ModelProto:
    """An If that the number of channels decides."""
    branches = {
        f"{name}_branch": helper.make_graph([node(op, "x", name)], name, [], [onnx.ValueInfoProto(name=name)])
        for name, op in (("then", "Relu"), ("else", "Neg"))
    }
    nodes = [node("Shape", "x", "s"), node("Gather", "s one", "c"), node("Greater", "c one", "many")]
    return model([*nodes, node("If", "many", "y", **branches)], {"x": [1, 2, "T"]}, ["y"], {"one": np.array(1)})


def attending(op: str) -> onnx.ModelProto:
    """x is [1, T, 8], two heads."""
    if op == "Attention":
        nodes = [node("Attention", "x x x", "y", q_num_heads=2, kv_num_heads=2, is_causal=1)]
        return model(nodes, {"x": [1, "T", 8]}, ["y"], opset=23)
    nodes = [
        node("Shape", "x", "s"), node("Gather", "s one", "t"), node("Range", "zero t one", "n"),
        node("Unsqueeze", "n axis", "position"), node("RotaryEmbedding", "x cos sin position", "y", num_heads=2),
    ]  # fmt: skip
    whole = {"zero": np.array(0), "one": np.array(1), "axis": np.array([0])}
    tables = {"cos": weights(64, 2), "sin": weights(64, 2, seed=1)}
    return model(nodes, {"x": [1, "T", 8]}, ["y"], {**whole, **tables}, opset=23)


@pytest.mark.parametrize(
    ("proto", "options"),
    [(branched(), {}), (attending("Attention"), {"unbounded": "grow"}), (attending("RotaryEmbedding"), {})],
    ids=["If", "Attention", "RotaryEmbedding"],
)
def test_operators_without_a_rule_are_streamed_all_the_same(proto: onnx.ModelProto, options: Any) -> None:
    report = pulsify.stream(proto, pulse=4, **options).verification
    assert report is not None and report.ok


def test_what_is_not_listed_is_refused_by_name() -> None:
    standard = {s.name for s in onnx.defs.get_all_schemas() if s.domain == ""}
    missing = sorted(standard - listed())
    assert "Det" in missing
    proto = model([node("Det", "x", "d"), node("Relu", "x", "y")], {"x": [1, "T", 3, 3]}, ["y", "d"])
    with pytest.raises(pulsify.NotStreamable, match="no streaming rule is known for operator Det"):
        pulsify.stream(proto, pulse=4)


def test_the_page_on_cards_names_the_options_there_are() -> None:
    pytest.importorskip("torch")
    from pulsify.backends.torch.options import MODES, NAMES

    page = (DOCS / "gpu.md").read_text()
    table = page.split("| option |")[1].split("\n\n")[0]
    assert tuple(re.findall(r"^\| `(\w+)`", table, re.M)) == NAMES
    assert all(f'`"{mode}"`' in table for mode in MODES)


def test_the_reference_lists_every_public_name() -> None:
    listed = re.findall(r"^::: ([\w.]+)$", (DOCS / "api.md").read_text(), re.M)
    found = {name: getattr(pulsify, name) for name in pulsify.__all__}
    errors = {n for n, v in found.items() if isinstance(v, type) and issubclass(v, pulsify.PulsifyError)}
    assert set(found) - errors <= {name.rpartition(".")[2] for name in listed}
    assert "pulsify.core.errors" in listed, "with all of them"


@pytest.mark.parametrize("page", sorted((DOCS / "design").glob("*.md")), ids=lambda p: p.stem)
def test_files_named_in_the_design_exist(page: Path) -> None:
    """`plan/plan.py`, `backends/torch/`, or `rows.py` of a folder that the page is about."""
    source = ROOT / "src" / "pulsify"
    named = {n for n in re.findall(r"`([\w./]+)`", page.read_text()) if re.fullmatch(r"[\w/]+(\.(py|c|js|toml)|/)", n)}
    there = {p.relative_to(source).as_posix() + "/" * p.is_dir() for p in source.rglob("*")}
    assert [n for n in named if not (ROOT / n).exists() and not any(f"/{p}".endswith(f"/{n}") for p in there)] == []


def test_the_terms_of_the_design_are_few_and_in_the_glossary() -> None:
    table = (DOCS / "design" / "index.md").read_text().split("## Terms")[1]
    terms = {t for row in re.findall(r"^\| ([^|]+) \|", table, re.M)[2:] for t in row.strip().split(", ")}
    defined = set(re.findall(r"\*\*([^*]+)\*\*", (DOCS / "glossary.md").read_text()))
    assert 10 < len(terms) <= 40 and terms <= defined, terms - defined

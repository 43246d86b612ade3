"""Lengths that follow a long table: written once, shown short, and read from older files too."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import pulsify
from pulsify.core.length import Length, Table, constant
from pulsify.core.spec import Condition, Spec
from tests.models import close, frames, model, node, run_batch

PERIOD = 256


def cut_by_a_table() -> onnx.ModelProto:
    """0, 1 or 2 frames fewer, as a table says that repeats after 256 lengths; two outputs of that length."""
    table = np.sort(np.random.default_rng(0).integers(0, 3, PERIOD))[::-1].copy()
    return model(
        [
            node("Shape", "x", "shape"),
            node("Gather", "shape two", "t"),
            node("Mod", "t period", "m"),
            node("Gather", "table m", "fewer"),
            node("Sub", "t fewer", "last"),
            node("Reshape", "last one", "end"),
            node("Slice", "x zero end two", "a"),
            node("Relu", "a", "y"),
            node("Neg", "a", "z"),
        ],
        {"x": [1, 2, "T"]},
        ["y", "z"],
        {
            "two": np.array([2]), "period": np.array(PERIOD), "table": table, "one": np.array([1]),
            "zero": np.array([0]),
        },
    )  # fmt: skip


@pytest.fixture(scope="module")
def spec() -> Spec:
    """With the same table in both outputs and in conditions."""
    made = pulsify.stream(cut_by_a_table(), pulse=4).spec
    length = made.outputs[0].length
    assert length.table is not None and length.table.period == PERIOD
    more = tuple(Condition(f"node{i}", length, at_least=i, equals=length.then(add=i)) for i in range(3))
    return replace(made, conditions=more)


def test_a_table_is_written_once(spec: Spec) -> None:
    props = spec.to_properties()
    assert len(json.loads(props["pulsify.tables"])) == 1
    assert len(props["pulsify.time"]) < 1500
    for output in json.loads(props["pulsify.outputs"]):
        assert output["length"]["table"] == 0
    assert Spec.from_properties(props) == spec


def test_what_is_shown_is_short(spec: Spec) -> None:
    for shown in (repr(spec.conditions[0]), repr(spec.outputs[0]), repr(spec.outputs[0].length)):
        assert "256 numbers" in shown
        assert len(shown) < 500


def test_older_files_have_tables_in_place(spec: Spec) -> None:
    """Format 1: every length had a table of its own."""
    props = {**spec.to_properties(), "pulsify.version": "1"}
    tables = json.loads(props.pop("pulsify.tables"))

    def inlined(data: object) -> object:
        if isinstance(data, list):
            return [inlined(d) for d in data]
        if not isinstance(data, dict):
            return data
        return {k: tables[v] if k == "table" and isinstance(v, int) else inlined(v) for k, v in data.items()}

    for key in ("pulsify.outputs", "pulsify.time"):
        props[key] = json.dumps(inlined(json.loads(props[key])))
    assert Spec.from_properties(props) == spec


@pytest.mark.parametrize("tables", ["[]", "[[256, 256, [1, 2]]]", "[[256]]", "3"])
def test_damaged_tables(spec: Spec, tables: str) -> None:
    with pytest.raises(pulsify.InvalidModel, match="damaged"):
        Spec.from_properties({**spec.to_properties(), "pulsify.tables": tables})


def test_files_without_tables_stay_as_they_were() -> None:
    from tests import models

    props = pulsify.stream(models.look_ahead(), pulse=4).spec.to_properties()
    assert "pulsify.tables" not in props


def test_a_saved_table_counts_frames(tmp_path: Path) -> None:
    proto = cut_by_a_table()
    pulsify.stream(proto, pulse=4).save(tmp_path / "s.onnx")
    for total in (5, 255, 256, 300):
        x = frames(1, 2, total)
        got = pulsify.load(tmp_path / "s.onnx").run(x, 7)
        assert isinstance(got, dict)
        for name, want in run_batch(proto, x).items():
            close(got[name], want)


@pytest.mark.parametrize(
    ("length", "shown"),
    [
        (Length(), "Length(S)"),
        (Length().then(add=3).then(divide=4), "Length((S + 3) // 4)"),
        (Length().then(multiply=2).then(add=-1, floor=True), "Length(max((2 * S) - 1, 0))"),
        (Length().then(divide=2).then(add=1).then(divide=2), "Length(((S // 2) + 1) // 2)"),
        (constant(7), "Length(0 + 7)"),
        (Length(cap=300), "Length(min(S, 300))"),
        (Length(short=(0, 1, 1, 2, 2, 3)), "Length(S, short=[0, 1, 1, 2, ... 6 numbers])"),
        (Length(table=Table(2, 1, (0, 1))), "Length(Table(period=2, growth=1, values=[0, 1])[S])"),
    ],
    ids=str,
)
def test_lengths_show_how_they_are_computed(length: Length, shown: str) -> None:
    assert repr(length) == shown

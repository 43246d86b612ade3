"""docs/format.md names every key and every field of the files that are written."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import onnx
import pytest

import pulsify
from tests import models
from tests.attention.test_graphs import framed_causal
from tests.inputs.graphs import masked
from tests.test_tables import cut_by_a_table

PAGE = (Path(__file__).parent.parent / "docs" / "format.md").read_text()
SECTIONS = dict(re.findall(r"^## (pulsify\.\w+)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))


def fields(data: Any) -> set[str]:
    """Names of all fields, however deep. A list that starts with a word is an expression."""
    if isinstance(data, list):
        return set().union(*map(fields, data))
    return set(data) | fields(list(data.values())) if isinstance(data, dict) else set()


def written(folder: Path) -> list[dict[str, str]]:
    """The metadata of files that have among them every key there is."""
    external = folder / "model.onnx"
    onnx.save(models.look_ahead(), external, save_as_external_data=True, location="w.bin", size_threshold=0)
    streams = [
        pulsify.stream(external, pulse=4),
        pulsify.stream(models.two_rates(), pulse=2),
        pulsify.stream(models.conditioned("B"), pulse=4),
        pulsify.stream(models.with_length(), pulse=4),
        pulsify.stream(models.strided(), pulse=4, set={"T": "<=3000"}),
        pulsify.stream(framed_causal(), pulse=4, unbounded=6),
        pulsify.stream(framed_causal(), pulse=4, unbounded="grow"),
        pulsify.stream(cut_by_a_table(), pulse=4),
        pulsify.stream(models.mirrored(), pulse=2),
        pulsify.stream(masked(), pulse=4),
    ]
    out = []
    for i, stream in enumerate(streams):
        stream.export(folder / f"{i}.onnx", "onnx", fp16=i == 2)  # as `save` writes it, but for one
        proto = onnx.load(folder / f"{i}.onnx", load_external_data=False)
        out.append({p.key: p.value for p in proto.metadata_props})
    return out


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    return written(tmp_path_factory.mktemp("files"))


def test_every_key_has_a_section_and_every_section_a_key(files: list[dict[str, str]]) -> None:
    assert set().union(*files) == set(SECTIONS)


def test_every_field_is_explained(files: list[dict[str, str]]) -> None:
    for props in files:
        for key, value in props.items():
            data = json.loads(value) if value[0] in "[{" else None
            if key != "pulsify.weights":  # its fields are files
                missing = {f for f in fields(data) if f"`{f}`" not in SECTIONS[key] + SECTIONS["pulsify.outputs"]}
                assert not missing, f"{key}: docs/format.md does not explain {sorted(missing)}"

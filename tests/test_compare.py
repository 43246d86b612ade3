"""verify on another back end: options, lower types, node by node, and back ends that others bring."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import pulsify
from pulsify.backends import registry
from pulsify.cli.main import main
from pulsify.core import named
from tests import models
from tests.models import frames

torch = pytest.importorskip("torch")

from pulsify.backends.torch import ops_elementwise  # noqa: E402

TORCH = ["--backend", "torch", "--device", "cpu"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("compare")
    batch, stream = str(folder / "batch.onnx"), str(folder / "stream.onnx")
    onnx.save(models.look_ahead("B"), batch)
    pulsify.stream(batch, pulse=4, verify=False).save(stream)
    return batch, stream


def said(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, [*arguments])
    assert result.exit_code == code, result.output
    return result.output


def figures(*arguments: str, code: int = 0) -> dict[str, Any]:
    result = CliRunner().invoke(main, [*arguments, "--json"])
    assert result.exit_code == code, result.output
    facts: dict[str, Any] = json.loads(result.stdout)
    return facts


# ---- verify


def test_a_back_end_with_its_options(files: tuple[str, str]) -> None:
    assert "the stream is the batch model" in said("verify", *files, *TORCH)
    report = pulsify.verify(files[0], pulsify.load(files[1]), backend="torch", options={"device": "cpu"})
    assert report.ok and report.judged and report.low is None and report.error < 1e-6


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_lower_type_is_told_and_not_judged(files: tuple[str, str], dtype: str) -> None:
    text = said("verify", *files, *TORCH, "--dtype", dtype)
    assert f"in {dtype}, not the batch model in float32" in text and "the stream is the batch model" not in text
    verified = figures("verify", *files, *TORCH, "--dtype", dtype)["verified"]
    (out,) = verified["outputs"]
    assert verified["computed_in"] == dtype and not verified["judged"] and out["tolerance"] is None
    assert 0 < out["mean"] < out["error"] < 0.05 and out["error"] > 1e-4 and out["largest"] > out["error"]
    report = pulsify.verify(
        files[0], pulsify.load(files[1]), backend="torch", options={"device": "cpu", "dtype": dtype}, lengths=[30]
    )
    assert report.ok and report.low == dtype and f"computed in {dtype}" in str(report) and "mean" in str(report)


def test_a_lower_type_is_judged_by_a_tolerance_that_is_given(files: tuple[str, str]) -> None:
    low = [*TORCH, "--dtype", "bfloat16"]
    assert "the stream is the batch model" in said("verify", *files, *low, "--tolerance", "0.1")
    assert "MISMATCH" in said("verify", *files, *low, "--tolerance", "1e-5", code=1)


def test_a_number_that_is_none_is_wrong_in_any_type(files: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ops_elementwise.FUSED, "Relu", "torch.relu({x}) * 1e5")
    stream, own = pulsify.load(files[1]), {"device": "cpu", "dtype": "float16"}
    with pytest.raises(pulsify.Mismatch) as caught:
        pulsify.verify(files[0], stream, backend="torch", options=own, lengths=[30])
    assert caught.value.report is not None and caught.value.report.error == np.inf


def test_a_mismatch_on_a_device_names_the_wire(files: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ops_elementwise.FUSED, "Relu", "torch.relu({x}) * 1.01")
    facts = figures("verify", *files, *TORCH, "-n", "9", code=1)
    assert facts["verified"]["departs"] == "r.2"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--device", "cpu"], "'ort': unknown ['device']; it has none of its own"),
        (["--backend", "torch", "--option", "speed=9"], "'torch': unknown ['speed']"),
        (["--backend", "torch", "--device", "tpu"], "--device tpu"),
        (["--backend", "torch", "--mode", "fast"], "--mode fast: there is eager, graph, compile"),
        ([*TORCH, "--force-cpu", "Relu", "--allow-cpu", ""], "allow_cpu=[]: these nodes would be on the CPU too: 'r'"),
        (["--per-node"], "'ort' does not show what its nodes compute; --backend torch does"),
    ],
)
def test_options_that_mean_nothing(files: tuple[str, str], options: list[str], says: str) -> None:
    assert says in said("verify", *files, "-n", "9", *options, code=2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card here")
def test_a_card_that_is_not_there(files: tuple[str, str]) -> None:
    """Never quietly the CPU."""
    for command in (("verify", *files), ("verify", *files, "--per-node")):
        assert "sees no CUDA device here" in said(*command, "--backend", "torch", "--device", "cuda", code=2)
    with pytest.raises(pulsify.InvalidArgument, match="sees no CUDA device"):
        pulsify.compare_nodes(pulsify.load(files[1]), options={"device": "cuda"})


# ---- node by node


def test_node_by_node(files: tuple[str, str]) -> None:
    text = said("verify", *files, *TORCH, "--per-node", "--force-cpu", "Conv")
    assert "34 nodes on torch and on ONNX Runtime" in text and "'h' (asked for)" in text and "island" in text
    nodes = figures("verify", *files, *TORCH, "--per-node")["nodes"]
    assert nodes["ok"] and nodes["first"] is None and nodes["outside"] == [] and len(nodes["nodes"]) == 34
    assert nodes["pulses"] == {"general": 4, "steady": 3}


def test_the_first_node_that_departs(files: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """All that read it depart too; the node is the news."""
    monkeypatch.setitem(ops_elementwise.FUSED, "Relu", "torch.relu({x}) * 1.01")
    with_tolerance = ["verify", *files, *TORCH, "--per-node", "--tolerance", "1e-3"]
    text = said(*with_tolerance, code=1)
    assert "Relu 'r' of h.2 (general step): relative error 1.0e-02" in text
    facts = figures(*with_tolerance, code=1)["nodes"]
    assert facts["first"]["op"] == "Relu" and facts["first"]["inputs"] == ["h.2"] and not facts["ok"]


def test_a_lower_type_is_told_node_by_node_and_not_judged(
    files: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ops_elementwise.FUSED, "Relu", "torch.relu({x}) * 1.5")
    low = ["verify", *files, *TORCH, "--dtype", "bfloat16", "--per-node"]
    assert figures(*low)["nodes"]["first"]["op"] == "Relu"
    assert "MISMATCH" in said(*low, "--tolerance", "0.1", code=1)


def test_run_takes_them_too(files: tuple[str, str], tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", frames(1, 2, 19))
    run = ("run", files[1], str(tmp_path / "x.npy"), "--compare", files[0])
    same = said(*run, *TORCH)  # whether torch rounds as ONNX Runtime does here depends on the processor
    assert "equal within the limit" in same or "equal bit for bit" in same
    assert "MISMATCH" in said(*run, *TORCH, "--dtype", "bfloat16", code=1)


# ---- back ends from elsewhere


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A distribution that brings a back end, as pip would install it."""
    (tmp_path / "acme_streams_backend.py").write_text("from pulsify.backends.reference.backend import BACKEND\n")
    about = tmp_path / "acme_streams-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-streams\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[pulsify.backends]\n"
        "acme = acme_streams_backend\nbroken = no_such_package.backend\nort = acme_streams_backend\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    named.installed.cache_clear()
    yield tmp_path
    named.installed.cache_clear()
    sys.modules.pop("acme_streams_backend", None)


def test_a_distribution_brings_a_back_end(acme: Path, files: tuple[str, str]) -> None:
    assert registry.names() == ["ort", "reference", "torch", "native", "acme", "broken"]
    assert "the stream is the batch model" in said("verify", *files, "-n", "9", "--backend", "acme")
    stream = pulsify.load(files[1])
    np.testing.assert_allclose(stream.run(frames(1, 2, 9), backend="acme"), stream.run(frames(1, 2, 9)), atol=1e-5)
    assert type(registry.backend("ort")).__module__ == "pulsify.backends.ort.backend", "not replaced"
    text = said("verify", *files, "--backend", "broken", code=2)
    assert "needs no_such_package, which is not installed: pip install 'acme-streams'" in text


def test_help_lists_what_there_is(acme: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    registry.register("toy", "toy_backend", "toys", about="made of wood")
    for command in ("verify", "run"):
        text = " ".join(said(command, "--help").split())
        assert "What runs the stream: ort (ONNX Runtime), " in text and "toy (made of wood), acme, broken." in text


def test_nothing_installed_is_looked_through_for_a_name_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(group: str) -> Any:
        raise AssertionError(group)

    monkeypatch.setattr(registry, "installed", fail)
    assert registry.backend("ort") is not None

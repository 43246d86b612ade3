"""Timing, on the command line and in the suite: that the figures are there, not what they are."""

from __future__ import annotations

import json
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from benchmarks import long
from benchmarks.__main__ import main as suite
from benchmarks.cases import CASES
from benchmarks.runners import BATCH, BY_HAND, PULSIFY, SLIDING, STEP
from benchmarks.turns import Run, measure
from pulsify.cli.main import main
from pulsify.report.timing import POINTS, choose

MODELS = Path(__file__).parent / "zoo" / "fixtures" / "legacy"
CAUSAL, CHUNKED, STRIDED, REFUSED = (
    MODELS / f"{name}.onnx" for name in ("conv_causal", "attn_chunk_left2", "conv_same_stride", "global_mean")
)


def bench(*arguments: object, code: int = 0) -> Result:
    result = CliRunner(env={"COLUMNS": "100"}).invoke(main, ["bench", *map(str, arguments), "--seconds", "0"])
    assert result.exit_code == code, result.output
    return result


def bench_json(*arguments: object, code: int = 0) -> Any:
    return json.loads(bench(*arguments, "--json", code=code).stdout)


# ---- which pulse


def test_sweep_has_all_figures_and_chooses_one_of_its_pulses() -> None:
    facts = bench_json(STRIDED)
    points = facts["sweep"]
    pulses = [p["pulse"] for p in points]
    assert pulses == sorted(pulses) and 2 <= len(pulses) <= POINTS
    assert all(pulse % facts["granularity"] == 0 for pulse in pulses)
    for p in points:
        assert 0 < p["p50_us"] <= p["p99_us"]
        assert p["latency_frames"] == p["pulse"] + p["delay_frames"]
        assert p["frames_per_second"] > 0 and p["state_bytes"] > 0
        assert p["total_ms"] is None and p["real_time_factor"] is None
    assert facts["choice"]["pulse"] in pulses
    assert facts["verified"]["ok"]


def test_sweep_in_milliseconds() -> None:
    facts = bench_json(STRIDED, "--sample-rate", 100, "--no-verify")
    for p in facts["sweep"]:
        assert p["latency_ms"] == 10 * p["latency_frames"] < p["total_ms"]
        assert p["latency_ms"] <= 1000
        assert p["real_time_factor"] == pytest.approx(p["p50_us"] / 1000 / p["pulse_ms"])
    assert facts["verified"] is None


def test_sweep_finds_whole_chunks() -> None:
    facts = bench_json(CHUNKED, "--no-verify")
    assert facts["sweep"][0]["pulse"] == 4
    assert facts["sweep"][0]["delay_frames"] == 0
    assert {1, 2, 3} <= {o["pulse"] for o in facts["left_out"] if "no earlier than a pulse of 4" in o["reason"]}


def test_sweep_draws_and_says_why() -> None:
    text = bench(STRIDED, "--sample-rate", 100, "--no-verify").stdout
    assert "# pulse, = delay, . work" in text
    assert "##" in text and "**" in text
    assert "choose" in text and "smallest total latency" in text
    assert all(len(line) <= 100 for line in text.splitlines())
    assert "twice the latency" in bench(STRIDED, "--no-verify").stdout


def test_sweep_refuses_what_has_no_stream() -> None:
    assert "ReduceMean" in bench(REFUSED, code=3).stderr
    assert bench_json(REFUSED, code=3)["error"]["kind"] == "NotStreamable"


def point(pulse: int, latency: int, per_frame: float, ms: float | None = None) -> dict[str, Any]:
    work = pulse * per_frame
    total = None if ms is None else latency * ms + work / 1000
    timed = {"pulse_ms": None if ms is None else pulse * ms, "total_ms": total}
    return {"pulse": pulse, "latency_frames": latency, "per_frame_us": per_frame, "p99_us": work, **timed}


def test_choice_without_a_sample_rate_is_the_knee() -> None:
    assert choose([point(1, 1, 20), point(2, 2, 11), point(4, 4, 9), point(8, 8, 8)])["pulse"] == 2
    assert "longest tried" in choose([point(1, 1, 20), point(2, 2, 10)])["why"]


def test_choice_with_a_sample_rate_is_the_earliest_that_keeps_up() -> None:
    assert choose([point(1, 1, 20, 1.0), point(2, 2, 11, 1.0)])["pulse"] == 1
    assert choose([point(1, 1, 900, 1.0), point(2, 2, 400, 1.0)])["pulse"] == 2
    assert "none leaves" in choose([point(1, 1, 900, 1.0), point(2, 2, 800, 1.0)])["why"]


# ---- pictures


def test_plot_without_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "pip install 'pulsify[bench]'" in bench(STRIDED, "--plot", tmp_path / "x.png", code=2).stderr
    assert "leave out -p" in bench(STRIDED, "-p", 8, "--plot", tmp_path / "x.png", code=2).stderr


def test_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    bench(STRIDED, "--no-verify", "--plot", tmp_path / "x.svg")
    assert "<svg" in (tmp_path / "x.svg").read_text()


# ---- the suite


def test_bench_without_a_model_runs_the_suite(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stub = types.ModuleType("benchmarks.__main__")
    stub.main = lambda arguments: {"arguments": arguments}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "benchmarks.__main__", stub)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert bench_json()["arguments"] == ["--seconds", "0.0"]
    monkeypatch.setattr("pulsify.cli.bench.CHECKOUT", tmp_path)
    assert "python -m benchmarks" in bench(code=2).stderr


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """One of the suite's models, of a fixture's size."""
    shutil.copy(CAUSAL, tmp_path / "conv_4.onnx")
    return tmp_path


def test_suite_times_everyone(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = models / "out.json"
    suite(["--only", "conv_4", "--models", str(models), "--seconds", "0", "--json", str(out)])
    facts = json.loads(out.read_text())
    (result,) = facts["models"]
    assert {PULSIFY, STEP, SLIDING, BATCH} <= set(result["times"])
    assert all(0 < t["p50_us"] <= t["p99_us"] for t in result["times"].values())
    assert {"onnxruntime", "pulsify", "tract", "python"} <= set(facts["machine"]["versions"])
    assert SLIDING in {b["peer"] for b in facts["bars"]}
    text = capsys.readouterr().out
    assert "converted and checked in" in text and "sliding window <= 0.2" in text


def test_suite_lists_its_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert suite(["--list"]) == {}
    assert all(case.name in capsys.readouterr().out for case in CASES[:1])


def test_suite_can_write_all_its_models() -> None:
    pytest.importorskip("torch")
    from benchmarks.models import EXPORTS

    wanted = {name for case in CASES for name in (*case.models, case.many) if name}
    assert wanted <= set(EXPORTS)


def test_suite_names_every_case_once_and_shares_models() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    amps = [case for case in CASES if case.name.startswith("amp_")]
    assert len(amps) == 6 and {case.batch for case in amps} == {"amp_once", "amp_layers"}


@pytest.mark.parametrize("name", ["codec_encoder", "dtln", pytest.param("encoder_12x", marks=pytest.mark.slow)])
def test_architectures_stream(name: str, tmp_path: Path) -> None:
    """Those converted in seconds; what is streamed by hand must be the batch model's stream as well."""
    pytest.importorskip("torch")
    suite(["--only", name, "--models", str(tmp_path), "--seconds", "0", "--json", str(tmp_path / "out.json")])
    (result,) = json.loads((tmp_path / "out.json").read_text())["models"]
    assert result["pulse"] == {"codec_encoder": 320, "dtln": 128, "encoder_12x": 8}[name]
    assert name != "codec_encoder" or result["facts"]["delay"] == 0, "mirrored starts are waited for once"
    assert (BY_HAND in result["times"]) == (name == "dtln") and BY_HAND not in result["notes"]


def test_old_streams_are_timed_beside_young_ones(models: Path) -> None:
    result = long.run(CASES[0], {"conv_4": models / "conv_4.onnx"}, seconds=0, frames=800)
    assert result["old"]["count"] and result["young"]["count"]
    assert "conv_4" in next(iter(long.lines(result)))


def test_turns_count_pulses() -> None:
    times = measure({"one": Run(lambda: sum(range(99))), "ten": Run(lambda: sum(range(99)), 10)}, 0)
    assert times["one"].count and times["one"].p50_us > times["ten"].p50_us > 0
    assert len(times["one"].rounds_us) == len(times["ten"].rounds_us)

"""What a terminal of 80 columns shows: all digits, and both ends of every name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner

from pulsify.cli.main import main
from pulsify.demo.model import enhancer
from pulsify.report.render import port_table, state_table, summary
from pulsify.report.render_speed import bench_table, picture, sweep_table
from pulsify.report.sheet import Column, Sheet, shortened
from tests.models import model, node, weights

LONG = "encoder/layers.11/self_attention/linear_out/MatMul_output_0"


def lines(sheet: Sheet, room: int = 80) -> list[str]:
    return [line.plain for line in sheet.lines(room)]


def timed(p50: float, p99: float, frame: float, **more: Any) -> dict[str, Any]:
    return {"p50_us": p50, "p99_us": p99, "per_frame_us": frame, **more}


def test_bench_keeps_every_digit() -> None:
    facts = {
        "pulse": 16000,
        "stream": timed(2256.0, 17051.9, 2.35),
        "sliding": timed(1713912.4, 2713501.6, 44.561, window=438400),
        "batch": timed(115613.1, 222270.5, 1.524, length=1024000),
    }
    text = "\n".join(lines(bench_table(facts)))
    for number in ("2,256.0", "17,051.9", "1,713,912.4", "2,713,501.6", "44.561", "222,270.5", "438,400", "1,024,000"):
        assert number in text
    assert "19.0x faster" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_sweep_keeps_every_digit() -> None:
    point = {
        "pulse": 2048, "delay_frames": 1072, "latency_frames": 3120, "latency_ms": 132.5, "total_ms": 135.2,
        "real_time_factor": 0.355, "frames_per_second": 1e6, "state_bytes": 136804,
        **timed(12757.3, 19704.8, 1.346),
    }  # fmt: skip
    text = "\n".join(lines(sweep_table({"sample_rate": 16000.0, "choice": {"pulse": 2048}, "sweep": [point]})))
    for number in ("2,048", "1,072", "3,120", "12,757.3", "19,704.8", "1.35", "132", "135", "35.50%", "133.6 KiB"):
        assert number in text
    assert max(map(len, text.splitlines())) <= 80


def test_ports_and_states_shorten_names_in_the_middle() -> None:
    port = {"dtype": "float32", "axis": 2, "rate": "147/160", "frames": 14700}
    facts = {
        "sample_rate": 44100.0,
        "inputs": [{**port, "name": "audio_" + LONG, "shape": ["batch", 1, 16000]}],
        "statics": [],
        "outputs": [{**port, "name": LONG, "shape": ["batch", 128, 14700], "delay": 72123, "delay_ms": 1234.5}],
        "states": [{"name": LONG, "dtype": "float32", "shape": ["batch", 128, 128], "bytes": 65536, "node": LONG}],
        "state_bytes": 1136804,
    }
    for sheet, numbers in (
        (port_table(facts), ("147/160", "14700", "72123", "1,234")),
        (state_table(facts), ("65,536", "1,136,804")),
    ):
        text = "\n".join(lines(sheet))
        assert all(n in text for n in numbers)
        assert max(map(len, text.splitlines())) <= 80
        assert re.search(r"enc\w*\S*…\S*put_0", text)


def test_where_nothing_fits_the_line_is_longer() -> None:
    sheet = Sheet([Column(f"n{i}", "number") for i in range(12)])
    sheet.add(*(str(10**9 + i) for i in range(12)))
    (row,) = lines(sheet, 40)[2:]
    assert row.split() == [str(10**9 + i) for i in range(12)]


def test_small_sheets() -> None:
    assert shortened("abcdefgh", 5) == "ab…gh"
    assert shortened("abc", 5) == "abc"
    assert lines(summary([("pulse", "8 frames"), ("a/very/long/name/of/an/output", "1 frame")]), 40)[1].count("…") == 1
    wrapped = lines(summary([("note", "one two three four five")]), 21)
    assert [line.strip() for line in wrapped] == ["note   one two three", "four five"]
    assert lines(picture([("pulse 0", "#" * 60, "160 in, 88 out")]), 40) == [f" pulse 0 {'#' * 60} 160 in, 88 out"]


@pytest.mark.parametrize("command", ["inspect", "bench --seconds 0", "bench -p 320 --seconds 0"])
def test_commands_fit(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(enhancer(), tmp_path / "m.onnx")
    monkeypatch.chdir(tmp_path)
    name, *rest = command.split()
    result = CliRunner(env={"COLUMNS": "80"}).invoke(main, [name, "m.onnx", "--sample-rate", "16000", *rest])
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_inspect_shows_long_names_by_both_ends(tmp_path: Path) -> None:
    proto = model(
        [node("Relu", "x", LONG), node("Conv", f"{LONG} w", "y", pads=[2, 0])],
        {"x": [1, 2, "T"]}, ["y"], {"w": weights(3, 2, 3)},
    )  # fmt: skip
    onnx.save(proto, tmp_path / "m.onnx")
    text = CliRunner(env={"COLUMNS": "80"}).invoke(main, ["inspect", str(tmp_path / "m.onnx")]).stdout
    assert "…" in text and "output_0" in text and "encoder/l" in text

"""What is said about a stream is true, whichever way it is shown."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import pulsify
from pulsify.core.report import Deviation, Report
from pulsify.core.runner import open_model
from pulsify.core.spec import lateness
from pulsify.report.batch import difference
from pulsify.report.figures import finite, length_figures, stream_figures, verified_figures
from pulsify.report.listing import listing
from pulsify.report.render import (
    count,
    delay_text,
    lengths_text,
    size,
    state_table,
    stream_tables,
    traced_shape,
    window_table,
)
from pulsify.report.render_speed import ratio_text
from pulsify.report.stages import open_batch, time_figures, trace_figures, window_figures
from pulsify.report.timeline import timeline
from pulsify.report.timing import looks

MODELS = Path(__file__).parent / "zoo" / "fixtures" / "legacy"


def made(name: str, pulse: int | None = None) -> pulsify.Stream:
    return pulsify.stream(MODELS / f"{name}.onnx", pulse, verify=False)


def printed(*parts: object) -> str:
    console = Console(width=100, markup=False, highlight=False, record=True, file=io.StringIO())
    for part in parts:
        console.print(part)
    return console.export_text()


@pytest.mark.parametrize(
    "name", ["conv_same_stride", "convtranspose_overlap", "posenc_table", "conv_gru_residual", "unet"]
)
def test_facts_are_json_and_agree_with_the_stream(name: str) -> None:
    stream = made(name)
    facts = json.loads(json.dumps(stream_figures(stream, 8000), allow_nan=False))
    assert facts["pulse"] == stream.pulse
    late = {o.name: lateness(o, stream.spec.phase) for o in stream.outputs}
    assert [o["delay"] for o in facts["outputs"]] == [float(late[o.name]) for o in stream.outputs]
    assert facts["state_bytes"] == stream.state_bytes == sum(s["bytes"] for s in facts["states"])
    for o in stream.outputs:
        shown = next(f for f in facts["outputs"] if f["name"] == o.name)
        assert shown["delay_input_frames"] == float(late[o.name] / o.rate)
        assert shown["delay_ms"] == pytest.approx(float(late[o.name] / o.rate) / 8)
    text = printed(*stream_tables(facts))
    for name in [p["name"] for p in facts["inputs"] + facts["outputs"]]:
        assert name in text


def test_times_need_a_sample_rate() -> None:
    facts = stream_figures(made("conv_same"))
    assert facts["pulse_ms"] is None
    assert facts["outputs"][0]["delay_ms"] is None
    assert "ms" not in printed(*stream_tables(facts))


def test_lengths() -> None:
    assert length_figures(made("conv_same")) == {"shortest": 1, "every": 1, "first": [1, 2, 3, 4], "longest": None}
    assert length_figures(made("frame_stack"))["every"] == 4
    valid = length_figures(made("conv_valid"))
    assert valid["shortest"] > 1
    table = length_figures(made("posenc_table"))
    assert table["longest"] == 4096
    assert lengths_text(valid) == f"{valid['shortest']} frames or more"
    assert lengths_text(length_figures(made("frame_stack"))) == "4, 8, 12, ... (every 4)"
    assert "at most 4096" in lengths_text(table)


def test_delay_in_words() -> None:
    strided = stream_figures(made("conv_same_stride"), 1000)["outputs"][0]
    assert delay_text(strided) == "1.25 output frames = 5 input frames = 5 ms"
    assert delay_text(stream_figures(made("conv_same"))["outputs"][0]) == "5 frames"
    assert delay_text(stream_figures(made("conv_causal"))["outputs"][0]).startswith("none")


def test_long_tables_are_cut_and_say_so() -> None:
    facts = stream_figures(made("conv_same"))
    facts["states"] = facts["states"] * 40
    assert f"{len(facts['states']) - 40} more" in printed(state_table(facts))


def test_infinity_is_no_number_in_json() -> None:
    report = Report(lengths=(3,), runs=1, outputs={"y": Deviation(float("inf"), 1e-4, None, 3, "shape")})
    facts = verified_figures(report)
    assert not facts["ok"]
    assert facts["error"] == facts["outputs"][0]["error"] == "inf"
    assert finite(0.5) == 0.5
    json.dumps(facts, allow_nan=False)


def test_difference() -> None:
    x = np.array([[1.0, 2.0, 4.0]], np.float32)
    assert difference(x, x) == {"largest": 0.0, "error": 0.0, "ok": True, "note": ""}
    off = difference(x, x + np.float32(0.5))
    assert (off["largest"], off["ok"]) == (0.5, False)
    assert off["error"] == pytest.approx(0.5 / 4.5)
    assert not difference(x, x[:, :2])["ok"]
    assert difference(np.array([np.nan], np.float32), np.array([np.nan], np.float32))["ok"]


# ---- stages


def test_time_and_trace() -> None:
    tracer = open_batch(str(MODELS / "posenc_arange.onnx"))
    assert (
        time_figures(tracer)["streamed"][0] | {"axis": 1, "frames_per_unit": 1} == time_figures(tracer)["streamed"][0]
    )
    trace = trace_figures(tracer)
    assert (trace["data_nodes"], trace["known_nodes"]) == (1, trace["nodes"] - 1)
    json.dumps(trace)


def test_traced_shapes_read_well() -> None:
    assert traced_shape([[3, 32, 67], [3, 32, 68]], [0], "B") == "[B, 32, 67|68]"
    assert traced_shape([[3, 67], [3, 67]], [], None) == "[3, 67]"
    assert traced_shape([[], []], [], None) == "[]"


@pytest.mark.parametrize("name", ["conv_same_stride", "unet", "wavenet_noncausal", "multirate_branches"])
def test_windows_agree_with_delays_and_states(name: str) -> None:
    stream = made(name, 16)
    wires = window_figures(open_batch(str(MODELS / f"{name}.onnx")), 16)["wires"]
    by_name = {w["wire"]: w for w in wires}
    for o in stream.outputs:
        assert by_name[o.name]["delay"] == o.delay
        assert by_name[o.name]["frames"] == o.frames
    kept = sum(1 for w in wires if w.get("kept"))
    assert kept == sum(1 for s in stream.states if s.node != "position")
    assert f"[{-stream.spec.phase}, {16 - stream.spec.phase})" in printed(window_table(wires))


def test_windows_of_a_refused_model_lead_to_the_refusal() -> None:
    windows = window_figures(open_batch(str(MODELS / "global_mean.onnx")), 4)
    assert isinstance(windows["refusal"], pulsify.NotStreamable)
    assert "x" in [w["wire"] for w in windows["wires"]]


def test_listing_has_every_node_once() -> None:
    stream = made("conv_same_stride", 8)
    text = listing(stream.model)
    assert sum(" = " in line for line in text.splitlines()) == stream_figures(stream)["nodes"]
    assert all(f"out  new_{s.name}" in text for s in stream.states)
    assert "length: int32[1, 1]  (optional)" in text


# ---- pictures and speed


@pytest.mark.parametrize(
    ("name", "pulse", "length"), [("conv_same", 8, 29), ("conv_same_stride", 8, 32), ("conv_causal", 4, 17)]
)
def test_timeline_counts_what_a_session_does(name: str, pulse: int, length: int) -> None:
    stream = made(name, pulse)
    rows = timeline(stream.spec, length)
    notes = [[int(w) for w in note.replace(",", "").split() if w.isdigit()] for _, _, note in rows]
    assert sum(taken for taken, _ in notes) == length
    port = stream.inputs[0]
    shape = [1 if isinstance(d, str) else d for d in port.dims]
    shape[port.axis] = pulse
    session, seen = stream.session(), []
    for _ in range(length // pulse):
        seen.append(session.push(np.zeros(shape, np.float32)).shape[stream.outputs[0].axis])
    assert [given for _, given in notes[: len(seen)]] == seen
    total = stream.outputs[0].length.at(length)
    assert sum(given for _, given in notes) == total
    assert sum(bar.count("#") for _, bar, _ in rows) > 0


def test_no_picture_of_too_many_pulses() -> None:
    assert timeline(made("conv_same", 1).spec, 100) == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [("conv_causal", (16, 0)), ("layernorm", (0, 0)), ("conv_same", (5, 5)), ("difference", (0, 1))],
)
def test_how_far_a_model_looks(name: str, expected: tuple[int, int]) -> None:
    path = str(MODELS / f"{name}.onnx")
    assert looks(open_model(path), made(name), 1 << 12) == expected


def test_small_words() -> None:
    assert count(1, "frame") == "1 frame"
    assert count(2000, "frame") == "2,000 frames"
    assert size(10) == "10 bytes"
    assert size(2048) == "2.0 KiB"
    assert size(3 << 20) == "3.0 MiB"
    assert size(5 << 30) == "5.0 GiB"
    assert ratio_text(2) == "2.0x faster"
    assert ratio_text(0.5) == "2.0x slower"

"""Figures in words: singular and plural, units, and what is left out."""

from __future__ import annotations

from typing import Any

import pytest

from pulsify.api import Stream
from pulsify.report.figures import stream_figures
from pulsify.report.render import (
    MOST_ROWS,
    count,
    delay_text,
    error_text,
    lengths_text,
    proof_text,
    size,
    state_table,
    stream_lines,
    stream_tables,
    summary,
    time_lines,
    traced_shape,
    verified_table,
    verified_text,
    window_table,
)
from pulsify.report.render_speed import looks_text, picture, ratio_text, sweep_lines
from pulsify.report.sheet import Sheet
from tests.unit.specs import a_state, a_stream, remembers


def text(sheet: Any, room: int = 120) -> str:
    assert isinstance(sheet, Sheet)
    return "\n".join(line.plain for line in sheet.lines(room))


def facts(sample_rate: float | None = None, **fields: Any) -> dict[str, Any]:
    return stream_figures(Stream(remembers()[0], a_stream(**fields)), sample_rate)


@pytest.mark.parametrize(
    ("n", "shown"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (1023, "1,023 bytes"),
        (1024, "1.0 KiB"),
        (1024**2, "1.0 MiB"),
        (3 * 1024**3, "3.0 GiB"),
    ],
)
def test_sizes(n: int, shown: str) -> None:
    assert size(n) == shown


def test_numbers_in_words() -> None:
    assert (count(1, "frame"), count(2, "frame"), count(1200, "frame")) == ("1 frame", "2 frames", "1,200 frames")
    assert (ratio_text(2.0), ratio_text(0.5), ratio_text(1.0)) == ("2.0x faster", "2.0x slower", "1.0x faster")
    assert (error_text(0.0), error_text(1.234e-6), error_text("inf")) == ("0", "1.2e-06", "inf")


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        ({"delay": 0, "delay_input_frames": 0, "delay_ms": None}, "none: every frame comes out at the pulse"),
        ({"delay": 1, "delay_input_frames": 1, "delay_ms": None}, "1 frame"),
        ({"delay": 3, "delay_input_frames": 480, "delay_ms": 30.0}, "3 output frames = 480 input frames = 30 ms"),
        ({"delay": 2, "delay_input_frames": 2, "delay_ms": 1234.5}, "2 frames = 1,234 ms"),
    ],
)
def test_delays(output: dict[str, Any], shown: str) -> None:
    assert delay_text({**output, "delay_after_start": output["delay"]}).startswith(shown)
    assert "first frames alone" not in delay_text({**output, "delay_after_start": output["delay"]})


@pytest.mark.parametrize(("after", "shown"), [(0, "none would be needed"), (2, "only 2 would be needed")])
def test_a_delay_of_the_first_frames_alone_says_so(after: int, shown: str) -> None:
    output = {"delay": 3, "delay_input_frames": 3, "delay_ms": None, "delay_after_start": after}
    assert shown in delay_text(output)


@pytest.mark.parametrize(
    ("lengths", "shown"),
    [
        ({"shortest": 1, "every": 1, "first": [1, 2], "longest": None}, "any"),
        ({"shortest": 5, "every": 1, "first": [5, 6], "longest": None}, "5 frames or more"),
        ({"shortest": 4, "every": 4, "first": [4, 8], "longest": None}, "4, 8, 12, ... (every 4)"),
        (
            {"shortest": 1, "every": None, "first": [1, 5, 6], "longest": 9},
            "1, 5, 6, ..., at most 9 (a table ends there)",
        ),
    ],
)
def test_lengths(lengths: dict[str, Any], shown: str) -> None:
    assert lengths_text(lengths) == shown


def test_what_is_proven_and_what_is_only_sampled() -> None:
    proven = {"proven": True, "horizon": 1, "period": 4, "limit": None, "sampled": [], "assumed": []}
    assert proof_text(proven) == "every length (looked at up to 1 frame, period 4)"
    assert "up to 4,096 frames: floats are exact no further" in proof_text({**proven, "limit": 4096})
    assert proof_text({**proven, "proven": False, "sampled": ["a", "b"]}) == "only sampled: a; b"
    assert proof_text({**proven, "assumed": ["scores stay above -500"]}).endswith(", if scores stay above -500")


def test_a_stream_in_lines_and_tables() -> None:
    lines = dict(stream_lines(facts()))
    assert lines["pulse"] == "4 frames; any size works" and lines["state"] == "0 bytes a stream in 0 tensors"
    assert "sample rate" not in lines and "forgets" not in lines
    timed = dict(stream_lines(facts(16000.0, granularity=4, exact_up_to=90)))
    assert timed["pulse"] == "4 frames = 0.25 ms; any multiple of 4 works"
    assert timed["sample rate"] == "16000 frames a second" and "90 frames" in timed["forgets"]
    assert len(stream_tables(facts())) == 1
    ports, states = stream_tables(facts(states=(a_state(),)))
    assert "[1, 2, 4]" in text(ports) and "total" in text(states)


def test_long_tables_are_cut_and_say_by_how_much() -> None:
    many = facts(states=tuple(a_state(f"s{i}") for i in range(MOST_ROWS + 3)))
    shown = text(state_table(many))
    assert "... 3 more (--json lists all)" in shown and f"s{MOST_ROWS - 1} " in shown and f"s{MOST_ROWS} " not in shown
    wires = [{"wire": f"w{i}", "op": "Relu", "kind": "static"} for i in range(MOST_ROWS + 1)]
    assert "... 1 more (--stage windows lists all)" in text(window_table(wires, cut=True))
    assert f"w{MOST_ROWS}" in text(window_table(wires)) and "the same at every pulse" in text(window_table(wires))


def test_windows_are_intervals() -> None:
    wire = {
        "wire": "w",
        "op": "Conv",
        "kind": "stream",
        "rate": "1",
        "frames": 4,
        "window": [-2, 2],
        "delay": 2,
        "kept": 6,
    }
    assert "[-2, 2)" in text(window_table([wire]))


def test_a_check_in_words() -> None:
    assert verified_text(None) == "no (--no-verify)"
    assert "no length" in verified_text({"runs": 0})
    good = {"runs": 1, "lengths": [5], "error": 0.0, "tolerance": 1e-4}
    assert verified_text(good) == "largest relative error 0, limit 0.0001 (1 stream at lengths 5)"
    row = {
        "name": "y", "error": "inf", "mean": "inf", "tolerance": 1e-4, "frame": None, "length": 9, "chunks": "shape",
        "ok": False, "from_double": None, "batch_from_double": None,
    }  # fmt: skip
    shown = text(verified_table({"outputs": [row]}))
    assert "wrong" in shown and "inf" in shown and "9" in shown and "float64" not in shown
    both = [row, {**row, "from_double": 2e-3, "batch_from_double": 3e-3}]
    shown = text(verified_table({"outputs": both}))
    assert "stream from" in shown and "float64" in shown and "2.0e-03" in shown and "3.0e-03" in shown


def test_the_axes_of_a_batch_model_in_words() -> None:
    time = {
        "symbol": "T", "step": 4, "batch": "B", "fixed": {"C": 2}, "length_inputs": ["n"],
        "streamed": [{"name": "x", "axis": 2, "shape": ["B", 2, "4*T"], "frames_per_unit": 4}],
        "static": [{"name": "g", "shape": [3]}],
        "bindings": [
            {"name": "n", "value": "T", "source": "guessed", "reason": "Where 'w' masks"},
            {"name": "m", "value": "ones", "source": "given", "reason": None},
        ],
    }  # fmt: skip
    assert time_lines(time) == [
        ("time", "'T': axis 2 of x [B, 2, 4*T], 4 frames a unit"),
        ("given once", "g [3]"),
        ("binds", "n = the number of frames 'T', guessed (Where 'w' masks)"),
        ("binds", "m = all ones, given"),
        ("batch", "'B' streams side by side"),
        ("fixed", "'C' = 2"),
        ("lengths", "multiples of 4, as declared"),
    ]


def test_traced_shapes_name_the_batch_and_show_what_differs() -> None:
    assert traced_shape([[3, 32, 67], [3, 32, 68]], [0], "B") == "[B, 32, 67|68]"
    assert traced_shape([[3, 67], [67]], [], None) == "[3, 67] | [67]"


def test_how_far_a_model_looks() -> None:
    assert looks_text({"sliding": {"looks_back": None, "looks_ahead": None}}).startswith("back without end")
    assert looks_text({"sliding": {"looks_back": 1, "looks_ahead": 2}}).startswith("1 frame back, 2 ahead")


def test_pulses_left_out_are_listed_by_reason() -> None:
    sweep = {
        "granularity": 2, "sample_rate": None, "choice": {"pulse": 8, "why": "the knee"},
        "left_out": [{"pulse": 2, "reason": "late"}, {"pulse": 4, "reason": "work"}, {"pulse": 6, "reason": "late"}],
    }  # fmt: skip
    assert sweep_lines(sweep) == [
        ("granularity", "pulses are multiples of 2"),
        ("left out", "2, 6: late"),
        ("left out", "4: work"),
        ("choose", "pulse 8: the knee"),
    ]


def test_summaries_and_pictures_have_no_heads() -> None:
    assert text(summary([("pulse", "4 frames"), ("a key that is far too long for it", "x")])).splitlines()[0] == (
        " pulse                  4 frames"
    )
    assert text(picture([("flush", "###", "3 in")])) == " flush   ###   3 in"

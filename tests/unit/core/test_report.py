"""What a comparison saw: every output against its own tolerance."""

from __future__ import annotations

import math

from pulsify.core.report import Deviation, Report


def test_the_worst_output_is_the_one_nearest_to_its_own_tolerance() -> None:
    half, double = Deviation(1e-2, 2e-2), Deviation(1e-8, 1e-9)
    report = Report((7,), 3, {"half": half, "double": double})
    assert report.worst == double and report.wrong == (double,)
    assert not report.ok and report.error > report.tolerance


def test_nothing_compared_is_not_right() -> None:
    assert not Report().ok
    assert Report(runs=1).ok and Report(runs=1).error == 0


def test_the_share_of_a_tolerance_of_nothing() -> None:
    assert Deviation(0.0, 0.0).share == 0 and Deviation(0.0, 0.0).ok
    assert Deviation(1.0, 0.0).share == math.inf and not Deviation(1.0, 0.0).ok


def test_the_text_names_the_frame_only_where_something_differs() -> None:
    report = Report((4, 9), 2, {"y": Deviation(0.5, 1e-4, 3, 9, "whole"), "z": Deviation(0.0, 1e-4, 0, 4)}, "h", ("n",))
    lines = str(report).splitlines()
    assert lines[0] == "2 streams at lengths [4, 9]"
    assert "at frame 3 of length 9 (whole)" in lines[1]
    assert "frame" not in lines[2]
    assert lines[3:] == ["  the first value inside the model that departs from batch is 'h'", "  note: n"]

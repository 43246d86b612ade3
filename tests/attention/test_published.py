"""Attention as published models write it, by both exporters: exact at every short length, at the smallest delay."""

from __future__ import annotations

import time

import pytest

import pulsify

pytest.importorskip("onnxscript")

from tests.attention.published import LAYERS, ONE_FRAME, REFUSED, STREAMED, exported
from tests.attention.test_written import EXPORTERS, check
from tests.selection import rotated

LENGTHS = (*range(1, 14), 26)
DELAYS = {
    "first_frames_ahead": 5, "first_frames_of_the_past": 1, "near": 3, "dilated": 6, "picked": 3, "picked_inside": 3,
    "clamped_at_last": 3,
}  # fmt: skip
NONE = {
    *(n for n in STREAMED if n.startswith(("decay", "chunk", "blocks"))),
    *("retention", "sink_in_front", "sink_less_the_largest", "memory_by_place", "running", "alibi", "forgetting"),
    *("first_frames", "first_frames_summed", "first_frames_and_sink", "fused_window"),
}


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", rotated([*STREAMED, *LAYERS]))
def test_exact(name: str, exporter: str) -> None:
    if name in LAYERS and exporter == "legacy":
        exporter = "dynamo"
    pulses = (4, 8) if name.startswith("blocks") else (1, 3) if exporter == "legacy" else (4,)
    check(exported(exporter, name), pulses, LENGTHS)


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", rotated(STREAMED))
def test_the_smallest_delay(name: str, exporter: str) -> None:
    """By default: as far as the mask looks ahead, and no further."""
    stream = pulsify.stream(exported(exporter, name), verify=False)
    assert stream.outputs[0].delay == DELAYS.get(name, 0 if name in NONE else 2)


def test_blocks_that_have_no_pad() -> None:
    check(exported("legacy", *ONE_FRAME), (4,), LENGTHS)


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("sink_and_all", "looks ahead without bound"),
        ("first_rows_see_all", "looks ahead without bound"),
        ("capped_behind_the_mask", "looks ahead without bound"),
        ("fused_all", "looks ahead without bound"),
        ("fused_all_by_stream", "looks ahead without bound"),
        ("first_frames_and_bias", "of them changes as the stream goes on"),
    ],
)
def test_refused(name: str, reason: str, exporter: str) -> None:
    """Within seconds, with the node at which columns are summed up, or the bias."""
    assert name in REFUSED
    proto, start = exported(exporter, name), time.process_time()
    with pytest.raises(pulsify.NotStreamable, match=reason) as refused:
        pulsify.stream(proto, verify=False)
    assert time.process_time() - start < 5
    assert refused.value.node and "mask" in refused.value.hint

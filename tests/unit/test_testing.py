"""What a model's own test suite is told: the refusal, the chain of delays, the largest states."""

from __future__ import annotations

import pytest

import pulsify
from pulsify.testing import assert_streams
from tests import models

torch = pytest.importorskip("torch")


def ahead() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv1d(2, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv1d(4, 3, 5, padding=2)
    ).eval()


def test_a_stream_that_is_soon_and_small_enough_is_given_back() -> None:
    made = assert_streams(models.look_ahead("B"), sample_rate=100, max_delay_ms=30, max_state_bytes=84)
    assert (made.sample_rate, made.state_bytes) == (100, 84)


@pytest.mark.parametrize("limit", [{"max_delay_ms": 29.0, "sample_rate": 100}, {"max_delay_frames": 2}])
def test_a_late_one_is_told_by_its_chain(limit: dict[str, float]) -> None:
    example = torch.randn(1, 2, 50)
    for source, given in ((ahead(), example), (models.look_ahead("B"), None)):
        with pytest.raises(AssertionError, match=r"3 frames of the input.* late, allowed are") as caught:
            assert_streams(source, given, **limit)  # type: ignore[arg-type]
        steps = str(caught.value).splitlines()[1:]
        assert len(steps) == 2 and "1 frame" in steps[0] and "2 frames" in steps[1] and "Conv" in steps[1]


def test_a_large_one_is_told_by_its_states() -> None:
    with pytest.raises(AssertionError, match="a stream's state is 84 bytes, allowed are 80 bytes") as caught:
        assert_streams(models.look_ahead("B"), max_state_bytes=80)
    assert str(caught.value).splitlines()[1].split()[:4] == ["64", "bytes", "for", "'r'"]


def test_one_that_does_not_stream_is_told_by_its_refusal() -> None:
    class Flipped(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flip(2)

    with pytest.raises(AssertionError, match=r"does not stream\n.*runs backwards over the whole stream"):
        assert_streams(Flipped(), torch.randn(1, 2, 50), time={"x": 2})


def test_milliseconds_need_a_rate() -> None:
    with pytest.raises(pulsify.InvalidArgument, match="max_delay_ms needs sample_rate"):
        assert_streams(models.look_ahead("B"), max_delay_ms=1)

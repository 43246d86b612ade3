"""Sizes are the graph's; what is innermost in memory is what the next reader wants."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from pulsify.backends.torch.layouts import by_head, each_channel, innermost, join, tap_by_tap
from tests.models import weights
from tests.unit.backends.torch.both import alike, small, written


def noise(*dims: int) -> torch.Tensor:
    return torch.randn(*dims, generator=torch.Generator().manual_seed(1))


def test_the_innermost_axis() -> None:
    assert innermost(torch.zeros(2, 3, 4)) == 2
    assert innermost(torch.zeros(2, 4, 3).transpose(1, 2)) == 1
    assert innermost(torch.zeros(2, 1, 3).transpose(1, 2)) == 1
    assert innermost(torch.zeros(1, 1, 1)) == 2
    assert innermost(torch.zeros(2, 6)[:, ::2]) == 1


@pytest.mark.parametrize("axis", [1, 2, 3])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 1, 3, 2), (0, 2, 3, 1)])
def test_a_cache_lies_as_its_new_frames_do(axis: int, order: tuple[int, ...]) -> None:
    back = [order.index(i) for i in range(4)]
    state, new = noise(2, 3, 4, 5), noise(*((2, 3, 4, 5)[i] for i in order)).permute(back)
    made = join([state, new], axis)
    torch.testing.assert_close(made, torch.cat([state, new], axis), rtol=0, atol=0)
    assert innermost(made) == innermost(new)
    assert innermost(join([made.narrow(axis, 1, 2), new], axis)) == innermost(new)


@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize(("taps", "stride", "dilation", "bias"), [(9, 1, 1, True), (3, 2, 1, False), (4, 1, 3, True)])
def test_every_channel_by_itself(rows: bool, taps: int, stride: int, dilation: int, bias: bool) -> None:
    x = noise(2, 30, 6).transpose(1, 2) if rows else noise(2, 6, 30)
    w, b = noise(6, 1, taps), noise(6) if bias else None
    want = F.conv1d(x, w, b, stride, 0, dilation, 6)
    for function in (each_channel, tap_by_tap):
        torch.testing.assert_close(function(x, w, b, [stride], [dilation]), want, rtol=1e-5, atol=1e-5)
    if rows:
        assert innermost(tap_by_tap(x, w, b, [stride], [dilation])) == 1


@pytest.mark.parametrize("channels", [1, 5])
def test_images(channels: int) -> None:
    x, w, b = noise(2, channels, 11, 9), noise(5, 1, 3, 2), noise(5)
    want = F.conv2d(x, w, b, [2, 1], 0, [1, 2], channels)
    for function in (each_channel, tap_by_tap):
        torch.testing.assert_close(function(x, w, b, [2, 1], [1, 2]), want, rtol=1e-5, atol=1e-5)


def test_sums_in_a_lower_type_are_float32() -> None:
    """256 ones in bfloat16, one after the other, are 256; one more is not seen."""
    x, w = torch.ones(1, 2, 300, dtype=torch.bfloat16), torch.ones(2, 1, 300, dtype=torch.bfloat16)
    assert tap_by_tap(x, w, None, [1], [1]).flatten().tolist() == [300.0, 300.0]


@pytest.mark.parametrize("rank", [3, 4])
def test_a_product_a_head(rank: int) -> None:
    x, w = noise(2, 4, 3, 8).transpose(1, 2), noise(*(1, 3, 8, 7)[4 - rank :])
    torch.testing.assert_close(by_head(x, w), torch.matmul(x, w), rtol=1e-5, atol=1e-5)


# ---- as they are written


def test_convolutions_of_one_tap_are_products() -> None:
    model = small("Conv x w b > y", {"x": [2, 4, 5]}, {"w": weights(3, 4, 1), "b": weights(3)})
    assert "y = F.linear(x.movedim(1, -1), w[:, :, 0], b).movedim(-1, 1)" in written(model).text
    alike(model)
    alike(small("Conv x w > y", {"x": [2, 4, 5, 3]}, {"w": weights(3, 4, 1, 1)}))


def test_what_is_written_for_a_compiler() -> None:
    model = small("Conv x w > y pads=[2,0] group=4", {"x": [2, 4, 5]}, {"w": weights(4, 1, 3)})
    assert "op.each_channel(F.pad(x, [2, 0], value=0.0), w, None, [1], [1])" in written(model).text
    assert "op.tap_by_tap(" in written(model, compiled=True).text
    alike(model)
    alike(model, compiled=True)
    long = small("Conv x w > y group=4", {"x": [2, 4, 50]}, {"w": weights(4, 1, 33)})
    assert "op.each_channel(" in written(long, compiled=True).text


def test_constants_are_not_copied_for_every_stream() -> None:
    model = small("MatMul x w > y", {"x": [2, 3, 4, 8]}, {"w": weights(1, 3, 8, 7)})
    assert "op.by_head(x, " in written(model).text
    alike(model)
    one = small("MatMul x w > y", {"x": [1, 3, 4, 8]}, {"w": weights(1, 3, 8, 7)})
    assert "torch.matmul(x, w)" in written(one).text


def test_what_a_join_is() -> None:
    model = small("Concat s x > y axis=2", {"s": [2, 4, 3], "x": [2, 4, 5]})
    assert "y = op.join([s, x], 2)" in written(model).text
    alike(model)
    assert "torch.cat(" in written(small("Concat s x > y axis=1", {"s": [2, 4], "x": [2, 5]})).text

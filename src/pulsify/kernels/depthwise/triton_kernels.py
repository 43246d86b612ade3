# mypy: ignore-errors
"""The kernel of `depthwise`, in Triton's language (no types there: arguments are tensors, numbers, tuples of steps)."""

import triton
import triton.language as tl


@triton.jit
def convolve(
    x, weights, bias, out, x_at, weights_at, bias_at, out_at, channels, count,
    TAPS: tl.constexpr, STRIDE: tl.constexpr, DILATION: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Some windows of some channels of one stream: a tap after the other, summed in float32."""
    stream = tl.program_id(0).to(tl.int64)
    t, c = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T), tl.program_id(2) * BLOCK_C + tl.arange(0, BLOCK_C)
    there = (t < count)[:, None] & (c < channels)[None, :]
    here = x + stream * x_at[0] + c[None, :] * x_at[1]
    made = tl.zeros([BLOCK_T, BLOCK_C], tl.float32)
    if bias is not None:
        made += tl.load(bias + c * bias_at[0], mask=c < channels, other=0.0).to(tl.float32)[None, :]
    for k in tl.static_range(TAPS):
        seen = tl.load(here + (t[:, None] * STRIDE + k * DILATION) * x_at[2], mask=there, other=0.0)
        tap = tl.load(weights + c * weights_at[0] + k * weights_at[1], mask=c < channels, other=0.0)
        made += seen.to(tl.float32) * tap.to(tl.float32)[None, :]
    place = out + stream * out_at[0] + c[None, :] * out_at[1] + t[:, None] * out_at[2]
    tl.store(place, made.to(out.dtype.element_ty), mask=there)

"""Fourier transforms. They are computed in float32 at least."""

from __future__ import annotations

from pulsify.backends.site import Uncovered
from pulsify.backends.torch.site import Site
from pulsify.backends.torch.table import Written, op


@op("STFT")
def stft(n: Site) -> Written:
    (hop,) = n.ints(1, "step")
    size = n.ints(3, "frame length")[0] if n.has(3) else n.sizes(2)[0] if n.has(2) else 0
    if not size:
        raise Uncovered("neither a window nor a length")
    return f"op.stft({n.x()}, {hop}, {size}, {n.maybe(2)}, {bool(n.attr('onesided', 1))})"


@op("DFT")
def dft(n: Site) -> Written:
    if n.opset < 20:
        axis = int(n.attr("axis", 1))
    elif n.has(2):
        axis = n.ints(2, "axis")[0]
    else:
        axis = -2
    axis %= n.rank()
    size = n.ints(1, "length")[0] if n.has(1) else None
    inverse, onesided = bool(n.attr("inverse", 0)), bool(n.attr("onesided", 0))
    if inverse and onesided and size is not None and size < 2 * (n.sizes()[axis] - 1):
        raise Uncovered("fewer numbers than its bins make")
    return f"op.dft({n.x()}, {axis}, {size}, {inverse}, {onesided})"

"""`depthwise` as the registry has it."""

from __future__ import annotations

from pulsify.core.named import Entry
from pulsify.kernels.depthwise.cases import CASES
from pulsify.kernels.depthwise.specification import bound, depthwise
from pulsify.kernels.registry import Implementation, Kernel

_HERE = "pulsify.kernels.depthwise"

KERNEL = Kernel(
    name="depthwise",
    about="a convolution of every channel by itself, channels side by side",
    specification=depthwise,
    cases=CASES,
    bound=bound,
    written=(),
    implementations={
        "torch": Implementation(Entry(f"{_HERE}.on_torch", "pulsify[torch]", "torch's own operators"), ("cpu", "cuda")),
        "triton": Implementation(Entry(f"{_HERE}.on_triton", "triton", "one kernel"), ("cuda", "cpu")),
    },
)

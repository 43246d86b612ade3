"""`stream_attention` as the registry has it."""

from __future__ import annotations

from pulsify.core.named import Entry
from pulsify.kernels.registry import Implementation, Kernel
from pulsify.kernels.stream_attention.cases import CASES
from pulsify.kernels.stream_attention.specification import bound, stream_attention

_HERE = "pulsify.kernels.stream_attention"

KERNEL = Kernel(
    name="stream_attention",
    about="attention over a window of cached keys, relative positions inside",
    specification=stream_attention,
    cases=CASES,
    bound=bound,
    written=("keys", "values"),
    implementations={
        "torch": Implementation(Entry(f"{_HERE}.on_torch", "pulsify[torch]", "torch's own operators"), ("cpu", "cuda")),
        "triton": Implementation(Entry(f"{_HERE}.on_triton", "triton", "one kernel"), ("cuda", "cpu")),
    },
)

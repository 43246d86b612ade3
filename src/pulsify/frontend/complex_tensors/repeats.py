"""How often a module's lines call torch: where a loop takes more turns the longer the stream is, that differs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from pulsify.frontend.complex_tensors.sites import Site, user_site

KEPT = "/torch/_higher_order_ops/"  # loops that an exporter keeps: torch.while_loop, scan


class Lines(TorchFunctionMode):  # type: ignore[misc]
    """Counts the calls of torch by the line that makes them."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[Site] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (site := user_site()) is not None and not _is_in_kept_loop():
            self.calls[site] += 1
        return func(*args, **(kwargs or {}))


def _is_in_kept_loop() -> bool:
    frame = sys._getframe(1)
    while frame is not None:
        if KEPT in frame.f_code.co_filename:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def calls(run: Callable[[], Any]) -> Counter[Site]:
    with torch.no_grad(), Lines() as lines:
        run()
    return lines.calls

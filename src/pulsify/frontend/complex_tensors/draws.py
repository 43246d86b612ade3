"""Where two runs on the same input differ first: a module draws random numbers, or keeps a state between its calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

from pulsify.frontend.complex_tensors.sites import Site, user_site


class Results(TorchFunctionMode):  # type: ignore[misc]
    """The line and the sum of the result of every call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Site | None, tuple[float, ...]]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        sums = tuple(_sum(t) for t in _pytree.tree_leaves(result) if isinstance(t, torch.Tensor))
        if sums:
            self.calls.append((user_site(), sums))
        return result


def _sum(tensor: Any) -> float:
    parts = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return float(torch.nan_to_num(parts.detach().double()).sum())


def first_difference(run: Callable[[], Any], *before: Callable[[], Any]) -> Site | None:
    """The first call in `run` whose result differs, after each of `before` was run. None: no call differs."""
    seen = []
    for each in before:
        each()
        with Results() as results:
            run()
        seen.append(results.calls)
    return next((one[0] for one, two in zip(*seen, strict=False) if one != two), None)

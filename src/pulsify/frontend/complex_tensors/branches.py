"""Branches of a module on its data: which there are, and what the module returns if one goes the other way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from pulsify.frontend.complex_tensors.pair import name_of
from pulsify.frontend.complex_tensors.sites import Site, user_site

MARK = "_pulsify_follows_from_data"


class Branches(TorchFunctionMode):  # type: ignore[misc]
    """Follows what is computed from the inputs; conditions on that are listed, and one of them may be turned round."""

    def __init__(self, turned: Site | None = None) -> None:
        super().__init__()
        self.sites: list[Site] = []
        self._turned = turned

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not any(map(_follows, (*args, *kwargs.values()))):
            return result
        if name_of(func) == "__bool__" and (site := user_site()) is not None:
            if site not in self.sites:
                self.sites.append(site)
            return (not result) if site == self._turned else result
        mark(result)
        return result


def _follows(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_follows, value))
    return isinstance(value, torch.Tensor) and getattr(value, MARK, False)


def mark(value: Any) -> None:
    """It follows from the inputs."""
    if isinstance(value, (list, tuple)):
        for item in value:
            mark(item)
    elif isinstance(value, torch.Tensor):
        setattr(value, MARK, True)


@contextmanager
def branches(turned: Site | None = None) -> Iterator[Branches]:
    with Branches(turned) as mode:
        yield mode

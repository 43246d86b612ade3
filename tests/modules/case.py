"""A module as a user would write it, the example it comes with, and what is expected of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Modules = dict[str, "Case"]


@dataclass(frozen=True)
class Case:
    """build: the module, on random weights. example: shapes of the inputs, or what makes them.

    options: of `pulsify.stream`. refused: what the error says, if there is no stream. lengths: frames (units of the
    first input) at which stream and module are compared. tolerance: relative to the output's scale. large: takes
    seconds, and is run among the slow tests. training: the module is passed as it was built, in train mode.
    """

    build: Callable[[], Any]
    example: tuple[tuple[int, ...], ...] | Callable[[int], Any]
    lengths: tuple[int, ...] = (1, 2, 17, 50)
    options: dict[str, Any] = field(default_factory=dict)
    refused: str | None = None
    tolerance: float = 1e-4
    large: bool = False
    training: bool = False

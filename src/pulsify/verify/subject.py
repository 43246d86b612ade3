"""What a check needs of a stream, whoever made it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import onnx_ir as ir

from pulsify.analysis.facts import Window
from pulsify.backends.seam import Own, StepProgram, Wired
from pulsify.core.arrays import ArrayLike
from pulsify.core.spec import Spec
from pulsify.runtime.whole import Pushed


class Subject(Protocol):
    """A stream that is looked at."""

    model: ir.Model
    spec: Spec

    @property
    def probes(self) -> Mapping[str, tuple[ir.Value, Window, int]]:
        """Where the frames of a batch wire are, and its time axis; a stream that was loaded does not know."""

    @property
    def opening(self) -> Subject | None:
        """What runs the first pulses as one, if anything does."""

    @property
    def quantised(self) -> bool: ...

    @property
    def warm(self) -> int: ...

    def session(
        self, *, batch: int | None, padding: float, statics: Mapping[str, ArrayLike], fuse_quantised: bool,
        portable: bool, backend: str, options: Mapping[str, Own] | None,
    ) -> Pushed: ...  # fmt: skip

    def wired(
        self, backend: str, batch: int, options: Mapping[str, Own] | None
    ) -> tuple[StepProgram, dict[str, Wired]]:
        """A back end's program and its steps by name, with all wires; none if it does not show them."""

    def release_portable(self, more_than: int = 0) -> None: ...

"""The step graph while it is emitted: no part of it exists before a pulse is chosen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import onnx_ir as ir

from pulsify.analysis.facts import Window
from pulsify.core.length import Length
from pulsify.emit.buffer import Buffer
from pulsify.emit.builder import Builder
from pulsify.emit.clock import Clock
from pulsify.emit.state import State

Counts = dict[tuple[Length, Window], ir.Value]  # of frames seen, see emit/fold


@dataclass(eq=False)
class Emission:
    """builder, clock: nodes, and where in the stream they are; the rest: what was made of them."""

    builder: Builder
    clock: Clock
    buffers: dict[str, Buffer] = field(default_factory=dict)  # by wire
    carries: list[State] = field(default_factory=list)
    counts: Counts = field(default_factory=dict)


class Graph(Protocol):
    """What nodes are written to: the context of a conversion, while its step graph is emitted."""

    @property
    def builder(self) -> Builder: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def carries(self) -> list[State]: ...

    @property
    def counts(self) -> Counts: ...

    @property
    def batch(self) -> str | None: ...

    @property
    def opset(self) -> int: ...

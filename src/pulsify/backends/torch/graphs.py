"""A body of work as a CUDA graph: recorded once, then started with one call, however many kernels it has.

A body takes and gives nothing: what it reads and writes has addresses of its own, for good. What is on the CPU cannot
be recorded: a step with islands is run as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Body = Callable[[], None]
Recorder = Callable[[Body], Body]  # the same work, to be started again and again
WARM_UP = 3  # calls before the recording: libraries settle on their kernels and their memory


def as_it_is(body: Body) -> Body:
    """Run node by node every time."""
    return body


class Graphs:
    """Recordings that never run at the same time, so that they share the memory for what lies in between."""

    def __init__(self) -> None:
        self._memory: Any = None

    def __call__(self, body: Body) -> Body:
        """The body is run a few times first: whatever it writes must be worth nothing then."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                body()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory):
            body()
        self._memory = graph.pool()
        replay: Body = graph.replay
        return replay

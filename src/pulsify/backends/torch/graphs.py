"""A step as a CUDA graph: recorded once, then started with one call, however many kernels it has.

call      copy what is new into its place, replay, read outputs from theirs
places    every argument and every result has an address of its own, for good

New states are copied over the old ones at the end of the recording, so that the next call finds them where it reads
them. What is on the CPU cannot be recorded: a step with islands is run as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Function = Callable[..., tuple[Any, ...]]
WARM_UP = 3  # calls before the recording: libraries settle on their kernels and their memory


@dataclass(frozen=True, eq=False)
class Recording:
    graph: Any
    takes: tuple[Any, ...]
    gives: tuple[Any, ...]


def recorded(step: Function, takes: tuple[str, ...], gives: tuple[str, ...], after: Mapping[str, str]) -> Function:
    """The same step, recorded at its first call. after: by state, the result that replaces it."""
    kept: list[Recording] = []
    replaced = {takes.index(state): gives.index(new) for state, new in after.items() if state in takes and new in gives}

    def call(*given: Any) -> tuple[Any, ...]:
        if not kept:
            kept.append(_record(step, given, replaced))
        own = kept[0]
        for place, tensor in zip(own.takes, given, strict=True):
            if place.data_ptr() != tensor.data_ptr():
                place.copy_(tensor, non_blocking=True)
        own.graph.replay()
        return own.gives

    return call


def _record(step: Function, given: tuple[Any, ...], replaced: Mapping[int, int]) -> Recording:
    places = tuple(t.clone(memory_format=torch.contiguous_format) for t in given)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            step(*places)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    shared = {p.untyped_storage().data_ptr() for p in places}
    with torch.cuda.graph(graph):
        made = [t.clone() if t.untyped_storage().data_ptr() in shared else t for t in step(*places)]
        for old, new in replaced.items():
            places[old].copy_(made[new])
    for old, new in replaced.items():
        made[new] = places[old]
    return Recording(graph, places, tuple(made))

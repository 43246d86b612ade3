"""A step as a CUDA graph, recorded once, then started with one call, however many kernels it has; or compiled first.

call      copy what is new into its place, replay, read outputs from theirs
places    every argument and every result has an address of its own, for good

States lie in memory as the step makes them. New ones are copied over the old ones at the end of the recording, so that
the next call finds them where it reads them. What is on the CPU cannot be recorded: a step with islands is run as it
is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import RLock
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch

if TYPE_CHECKING:
    from pulsify.backends.torch.step import Step

Function = Callable[..., tuple[Any, ...]]
Replaced = Mapping[int, int]  # by the place of a state among the arguments, that of what replaces it among the results
WARM_UP = 3  # calls before the recording: libraries settle on their kernels and their memory


@dataclass(eq=False)
class Turns:
    """Sessions share places, and take turns: whoever comes next has the last one's states moved elsewhere."""

    lock: RLock = field(default_factory=RLock)
    last: ref[Step] | None = None

    @contextmanager
    def of(self, step: Step) -> Iterator[None]:
        with self.lock:
            before = None if self.last is None else self.last()
            if before is not None and before is not step:
                before.leave()
            self.last = ref(step)
            yield


def replaced_by(takes: tuple[str, ...], gives: tuple[str, ...], after: Mapping[str, str]) -> Replaced:
    """after: by state, the result that replaces it."""
    return {takes.index(state): gives.index(new) for state, new in after.items() if state in takes and new in gives}


def compiled(step: Function) -> Function:
    """One kernel for what lies between products. The first call takes a minute or more if a step is long."""
    made: Function = torch.compile(step, dynamic=False, fullgraph=True)
    return made


def placed(step: Function, quick: Function, replaced: Replaced) -> Function:
    """The same step on places, without a recording: a compiler asks for strides that stay. step: as it is written."""
    kept: list[tuple[Any, ...]] = []

    def call(*given: Any) -> tuple[Any, ...]:
        if not kept:
            kept.append(_places(step, given, replaced))
        places = kept[0]
        _fill(places, given)
        made = list(quick(*places))
        shared = {p.untyped_storage().data_ptr() for p in places}
        made = [t.clone() if t.untyped_storage().data_ptr() in shared else t for t in made]
        for old, new in replaced.items():
            places[old].copy_(made[new])
            made[new] = places[old]
        return tuple(made)

    return call


@dataclass(frozen=True, eq=False)
class Recording:
    graph: Any
    takes: tuple[Any, ...]
    gives: tuple[Any, ...]


def recorded(step: Function, quick: Function, replaced: Replaced) -> Function:
    """The same step, recorded at its first call. step: as it is written; quick: what is recorded."""
    kept: list[Recording] = []

    def call(*given: Any) -> tuple[Any, ...]:
        if not kept:
            kept.append(_record(quick, _places(step, given, replaced), replaced))
        own = kept[0]
        _fill(own.takes, given)
        own.graph.replay()
        return own.gives

    return call


def _places(step: Function, given: tuple[Any, ...], replaced: Replaced) -> tuple[Any, ...]:
    """Memory for the arguments, that of a state in the order of what replaces it."""
    made = step(*given)
    places = [t.clone(memory_format=torch.contiguous_format) for t in given]
    for old, new in replaced.items():
        places[old] = torch.empty_like(made[new], memory_format=torch.preserve_format).copy_(given[old])
    return tuple(places)


def _fill(places: tuple[Any, ...], given: tuple[Any, ...]) -> None:
    for place, tensor in zip(places, given, strict=True):
        if place.data_ptr() != tensor.data_ptr():
            place.copy_(tensor, non_blocking=True)


def _record(step: Function, places: tuple[Any, ...], replaced: Replaced) -> Recording:
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

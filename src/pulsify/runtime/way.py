"""A whole pulse straight through a model: from a chunk to its input in memory, from its output to the caller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pulsify.backends.seam import Array, Stepper, TakesTensors, is_careful, takes_tensors
from pulsify.core.spec import Input
from pulsify.runtime.framer import Ports


@dataclass(frozen=True, slots=True)
class Way:
    """Straight through a model with one input and one output; flat: what is looked at for numbers not finite.

    frames: of a pulse, which is quicker than to ask the port. name, out: None if no output has frames. alone: it is
    given out as it is, not in a dict.
    careful: where the back end looks itself, which is quicker; flat is None then.
    tensors: the stepper, if it takes them.
    """

    port: Input
    frames: int
    into: Array
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    flat: Array | None
    name: str | None
    out: Array | None
    alone: bool
    settled: int
    careful: Callable[[], bool] | None
    tensors: TakesTensors | None
    looks: bool  # for numbers not finite, one way or the other
    before: tuple[slice, ...]  # the axes in front of time


def way_through(stepper: Stepper, known: Ports, check: bool, alone: bool) -> Way | None:
    direct = known.direct
    if direct is None:
        return None
    port = direct.port
    into = stepper.inputs[port.name]
    looked = check and port.dtype.kind == "f"
    careful = stepper.run_if_finite if looked and is_careful(stepper) else None
    flat = flat_memory(into) if looked and careful is None else None
    out = None if direct.output is None else stepper.outputs[direct.output]
    return Way(
        port,
        port.frames,
        into,
        into.shape,
        into.dtype,
        flat,
        direct.output,
        out,
        alone,
        direct.settled,
        careful,
        stepper if takes_tensors(stepper) else None,
        looked,
        (slice(None),) * port.axis,
    )


def moved(way: Way | None, stepper: Stepper) -> Way | None:
    """The same way through another stepper."""
    if way is None:
        return None
    into = stepper.inputs[way.port.name]
    flat = None if way.flat is None else flat_memory(into)
    careful = stepper.run_if_finite if way.careful is not None and is_careful(stepper) else None
    tensors = stepper if takes_tensors(stepper) else None
    out = None if way.name is None else stepper.outputs[way.name]
    return replace(way, into=into, flat=flat, out=out, careful=careful, tensors=tensors)


def flat_memory(into: Array) -> Array:
    """The memory in one row (ports that are rows are seen from the side), or as it is if it does not lie so."""
    flat = into.reshape(-1) if into.flags.c_contiguous else into[0].T.reshape(-1)
    return flat if np.shares_memory(flat, into) else into

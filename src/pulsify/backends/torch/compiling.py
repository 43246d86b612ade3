"""A step through torch.compile: neighbours become one kernel, written for this machine.

It is compiled when the session is opened, so that what is missing is said there, and never again for the same sizes.
Islands are called from outside of the kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from pulsify.backends.torch.source import Function, Source
from pulsify.backends.torch.step import full_precision
from pulsify.backends.torch.tensors import Wire, to_wire
from pulsify.core.errors import InvalidArgument

NEEDS = {
    "cpu": "on the CPU it needs a C++ compiler (g++, or another one that the environment variable CXX names)",
    "cuda": "on a card it needs Triton and a C compiler",
}


def compiled(step: Function, made: Source, device: Any, rows: int | None = None) -> Function:
    """The same step, compiled; InvalidArgument with a way out if torch cannot. rows: in the memory of rings."""
    space: dict[str, Any] = getattr(step, "__globals__")  # noqa: B009  of this step alone
    space.update({name: torch.compiler.disable(_called(space[name])) for name in made.islands})
    done: Function = torch.compile(step, dynamic=False)
    given = _zeros(made, device, rows)
    try:
        with torch.inference_mode(), full_precision():
            done(*given)
    except Exception as error:  # of many kinds, from the compiler that is not there to a kernel that it cannot write
        why = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)[:200]
        raise InvalidArgument(
            f"mode='compile': torch.compile failed ({type(error).__name__}: {why}); {NEEDS[device.type]}. "
            "mode='eager' (or 'graph', on a card) runs without"
        ) from error
    return done


def _called(island: Function) -> Function:
    """As a function, which is what torch keeps out of."""
    return lambda *wires: island(*wires)


def _zeros(made: Source, device: Any, rows: int | None) -> list[Wire]:
    """What a step takes, of the sizes that it takes."""
    ports, rings = {str(v.name): v for v in made.model.graph.inputs}, {r.state: r for r in made.plan.rings}
    out: list[Wire] = []
    for name in made.takes:
        value = ports.get(name)
        if name in rings:
            dims: tuple[int, ...] = (rows or 1, *rings[name].row)
        elif value is None:  # one number a stream
            dims = (made.streams,)
        else:
            assert value.shape is not None
            dims = tuple(value.shape.numpy())
        kind = np.dtype(np.int64) if value is None or value.dtype is None else value.dtype.numpy()
        out.append(to_wire(np.zeros(dims, kind), made.kinds[name], device))
    return out

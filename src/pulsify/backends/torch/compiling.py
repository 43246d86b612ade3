"""A step through torch.compile: neighbours become one kernel, written for this machine.

It is compiled when the session is opened, so that what is missing is said there, and never again for the same sizes.
Islands are called from outside of the kernels.
"""

from __future__ import annotations

from typing import Any

import torch

from pulsify.backends.torch.source import Function, Source
from pulsify.backends.torch.step import full_precision
from pulsify.core.errors import InvalidArgument

NEEDS = {
    "cpu": "on the CPU it needs a C++ compiler (g++, or another one that the environment variable CXX names)",
    "cuda": "on a card it needs Triton and a C compiler",
}


def compiled(step: Function, made: Source, device: Any) -> Function:
    """The same step, compiled; InvalidArgument with a way out if torch cannot."""
    done: Function = torch.compile(step, dynamic=False)
    given = [torch.zeros(_sizes(v), dtype=_type(made, v), device=device) for v in made.model.graph.inputs]
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


def _sizes(value: Any) -> list[int]:
    return [int(d) for d in value.shape]


def _type(made: Source, value: Any) -> torch.dtype:
    return getattr(torch, made.kinds[value.name])

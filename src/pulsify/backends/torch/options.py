"""What the back end `torch` takes for its own: device, type, mode, and what may or must stay on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from pulsify.core.errors import InvalidArgument

DTYPES = (None, "float32", "float16", "bfloat16")
MODES = ("eager", "graph", "compile")  # node by node; recorded as a CUDA graph; compiled, and recorded on a card


@dataclass(frozen=True)
class Chosen:
    """device: None, for a card if there is one, else the CPU. dtype: stands for float32.

    allow_cpu: parts of the names of nodes that may be on the CPU; None: any. force_cpu: of those that must be.
    """

    device: str | None = None
    dtype: str | None = None
    mode: str = "eager"
    allow_cpu: tuple[str, ...] | None = None
    force_cpu: tuple[str, ...] = ()


NAMES = tuple(f.name for f in fields(Chosen))


def chosen(given: Mapping[str, Any]) -> Chosen:
    """Checked, with the device settled."""
    if unknown := sorted(set(given) - set(NAMES)):
        raise InvalidArgument(f"unknown: {unknown}; the back end 'torch' takes {', '.join(NAMES)}")
    made = Chosen(**{k: v for k, v in given.items() if k not in ("allow_cpu", "force_cpu")})
    if made.dtype not in DTYPES:
        raise InvalidArgument(f"dtype={made.dtype!r}: expected None, {', '.join(repr(d) for d in DTYPES if d)}")
    if made.mode not in MODES:
        raise InvalidArgument(f"mode={made.mode!r}: there is {', '.join(MODES)}")
    device = _device(made.device)
    if made.mode == "graph" and not device.startswith("cuda"):
        raise InvalidArgument(f"mode='graph' records a CUDA graph, and the device is {device!r}: use mode='eager'")
    allow = given.get("allow_cpu")
    return Chosen(
        device,
        None if made.dtype == "float32" else made.dtype,
        made.mode,
        None if allow is None else _parts("allow_cpu", allow),
        _parts("force_cpu", given.get("force_cpu") or ()),
    )


def _parts(name: str, given: Sequence[str]) -> tuple[str, ...]:
    if isinstance(given, str) or not all(isinstance(p, str) and p for p in given):
        raise InvalidArgument(f"{name}={given!r}: expected a list of parts of names")
    return tuple(given)


def _device(given: object) -> str:
    """Never quietly another one than was asked for."""
    if given is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device(given)
    except (RuntimeError, TypeError):
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise InvalidArgument(f"device={given!r}: expected 'cuda', 'cuda:0', ... or 'cpu'")
    if found.type == "cuda":
        there = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if not there:
            raise InvalidArgument(
                f"device={given!r}: torch {torch.__version__} sees no CUDA device here; device='cpu' runs on the CPU"
            )
        if (found.index or 0) >= there:
            raise InvalidArgument(f"device={given!r}: there are {there}, counted from 0")
    return str(found)

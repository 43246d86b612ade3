"""Every case on every implementation there is: how far each is from the specification."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pulsify.core.errors import InvalidArgument
from pulsify.kernels.registry import Case, Inputs, Kernel

Array = npt.NDArray[Any]
TYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Outcome:
    """Of one implementation on one device in one type. error: the worst of all cases; share: of what it may be.

    missing: why it was not run at all.
    """

    kernel: str
    target: str
    device: str
    dtype: str
    cases: int = 0
    error: float = 0.0
    share: float = 0.0
    worst: str = ""
    failed: tuple[str, ...] = ()
    missing: str = ""


def check(kernel: Kernel, device: str, types: Iterable[str] = TYPES) -> Iterator[Outcome]:
    """All implementations for this device, one after the other."""
    kind = device.split(":")[0]
    for target, found in kernel.implementations.items():
        if kind not in found.devices:
            continue
        for dtype in types:
            reason = unavailable(kernel, target, kind, dtype)
            if reason:
                yield Outcome(kernel.name, target, device, dtype, missing=reason)
            else:
                yield judged(kernel, target, device, dtype)


def unavailable(kernel: Kernel, target: str, kind: str, dtype: str) -> str:
    """Why this one cannot run here; empty if it can."""
    interpreted = target == "triton" and kind == "cpu"
    if interpreted and os.environ.get("TRITON_INTERPRET") != "1":
        return "on the CPU only in its interpreter: TRITON_INTERPRET=1"
    if interpreted and dtype == "bfloat16":
        return "its interpreter has no products in this type"
    try:
        kernel.implementation(target)
    except InvalidArgument as error:
        return str(error)
    return "there is no card here" if kind == "cuda" and not _card() else ""


def _card() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def judged(kernel: Kernel, target: str, device: str, dtype: str) -> Outcome:
    """The worst over all cases."""
    error, share, worst, failed = 0.0, 0.0, "", list[str]()
    for case in kernel.cases:
        off, allowed = deviation(kernel, case, target, device, dtype)
        error = max(error, off) if np.isfinite(off) else error
        if worst == "" or off / allowed > share:
            share, worst = off / allowed, case.name
        if not off <= allowed:
            failed.append(case.name)
    return Outcome(
        kernel.name, target, device, dtype, len(kernel.cases), error, share, worst, tuple(failed)
    )  # fmt: skip


def deviation(kernel: Kernel, case: Case, target: str, device: str, dtype: str) -> tuple[float, float]:
    """How far a case's result is off, and how far it may be. Infinite: NaN elsewhere, or another thing written."""
    inputs = rounded(case.make(), dtype)
    made, *after = kernel.specification(**inputs)
    got, *written = run(kernel, target, inputs, device, dtype)
    if not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(after, written, strict=True)):
        return float("inf"), kernel.bound(inputs, dtype)
    return distance(got, made), kernel.bound(inputs, dtype)


def distance(got: Array, made: Array) -> float:
    """The largest difference; infinite if NaN or an infinity is elsewhere."""
    if got.shape != made.shape:
        return float("inf")
    plain = np.isfinite(made)
    if not np.array_equal(got[~plain], made[~plain], equal_nan=True) or not np.isfinite(got[plain]).all():
        return float("inf")
    return float(np.abs(got[plain] - made[plain]).max(initial=0.0))


def run(kernel: Kernel, target: str, inputs: Inputs, device: str, dtype: str) -> list[Array]:
    """An implementation's result, and what it wrote to, as float64."""
    tensors = {name: tensor(value, device, dtype) for name, value in inputs.items()}
    made = kernel.implementation(target)(**tensors)
    return [one.double().cpu().numpy() for one in (made, *(tensors[name] for name in kernel.written))]


def tensor(value: Any, device: str, dtype: str) -> Any:
    """Floats in this type, all else as it is. Steps are kept."""
    if not isinstance(value, np.ndarray):
        return value
    import torch

    made = torch.from_numpy(value.copy(order="K"))  # as it lies in memory, too
    kept = torch.preserve_format
    return made.to(device, getattr(torch, dtype) if made.is_floating_point() else None, memory_format=kept)


def rounded(inputs: Inputs, dtype: str) -> dict[str, Any]:
    """As float64, but with no digits that the type does not have."""
    return {
        name: nearest(value, dtype) if isinstance(value, np.ndarray) and value.dtype == np.float64 else value
        for name, value in inputs.items()
    }


def nearest(value: Array, dtype: str) -> Array:
    """The nearest numbers of a type, ties to even, as float64."""
    if dtype != "bfloat16":
        with np.errstate(over="ignore"):
            return value.astype(dtype, order="K").astype(np.float64, order="K")
    whole = value.astype(np.float32, order="K")
    bits = whole.view(np.uint32)
    even = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isfinite(whole), even.view(np.float32), whole).astype(np.float64, order="K")

"""Does the stream equal the batch model, first frame to last, for any length and any chunking?

`check` uses the public contract only: stream, session, push, flush. ONNX Runtime on the whole input says
what is right. Frames past the end of the last chunk are filled with NaN, so that any use of them shows.
"""

from __future__ import annotations

import dataclasses
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

import pulsify
from pulsify.core.chunks import chunkings
from tests.side import Batch, streamed

Array = npt.NDArray[Any]
Arrays = dict[str, Array]
Axes = Mapping[str, int | tuple[int, int]]  # input -> its time axis, or (axis, frames per unit of length)
Status = Literal["exact", "wrong", "refused", "error"]

TOLERANCE = 1e-4  # of the largest magnitude in the batch output, or of 1 if that is smaller
DETAIL_LENGTH = 300


@dataclasses.dataclass(frozen=True)
class Refusal:
    """What a NotStreamable says."""

    node: str
    op: str
    reason: str
    hint: str


@dataclasses.dataclass(frozen=True)
class Result:
    status: Status
    detail: str = ""
    worst: float = math.nan  # largest relative error seen; nan if nothing was compared
    delays: dict[str, Any] = dataclasses.field(default_factory=dict)  # output -> frames
    refusal: Refusal | None = None


def check(
    model_path: str | Path,
    make_inputs: Callable[[int], Arrays],
    axes: Axes,
    pulse: int,
    lengths: Sequence[int],
    *,
    bound: Sequence[str] = (),
    tolerance: float = TOLERANCE,
    running: Mapping[str, Any] | None = None,
    **options: Any,
) -> Result:
    """Streams a model at every length in several chunkings and compares with batch.

    `make_inputs(length)` gives all the inputs of the batch model. Those in `axes` are streamed, those in
    `bound` follow from the length and are left out, the others are given to the session as they are.
    `running` are options of the sessions, `options` go to `pulsify.stream`.
    """
    try:
        stream = _compile(model_path, pulse, options)
    except pulsify.NotStreamable as error:
        refusal = _refusal(error)
        return Result("refused", f"{refusal.node} ({refusal.op}): {refusal.reason}", refusal=refusal)
    except Exception as error:  # any other failure is a finding to report, not to raise
        return Result("error", f"compile: {_one_line(error)}")
    return compare(stream, model_path, make_inputs, axes, lengths, bound=bound, tolerance=tolerance, running=running)


def compare(
    stream: Any,
    model_path: str | Path,
    make_inputs: Callable[[int], Arrays],
    axes: Axes,
    lengths: Sequence[int],
    *,
    bound: Sequence[str] = (),
    tolerance: float = TOLERANCE,
    running: Mapping[str, Any] | None = None,
) -> Result:
    """The second half of `check`, for a stream made elsewhere."""
    batch = Batch(model_path)
    delays = {o.name: o.delay for o in stream.outputs}
    rng = np.random.default_rng(7)
    worst = math.nan
    for length in lengths:
        inputs = make_inputs(length)
        expected = batch.attempt(inputs)
        if expected is None:  # too short or of the wrong multiple for the model itself
            continue
        for i, cuts in enumerate(chunkings(length, stream.pulse, rng)):
            where = f"length {length} cuts {_brief(cuts)}"
            try:
                got = run_stream(stream, inputs, cuts, portable=i == 0, **(running or {}))
            except Exception as error:  # as above
                return Result("error", f"run {where}: {_one_line(error)}", worst, delays)
            for output in stream.outputs:
                error_size, difference = _difference(got[output.name], expected[output.name], output.axis)
                worst = float(np.fmax(worst, error_size))
                if error_size > tolerance:
                    return Result("wrong", f"{output.name} {where}: {difference}", worst, delays)
    if math.isnan(worst):
        return Result("error", "the batch model ran at none of the lengths", delays=delays)
    return Result("exact", worst=worst, delays=delays)


def run_stream(stream: Any, inputs: Arrays, cuts: Sequence[int], portable: bool = False, **running: Any) -> Arrays:
    """All outputs of one stream, cut as told."""
    return streamed(stream, inputs, cuts, portable=portable, **running)


def _compile(path: str | Path, pulse: int, options: Mapping[str, Any]) -> Any:
    """The stream, at the pulse and with the growing cache that pulsify itself asks for."""
    try:
        return pulsify.stream(str(path), pulse=pulse, **options)
    except pulsify.InvalidPulse as error:
        multiple = int(error.granularity)
        return pulsify.stream(str(path), pulse=math.ceil(pulse / multiple) * multiple, **options)
    except pulsify.NotStreamable as error:
        if "unbounded" not in str(error) or "unbounded" in options:
            raise
        return pulsify.stream(str(path), pulse=pulse, unbounded="grow", **options)


def _refusal(error: Any) -> Refusal:
    """As text; what the exception lacks is empty."""
    return Refusal(*(str(getattr(error, f.name, None) or "") for f in dataclasses.fields(Refusal)))


def _difference(got: Array, expected: Array, axis: int | None) -> tuple[float, str]:
    """The largest error relative to the scale of `expected`, and what to say about it."""
    if got.shape != expected.shape:
        return math.inf, f"shape {got.shape}, not {expected.shape}"
    if got.dtype != expected.dtype:
        return math.inf, f"type {got.dtype}, not {expected.dtype}"
    if not expected.size:
        return 0.0, ""
    errors = _errors(got, expected)
    return float(errors.max()), _where_worst(errors, axis)


def _errors(got: Array, expected: Array) -> Array:
    """Elementwise, relative to the scale; integers, infinities and NaNs must be the same."""
    if expected.dtype.kind not in "fc":
        return np.where(got == expected, 0.0, math.inf)
    finite = np.isfinite(expected)
    scale = np.abs(expected).max(initial=1.0, where=finite)
    with np.errstate(invalid="ignore"):
        errors = np.abs(got - expected) / scale
    same = (got == expected) | (np.isnan(got) & np.isnan(expected))
    return np.where(same, 0.0, np.where(np.isfinite(got) & finite, errors, math.inf))


def _where_worst(errors: Array, axis: int | None) -> str:
    text = f"error {errors.max():.2g}"
    if axis is None:
        return text
    by_frame = errors.max(tuple(i for i in range(errors.ndim) if i != axis))
    bad = np.flatnonzero(by_frame > TOLERANCE)
    if not bad.size:
        return text
    return f"{text}, {bad.size} of {by_frame.size} frames, {bad[0]} to {bad[-1]}"


def _brief(cuts: Sequence[int]) -> str:
    return ",".join(map(str, cuts[:4])) + (",..." if len(cuts) > 4 else "")


def _one_line(error: Exception) -> str:
    return " ".join("".join(traceback.format_exception_only(error)).split())[:DETAIL_LENGTH]

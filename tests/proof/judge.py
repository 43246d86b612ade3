"""The stream against its batch model at given lengths: exact, refused, wrong, or an error that is none of ours."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

import pulsify
from pulsify.core.chunks import chunking
from tests.side import streamed

Array = NDArray[Any]
Kind = Literal["exact", "refused", "wrong", "error"]
FEW = 64  # frames: shorter streams may be turned down if the stream says so
SHORT = 300  # frames up to which several chunkings are tried
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Outcome:
    """detail: what was wrong, where, or why it was refused. length: of the first that was wrong."""

    kind: Kind
    detail: str = ""
    length: int | None = None
    pulse: int | None = None

    def __str__(self) -> str:
        at = f" at length {self.length}" if self.length is not None else ""
        return f"{self.kind}{at}, pulse {self.pulse}: {self.detail}"


class Batch:
    """ONNX Runtime on the whole input; as it comes, or with its optimisations off."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._bytes = model.SerializeToString()
        self._open: dict[bool, ort.InferenceSession] = {}
        graph = model.graph
        self.name = graph.input[0].name
        self.dims = [d.dim_value for d in graph.input[0].type.tensor_type.shape.dim]
        self.names = [o.name for o in graph.output]

    def run(self, x: Array, plain: bool = False) -> dict[str, Array] | None:
        """The outputs, or None where the model does not take this input."""
        try:
            if plain not in self._open:
                self._open[plain] = self._session(plain)
            return dict(zip(self.names, self._open[plain].run(None, {self.name: x}), strict=True))
        except Exception:  # ONNX Runtime has no common class for them
            return None

    def _session(self, plain: bool) -> ort.InferenceSession:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        if plain:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        return ort.InferenceSession(self._bytes, options, providers=["CPUExecutionProvider"])

    def data(self, length: int) -> Array:
        """Small whole numbers, none of them zero: whatever a frame is multiplied by shows."""
        rng = np.random.default_rng(length)
        values = rng.integers(1, 5, [d or length for d in self.dims]) * rng.choice([-1, 1], self.dims[-2:-1] + [length])
        return values.astype(np.float32)


def convert(model: onnx.ModelProto, pulse: int, **options: Any) -> pulsify.Stream:
    """At this pulse, or at the next that fits."""
    try:
        return pulsify.stream(model, pulse=pulse, **options)
    except pulsify.InvalidPulse as error:
        fitting = -(-pulse // error.granularity) * error.granularity
        return pulsify.stream(model, pulse=fitting, **options)


def judge(
    model: onnx.ModelProto,
    pulse: int,
    lengths: Iterable[int],
    *,
    verify: bool = False,
    shortest: int = 1,
    **options: Any,
) -> Outcome:
    """Convert, then compare at every length.

    Where batch fails, the stream must raise an error of ours. Where batch gives frames the stream must give the same;
    below `shortest` it may turn the stream down instead. So it may below the shortest stream that it says it takes, if
    that is no longer than a few frames: what a model does with such streams may be decided otherwise (If, Loop).
    """
    try:
        stream = convert(model, pulse, verify=verify, **options)
    except pulsify.NotStreamable as error:
        incomplete = "" if error.reason and error.hint else " (without a reason or a hint)"
        return Outcome("error" if incomplete else "refused", f"{error}{incomplete}", pulse=pulse)
    except Exception as error:
        return Outcome("error", f"conversion: {error!r}", pulse=pulse)
    batch = Batch(model)
    shortest = max(shortest, min(stream.spec.shortest, FEW))
    for length in sorted(set(lengths)):
        problem = at_length(stream, batch, length, length < shortest)
        if problem:
            return Outcome(*problem, length=length, pulse=stream.pulse)
    return Outcome("exact", pulse=stream.pulse)


def at_length(stream: pulsify.Stream, batch: Batch, length: int, lenient: bool) -> tuple[Kind, str] | None:
    """What is wrong there, if anything."""
    x = batch.data(length)
    want = batch.run(x)
    lenient = lenient or (want is not None and not all(w.size for w in want.values()))
    for cuts in cuttings(length, stream.pulse):
        try:
            have = run(stream, x, cuts)
        except pulsify.PulsifyError as error:
            if want is not None and not lenient:
                return "wrong", f"turned down ({type(error).__name__}: {error}), batch takes it; cuts {cuts[:6]}"
            continue
        except Exception as error:
            return "error", f"{error!r}; cuts {cuts[:6]}"
        if want is None:
            return "wrong", f"numbers where batch fails; cuts {cuts[:6]}"
        problem = different(have, want)
        if problem:
            plain = batch.run(x, plain=True)
            if plain is None or different(have, plain):
                return "wrong", f"{problem}; cuts {cuts[:6]}"
    return None


def cuttings(length: int, pulse: int) -> Iterator[list[int]]:
    """All at once; short streams also pulse by pulse, and at random with empty chunks."""
    ways = ("whole", "pulses", "random") if length <= SHORT else ("whole",)
    for how in ways:
        yield chunking(how, length, pulse, np.random.default_rng(length))


def run(stream: pulsify.Stream, x: Array, cuts: list[int]) -> dict[str, Array]:
    """One session; what is written to a file, where the chunks are pulses, else as sessions run it."""
    return streamed(stream, x, cuts, portable=len(cuts) > 1 and cuts[0] == stream.pulse)


def different(have: dict[str, Array], want: dict[str, Array]) -> str:
    """The first output that is not the same, in words."""
    return next((f"{n}: {d}" for n, w in want.items() if (d := departure(have[n], w))), "")


def departure(have: Array, want: Array) -> str:
    if have.shape != want.shape or have.dtype != want.dtype:
        return f"{have.dtype}{list(have.shape)} instead of {want.dtype}{list(want.shape)}"
    if not want.size:
        return ""
    a, b = have.astype(np.float64), want.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    scale = np.abs(b).max(initial=0, where=np.isfinite(b)) or 1.0
    with np.errstate(invalid="ignore"):
        errors = np.where(same, 0, np.nan_to_num(np.abs(a - b) / scale, nan=math.inf))
    if errors.max() <= (TOLERANCE if want.dtype.kind == "f" else 0):
        return ""
    where = np.argwhere(errors == errors.max())[0].tolist()
    return f"off by {errors.max():.2g} of its scale at {where} of {list(want.shape)}"

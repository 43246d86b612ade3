"""The batch side of a comparison: the same inputs in one piece, and how far two results are apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pulsify.core.errors import InvalidArgument
from pulsify.core.runner import output_names, run_model
from pulsify.report.figures import Figures, finite
from pulsify.runtime.whole import batch_of
from pulsify.verify.distance import apart, error, limit

if TYPE_CHECKING:
    import onnxruntime as ort

    from pulsify.api import Stream

Array = np.ndarray[Any, Any]
INTEGERS = {"tensor(int32)": np.int32, "tensor(int64)": np.int64}


def check_belongs(runner: ort.InferenceSession, stream: Stream) -> None:
    """The stream must have been made from a model with these inputs and outputs."""
    given = {p.name: p.type for p in runner.get_inputs()}
    named = {i.name for i in stream.inputs} | {s.name for s in stream.statics}
    missing = sorted(named - set(given))
    named |= {f.name for f in stream.spec.filled}
    unbound = sorted(n for n, t in given.items() if n not in named and t not in INTEGERS)
    absent = sorted({o.name for o in stream.outputs} - set(output_names(runner)))
    if missing or unbound or absent:
        parts = [f"it has no input {missing}"] * bool(missing) + [f"it needs input {unbound}"] * bool(unbound)
        parts += [f"it has no output {absent}"] * bool(absent)
        raise InvalidArgument(f"this stream was not made from this model: {', '.join(parts)}")


def run_batch(runner: ort.InferenceSession, stream: Stream, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """All outputs of the batch model. Inputs that hold the length, and masks that are bound, are filled in."""
    first = stream.inputs[0]
    length = int(feeds[first.name].shape[first.axis] / first.rate)
    batch = batch_of(stream.spec, feeds)
    full, filled = dict(feeds), {f.name: f for f in stream.spec.filled}
    for port in runner.get_inputs():
        if (mask := filled.get(port.name)) is not None and port.name not in full:
            sizes = [d if isinstance(d, int) else batch for d in port.shape]
            sizes[mask.axis] = int(length * mask.rate)
            full[port.name] = np.full(sizes, mask.value, mask.dtype)
        elif port.name not in full:
            dims = [d if isinstance(d, int) else batch for d in port.shape]
            full[port.name] = np.full(dims, length, INTEGERS[port.type])
    return run_model(runner, full)


def difference(got: Array, want: Array) -> Figures:
    """Largest difference: absolute, and relative to the reference's scale, which is what the limit is for."""
    if got.shape != want.shape:
        shapes = f"shape {list(got.shape)}, batch has {list(want.shape)}"
        return {"largest": "inf", "error": "inf", "ok": False, "note": shapes}
    off = error(got, want)
    worst = float(off.max(initial=0.0))
    return {
        "largest": finite(apart(got, want, off)),
        "error": finite(worst),
        "ok": worst <= limit(want, None),
        "note": "",
    }

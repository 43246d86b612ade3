"""Streams with known results, for whoever builds the C: inputs, and what the step gives in ONNX Runtime.

int32 streams; of each: int32 length, static inputs, inputs, and of each output int32 elements and these. Little endian.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from pulsify.backends.seam import Opening
from pulsify.core.spec import Spec
from pulsify.export.known import known_streams


@dataclass(frozen=True)
class Vectors:
    """The file, and how many elements its largest input and output have, port by port."""

    data: bytes
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def vectors(model: ir.Model, spec: Spec, since: int, opening: Opening | None = None) -> Vectors:
    """since: the pulse from which on the steady step runs; a stream that goes further is among them, if it fits."""
    words: list[bytes] = []
    ins, outs, count = [1] * len(spec.inputs), [1] * len(spec.outputs), 0
    for known in known_streams(model, spec, since, opening):
        count += 1
        words.append(np.int32(known.length).tobytes())
        words += [np.ascontiguousarray(a).tobytes() for a in (*known.statics.values(), *known.inputs.values())]
        for k, i in enumerate(spec.inputs):
            ins[k] = max(ins[k], known.inputs[i.name].size)
        for k, o in enumerate(spec.outputs):
            whole = known.outputs[o.name]
            outs[k] = max(outs[k], whole.size)
            words += [np.int32(whole.size).tobytes(), np.ascontiguousarray(whole, o.dtype).tobytes()]
    return Vectors(np.int32(count).tobytes() + b"".join(words), tuple(ins), tuple(outs))

"""A front end that is a model of its own, in front of a stream: features are made where they are used.

Two streams one behind the other are not the stream of both: what the first gives before its first frame (its delay)
must not reach the second's states, and its end comes later. So the two batch models are chained and converted as one.
"""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from pulsify.core.errors import InvalidArgument
from pulsify.core.identity import source_hash
from pulsify.core.spec import Spec
from pulsify.frontend.chain import chain


def chained(front: str, batch: str, spec: Spec) -> ir.Model:
    """The front end and the batch model that this stream is of, as one; InvalidArgument if it is of another."""
    if not batch:
        raise InvalidArgument("merge_front_end needs the batch model that this stream was made from: model=FILE")
    for file in (front, batch):
        if not Path(file).is_file():
            raise InvalidArgument(f"no such file: {file!r}")
    if source_hash(batch) != spec.source:
        raise InvalidArgument(f"{Path(batch).name!r} is not the batch model that this stream was made from")
    if spec.exact_up_to is not None:
        raise InvalidArgument(
            f"this stream is exact up to {spec.exact_up_to} frames only (unbounded=N): "
            "chain the models with pulsify.chain and convert that with the same N"
        )
    try:
        return chain(front, batch)
    except InvalidArgument as error:
        raise InvalidArgument(
            f"the front end does not fit: {error.summary}; pulsify.chain takes connect=... and gives a model to convert"
        ) from error


def pulse_for(spec: Spec, front: Spec) -> int:
    """The pulse, in frames of the front end's input, that gives a pulse of the stream's."""
    rate = next((o.rate for o in front.outputs if o.axis is not None), None)
    if not rate:
        raise InvalidArgument("the front end gives no frames")
    pulse = spec.pulse * front.inputs[0].rate / rate
    if pulse.denominator != 1:
        raise InvalidArgument(f"a pulse of {spec.pulse} frames is {pulse} of the front end's, which is no whole number")
    return int(pulse)

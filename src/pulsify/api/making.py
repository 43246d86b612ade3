"""`stream`: from a batch model to a stream."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import onnx_ir as ir

from pulsify.api.arguments import LONGEST_PULSE, check_rate, whole
from pulsify.api.model import Stream
from pulsify.core.custom import Bodies, write_out
from pulsify.core.errors import InvalidArgument, Mismatch, NotStreamable
from pulsify.core.identity import source_hash

if TYPE_CHECKING:
    import onnx
    import torch

    from pulsify.convert.convert import Converted, Natural

    Model: TypeAlias = str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model
    Example: TypeAlias = torch.Tensor | tuple[torch.Tensor, ...] | Mapping[str, torch.Tensor]


def stream(
    source: Model | torch.nn.Module | torch.export.ExportedProgram,
    pulse: int | None = None,
    *,
    time: str | Mapping[str, int] | None = None,
    bind: Mapping[str, str] | None = None,
    set: Mapping[str, int | str] | None = None,
    example: Example | None = None,
    unbounded: str | int = "refuse",
    proof: str = "proven",
    opening: bool = True,
    sample_rate: float | None = None,
    verify: bool = True,
) -> Stream:
    """Turn a batch model into an exactly equivalent stream, or raise NotStreamable.

    source: a path, bytes, an onnx.ModelProto, an onnx_ir.Model, a torch.nn.Module with `example` inputs, or a program
    of torch.export (a .pt2 file too).
    pulse: frames per call; if not given, the one with the smallest latency (`Stream.natural_pulse`). time: the name of
    the time dimension ("T"), or its axis by input ({"x": 2}); needed only if it is ambiguous. bind: integer inputs that
    hold the length ({"length": "T"}), and masks that are the same throughout ({"attention_mask": "ones"}, "zeros"); an
    attention_mask is found by itself, None leaves it a stream. set: fixes other dimensions, or declares lengths
    ({"T": "8*n"}, {"T": "320*n+80"}, {"T": "16000+n"}, {"T": "<=3000"}).
    unbounded: attention that looks back to the start of the stream is refused, or keeps all of it ("grow": exact, and
    ever slower), or its last N frames (N: bounded, and no longer the batch model's result once a stream is longer than
    `spec.exact_up_to`).
    opening: where a mirrored start makes all frames wait for what the first ones show, the first pulses are run as one
    (`Stream.opening`), after which nothing waits; False: one graph, and all frames wait. So do those of a model of more
    than a gigabyte, which would be held twice.
    proof: what is not certain at every length is refused ("proven"), or taken as a sample of lengths shows it
    ("sampled": the stream says so). sample_rate: frames of the first input a second; it is kept, and what is said of
    time is said in ms too. verify: check against the batch model before returning.
    """
    from pulsify.convert.convert import convert, natural
    from pulsify.frontend.load import load as load_onnx
    from pulsify.frontend.time import find_time
    from pulsify.trace.lengths import Tracer
    from pulsify.trace.resolve import resolve

    if pulse is not None:
        pulse = whole(pulse, f"pulse={pulse!r}: expected a whole number of frames, from 1 to {LONGEST_PULSE}")
    if proof not in ("proven", "sampled"):
        raise InvalidArgument(f"proof={proof!r}: expected 'proven' or 'sampled'")
    if unbounded not in ("refuse", "grow") or isinstance(unbounded, bool):
        unbounded = whole(unbounded, f"unbounded={unbounded!r}: expected 'refuse', 'grow' or a number of frames")
    source = onnx_of(source)
    if not isinstance(source, (str, bytes, os.PathLike)) and _is_torch(source):
        source, time, free = _exported(source, example, time, set or {})
        if free is not None:
            try:
                return stream(
                    source, pulse, time=time, bind=bind, set=set, unbounded=unbounded, proof=proof, opening=opening,
                    sample_rate=sample_rate, verify=verify,
                )  # fmt: skip
            except (NotStreamable, Mismatch):  # perhaps one stream can be had, if several cannot
                set = {**(set or {}), free: 1}
    check_rate(sample_rate)
    model = load_onnx(source)
    spec = find_time(model, time, bind, set)
    model = resolve(model, spec)
    tracer = Tracer(model, spec)
    converted = convert(tracer, pulse, unbounded, proof, opening)
    made = _made(
        converted, source_hash(source), sample_rate, model.bodies, partial(natural, tracer, unbounded, proof, opening)
    )
    if verify:
        from pulsify.verify.check import quick

        made.report = quick(source, made)
    return made


def _made(
    converted: Converted,
    source: str,
    rate: float | None,
    bodies: Bodies,
    natural: Callable[[], Natural] | None = None,
) -> Stream:
    """A stream of what was converted, its opening too."""
    spec = replace(converted.spec, source=source, sample_rate=rate)
    converted.model.metadata_props.update(spec.to_properties())
    write_out(converted.model, bodies)
    opening = None if converted.opening is None else _made(converted.opening, source, rate, bodies)
    return Stream(
        converted.model, spec, probes=converted.probes, natural=natural, opening=opening, course=converted.course
    )


def _exported(
    module: torch.nn.Module,
    example: Example | None,
    time: str | Mapping[str, int] | None,
    given: Mapping[str, int | str],
) -> tuple[ir.Model, str, str | None]:
    """The module as a model, what its time is called, and its batch, if that is free and nothing was said of it."""
    from pulsify.frontend.torch import export
    from pulsify.frontend.torch_call import batch_symbol

    model, symbol = export(module, example, time)
    free = batch_symbol(symbol)
    named = any(free in map(str, v.shape or ()) for v in model.graph.inputs)
    return model, symbol, free if named and free not in given else None


def onnx_of(source: Model | torch.nn.Module | torch.export.ExportedProgram) -> Model | torch.nn.Module:
    """A program of torch.export as ONNX; anything else as it is."""
    from pulsify.frontend.program import as_onnx, is_program

    return as_onnx(source) if is_program(source) else source


def _is_torch(source: object) -> bool:
    return any(c.__module__.split(".")[0] == "torch" for c in type(source).__mro__)


def with_front_end(made: Stream, front: str, batch: str, rate: float | None) -> Stream:
    """Samples to what the stream gives: both batch models converted as one, which is checked as any other."""
    from pulsify.export.front_end import chained, pulse_for

    whole = chained(front, batch, made.spec)
    ahead = stream(front, verify=False).spec
    pulse = pulse_for(made.spec, ahead)
    if rate is None and made.sample_rate is not None:  # frames of the stream's own a second: the same time in samples
        units = pulse / made.pulse * float(ahead.inputs[0].rate / made.inputs[0].rate)
        rate = made.sample_rate * units
    return stream(whole, pulse=pulse, opening=made.opening is not None, sample_rate=rate)

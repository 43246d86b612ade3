"""`stream`: from a batch model to a stream."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from time import process_time
from typing import TYPE_CHECKING, TypeAlias

import onnx_ir as ir

from pulsify.api.arguments import LONGEST_PULSE, check_rate, whole
from pulsify.api.model import Stream
from pulsify.api.origin import Origin
from pulsify.core import boundary
from pulsify.core.boundary import public
from pulsify.core.custom import Bodies, write_out
from pulsify.core.errors import InternalError, InvalidArgument, InvalidModel, Mismatch, NotStreamable
from pulsify.core.identity import source_hash
from pulsify.core.status_line import watched

if TYPE_CHECKING:
    import onnx
    import torch

    from pulsify.convert.convert import Converted
    from pulsify.convert.pulses import Natural
    from pulsify.convert.remedies import Meaning
    from pulsify.frontend.torch import Exported

    Model: TypeAlias = str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model
    Example: TypeAlias = torch.Tensor | tuple[torch.Tensor, ...] | Mapping[str, torch.Tensor]


@public
@watched("converting {}")
def stream(
    source: Model | torch.nn.Module | torch.export.ExportedProgram,
    pulse: int | None = None,
    *,
    time: str | Mapping[str, int] | None = None,
    bind: Mapping[str, str | None] | None = None,
    set: Mapping[str, int | str] | None = None,
    example: Example | None = None,
    unbounded: str | int = "refuse",
    proof: str = "proven",
    opening: bool = True,
    phase: bool = True,
    sample_rate: float | None = None,
    verify: bool = True,
    quiet: bool = False,
) -> Stream:
    """Turn a batch model into an exactly equivalent stream, or raise NotStreamable.

    source: a path, bytes, an onnx.ModelProto, an onnx_ir.Model, a torch.nn.Module with `example` inputs, or a program
    of torch.export (a .pt2 file too).
    pulse: frames per call; if not given, the one with the smallest latency (`Stream.natural_pulse`). time: the name of
    the time dimension ("T"), or its axis by input ({"x": 2}); needed only if it is ambiguous. bind: integer inputs that
    hold the length ({"length": "T"}), and masks that are the same throughout ({"attention_mask": "ones"}, "zeros").
    Inputs that are called so and used so are bound automatically (`Stream.bindings` lists them); None keeps an input.
    set: fixes other dimensions, or declares lengths ({"T": "8*n"}, {"T": "320*n+80"}, {"T": "16000+n"},
    {"T": "<=3000"}).
    unbounded: attention that looks back to the start of the stream is refused, or keeps all of it ("grow": exact, and
    ever slower), or its last N frames (N: bounded, and no longer the batch model's result once a stream is longer than
    `spec.exact_up_to`).
    opening: where a mirrored start makes all frames wait for what the first ones show, the first pulses are run as one
    (`Stream.opening`), after which nothing waits; False: one graph, and all frames wait. So do those of a model of more
    than a gigabyte, which would be held twice.
    phase: the first pulse takes fewer frames than the others (`Stream.first_call`), where the latency is smaller then:
    whatever looks ahead in front of blocks of frames finds them there when a block ends. False: as many as the others.
    proof: what is not certain at every length is refused ("proven"), or taken as a sample of lengths shows it
    ("sampled": the stream says so). sample_rate: frames of the first input a second; it is kept, and what is said of
    time is said in ms too. verify: check against the batch model before returning.
    quiet: show no progress (a line in terminals and notebooks, after two seconds; elsewhere there is none).
    """
    if pulse is not None:
        pulse = whole(pulse, f"pulse={pulse!r}: expected a whole number of frames, from 1 to {LONGEST_PULSE}")
    if proof not in ("proven", "sampled"):
        raise InvalidArgument(f"proof={proof!r}: expected 'proven' or 'sampled'")
    if unbounded not in ("refuse", "grow") or isinstance(unbounded, bool):
        unbounded = whole(unbounded, f"unbounded={unbounded!r}: expected 'refuse', 'grow' or a number of frames")
    check_rate(sample_rate)
    source = onnx_of(source)
    meaning: Meaning = {
        "bind": bind, "set": set, "unbounded": unbounded, "proof": proof, "opening": opening, "phase": phase,
    }  # fmt: skip
    if not isinstance(source, (str, bytes, os.PathLike)) and _is_torch(source):
        from pulsify.frontend.torch import export

        exported = export(source, example, time, bind)
        return _of_module(exported, pulse, meaning, sample_rate, verify)
    return _offering(
        lambda more, check: _streamed(source, pulse, more, sample_rate, check), {"time": time} | meaning, verify
    )


def _offering(convert: Callable[[Meaning, bool], Stream], meaning: Meaning, verify: bool) -> Stream:
    """A conversion; if it is refused, what that offers was tried."""
    began = process_time()
    try:
        return convert(meaning, verify)
    except NotStreamable as refusal:
        _try_remedies(refusal, convert, meaning, process_time() - began)
        raise


def _try_remedies(
    refusal: NotStreamable, convert: Callable[[Meaning, bool], Stream], meaning: Meaning, seconds: float
) -> None:
    """What was sampled is checked, too: a sample may mislead."""
    from pulsify.convert.remedies import offer_what_works, with_more

    def attempt(more: Mapping[str, object]) -> None:
        convert(with_more(meaning, more), "proof" in more)

    offer_what_works(refusal, attempt, seconds)


def _streamed(source: Model, pulse: int | None, meaning: Meaning, rate: float | None, verify: bool) -> Stream:
    """The stream of an ONNX model. meaning: arguments of `stream` that say what it means."""
    from pulsify.analysis.options import Options
    from pulsify.convert.bindings import check_place
    from pulsify.convert.convert import convert
    from pulsify.convert.pulses import natural
    from pulsify.frontend.lines import naming_lines
    from pulsify.frontend.load import load as load_onnx
    from pulsify.trace.roles import settle

    time, bind, given = (meaning[k] for k in ("time", "bind", "set"))
    options = Options(meaning["unbounded"], meaning["proof"], meaning["opening"], meaning["phase"])
    with naming_lines(source), _blaming(source):
        tracer = settle(load_onnx(source), time, bind, given)
        converted = convert(tracer, pulse, options)
        alone = {**(given or {}), tracer.time.symbol: 1}
        check_place(
            converted.spec,
            tracer.time,
            lambda other: convert(settle(load_onnx(source), other, bind, alone), None, options).spec,
        )
    find_natural = partial(natural, tracer, options)
    made = _made(converted, source_hash(source), rate, tracer.model.bodies, find_natural)
    made.origin = Origin(source, meaning)
    if verify:
        from pulsify.verify.check import quick

        made.verification = quick(source, made)
    return made


@contextmanager
def _blaming(source: Model) -> Iterator[None]:
    """An unforeseen error over a model that ONNX Runtime does not open either is the model's fault."""
    from pulsify.core.runner import error_text, open_model

    try:
        yield
    except Exception as error:
        if isinstance(boundary.converted(error), InternalError):
            try:
                open_model(os.fspath(source) if isinstance(source, os.PathLike) else source, optimize=False)
            except Exception as why:  # ONNX Runtime has no common class for them
                raise InvalidModel(f"ONNX Runtime does not open the model: {error_text(why)}") from error
        raise


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


def _of_module(exported: Exported, pulse: int | None, meaning: Meaning, rate: float | None, verify: bool) -> Stream:
    """The stream of an exported module: of several streams at once or, if these are refused, of one."""
    from pulsify.analysis.questions import Undecided

    meaning = {"time": exported.time, **meaning}

    def convert(more: Meaning, check: bool) -> Stream:
        return _checked(_streamed(exported.model, pulse, more, rate, False), exported, check)

    declared: dict[str, int | str] = dict(meaning["set"] or {})
    free = exported.batch if exported.batch not in declared else None
    if free is None:
        return _offering(convert, meaning, verify)
    began = process_time()
    try:
        return convert(meaning, verify)
    except (NotStreamable, Mismatch) as reason:
        if isinstance(reason.__cause__, Undecided) and reason.__cause__.change:  # a mask's, of one stream as well
            if isinstance(reason, NotStreamable):
                _try_remedies(reason, convert, meaning, process_time() - began)
            raise
        one = _offering(convert, meaning | {"set": {**declared, free: 1}}, verify)
        one.notes += (f"one stream at a time, because several are refused: {str(reason).splitlines()[0]}",)
        return one


def _checked(made: Stream, exported: Exported, verify: bool) -> Stream:
    """Compared with the module itself; lengths below those that the module takes are none of the stream's either."""
    from pulsify.verify.check import quick

    for each in (made, made.opening):
        if each is not None and each.spec.shortest < exported.judge.shortest:
            each.spec = replace(each.spec, shortest=exported.judge.shortest)
            each.model.metadata_props.update(each.spec.to_properties())
    made.notes = exported.notes
    if verify:
        seen = quick(exported.judge, made)
        made.verification = replace(seen, notes=(*seen.notes, *made.notes))
    return made


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

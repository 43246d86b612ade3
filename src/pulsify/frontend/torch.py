"""A torch module and example inputs in, an ONNX model with a dynamic time axis out.

The time axis is found by running the module: an axis is time if the module also takes other sizes of it. The example
is then cut to a short one. The older exporter is tried first (`torch_exporters`), the newer one if it can do what the
older one cannot. Whatever comes out must equal the module at other lengths than the example's. An example of one stream
leaves the batch free, if the module keeps streams apart and an exporter does so; otherwise the batch size stays the
example's.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import onnx_ir as ir

from pulsify.core.errors import InvalidArgument
from pulsify.core.named import install_hint
from pulsify.core.progress import tell
from pulsify.frontend.torch_blame import Attempt, Cause, batch_site, blamed, data_branch, why
from pulsify.frontend.torch_call import Call, Units, batch_symbol, called, check_runs
from pulsify.frontend.torch_exporters import OPSET, Trace, dynamo, traced
from pulsify.frontend.torch_judge import Judge, WrongBatch, check_dims, check_equal
from pulsify.frontend.torch_manners import evaluating, quiet
from pulsify.frontend.torch_time import (
    batched,
    found_axes,
    given_axes,
    mixed,
    shortened,
    shortest_length,
    shown,
)

SYMBOL = "T"
Exporter = Callable[[Call, Units, str, Trace], ir.Model]


@dataclass(frozen=True)
class Exported:
    """A module as a model. time: the name of its time dimension. notes: what there is to know about the export."""

    model: ir.Model
    time: str
    judge: Judge
    notes: tuple[str, ...] = ()

    @property
    def batch(self) -> str | None:
        """The name of the batch dimension, if it is free."""
        return batch_symbol(self.time) if self.judge.units.batch else None


def export(
    module: Any, example: Any, time: str | Mapping[str, int] | None, bind: Mapping[str, str | None] | None = None
) -> Exported:
    """The module as an onnx_ir model.

    example: a tensor, a tuple of tensors, or a dict of tensors by argument name. time: None (found by itself, asked
    for if there is more than one answer), the axis by argument name ({"x": 2}), or a name for the axis that is found.
    bind: inputs that hold the length ({"n": "T"}), or do not (None).
    """
    try:
        import torch
    except ImportError as error:
        raise InvalidArgument(f"a torch module needs torch itself: {install_hint('pulsify[torch]')}") from error
    if not isinstance(module, torch.nn.Module):
        raise InvalidArgument(f"expected a torch.nn.Module, got {type(module).__name__}: pass the module and example=")
    if time is not None and not isinstance(time, Mapping) and not (isinstance(time, str) and time.isidentifier()):
        raise InvalidArgument(f"time={time!r}: expected an axis by argument ({{'x': 2}}), or a word to call it by")
    call = replace(called(module, example), bind=bind if isinstance(bind, Mapping) else {})
    with evaluating(module):
        with quiet():
            call = check_runs(call)
            units = given_axes(call, time) if isinstance(time, Mapping) else found_axes(call)
        return _export(call, units, time if isinstance(time, str) else SYMBOL)


def _export(call: Call, units: Units, symbol: str) -> Exported:
    """The first export that is the module, at other lengths and numbers of streams too.

    At a short length first; at the example's own if what is exported there is not the module at the example's.
    """
    attempts: list[Attempt] = []
    with quiet():
        sizes = [shortened(call, units)]
        if sizes[0][1].unit != units.unit:
            sizes.append((call, units))
        shortest = shortest_length(*sizes[0])
        cause = data_branch(sizes[0][0])
    for exporter, size in itertools.product((_traced, dynamo), sizes):
        if attempts and not cause.text and not cause.is_final:
            cause = _cause(sizes, attempts)
        if not cause.is_certain and not (cause.is_final and exporter is dynamo):
            with quiet():
                wide = batched(*size)
            for each in ([wide] if wide is not None else []) + [size]:
                made = _attempt(exporter, *each, symbol, units.unit, attempts)
                if made is not None:
                    judge = Judge(*each, made, shortest)
                    return Exported(made, symbol, judge, _notes(*each, attempts))
                if isinstance(attempts[-1].error, NotImplementedError):  # of complex numbers
                    break
    raise blamed(cause, shown(call, units.axes), attempts)


def _cause(sizes: list[tuple[Call, Units]], attempts: list[Attempt]) -> Cause:
    cause = Cause()
    for call, units in sizes:
        cause = why(call, units, attempts)
        if cause.text:  # else a longer example may show it
            break
    return cause


def _attempt(
    exporter: Exporter, call: Call, units: Units, symbol: str, own: int, attempts: list[Attempt]
) -> ir.Model | None:
    """The export, if it is the module; otherwise the reason among the attempts. own: the length of the example."""
    trace = Trace()
    name = "dynamo" if exporter is dynamo else "legacy"
    try:
        tell(f"exporting with the {name} exporter")
        with quiet(trace.log):
            model = exporter(call, units, symbol, trace)
            check_dims(model, units, symbol)
            check_equal(model, call, units, own)
        return model
    except Exception as error:  # an exporter may raise anything; the next one gets its chance
        attempts.append(Attempt(name, error, trace))
        return None


def _traced(call: Call, units: Units, symbol: str, trace: Trace) -> ir.Model:
    """By the older exporter, in a newer opset if an operator needs it."""
    import torch

    try:
        return traced(call, units, symbol, trace)
    except torch.onnx.errors.UnsupportedOperatorError as error:
        newer = re.search(r"added in version (\d+)", str(error))
        if newer is None:
            raise
        return traced(call, units, symbol, trace, max(OPSET, int(newer[1])))


def _notes(call: Call, units: Units, attempts: list[Attempt]) -> tuple[str, ...]:
    """Why the number of streams is fixed, if it is."""
    if units.batch:
        return ()
    wrong = next((a for a in attempts if isinstance(a.error, WrongBatch)), None)
    why = mixed(call, units) if wrong is None else batch_site(wrong)
    return (f"the batch size stays the example's: {why}",)

"""Why a module could not be exported, in the user's own lines."""

from __future__ import annotations

import random
import re
import traceback
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pulsify.core.errors import InvalidModel
from pulsify.frontend.lines import line_of
from pulsify.frontend.torch_call import Call, Units, as_array, close
from pulsify.frontend.torch_exporters import Trace, numbers_fixed
from pulsify.frontend.torch_judge import WrongLength
from pulsify.frontend.torch_manners import keep_log, quiet, short
from pulsify.frontend.torch_time import other_lengths, resized

if TYPE_CHECKING:
    from pulsify.frontend.complex_tensors.sites import Fixed, Site

EXPORTABLE = "change what is named until torch.onnx.export takes it, with dynamo=True or dynamo=False"
LOOP = (
    "{site} is a loop over time: exported, it is unrolled ({counts}). Put the loop into a function decorated with "
    "@torch.jit.script, which is exported as a loop and streams, or use torch.nn.GRU, LSTM or a convolution instead"
)
REPEATED = (
    "{site} calls torch more often the longer the stream is ({counts}): the loop around it is unrolled in an export, "
    "as often as the example takes. Compute frame by frame in a function decorated with @torch.jit.script, which is "
    "exported as a loop and streams, or use torch.nn.GRU, LSTM or a convolution instead"
)
BRANCH = "{site} is a branch that depends on {what}: exported, only the branch that the example takes remains. {fix}"
FIXES = {  # of a branch
    "the data": "Compute both and choose with torch.where",
    "the length": "Let sizes follow from the length instead: F.pad(x, (0, -x.shape[-1] % 2))",
}
TRANSFORM = (
    "{site} is a Fourier transform along time: every output depends on the whole recording, so nothing can stream"
)
NUMBER = (
    "{site} reads a size as a number of Python, which is fixed in the export ({counts}). Compute with the size itself, "
    "without int(), and it stays symbolic: x.shape[1] // 2, math.ceil(x.shape[1] / 2), torch.arange(x.shape[1])"
)
DATA = (
    "{site} reads data as numbers of Python, which are fixed in the export: every other input would be computed with "
    "the example's. Compute with tensors: x.abs().amax(1, keepdim=True), torch instead of numpy"
)
PACKED = (
    "{site} packs sequences by their lengths, and torch exports that only if a recurrent layer's output is unpacked by "
    "pad_packed_sequence. Call the layer on its input itself: streams that run together have one length"
)
UNBOUND = (
    "{site} packs sequences by their lengths; if an input holds the length of the stream, say so: bind={{{names}}}"
)
LOOPS = re.compile(r"^(for|while)\b|\bfor\b.*\bin\b.*range\(")
MISSING = re.compile(r"Could not find an implementation for (\w+)\(\d+\) node with name '([^']*)'")
FAILED = re.compile(r"running (?P<op>\w+) node\. Name:'(?P<name>[^']*)'")  # as ONNX Runtime says it
STATE = (
    "{what} depends on the call before: the module keeps a state between its calls. A stream carries states itself: "
    "begin every call with the initial state, or take the state as an input and return it"
)
RANDOM = "{what} is random in eval mode: two runs on the same input differ, so no stream can equal it"


@dataclass
class Attempt:
    """An exporter that failed, or whose result was not the module."""

    exporter: str
    error: Exception
    trace: Trace


@dataclass(frozen=True)
class Cause:
    """Why an export failed. is_certain: nothing else would help. is_final: the newer exporter would not."""

    text: str = ""
    is_certain: bool = False
    is_final: bool = False


def why(call: Call, units: Units, attempts: list[Attempt]) -> Cause:
    """What is known after the older exporter failed."""
    from pulsify.frontend.complex_tensors.pair import Uncovered

    for attempt in attempts:
        if isinstance(attempt.error, Uncovered):
            return Cause(str(attempt.error), is_certain=True, is_final=True)
        if (operator := MISSING.search(str(attempt.error))) is not None:
            return Cause(_missing(call, attempt, *operator.groups()), is_certain=True, is_final=True)
    with quiet():
        found = _cause(call, units)
    trace = attempts[0].trace
    if not found.text and "_pack_padded_sequence" in trace.functions:
        found = Cause(_packed(call, trace), is_certain=True)
    is_kept = trace.is_complex or trace.is_recurrent or trace.is_scripted
    return replace(found, is_final=found.is_certain or is_kept)


def _packed(call: Call, trace: Trace) -> str:
    """Packed sequences were not exported, or not with the lengths of the stream."""
    whole = [n for n, t in call.tensors.items() if t.dim() <= 1 and not t.is_floating_point() and n not in call.bind]
    text = UNBOUND if whole and "_pad_packed_sequence" in trace.functions else PACKED
    names = ", ".join(f'"{n}": "T"' for n in whole)
    return text.format(site=trace.functions["_pack_padded_sequence"] or "the module", names=names)


def _missing(call: Call, attempt: Attempt, operator: str, node: str) -> str:
    """ONNX Runtime has an operator, but not in the module's type."""
    sites = (site for name, site in attempt.trace.functions.items() if name.startswith(operator.lower()))
    site = next(sites, None)
    where = f"'{node}'" if site is None else f"'{node}' at {site}"
    types = {str(t.dtype).removeprefix("torch.") for t in call.tensors.values() if t.is_floating_point()}
    kind = " or ".join(sorted(types)) or "this type"
    return (
        f"ONNX Runtime does not compute {operator} ({where}) in {kind}; pass module.float() and an example in float32"
    )


def blamed(cause: Cause, axes: str, attempts: list[Attempt]) -> InvalidModel:
    """The error that says what is in the way."""
    log = "\n".join(f"---- {a.exporter}\n{a.trace.log.getvalue()}\n{_trail(a.error)}" for a in attempts)
    told = "; ".join(dict.fromkeys(_told(a) for a in attempts))
    text = cause.text or f"{told}; {EXPORTABLE}{keep_log(log)}"
    error = InvalidModel(f"torch could not export the module with {axes} as a dynamic time axis: {text}")
    error.log = log
    error.__cause__ = attempts[-1].error if attempts else None
    return error


def _trail(error: Exception) -> str:
    return "".join(traceback.format_exception(error))


def _told(attempt: Attempt) -> str:
    """An exporter's own words, and the user's line."""
    failed = FAILED.search(short(attempt.error))
    line = line_of(failed["name"], attempt.trace.lines) if failed else ""
    if isinstance(attempt.error, WrongLength):
        node = f" (at {failed['op']} node '{failed['name']}', {line})" if failed and line else ""
        return f"{attempt.exporter}: {attempt.error}{node}"
    site = _site(attempt)
    return f"{attempt.exporter}: {short(attempt.error)}" + ("" if site is None else f" at {site}")


def _site(attempt: Attempt) -> Site | None:
    """Where the operator that could not be exported is called, or where the module raised."""
    from pulsify.frontend.complex_tensors.sites import site_in, site_of

    operator = re.search(r"operator 'aten::(\w+)'", str(attempt.error))
    if operator is not None and operator[1] in attempt.trace.functions:
        return attempt.trace.functions[operator[1]]
    return site_of(attempt.error) or site_in(str(attempt.error))


def batch_site(attempt: Attempt) -> str:
    """Where an export holds the number of streams fixed."""
    failed = FAILED.search(short(attempt.error))
    if failed is None:
        return "with several streams the export is not the module: a size of the example's batch is fixed in forward"
    line = line_of(failed["name"], attempt.trace.lines)
    return (
        f"with several streams the export fails at {failed['op']} node '{failed['name']}'"
        + (f" ({line})" if line else "")
        + ": a size of the example's batch is fixed in forward"
    )


def _cause(call: Call, units: Units) -> Cause:
    """The first number that the trace holds fixed and that another length, or other data, would change."""
    turned = {n: -0.7 * t if t.is_floating_point() else t for n, t in call.tensors.items()}
    if text := _unsteady(call, turned):
        return Cause(text, is_certain=True)
    others = [("the data", units.unit, turned)]
    for length in other_lengths(call, units)[::-1]:  # the longest first: one frame more may be cut off by a stride
        others.append(("the length", length, resized(call, units, length)))
    here: list[Fixed] = []
    for what, length, tensors in others:
        try:
            here = here or numbers_fixed(call)
            there = numbers_fixed(replace(call, tensors=tensors))
        except Exception:  # the module may raise anything while it is traced
            continue
        for entry in here:
            ours, theirs = (_values(fixed, entry) for fixed in (here, there))
            if entry.site is not None and ours != theirs:
                cause = _sentence(entry, what, [(units.unit, ours), (length, theirs)])
                return cause if cause.is_certain else _repeated(call, units, length) or cause
    return Cause()


def _repeated(call: Call, units: Units, length: int) -> Cause | None:
    """A line that runs more often at another length: no exporter keeps the loop around it."""
    from pulsify.frontend.complex_tensors.repeats import calls

    longer = resized(call, units, length)
    here, there = calls(partial(call, call.tensors)), calls(partial(call, longer))
    site = next((s for s, n in here.items() if n < there[s] and units.unit < length), None)
    if site is None:
        return None
    counts = f"{here[site]} times for {units.unit} frames, {there[site]} times for {length}"
    return Cause(REPEATED.format(site=site, counts=counts), is_certain=True)


def data_branch(call: Call) -> Cause:
    """A branch on the data that matters: the other way gives another result. (An assertion does not.)"""
    from pulsify.frontend.complex_tensors.branches import branches, mark

    def outputs(turned: Site | None = None) -> tuple[list[Any], list[Site]]:
        tensors = {n: t.detach().clone() for n, t in call.tensors.items()}
        mark(list(tensors.values()))
        with torch.no_grad(), branches(turned) as seen:
            return call.flat(tensors), seen.sites

    import torch

    plain, sites = outputs()
    for site in sites:
        try:
            other, _ = outputs(turned=site)
        except Exception:  # what is raised there is none of the stream's results
            continue
        if any(a.shape != b.shape or not close(as_array(a), as_array(b)) for a, b in zip(plain, other, strict=True)):
            text = BRANCH.format(site=site, what="the data", fix=FIXES["the data"])
            return Cause(text, is_certain=True, is_final=True)
    return Cause()


def _values(fixed: list[Fixed], entry: Fixed) -> Counter[str]:
    return Counter(f"{f.value:g}" for f in fixed if (f.site, f.purpose) == (entry.site, entry.purpose))


def _sentence(entry: Fixed, what: str, sizes: list[tuple[int, Counter[str]]]) -> Cause:
    assert entry.site is not None
    source = entry.site.source
    if "Fourier" in entry.purpose:
        return Cause(TRANSFORM.format(site=entry.site), is_certain=True)
    asked = [sum(values.values()) for _, values in sizes]
    if entry.purpose == "a condition" and what != "the data" and len(set(asked)) > 1:  # within a loop
        counts = ", ".join(f"{max(turns.values())} for {n} frames" for n, turns in sizes if turns)
        return Cause(LOOP.format(site=entry.site, counts=counts), is_certain=True)
    if entry.purpose == "a condition":
        return Cause(BRANCH.format(site=entry.site, what=what, fix=FIXES[what]), is_certain=what == "the data")
    if what == "the data":
        return Cause(DATA.format(site=entry.site), is_certain=True)
    counts = ", ".join(f"{next(iter(values))} for {n} frames" for n, values in sizes if values)
    if LOOPS.search(source) or "frames" in entry.purpose:
        return Cause(LOOP.format(site=entry.site, counts=counts), is_certain=True)
    return Cause(NUMBER.format(site=entry.site, counts=counts))


def _unsteady(call: Call, turned: Mapping[str, Any]) -> str:
    """What makes two runs on the same input differ: a state, which other data before show, or random numbers."""
    from pulsify.frontend.complex_tensors.draws import first_difference

    here, seeds = call.tensors, (torch_seed(), np.random.get_state(), random.getstate())

    def seeded(tensors: Mapping[str, Any]) -> list[Any]:
        for restore, seed in zip((torch_seed, np.random.set_state, random.setstate), seeds, strict=True):
            restore(seed)
        return call(tensors)

    after = []
    for before in (here, turned):
        seeded(before)
        after.append(seeded(here))
    if not _same(*after):
        site = first_difference(lambda: seeded(here), lambda: seeded(here), lambda: seeded(turned))
        return STATE.format(what=site or "the module")
    if not _same(call(here), call(here)):
        site = first_difference(lambda: call(here), list, list)
        return RANDOM.format(what=site or "the module")
    return ""


def torch_seed(state: Any = None) -> Any:
    """The state of torch's random numbers; set, if it is given."""
    import torch

    return torch.get_rng_state() if state is None else torch.set_rng_state(state)


def _same(one: list[Any], two: list[Any]) -> bool:
    import torch

    return all(torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) for a, b in zip(one, two, strict=True))

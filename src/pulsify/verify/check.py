"""Does the stream equal the batch model? Lengths, chunkings, a report, and the first wire that departs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from pulsify.backends.registry import DEFAULT
from pulsify.backends.registry import backend as back_end
from pulsify.backends.seam import Own, lower_type
from pulsify.core.arrays import Array, Arrays
from pulsify.core.chunks import CHUNKINGS, chunking
from pulsify.core.errors import InvalidArgument, InvalidChunk, InvalidModel, Mismatch, PulsifyError
from pulsify.core.progress import counted, stage
from pulsify.core.report import Report, exact_text, low_text
from pulsify.core.runner import error_text, open_model, output_names, run_model
from pulsify.frontend.torch_judge import Judge
from pulsify.runtime.whole import batch_of, run_whole
from pulsify.verify.distance import Run, Seen, error, limit
from pulsify.verify.double import Double
from pulsify.verify.inputs import fed, make_inputs
from pulsify.verify.long import QUICK, THOROUGH, Budget, carries, long_batch, mean_of
from pulsify.verify.rounding import Roomy, by_export, off_text, own_error, with_doubles, with_room

if TYPE_CHECKING:
    from pulsify.verify.subject import Subject

REJECTED = "the module itself rejects {} frames ({}), where the stream gives a result"
SEVERAL = 3  # streams, where their number is free: checked once
SEVERAL_TEXT = f"{SEVERAL} streams side by side"
UNDECLARED = "the shapes that the batch model declares inside contradict it: it was run without them"
OTHER_LENGTHS = "the batch model declares a fixed length: it was run at others, with that axis dynamic"
NEARBY = 32  # lengths behind one at which the batch model fails, at which it may run
FARTHEST = 1 << 14  # frames: of the lengths that the proof names as critical, those that are run
WARM = 4096  # frames: a steady step that begins later is not looked at
HELD_TWICE = 256 << 20  # bytes of weights up to which two forms may be open at once
AS_WRITTEN = (
    "compared with the batch model as it is written: what ONNX Runtime's optimiser makes of it is another model"
)

LOG_SUMS = (
    "compared with the batch model whose running sums of exponentials take off the maximum so far: the file takes off "
    "that of all frames, and what is 87 below it vanishes"
)


@dataclass(frozen=True)
class Machine:
    """What the stream runs on. low: the type that stands for float32 there, if one does."""

    backend: str = DEFAULT
    options: Mapping[str, Own] = field(default_factory=dict)
    low: str | None = None


HERE = Machine()


@stage("checking against the batch model")
def quick(source: Any, stream: Subject) -> Report:
    """Two lengths, two chunkings: enough to catch a wrong rule, quick enough to run on every conversion.

    Where a value is carried over the whole stream, one long stream as well. A few lengths more beside a torch
    module, of which the converted graph is an export.
    """
    p = stream.spec.pulse
    more = [2 * p + 1] if isinstance(source, Judge) else []
    wished = _exact(stream, [1, *more, _settling(stream) + 3 * p + p // 2 + 1])
    budget = None if more else QUICK  # torch sums in another type and order
    return _side_by_side(_settled(source), stream, wished, ("pulses", "random"), budget=budget)


def verify(
    source: Any,
    stream: Subject,
    *,
    lengths: Sequence[int] | None = None,
    chunkings: Sequence[str] = CHUNKINGS,
    tolerance: float | None = None,
    seed: int = 0,
    backend: str = DEFAULT,
    options: Mapping[str, Own] | None = None,
) -> Report:
    """Run batch and stream side by side. Raises Mismatch, with the report, if any output departs.

    lengths: if none are given, of those at which the stream is exact (`unbounded=N` forgets what is older), and a long
    one where a value is carried over the whole stream. Of that the report says how far batch is from float64.
    backend, options: what the stream runs on; the batch model runs on ONNX Runtime, in its own types. Where a lower
    type stands for float32 the errors are reported, and judged only by a tolerance that is given.
    """
    source = _settled(source)
    on = Machine(backend, options or {}, lower_type(back_end(backend), options or {}))
    _check_arguments(lengths, chunkings)
    _check_taken(stream, lengths or ())
    wished = list(lengths or _exact(stream, _lengths(stream)))
    if not wished:
        raise Mismatch(
            "with unbounded=N so few frames are kept that the stream is the batch model at no length, so nothing was "
            "checked: take a larger N",
            Report(),
        )
    return _side_by_side(source, stream, wished, chunkings, tolerance, seed, on, None if lengths else THOROUGH)


def _side_by_side(
    source: Any,
    stream: Subject,
    wished: list[int],
    chunkings: Sequence[str],
    tolerance: float | None = None,
    seed: int = 0,
    on: Machine = HERE,
    budget: Budget | None = None,
) -> Report:
    """budget: of a long stream, where a value is carried over all of it; None: of these lengths only."""
    rng = np.random.default_rng(seed)
    source, runs, notes = _runs(source, stream, wished, rng)
    if wished and not runs:
        raise Mismatch(f"no length near {wished} is one the batch model takes, so nothing was checked", Report())
    runs, double = [*runs, *_long(source, stream, runs, seed, on, budget)], Double(_graph_of(source))
    if budget is THOROUGH:
        runs = [*(r for r in runs if not r.long), *with_doubles(double, [r for r in runs if r.long])]
    report = _compared(stream, runs, chunkings, tolerance, rng, on)
    if report.wrong and (written := _as_written(source, stream, runs, tolerance)):
        report, notes, runs = _compared(stream, written, chunkings, tolerance, rng, on), (*notes, AS_WRITTEN), written
    if report.wrong and (summed := _log_sums(source, stream, runs)):
        again = _compared(stream, summed, chunkings, tolerance, rng, on)
        report, notes, runs = (report, notes, runs) if again.wrong else (again, (*notes, LOG_SUMS), summed)
    off = _off(stream, double, runs)
    if report.wrong and tolerance is None:
        roomy = _roomy(source, stream, double, runs, seed)
        again = _compared(stream, roomy.runs, chunkings, tolerance, rng, on) if roomy.notes else report
        report, off = (report, off) if again.wrong else (again, roomy.notes)
    notes = (*notes, *off)
    report = replace(report, notes=notes, fed=fed(stream, list(runs[0].feeds) if runs else ()))
    if on.low is not None and not report.judged:
        report = replace(report, notes=(*report.notes, low_text(on.low)))
    if (most := stream.spec.exact_up_to) is not None:
        report = replace(report, exact_up_to=most, notes=(*report.notes, exact_text(most)))
    if report.wrong:
        _raise(report, stream, source, rng, on)
    return report


def _roomy(source: Any, stream: Subject, double: Double, runs: Sequence[Run], seed: int) -> Roomy:
    """Runs with the room that rounding gives; of a torch module, once rounding explains how far its export is off."""
    if not isinstance(source, Judge):
        return with_room(_open_batch(source, not stream.quantised), double, _axes(stream), runs, seed)
    nearby = by_export(source, double, runs, seed)
    if not nearby.runs:
        return nearby
    roomy = with_room(_open_batch(source.model, True), double, _axes(stream), nearby.runs, seed)
    return Roomy(roomy.runs, (*nearby.notes, *roomy.notes))


def _graph_of(source: Any) -> Any:
    """The ONNX model: of a torch module, its export."""
    return source.model if isinstance(source, Judge) else source


def _axes(stream: Subject) -> dict[str, int | None]:
    return {o.name: o.axis for o in stream.spec.outputs}


def _off(stream: Subject, double: Double, runs: Sequence[Run]) -> tuple[str, ...]:
    """Outputs that batch itself is further from float64 with than a stream may be from batch."""
    found = []
    for run in runs:
        for name, axis in _axes(stream).items():
            if run.double and (off := own_error(run, name, axis)) > limit(run.outputs[name], None):
                found.append(off_text(double, name, off, run.length))
    return tuple(found)


def _long(
    source: Any, stream: Subject, runs: Sequence[Run], seed: int, on: Machine, budget: Budget | None
) -> list[Run]:
    """The batch model of one long stream, where there is reason for it."""
    if budget is None or not carries(stream):
        return []
    opened = _open_batch(source, optimize=not stream.quantised)

    def batch(wished: int) -> tuple[int, Arrays, Arrays] | None:
        length = valid_length(stream, wished)
        if length is None:
            return None
        feeds = make_inputs(opened, stream, length, np.random.default_rng(seed), mean=mean_of(stream))
        try:
            return (length, *_run_finite(opened, feeds))
        except Exception:  # it is not said anywhere that it takes so many frames
            return None

    def streamed(length: int, feeds: Arrays) -> None:
        with suppress(PulsifyError):  # which is said where it is compared
            run_stream(stream, feeds, chunking("whole", length, stream.spec.pulse, np.random.default_rng(seed)), on=on)

    found = long_batch(stream, budget, max(r.length for r in runs), batch, streamed)
    return [] if found is None else [Run(*found, long=True)]


def _runs(
    source: Any, stream: Subject, wished: list[int], rng: np.random.Generator
) -> tuple[Any, list[Run], tuple[str, ...]]:
    """The batch model's own results; without the shapes it declares inside, if it fails for those."""
    from pulsify.frontend.load import dynamic, undeclared

    rejected: list[str] = []
    try:
        return source, _batch_runs(source, stream, wished, rng, rejected), tuple(rejected)
    except InvalidModel as problem:
        if isinstance(source, Judge):
            raise
        try:
            time = {i.name: i.axis for i in stream.spec.inputs}
            note = UNDECLARED if dynamic(source, time) else OTHER_LENGTHS
            bare = undeclared(source, time)
            return bare, _batch_runs(bare, stream, wished, rng), (note,)
        except InvalidModel:
            raise problem from None


def _compared(
    stream: Subject,
    runs: Sequence[Run],
    chunkings: Sequence[str],
    tolerance: float | None,
    rng: np.random.Generator,
    on: Machine,
) -> Report:
    seen = Seen(tuple(dict.fromkeys(r.length for r in runs)), on.low, tolerance)
    hows = sorted(chunkings, key=lambda how: how != "pulses")
    for how in hows:
        # pulse by pulse as the file has it, otherwise as sessions run it: both forms are looked at
        portable = how == "pulses"
        for run in counted(f"by {how}, stream", runs):
            several = batch_of(stream.spec, run.feeds)
            if (several > 1 or run.long) and how != hows[-1]:
                continue  # once is enough
            try:
                got = run_stream(stream, run.feeds, chunking(how, run.length, stream.spec.pulse, rng), portable, on)
            except InvalidChunk as error:
                if _free(stream) is None:
                    raise
                who = "the stream fails" if several == 1 else f"{SEVERAL_TEXT} fail"
                raise Mismatch(f"{who}: {error}\n{_alone(stream)}", seen.report) from error
            seen.compare(stream.spec.outputs, got, run, how if several == 1 else f"{how}, {SEVERAL_TEXT}")
        if portable:
            stream.release_portable(more_than=HELD_TWICE)
    return seen.report


def _settled(source: Any) -> Any:
    """A path, bytes or an onnx_ir model."""
    from pulsify.frontend.load import read, runnable

    if not isinstance(source, (str, bytes)) and hasattr(source, "__fspath__"):
        source = source.__fspath__()
    if isinstance(source, str) and not Path(source).is_file():
        raise InvalidModel(f"no such model file: {Path(source).name!r}")
    if isinstance(source, Judge):
        return source
    source = runnable(source if isinstance(source, (str, bytes)) else read(source))
    return source


def _check_taken(stream: Subject, lengths: Sequence[int]) -> None:
    """A length that was asked for is run, not one nearby."""
    for length in lengths:
        if (near := valid_length(stream, length)) != length:
            other = f"the next one it takes is {near}" if near is not None else "nor does it take one soon after it"
            raise InvalidArgument(f"{length} frames are no length this model takes; {other}")


def _check_arguments(lengths: Any, chunkings: Sequence[str]) -> None:
    if lengths is not None and not all(isinstance(n, int) and n > 0 for n in lengths):
        raise InvalidArgument(f"lengths={lengths!r}: expected numbers of frames, at least 1")
    if not chunkings:
        raise InvalidArgument(f"chunkings={chunkings!r}: expected at least one of {list(CHUNKINGS)}")
    unknown = [how for how in chunkings if how not in CHUNKINGS]
    if unknown:
        raise InvalidArgument(f"chunkings: there is no {unknown}; there are {list(CHUNKINGS)}")


def _check_ports(batch: Any, stream: Subject) -> None:
    """The batch model must be one this stream can have been made from."""
    streamed = [*(i.name for i in stream.spec.inputs), *(s.name for s in stream.spec.statics)]
    integers = {i.name for i in batch.get_inputs() if i.type in ("tensor(int32)", "tensor(int64)")}
    integers |= {f.name for f in stream.spec.filled}
    given, made = [i.name for i in batch.get_inputs()], output_names(batch)
    wanted = [o.name for o in stream.spec.outputs]
    if not set(streamed) <= set(given) <= {*streamed, *integers} or not set(wanted) <= set(made):
        raise InvalidArgument(
            f"the stream takes {streamed} and gives {wanted}, the batch model takes {given} and gives {made}: "
            "pass the model the stream was made from"
        )


def _open_batch(source: Any, optimize: bool) -> Any:
    if isinstance(source, Judge):
        return source
    try:
        return open_model(source, optimize=optimize, as_others=True)
    except Exception as error:  # ONNX Runtime has no common class for them
        raise InvalidModel(
            f"ONNX Runtime does not open the batch model: {error_text(error)}; verify=False converts without checking"
        ) from error


def _longer(batch: Any, stream: Subject, length: int) -> str:
    """What to declare, if the batch model runs at lengths soon after this one."""
    for start in range(length + 1, length + NEARBY):
        try:
            for near in range(start, start + 3):
                _run_finite(batch, make_inputs(batch, stream, near, np.random.default_rng(0)))
        except Exception:  # ONNX Runtime has no common class for them
            continue
        return f'; it runs from {start} frames on: declare that with set={{"{stream.spec.time}": "{start}+n"}}'
    return ""


def _batch_runs(
    source: Any, stream: Subject, wished: list[int], rng: np.random.Generator, rejected: list[str] | None = None
) -> list[Run]:
    """The batch model at every length, first and by itself: a large model is not held twice.

    rejected: what is to be said of lengths that a torch module does not take.
    """
    batch = _open_batch(source, optimize=not stream.quantised)
    _check_ports(batch, stream)
    runs: list[Run] = []
    lengths = dict.fromkeys(valid_length(stream, w) for w in wished)
    for length in counted("batch model, length", lengths):
        if length is None:
            continue
        with suppress(Exception):  # a length-like value may be an index all the same
            runs.append(Run(length, *_run_finite(batch, make_inputs(batch, stream, length, rng, wide=True))))
            continue
        try:
            runs.append(Run(length, *_run_finite(batch, make_inputs(batch, stream, length, rng))))
        except Exception as error:
            if isinstance(source, Judge) and rejected is not None:
                rejected.append(REJECTED.format(length, error_text(error).partition("\n")[0]))
                continue
            raise InvalidModel(
                f"the batch model itself fails in ONNX Runtime at {length} frames: {error_text(error)}"
                + _longer(batch, stream, length)
            ) from error
    if runs and _free(stream) is not None:
        length = runs[-1].length
        with suppress(Exception):  # it may take one stream only, whatever it declares: nothing to compare with
            runs.append(Run(length, *_run_finite(batch, make_inputs(batch, stream, length, rng, SEVERAL))))
    return runs


def _run_finite(batch: Any, feeds: dict[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
    """Inputs and outputs; positive inputs if others make NaN (of a logarithm, say), which tells nothing of a stream.

    Nor do zeros by which whole numbers are divided: ONNX Runtime fails there.
    """
    try:
        made = run_model(batch, feeds)
    except Exception as error:  # ONNX Runtime has no common class for them
        if "by zero" not in str(error):
            raise
        feeds = {n: np.where(a == 0, np.ones_like(a), a) if a.dtype.kind in "iu" else a for n, a in feeds.items()}
        made = run_model(batch, feeds)
    if all(np.isfinite(a).all() for a in made.values() if a.dtype.kind == "f"):
        return feeds, made
    positive = {n: np.abs(a) + np.array(0.1, a.dtype) if a.dtype.kind == "f" else a for n, a in feeds.items()}
    again = run_model(batch, positive)
    better = all(np.isfinite(a).all() for a in again.values() if a.dtype.kind == "f")
    return (positive, again) if better else (feeds, made)


def _as_written(source: Any, stream: Subject, runs: Sequence[Run], tolerance: float | None) -> list[Run]:
    """The same runs without the runtime's optimiser, or none if that makes no difference.

    It may change a model: a pad of zeros before a MaxPool becomes the pool's own, which is not zero.
    """
    if stream.quantised or isinstance(source, Judge):  # as it is written already
        return []
    batch = _open_batch(source, optimize=False)
    written = [replace(r, outputs=run_model(batch, r.feeds)) for r in runs]
    pairs = [(was.outputs[n], now.outputs[n]) for was, now in zip(runs, written, strict=True) for n in now.outputs]
    same = all(x.shape == y.shape and error(x, y).max(initial=0) <= limit(y, tolerance) for x, y in pairs)
    return [] if same else written


def _log_sums(source: Any, stream: Subject, runs: Sequence[Run]) -> list[Run]:
    """The same runs of the model with its running sums of exponentials as scans, or none if it has no such sums."""
    from pulsify.frontend.load import with_log_sums

    if isinstance(source, Judge) or not carries(stream) or (model := with_log_sums(source)) is None:
        return []
    batch = _open_batch(model, optimize=not stream.quantised)
    return [replace(r, outputs=run_model(batch, r.feeds)) for r in runs]


def _lengths(stream: Subject) -> list[int]:
    p, settling, first = stream.spec.pulse, _settling(stream), stream.spec.first_call
    turning = [*stream.spec.proof.critical, *([first] if first != p else [])]
    critical = [n + d for n in turning if n <= FARTHEST for d in (-1, 0, 1)]
    return [
        *critical,
        1,
        2,
        p - 1,
        p,
        p + 1,
        2 * p - 1,
        3 * p + 1,
        settling + 4 * p + p // 2 + 1,
        2 * settling + 9 * p + 1,
    ]


def _settling(stream: Subject) -> int:
    """Frames until the first ones are out and the steady step runs (if that takes not too long)."""
    delay = max((int(o.delay / o.rate) for o in stream.spec.outputs if o.axis is not None and o.rate), default=0)
    return max(delay, stream.warm if stream.warm <= WARM else 0, stream.spec.pulse * stream.spec.opening)


def valid_length(stream: Subject, wished: int) -> int | None:
    """The next length from `wished` on that the batch model takes (it may kill the process at others)."""
    spec = stream.spec
    start = max(wished, spec.shortest)
    for length in range(start, start + max(4096, *(2 * c.multiple for c in spec.conditions), 0)):
        if length % spec.step == 0 and all(c.met(length) for c in spec.conditions):
            return length
    return None


def _exact(stream: Subject, wished: list[int]) -> list[int]:
    """These lengths, brought down to where the stream is still the batch model (perhaps nowhere)."""
    most = stream.spec.exact_up_to
    if most is None:
        return wished
    longest = next((n for n in range(most, max(most - 4096, 0), -1) if valid_length(stream, n) == n), None)
    return [] if longest is None else sorted({min(valid_length(stream, w) or longest, longest) for w in wished})


def run_stream(
    stream: Subject, feeds: Mapping[str, Array], sizes: Sequence[int], portable: bool = False, on: Machine = HERE
) -> Arrays:
    """The whole stream, chunk by chunk, with NaN where no real frame is."""
    spec = stream.spec
    session = stream.session(
        batch=batch_of(spec, feeds), padding=float("nan"), statics={s.name: feeds[s.name] for s in spec.statics},
        fuse_quantised=False, portable=portable, backend=on.backend, options=on.options,
    )  # fmt: skip
    return run_whole(session, spec, feeds, sizes)


def _raise(report: Report, stream: Subject, source: Any, rng: np.random.Generator, on: Machine) -> NoReturn:
    from pulsify.verify.divergence import first_departure

    try:
        length = report.wrong[0].length or 1
        inside = first_departure(_graph_of(source), stream, length, rng) if length <= FARTHEST else None
        departs = inside or _on_the_machine(stream, on)
    except PulsifyError:
        raise
    except Exception:  # finding the wire is a courtesy; the mismatch is the news
        departs = None
    report = replace(report, departs=departs)
    more = f"\n{_alone(stream)}" if any(SEVERAL_TEXT in d.chunks for d in report.wrong) else ""
    raise Mismatch(f"the stream is not the batch model:\n{report}{more}", report)


def _alone(stream: Subject) -> str:
    """A way out where several streams are not what they are in batch."""
    return f'  hint: fix how many streams there are: set={{"{_free(stream)}": 1}}'


def _free(stream: Subject) -> str | None:
    """What the number of streams is called, if it is free."""
    return next((d.rpartition("*")[2] for i in stream.spec.inputs for d in i.dims if isinstance(d, str)), None)


def _on_the_machine(stream: Subject, on: Machine) -> str | None:
    """The first wire that is another one on the back end than on ONNX Runtime, if that shows its wires."""
    from pulsify.verify.nodes import compare_nodes

    if on.backend == DEFAULT:
        return None
    try:
        first = compare_nodes(stream, backend=on.backend, options=on.options).first
    except InvalidArgument:
        return None
    return None if first is None else first.wire

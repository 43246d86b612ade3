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
from pulsify.core.progress import counted
from pulsify.core.report import Deviation, Report, exact_text, low_text
from pulsify.core.runner import error_text, open_model, output_names, run_model
from pulsify.core.spec import concrete
from pulsify.runtime.whole import batch_of, run_whole

if TYPE_CHECKING:
    from pulsify.verify.subject import Subject

NOISE = "{}: nothing but rounding, by which batch and stream may differ"
ROUNDINGS = 16  # times an output moves with its inputs' last digit: what two ways of computing it may differ by
SEVERAL = 3  # streams, where their number is free: checked once
SEVERAL_TEXT = f"{SEVERAL} streams side by side"
UNDECLARED = "the shapes that the batch model declares inside contradict it: it was run without them"
Run = tuple[int, Arrays, Arrays]  # length, inputs, outputs
FARTHEST = 1 << 14  # frames: of the lengths that the proof names as critical, those that are run
WARM = 4096  # frames: a steady step that begins later is not looked at
HELD_TWICE = 256 << 20  # bytes of weights up to which two forms may be open at once
TOLERANCE = {"float16": 2e-2, "float32": 1e-4, "float64": 1e-9}  # relative to the output's scale; others are equal
AS_WRITTEN = (
    "compared with the batch model as it is written: what ONNX Runtime's optimiser makes of it is another model"
)


@dataclass(frozen=True)
class Machine:
    """What the stream runs on. low: the type that stands for float32 there, if one does."""

    backend: str = DEFAULT
    options: Mapping[str, Own] = field(default_factory=dict)
    low: str | None = None


HERE = Machine()


@dataclass
class Seen:
    """What has been compared so far. sums: of the errors of all elements, and how many these are."""

    lengths: tuple[int, ...]
    low: str | None = None
    noise: Mapping[str, float] = field(default_factory=dict)
    runs: int = 0
    outputs: dict[str, Deviation] = field(default_factory=dict)
    sums: dict[str, tuple[float, int]] = field(default_factory=dict)

    @property
    def report(self) -> Report:
        means = {name: total / max(cells, 1) for name, (total, cells) in self.sums.items()}
        outputs = {name: replace(d, mean=means.get(name, d.error)) for name, d in self.outputs.items()}
        return Report(self.lengths, self.runs, outputs, low=self.low)


def quick(source: Any, stream: Subject) -> Report:
    """Two lengths, two chunkings: enough to catch a wrong rule, quick enough to run on every conversion."""
    p = stream.spec.pulse
    wished = _exact(stream, [1, _settling(stream) + 3 * p + p // 2 + 1])
    return _side_by_side(_settled(source), stream, wished, ("pulses", "random"))


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

    lengths: if none are given, of those at which the stream is exact (`unbounded=N` forgets what is older).
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
    return _side_by_side(source, stream, wished, chunkings, tolerance, seed, on)


def _side_by_side(
    source: Any,
    stream: Subject,
    wished: list[int],
    chunkings: Sequence[str],
    tolerance: float | None = None,
    seed: int = 0,
    on: Machine = HERE,
) -> Report:
    rng = np.random.default_rng(seed)
    source, runs, notes = _runs(source, stream, wished, rng)
    if wished and not runs:
        raise Mismatch(f"no length near {wished} is one the batch model takes, so nothing was checked", Report())
    report = _compared(stream, runs, chunkings, tolerance, rng, on)
    if report.wrong and (written := _as_written(source, stream, runs, tolerance)):
        report, notes, runs = _compared(stream, written, chunkings, tolerance, rng, on), (*notes, AS_WRITTEN), written
    if report.wrong and tolerance is None and (noise := _noise(source, stream, runs, rng)):
        again = _compared(stream, runs, chunkings, tolerance, rng, on, noise)
        report, notes = (report, notes) if again.wrong else (again, (*notes, NOISE.format(", ".join(sorted(noise)))))
    report = replace(report, notes=notes)
    if on.low is not None and not report.judged:
        report = replace(report, notes=(*report.notes, low_text(on.low)))
    if (most := stream.spec.exact_up_to) is not None:
        report = replace(report, exact_up_to=most, notes=(*report.notes, exact_text(most)))
    if report.wrong:
        _raise(report, stream, source, rng, on)
    return report


def _runs(
    source: Any, stream: Subject, wished: list[int], rng: np.random.Generator
) -> tuple[Any, list[Run], tuple[str, ...]]:
    """The batch model's own results; without the shapes it declares inside, if it fails for those."""
    from pulsify.frontend.load import undeclared

    try:
        return source, _batch_runs(source, stream, wished, rng), ()
    except InvalidModel as problem:
        try:
            bare = undeclared(source)
            return bare, _batch_runs(bare, stream, wished, rng), (UNDECLARED,)
        except InvalidModel:
            raise problem from None


def _compared(
    stream: Subject,
    runs: list[Run],
    chunkings: Sequence[str],
    tolerance: float | None,
    rng: np.random.Generator,
    on: Machine,
    noise: Mapping[str, float] | None = None,
) -> Report:
    seen = Seen(tuple(dict.fromkeys(length for length, _, _ in runs)), on.low, noise or {})
    hows = sorted(chunkings, key=lambda how: how != "pulses")
    for how in hows:
        # pulse by pulse as the file has it, otherwise as sessions run it: both forms are looked at
        portable = how == "pulses"
        for length, feeds, reference in counted(f"by {how}, stream", runs):
            several = batch_of(stream.spec, feeds)
            if several > 1 and how != hows[-1]:
                continue  # once is enough
            try:
                got = run_stream(stream, feeds, chunking(how, length, stream.spec.pulse, rng), portable, on)
            except InvalidChunk as error:
                if _free(stream) is None:
                    raise
                who = "the stream fails" if several == 1 else f"{SEVERAL_TEXT} fail"
                raise Mismatch(f"{who}: {error}\n{_alone(stream)}", seen.report) from error
            seen.runs += 1
            _compare(seen, stream, got, reference, length, how if several == 1 else f"{how}, {SEVERAL_TEXT}", tolerance)
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
    try:
        return open_model(source, optimize=optimize, as_others=True)
    except Exception as error:  # ONNX Runtime has no common class for them
        raise InvalidModel(
            f"ONNX Runtime does not open the batch model: {error_text(error)}; verify=False converts without checking"
        ) from error


def _batch_runs(source: Any, stream: Subject, wished: list[int], rng: np.random.Generator) -> list[Run]:
    """The batch model at every length, first and by itself: a large model is not held twice."""
    batch = _open_batch(source, optimize=not stream.quantised)
    _check_ports(batch, stream)
    runs: list[Run] = []
    lengths = dict.fromkeys(valid_length(stream, w) for w in wished)
    for length in counted("batch model, length", lengths):
        if length is None:
            continue
        feeds = make_inputs(batch, stream, length, rng)
        try:
            runs.append((length, *_run_finite(batch, feeds)))
        except Exception as error:
            raise InvalidModel(
                f"the batch model itself fails in ONNX Runtime at {length} frames: {error_text(error)}; "
                "if it takes only some lengths, declare them with set={...}"
            ) from error
    if runs and _free(stream) is not None:
        length = runs[-1][0]
        with suppress(Exception):  # it may take one stream only, whatever it declares: nothing to compare with
            runs.append((length, *_run_finite(batch, make_inputs(batch, stream, length, rng, SEVERAL))))
    return runs


def _run_finite(batch: Any, feeds: dict[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
    """Inputs and outputs; positive inputs if others make NaN (of a logarithm, say), which tells nothing of a stream."""
    made = run_model(batch, feeds)
    if all(np.isfinite(a).all() for a in made.values() if a.dtype.kind == "f"):
        return feeds, made
    positive = {n: np.abs(a) + np.array(0.1, a.dtype) if a.dtype.kind == "f" else a for n, a in feeds.items()}
    again = run_model(batch, positive)
    better = all(np.isfinite(a).all() for a in again.values() if a.dtype.kind == "f")
    return (positive, again) if better else (feeds, made)


def _as_written(source: Any, stream: Subject, runs: list[Run], tolerance: float | None) -> list[Run]:
    """The same runs without the runtime's optimiser, or none if that makes no difference.

    It may change a model: a pad of zeros before a MaxPool becomes the pool's own, which is not zero.
    """
    if stream.quantised:  # as it is written already
        return []
    batch = _open_batch(source, optimize=False)
    written = [(length, feeds, run_model(batch, feeds)) for length, feeds, _ in runs]
    pairs = [(was[name], now[name]) for (*_, was), (*_, now) in zip(runs, written, strict=True) for name in now]
    same = all(x.shape == y.shape and error(x, y).max(initial=0) <= limit(y, tolerance) for x, y in pairs)
    return [] if same else written


def _noise(source: Any, stream: Subject, runs: list[Run], rng: np.random.Generator) -> dict[str, float]:
    """Outputs that are rounding alone, and how far they move, of their scale, if the inputs do in their last digit.

    Most of such an output must move by more than its type allows, in every one of its channels: what jumps in a few
    places (a rounded number) does not count, nor does noise beside what is none. By how much two ways of computing it
    may differ is then no more than a few times that.
    """
    axes = {o.name: o.axis for o in stream.spec.outputs}
    batch = _open_batch(source, optimize=not stream.quantised)
    found: dict[str, float] = {}
    for _, feeds, _ in runs:
        still, moved = run_model(batch, feeds), run_model(batch, {n: _last_digit(a, rng) for n, a in feeds.items()})
        for name, want in still.items():
            if want.dtype.kind == "f" and want.size and moved[name].shape == want.shape:
                off = error(moved[name], want)
                typical = off if (axis := axes.get(name)) is None else np.median(off, axis)
                if limit(want, None) < typical.min() * ROUNDINGS and typical.max() < np.inf:
                    found[name] = max(found.get(name, 0), float(typical.max()) * ROUNDINGS)
    return found


def _last_digit(array: Array, rng: np.random.Generator) -> Array:
    """The same but for its last digit."""
    if array.dtype.kind != "f":
        return array
    by = rng.choice([-1, 1], array.shape) * np.finfo(array.dtype).eps
    return (array * (1 + by)).astype(array.dtype)


def _lengths(stream: Subject) -> list[int]:
    p, settling, opening = stream.spec.pulse, _settling(stream), stream.spec.pulse * stream.spec.opening
    turning = [*stream.spec.proof.critical, *([opening] if opening else [])]
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


def make_inputs(
    batch: Any, stream: Subject, length: int, rng: np.random.Generator, streams: int = 1
) -> dict[str, Array]:
    """Random inputs of one length for the batch model, of one stream or several."""
    spec = stream.spec
    timed = {i.name: i for i in spec.inputs}
    statics = {s.name: s for s in spec.statics}
    filled = {f.name: f for f in spec.filled}
    feeds = {}
    for port in batch.get_inputs():
        if port.name in timed:
            i = timed[port.name]
            dims = list(concrete(i.dims, streams))
            dims[i.axis] = int(length * i.rate)
            feeds[port.name] = random_array(dims, i.dtype, rng)
        elif port.name in statics:
            s = statics[port.name]
            feeds[port.name] = random_array(concrete(s.dims, streams), s.dtype, rng)
        elif port.name in filled:
            f = filled[port.name]
            dims = [d if isinstance(d, int) else streams for d in port.shape]
            dims[f.axis] = int(length * f.rate)
            feeds[port.name] = np.full(dims, f.value, f.dtype)
        else:  # bound to the length
            dtype = {"tensor(int32)": np.int32, "tensor(int64)": np.int64}[port.type]
            feeds[port.name] = np.full([1 if isinstance(d, int) else streams for d in port.shape], length, dtype)
    return feeds


def random_array(dims: Any, dtype: np.dtype[Any], rng: np.random.Generator) -> Array:
    if dtype.kind == "b":
        return rng.integers(0, 2, dims).astype(bool)
    if dtype.kind in "iu":
        # Small: an index into a table of unknown size, most likely; short types are samples or quantised values.
        high = 2 if dtype.itemsize >= 4 else np.iinfo(dtype).max
        return rng.integers(0 if dtype.itemsize >= 4 else np.iinfo(dtype).min, high, dims).astype(dtype)
    return rng.standard_normal(dims).astype(dtype)


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


def error(got: Array, reference: Array) -> Array:
    """The error of every cell, relative to the reference's scale. Where both are NaN or equal, none."""
    if reference.dtype.kind not in "fc":
        return (got != reference).astype(np.float64)
    x, y = got.astype(np.float64), reference.astype(np.float64)
    finite = y[np.isfinite(y)]
    scale = float(np.abs(finite).max(initial=0.0)) or 1.0
    with np.errstate(invalid="ignore"):
        off = np.abs(x - y) / scale
    off[(x == y) | (np.isnan(x) & np.isnan(y))] = 0.0
    off[np.isnan(off)] = np.inf
    return off


def limit(reference: Array, tolerance: float | None) -> float:
    return tolerance if tolerance is not None else TOLERANCE.get(str(reference.dtype), 0.0)


def _compare(
    seen: Seen,
    stream: Subject,
    got: Mapping[str, Array],
    reference: Mapping[str, Array],
    length: int,
    how: str,
    tolerance: float | None,
) -> None:
    for o in stream.spec.outputs:
        want, have = reference[o.name], got[o.name]
        allowed = np.inf if seen.low and tolerance is None else seen.noise.get(o.name, limit(want, tolerance))
        worst = seen.outputs.setdefault(o.name, Deviation(tolerance=allowed))
        if have.shape != want.shape:
            seen.outputs[o.name] = Deviation(
                float("inf"), allowed, None, length, f"shape {have.shape} for {want.shape}"
            )
            continue
        off = error(have, want)
        total, cells = seen.sums.get(o.name, (0.0, 0))
        seen.sums[o.name] = total + float(off.sum()), cells + off.size
        if off.size and off.max() > worst.error:
            axis = o.axis or 0
            frames = off.max(tuple(i for i in range(off.ndim) if i != axis)) if off.ndim else off.reshape(1)
            beyond = np.flatnonzero(frames > allowed)
            first = int(beyond[0]) if beyond.size else int(frames.argmax())
            seen.outputs[o.name] = Deviation(float(off.max()), allowed, first, length, how, apart(have, want, off))


def apart(got: Array, want: Array, off: Array) -> float:
    """The largest difference itself, of those that count."""
    with np.errstate(invalid="ignore"):
        differences = np.abs(got.astype(np.float64) - want.astype(np.float64))
    return float(np.where(off > 0, differences, 0.0).max(initial=0.0))


def _raise(report: Report, stream: Subject, source: Any, rng: np.random.Generator, on: Machine) -> NoReturn:
    from pulsify.verify.divergence import first_departure

    try:
        departs = first_departure(source, stream, report.wrong[0].length or 1, rng) or _on_the_machine(stream, on)
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

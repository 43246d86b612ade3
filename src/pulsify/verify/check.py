"""Does the stream equal the batch model? Lengths, chunkings, a report, and the first wire that departs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from pulsify.backends.registry import DEFAULT
from pulsify.backends.registry import backend as back_end
from pulsify.core.errors import InvalidArgument, InvalidModel, Mismatch, PulsifyError
from pulsify.core.runner import open_model, said
from pulsify.core.spec import concrete

if TYPE_CHECKING:
    from pulsify.api import Stream

Array = np.ndarray[Any, Any]
Run = tuple[int, dict[str, Array], dict[str, Array]]  # length, inputs, outputs
CHUNKINGS = ("pulses", "random", "whole")
FARTHEST = 1 << 14  # frames: of the lengths that the proof names as critical, those that are run
WARM = 4096  # frames: a steady step that begins later is not looked at
HELD_TWICE = 256 << 20  # bytes of weights up to which two forms may be open at once
TOLERANCE = {"float16": 2e-2, "float32": 1e-4, "float64": 1e-9}


@dataclass
class Worst:
    """The largest error of one output, relative to the output's scale, and where it was seen."""

    error: float = 0.0
    frame: int | None = None
    length: int | None = None
    chunks: str = ""


@dataclass
class Report:
    """What `verify` saw."""

    lengths: list[int] = field(default_factory=list)
    runs: int = 0
    tolerance: float = 0.0
    outputs: dict[str, Worst] = field(default_factory=dict)
    departs: str | None = None  # the first wire whose stream is not the batch model's
    notes: list[str] = field(default_factory=list)  # what else there is to know about the comparison

    @property
    def error(self) -> float:
        return max((w.error for w in self.outputs.values()), default=0.0)

    @property
    def wrong(self) -> list[Worst]:
        """Of the outputs that depart."""
        return [w for w in self.outputs.values() if w.error > self.tolerance]

    def __str__(self) -> str:
        lines = [f"{self.runs} streams at lengths {self.lengths}"]
        for name, w in self.outputs.items():
            where = f" at frame {w.frame} of length {w.length} ({w.chunks})" if w.error and w.frame is not None else ""
            lines.append(f"  {name}: largest error {w.error:.2g} of scale{where}")
        if self.departs:
            lines.append(f"  the first wire that departs from batch is '{self.departs}'")
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


def quick(source: Any, stream: Stream) -> Report:
    """Two lengths, two chunkings: enough to catch a wrong rule, quick enough to run on every conversion."""
    p = stream.pulse
    wished = _exact(stream, [1, _settling(stream) + 3 * p + p // 2 + 1])
    return _side_by_side(_settled(source), stream, wished, ("pulses", "random"))


def verify(
    source: Any,
    stream: Stream,
    *,
    lengths: list[int] | None = None,
    chunkings: tuple[str, ...] = CHUNKINGS,
    tolerance: float | None = None,
    seed: int = 0,
    backend: str = DEFAULT,
) -> Report:
    """Run batch and stream side by side. Raises Mismatch, with the report, if any output departs.

    lengths: if none are given, of those at which the stream is exact (`unbounded=N` forgets what is older).
    backend: what the stream runs on; the batch model runs on ONNX Runtime.
    """
    source = _settled(source)
    back_end(backend)
    _check_arguments(stream, lengths, chunkings)
    wished = lengths or _exact(stream, _lengths(stream))
    if not wished:
        raise Mismatch(
            "the stream forgets so soon that it is the batch model at no length: nothing was checked", Report()
        )
    return _side_by_side(source, stream, wished, chunkings, tolerance, seed, backend)


def _side_by_side(
    source: Any,
    stream: Stream,
    wished: list[int],
    chunkings: tuple[str, ...],
    tolerance: float | None = None,
    seed: int = 0,
    backend: str = DEFAULT,
) -> Report:
    rng = np.random.default_rng(seed)
    runs = _batch_runs(source, stream, wished, rng)
    if wished and not runs:
        raise Mismatch(f"no length near {wished} is one the batch model takes, so nothing was checked", Report())
    report = _compared(stream, runs, chunkings, tolerance, rng, backend)
    if report.wrong and (written := _as_written(source, stream, runs, tolerance)):
        report = _compared(stream, written, chunkings, tolerance, rng, backend)
        report.notes.append(
            "compared with the batch model as it is written: what ONNX Runtime's optimiser makes of it is another model"
        )
    if stream.spec.exact_up_to is not None:
        report.notes.append(
            f"the stream forgets what is older than it was asked to keep: it is the batch model up to "
            f"{stream.spec.exact_up_to} frames, and no longer so beyond"
        )
    if report.wrong:
        _raise(report, stream, source, rng)
    return report


def _compared(
    stream: Stream,
    runs: list[Run],
    chunkings: tuple[str, ...],
    tolerance: float | None,
    rng: np.random.Generator,
    backend: str,
) -> Report:
    report = Report(lengths=[length for length, _, _ in runs])
    for how in sorted(chunkings, key=lambda how: how != "pulses"):
        # pulse by pulse as the file has it, otherwise as sessions run it: both forms are looked at
        portable = how == "pulses"
        for length, feeds, reference in runs:
            got = run_stream(stream, feeds, cuts(how, length, stream.pulse, rng), portable, backend)
            report.runs += 1
            _compare(report, stream, got, reference, length, how, tolerance)
        if portable:
            stream.let_go(more_than=HELD_TWICE)
    return report


def _settled(source: Any) -> Any:
    """A path, bytes or an onnx_ir model."""
    from pulsify.frontend.load import read

    if not isinstance(source, (str, bytes)) and hasattr(source, "__fspath__"):
        source = source.__fspath__()
    if isinstance(source, str) and not Path(source).is_file():
        raise InvalidModel(f"no such model file: {Path(source).name!r}")
    return source if isinstance(source, (str, bytes)) else read(source)


def _check_arguments(stream: Any, lengths: Any, chunkings: tuple[str, ...]) -> None:
    from pulsify.api import Stream

    if not isinstance(stream, Stream):
        raise InvalidArgument(f"expected a stream made by pulsify.stream or pulsify.load, got {type(stream).__name__}")
    if lengths is not None and not all(isinstance(n, int) and n > 0 for n in lengths):
        raise InvalidArgument(f"lengths={lengths!r}: expected numbers of frames, at least 1")
    unknown = [how for how in chunkings if how not in CHUNKINGS]
    if unknown:
        raise InvalidArgument(f"chunkings: there is no {unknown}; there are {list(CHUNKINGS)}")


def _check_ports(batch: Any, stream: Stream) -> None:
    """The batch model must be one this stream can have been made from."""
    streamed = [*(i.name for i in stream.inputs), *(s.name for s in stream.statics)]
    integers = {i.name for i in batch.get_inputs() if i.type in ("tensor(int32)", "tensor(int64)")}
    given, made = [i.name for i in batch.get_inputs()], [o.name for o in batch.get_outputs()]
    wanted = [o.name for o in stream.outputs]
    if not set(streamed) <= set(given) <= {*streamed, *integers} or not set(wanted) <= set(made):
        raise InvalidArgument(
            f"the stream takes {streamed} and gives {wanted}, the batch model takes {given} and gives {made}: "
            "pass the model the stream was made from"
        )


def _open_batch(source: Any, optimize: bool) -> Any:
    try:
        return open_model(source, optimize=optimize)
    except Exception as error:  # ONNX Runtime has no common class for them
        raise InvalidModel(
            f"ONNX Runtime does not open the batch model: {said(error)}; verify=False converts without checking"
        ) from error


def _batch_runs(source: Any, stream: Stream, wished: list[int], rng: np.random.Generator) -> list[Run]:
    """The batch model at every length, first and by itself: a large model is not held twice."""
    batch = _open_batch(source, optimize=not stream.quantised)
    _check_ports(batch, stream)
    names = [o.name for o in batch.get_outputs()]
    runs: list[Run] = []
    for length in dict.fromkeys(valid_length(stream, w) for w in wished):
        if length is None:
            continue
        feeds = make_inputs(batch, stream, length, rng)
        try:
            runs.append((length, feeds, dict(zip(names, batch.run(None, feeds), strict=True))))
        except Exception as error:
            raise InvalidModel(
                f"the batch model itself fails in ONNX Runtime at {length} frames: {said(error)}; "
                "if it takes only some lengths, declare them with set={...}"
            ) from error
    return runs


def _as_written(source: Any, stream: Stream, runs: list[Run], tolerance: float | None) -> list[Run]:
    """The same runs without the runtime's optimiser, or none if that makes no difference.

    It may change a model: a pad of zeros before a MaxPool becomes the pool's own, which is not zero.
    """
    if stream.quantised:  # as it is written already
        return []
    batch = _open_batch(source, optimize=False)
    names = [o.name for o in batch.get_outputs()]
    written = [(length, feeds, dict(zip(names, batch.run(None, feeds), strict=True))) for length, feeds, _ in runs]
    pairs = [(was[name], now[name]) for (*_, was), (*_, now) in zip(runs, written, strict=True) for name in now]
    same = all(x.shape == y.shape and error(x, y).max(initial=0) <= limit(y, tolerance) for x, y in pairs)
    return [] if same else written


def _lengths(stream: Stream) -> list[int]:
    p, settling = stream.pulse, _settling(stream)
    critical = [n + d for n in stream.proof.critical if n <= FARTHEST for d in (-1, 0, 1)]
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


def _settling(stream: Stream) -> int:
    """Frames until the first ones are out and the steady step runs (if that takes not too long)."""
    delay = max((int(o.delay / o.rate) for o in stream.outputs if o.axis is not None and o.rate), default=0)
    return max(delay, stream.warm if stream.warm <= WARM else 0)


def valid_length(stream: Stream, wished: int) -> int | None:
    """The next length from `wished` on that the batch model takes (it may kill the process at others)."""
    spec = stream.spec
    start = max(wished, spec.shortest)
    for length in range(start, start + 4096):
        if length % spec.step == 0 and all(c.met(length) for c in spec.conditions):
            return length
    return None


def _exact(stream: Stream, wished: list[int]) -> list[int]:
    """These lengths, brought down to where the stream is still the batch model (perhaps nowhere)."""
    most = stream.spec.exact_up_to
    if most is None:
        return wished
    longest = next((n for n in range(most, max(most - 4096, 0), -1) if valid_length(stream, n) == n), None)
    return [] if longest is None else sorted({min(valid_length(stream, w) or longest, longest) for w in wished})


def cuts(how: str, length: int, pulse: int, rng: np.random.Generator) -> list[int]:
    """Chunk sizes that add up to `length`."""
    if how == "whole":
        return [length]
    if how == "pulses":
        return [pulse] * (length // pulse) + [length % pulse] * bool(length % pulse)
    out, left = [], length
    while left:
        n = min(left, int(rng.integers(0, 3 * pulse + 1)))
        out.append(n)
        left -= n
    return out


def make_inputs(batch: Any, stream: Stream, length: int, rng: np.random.Generator) -> dict[str, Array]:
    """Random inputs of one length for the batch model."""
    spec = stream.spec
    streams = {i.name: i for i in spec.inputs}
    statics = {s.name: s for s in spec.statics}
    feeds = {}
    for port in batch.get_inputs():
        if port.name in streams:
            i = streams[port.name]
            dims = list(concrete(i.dims, 1))
            dims[i.axis] = int(length * i.rate)
            feeds[port.name] = random_array(dims, i.dtype, rng)
        elif port.name in statics:
            s = statics[port.name]
            feeds[port.name] = random_array(concrete(s.dims, 1), s.dtype, rng)
        else:  # bound to the length
            dtype = {"tensor(int32)": np.int32, "tensor(int64)": np.int64}[port.type]
            feeds[port.name] = np.full([1] * len(port.shape), length, dtype)
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
    stream: Stream,
    feeds: Mapping[str, Array],
    chunks: list[int],
    portable: bool = False,
    backend: str = DEFAULT,
) -> dict[str, Array]:
    """The whole stream, chunk by chunk, with NaN where no real frame is."""
    statics = {s.name: feeds[s.name] for s in stream.statics}
    session = stream.session(
        padding=float("nan"), statics=statics, fuse_quantised=False, portable=portable, backend=backend
    )
    parts: dict[str, list[Array]] = {o.name: [] for o in stream.outputs}

    def take(result: Any) -> None:
        if not isinstance(result, dict):
            result = {} if result is None else {stream.outputs[0].name: result}
        for name, array in result.items():
            parts[name].append(array)

    at = 0
    for n in chunks:
        piece = {}
        for i in stream.inputs:
            lo, hi = int(at * i.rate), int((at + n) * i.rate)
            piece[i.name] = feeds[i.name][(slice(None),) * i.axis + (slice(lo, hi),)]
        at += n
        take(session.push(piece))
    take(session.flush())
    return {
        o.name: np.concatenate(parts[o.name], o.axis) if o.axis is not None else parts[o.name][-1]
        for o in stream.outputs
    }


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
    report: Report,
    stream: Stream,
    got: Mapping[str, Array],
    reference: Mapping[str, Array],
    length: int,
    how: str,
    tolerance: float | None,
) -> None:
    for o in stream.outputs:
        worst = report.outputs.setdefault(o.name, Worst())
        want = reference[o.name]
        if got[o.name].shape != want.shape:
            report.outputs[o.name] = Worst(float("inf"), None, length, f"shape {got[o.name].shape} for {want.shape}")
            continue
        report.tolerance = max(report.tolerance, limit(want, tolerance))
        off = error(got[o.name], want)
        if off.size and off.max() > worst.error:
            axis = o.axis or 0
            frames = off.max(tuple(i for i in range(off.ndim) if i != axis)) if off.ndim else off.reshape(1)
            first = (
                int(np.argmax(frames > limit(want, tolerance)))
                if (frames > limit(want, tolerance)).any()
                else int(frames.argmax())
            )
            report.outputs[o.name] = Worst(float(off.max()), first, length, how)


def _raise(report: Report, stream: Stream, source: Any, rng: np.random.Generator) -> NoReturn:
    from pulsify.verify.divergence import first_departure

    try:
        report.departs = first_departure(source, stream, report.wrong[0].length or 1, rng)
    except PulsifyError:
        raise
    except Exception:  # finding the wire is a courtesy; the mismatch is the news
        report.departs = None
    raise Mismatch(f"the stream is not the batch model:\n{report}", report)

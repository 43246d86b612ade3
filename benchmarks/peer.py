"""Streams an ONNX model with the strongest peer, sonos/tract's `pulse` transform (package `tract`).

    python -m benchmarks.peer MODEL JOB.npz RESULT.npz

tract is native code that may panic or hang: `run_apart` runs it in a process of its own, with a time limit.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

Status = Literal["exact", "tail", "wrong", "refused"]

SYMBOL = "S"  # the length of the stream, in tract's shapes
TOLERANCE = 2e-4  # of the largest magnitude in the batch output, or of 1 if that is smaller
REPOSITORY = Path(__file__).parent.parent


class PeerError(Exception):
    """tract refused, failed, crashed or took too long; the text says which and where."""


@dataclasses.dataclass(frozen=True)
class Job:
    """What to stream: the shape with the symbol as its time axis, and for each input the frames wanted back."""

    shape: tuple[int | str, ...]
    axis: int
    pulse: int
    inputs: Sequence[Array]
    frames: Sequence[int]
    known_length: bool = False  # write the length of the stream into the pulsed model


@dataclasses.dataclass(frozen=True)
class Streamed:
    outputs: list[Array]
    delay: int


def version() -> str:
    return importlib.metadata.version("tract")


def run(path: Path, job: Job) -> Streamed:
    """All streams of a job, in this process."""
    streamed = [
        _stream_once(path, job, x, frames, x.shape[job.axis] if job.known_length else None)
        for x, frames in zip(job.inputs, job.frames, strict=True)
    ]
    return Streamed([output for output, _ in streamed], streamed[0][1])


def run_apart(path: Path, job: Job, timeout: float) -> Streamed:
    """The same in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        task, result = Path(folder) / "job.npz", Path(folder) / "result.npz"
        _write_job(job, task)
        command = [sys.executable, "-m", "benchmarks.peer", str(path), str(task), str(result)]
        try:
            done = subprocess.run(
                command,
                cwd=REPOSITORY,
                env={**os.environ, "RUST_BACKTRACE": "0"},
                timeout=timeout,
                capture_output=True,
                text=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise PeerError(f"no answer in {timeout:.0f} s") from None
        if not result.exists():
            raise PeerError(f"crash, exit code {done.returncode}: {_one_line(done.stderr)}")
        return _read_result(result)


def compare(got: Array, expected: Array, axis: int) -> tuple[Status, str]:
    """exact; tail: the first half of the frames is right and what is wrong is at the end; wrong."""
    if got.shape != expected.shape:
        return "wrong", f"shape {got.shape}, not {expected.shape}"
    scale = max(1.0, float(np.abs(expected).max()))
    errors = np.abs(got - expected).max(tuple(i for i in range(got.ndim) if i != axis)) / scale
    bad = np.flatnonzero(~(errors <= TOLERANCE))
    if not bad.size:
        return "exact", ""
    if bad[0] >= errors.size / 2:
        return "tail", f"last {errors.size - bad[0]} of {errors.size} frames"
    return "wrong", f"{bad.size} of {errors.size} frames, error {np.max(errors):.2g}"


def open_stream(path: Path, shape: Sequence[int | str], pulse: int) -> Callable[[Any], Any]:
    """A stream in this process, for models that `run_apart` came through: a pulse in, as a tract tensor out."""
    pulsed = _step("load", _load, path, shape)
    _step("pulse", _pulse, pulsed, pulse)
    state = _step("prepare", lambda: pulsed.into_runnable().spawn_state())
    return lambda chunk: state.run([chunk])[0]


def _stream_once(path: Path, job: Job, x: Array, frames: int, length: int | None) -> tuple[Array, int]:
    """One stream, first frame to last: zeros fill the last pulse and go on until the delay is flushed."""
    pulsed = _step("load", _load, path, job.shape)
    _step("pulse", _pulse, pulsed, job.pulse)
    delay, axis = (int(pulsed.property(name).to_numpy()[0]) for name in ("pulse.delay", "pulse.output_axes"))
    if length is not None:
        pulsed = _with_length(pulsed, length)
    state = _step("prepare", lambda: pulsed.into_runnable().spawn_state())
    parts: list[Array] = []
    for chunk in _pulses(x, job.axis, job.pulse):
        parts.append(_step("run", state.run, [chunk])[0].to_numpy())
        if not parts[-1].shape[axis]:
            raise PeerError("run: a pulse without output")
        if sum(part.shape[axis] for part in parts) >= delay + frames:
            break
    output = np.concatenate(parts, axis)
    return np.take(output, range(delay, delay + frames), axis), delay


def _load(path: Path, shape: Sequence[int | str]) -> Any:
    """The typed model, with the symbol on its time axis."""
    import tract

    model = tract.onnx().load(str(path))
    if (model.input_count(), model.output_count()) != (1, 1):
        raise PeerError("load: more than one input or output")
    model.set_input_fact(0, ",".join([SYMBOL if isinstance(d, str) else str(d) for d in shape] + ["f32"]))
    _step("analyse", model.analyse)
    return _step("type", model.into_model)


def _pulse(model: Any, pulse: int) -> None:
    import tract

    model.transform(tract.Pulse(pulse, symbol=SYMBOL))


def _with_length(pulsed: Any, length: int) -> Any:
    """The pulsed model for streams of this length.

    tract's Rust API can tell a running state the length. Its Python API has no such call, and `SetSymbols` leaves
    the padding of a pulsed model as it is; so the number takes the place of the symbol in the serialised model.
    """
    import tract

    nnef = tract.nnef().with_pulse().with_tract_extra().with_onnx().with_extended_identifier_syntax()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        _step("write", nnef.write_model_to_dir, pulsed, str(model))
        text = (model / "graph.nnef").read_text()
        (model / "graph.nnef").write_text(_replace_symbol(text, length))
        return _step("read", nnef.load, str(model))


def _replace_symbol(text: str, length: int) -> str:
    """Every use of the symbol in an NNEF graph, not those in quoted names."""
    text = text.replace(f"extension tract_symbol {SYMBOL};\n", "")
    quoted = text.split('"')
    quoted[::2] = [re.sub(rf"\b{SYMBOL}\b", str(length), part) for part in quoted[::2]]
    return '"'.join(quoted)


def _step(name: str, call: Any, *arguments: Any) -> Any:
    """Calls tract; its error as ours, with the name of the step."""
    import tract

    try:
        return call(*arguments)
    except tract.TractError as error:
        raise PeerError(f"{name}: {_one_line(str(error))}") from None


def _pulses(x: Array, axis: int, pulse: int) -> Iterator[Array]:
    """The pulses of a stream, and zeros for ever."""
    moved = np.moveaxis(x, axis, 0)
    for start in range(0, len(moved), pulse):
        chunk = moved[start : start + pulse]
        rest = np.zeros((pulse - len(chunk), *moved.shape[1:]), x.dtype)
        yield np.ascontiguousarray(np.moveaxis(np.concatenate([chunk, rest]), 0, axis))
    while True:
        yield np.ascontiguousarray(np.moveaxis(np.zeros((pulse, *moved.shape[1:]), x.dtype), 0, axis))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _write_job(job: Job, path: Path) -> None:
    arrays = {f"x{i}": x for i, x in enumerate(job.inputs)}
    shape = [str(d) for d in job.shape]
    numbers = [job.axis, job.pulse, int(job.known_length)]
    np.savez(path, shape=shape, numbers=numbers, frames=list(job.frames), **arrays)  # type: ignore[arg-type]


def _read_job(path: Path) -> Job:
    with np.load(path) as arrays:
        axis, pulse, known_length = (int(n) for n in arrays["numbers"])
        shape = tuple(int(d) if d.isdigit() else str(d) for d in arrays["shape"])
        frames = [int(n) for n in arrays["frames"]]
        inputs = [arrays[f"x{i}"] for i in range(len(frames))]
    return Job(shape, axis, pulse, inputs, frames, bool(known_length))


def _read_result(path: Path) -> Streamed:
    with np.load(path) as arrays:
        if "error" in arrays:
            raise PeerError(str(arrays["error"]))
        outputs = [arrays[f"y{i}"] for i in range(len(arrays) - 1)]
        return Streamed(outputs, int(arrays["delay"]))


def _main() -> None:
    model, task, result = (Path(argument) for argument in sys.argv[1:])
    try:
        streamed = run(model, _read_job(task))
    except PeerError as error:
        np.savez(result, error=str(error))
    else:
        np.savez(result, delay=streamed.delay, **{f"y{i}": y for i, y in enumerate(streamed.outputs)})  # type: ignore[arg-type]


if __name__ == "__main__":
    _main()

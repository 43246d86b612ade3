"""Streams written by hand: a step with states in and out, or a pipeline of steps with numpy between them.

An opener takes the paths of the models it runs and gives a function that takes a pulse and gives its output, and the
bytes it remembers from one pulse to the next. To add one: write it here, and name it in `OPENERS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from pulsify.core.runner import options

Array = npt.NDArray[Any]
Push = Callable[[Array], Array]


def open_steps(paths: Sequence[Path]) -> tuple[Push, int]:
    """The first names the opener."""
    return OPENERS.get(paths[0].stem, _open_bound)(*paths)


def _session(path: Path) -> ort.InferenceSession:
    return ort.InferenceSession(str(path), options(), providers=["CPUExecutionProvider"])


def _open_bound(path: Path) -> tuple[Push, int]:
    step = Bound(_session(path))
    return lambda chunk: step(chunk).copy(), step.state_bytes


def _open_fastconformer(path: Path) -> tuple[Push, int]:
    from examples.fastconformer.by_hand import Runner

    step = Runner(path, options())
    ports = [p for p in step.model.get_inputs() if f"new_{p.name}" in {o.name for o in step.model.get_outputs()}]
    return step.push, sum(4 * math.prod(p.shape) for p in ports)


def _open_dtln(first: Path, second: Path) -> tuple[Push, int]:
    """Two steps with numpy around them, as its authors stream it: a frame of samples, its spectrum, overlap-add.

    What they do by magnitude and phase is a product here: the same numbers sooner.
    """
    spectrum, learned = Bound(_session(first)), Bound(_session(second))
    frame, total = np.zeros(512, np.float32), np.zeros(512, np.float32)

    def push(chunk: Array) -> Array:
        frame[:-128] = frame[128:]
        frame[-128:] = chunk[0]
        bins = np.fft.rfft(frame)
        mask = spectrum(np.abs(bins))[0, 0]
        made = learned(np.fft.irfft(bins * mask))
        total[:-128] = total[128:]
        total[-128:] = 0
        total[:] += made.reshape(512)
        return total[None, :128].copy()

    return push, spectrum.state_bytes + learned.state_bytes + frame.nbytes + total.nbytes


# How to run what is written by hand, by the name of its first model, if not by binding states `x` to `new_x`.
OPENERS: dict[str, Callable[..., tuple[Push, int]]] = {
    "fastconformer_32_by_hand": _open_fastconformer,
    "fastconformer_112_by_hand": _open_fastconformer,
    "dtln_spectrum_by_hand": _open_dtln,
}


class Bound:
    """A step with all tensors in place: state `x` comes out as `new_x` and goes in again, the two sides in turn."""

    def __init__(self, model: ort.InferenceSession) -> None:
        self.model = model
        inputs, outputs = ({p.name: _zeros(p) for p in ports} for ports in (model.get_inputs(), model.get_outputs()))
        self.kept = [inputs, outputs]  # bindings know only their addresses
        self.x, self.y = next(iter(inputs.values())), next(iter(outputs.values()))
        other = {name: outputs.get(f"new_{name}", array) for name, array in inputs.items()}
        back = {name: inputs.get(name.removeprefix("new_"), array) for name, array in outputs.items()}
        self.sides = [self._bind(inputs, outputs), self._bind(other, back)]

    @property
    def state_bytes(self) -> int:
        return sum(a.nbytes for name, a in self.kept[0].items() if f"new_{name}" in self.kept[1])

    def _bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> ort.IOBinding:
        binding = self.model.io_binding()
        for name, a in inputs.items():
            binding.bind_input(name, "cpu", 0, a.dtype.type, a.shape, a.ctypes.data)
        for name, a in outputs.items():
            binding.bind_output(name, "cpu", 0, a.dtype.type, a.shape, a.ctypes.data)
        return binding

    def __call__(self, frame: Array) -> Array:
        self.x[...] = frame
        self.model.run_with_iobinding(self.sides[0])
        self.sides.reverse()
        return self.y


def _zeros(port: Any) -> Array:
    types = {
        "tensor(float)": np.float32,
        "tensor(int32)": np.int32,
        "tensor(int64)": np.int64,
        "tensor(bool)": np.bool_,
    }
    return np.zeros(port.shape, types[port.type])

"""The figures of docs/gallery.md: eleven architectures as streams, on one machine in one go.

python -m benchmarks.gallery [--seconds 1] [--only NAME ...]

delay: of the first output, in its own frames. us: the quickest push of a pulse, by ONNX Runtime and as C.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

import pulsify
from benchmarks.cases import CASES, prepare
from benchmarks.runners import endless, warmed
from benchmarks.turns import Run, measure
from pulsify.demo.model import HOP, enhancer

CHOSEN = (
    "amp_once_8", "tcn", "gtcrn", "dtln", "fastconformer_112", "codec_encoder", "logmel_stft"
)  # fmt: skip


def _case(name: str) -> pulsify.Stream:
    case = next(c for c in CASES if c.name == name)
    return pulsify.stream(prepare([case.batch])[case.batch], pulse=case.pulse)


def _masked() -> pulsify.Stream:
    from examples.masked_encoder.export import export
    from examples.masked_encoder.model import build

    with tempfile.TemporaryDirectory() as place:
        return pulsify.stream(export(build(), Path(place, "encoder.onnx")))


def _pooled(name: str) -> pulsify.Stream:
    from examples.pooling.model import BANDS, build

    return pulsify.stream(build(name), pulse=10, example=torch.zeros(1, 100, BANDS), time={"frames": 1})


MODELS: dict[str, Callable[[], pulsify.Stream]] = {
    **{name: lambda name=name: _case(name) for name in CHOSEN},  # type: ignore[misc]
    "enhancer": lambda: pulsify.stream(enhancer(), pulse=HOP),
    "masked_encoder": _masked,
    **{name: lambda name=name: _pooled(name) for name in ("keywords", "speaker", "x-vector")},  # type: ignore[misc]
}


def figures(name: str, seconds: float) -> str:
    stream = MODELS[name]()
    runs, why = {}, ""
    for backend in ("ort", "native"):
        try:
            session, chunk = warmed(stream, backend=backend), endless(stream)
            runs[backend] = Run(lambda session=session, chunk=chunk: session.push(chunk()))  # type: ignore[misc]
        except pulsify.NotSupported as error:
            why = f"  as C: {error.reason}"
    took = {backend: f"{t.least_us:.0f}" for backend, t in measure(runs, seconds).items()}
    out = stream.outputs[0]
    return (
        f"{name:20s} {stream.pulse:6d} {out.delay:6d} {stream.spec.opening:8d} {stream.state_bytes / 1000:9.1f} "
        f"{took['ort']:>7s} {took.get('native', '-'):>7s}{why}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--only", nargs="*", default=list(MODELS))
    given = parser.parse_args()
    print(f"{'model':20s} {'pulse':>6s} {'delay':>6s} {'opening':>8s} {'state KB':>9s} {'us':>7s} {'as C':>7s}")
    for name in given.only:
        print(figures(name, given.seconds), flush=True)


if __name__ == "__main__":
    main()

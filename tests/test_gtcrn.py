"""A speech denoiser with convolutions over two axes and GRUs over both: frame by frame it is its batch export."""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest

import pulsify
from pulsify.core.chunks import chunking

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from examples.gtcrn.by_hand import Step  # noqa: E402
from examples.gtcrn.export import export, export_step, main  # noqa: E402
from examples.gtcrn.model import build  # noqa: E402

Array = npt.NDArray[Any]
Model = Callable[..., Path]

TOLERANCE = 1e-5  # of the largest magnitude in the batch output; floats differ by some 2e-6
PULSES = (1, 2, 5)
EXPORTERS = ["legacy", pytest.param("dynamo", marks=pytest.mark.slow)]  # the newer one takes most of a minute


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Exports the denoiser; the same one only once, and the newer exporter in a process of its own."""
    folder = tmp_path_factory.mktemp("gtcrn")

    @cache
    def make(exporter: str = "legacy", opset: int | None = None, batch: int | None = None) -> Path:
        path = folder / f"{exporter}_{opset}_{batch}.onnx"
        if exporter == "legacy":
            return export(build(), path, exporter, opset, batch)
        more = [f"--{k}={v}" for k, v in {"opset": opset, "batch": batch}.items() if v]
        command = [sys.executable, "-m", "examples.gtcrn.export", "--exporter", exporter, *more, str(path)]
        subprocess.run(command, check=True, cwd=Path(__file__).parent.parent, stdout=subprocess.DEVNULL)
        return path

    return make


# ---- running both


@cache
def streamed(path: Path, pulse: int) -> pulsify.Stream:
    return pulsify.stream(path, pulse=pulse, set={"B": 1}, verify=False)  # done here, at more lengths


@cache
def opened(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run_batch(path: Path, x: Array) -> Array:
    return opened(path).run(None, {"spec": x})[0]


def run_stream(stream: pulsify.Stream, x: Array, cuts: Iterable[int]) -> Array:
    """Frames no chunk has brought are NaN, so that any use of them shows."""
    return np.asarray(stream.run(x, cuts, padding=math.nan))


def spectrum(frames: int, batch: int = 1) -> Array:
    return np.random.default_rng(frames).standard_normal((batch, 257, frames, 2)).astype(np.float32)


def close(got: Array, wanted: Array) -> bool:
    return got.shape == wanted.shape and bool(np.abs(got - wanted).max() < TOLERANCE * np.abs(wanted).max())


def check(path: Path, stream: pulsify.Stream, lengths: Iterable[int], batch: int = 1) -> None:
    """Stream and batch agree at all lengths, however the stream is cut."""
    rng = np.random.default_rng(batch)
    for frames in lengths:
        x = spectrum(frames, batch)
        wanted = run_batch(path, x)
        for cuts in (chunking(how, frames, stream.pulse, rng) for how in ("pulses", "random")):
            assert close(run_stream(stream, x, cuts), wanted), f"{frames} frames, cut {cuts}"


# ---- the batch model


def test_published_geometry() -> None:
    denoiser = build()
    assert (denoiser.config.bands, denoiser.config.width) == (129, 33)
    assert sum(p.numel() for p in denoiser.parameters() if p.requires_grad) == 23669
    assert sum(p.numel() for p in denoiser.parameters()) == 23669 + 2 * 192 * 64


def test_bands_keep_what_is_flat() -> None:
    """Triangles overlap to one everywhere, so a mask of ones stays one."""
    bands = build().bands
    torch.testing.assert_close(bands.to_bins(torch.ones(1, 2, 3, 129)), torch.ones(1, 2, 3, 257))


def test_frame_sees_no_later_one() -> None:
    denoiser = build()
    x = torch.from_numpy(spectrum(30))
    changed = torch.cat([x[:, :, :20], torch.randn(1, 257, 10, 2)], 2)
    with torch.no_grad():
        before, after = denoiser(x), denoiser(changed)
    torch.testing.assert_close(after[:, :, :20], before[:, :, :20], rtol=0, atol=1e-5)
    assert (after - before)[:, :, 20:].abs().amax((0, 1, 3)).min() > 0.1


def test_activations_stay_near_one() -> None:
    denoiser, sizes = build(), []
    for block in [*denoiser.encoder, *denoiser.paths, *denoiser.decoder]:
        block.register_forward_hook(lambda _, __, out: sizes.append(float(out.std(2).mean())))
    with torch.no_grad():
        denoiser(torch.from_numpy(spectrum(60)))
    assert len(sizes) == 12 and all(0.2 < s < 2 for s in sizes)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_export_is_the_model(exporter: str, model: Model) -> None:
    denoiser = build()
    for frames, batch in ((1, 1), (9, 3), (50, 1)):
        x = spectrum(frames, batch)
        with torch.no_grad():
            assert close(run_batch(model(exporter), x), denoiser(torch.from_numpy(x)).numpy())


def test_export_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "denoiser.onnx"
    main(["--batch", "1", "--opset", "18", str(out)])
    assert "23.7 thousand" in capsys.readouterr().out
    proto = onnx.load(out)
    assert proto.opset_import[0].version == 18
    dims = proto.graph.input[0].type.tensor_type.shape.dim
    assert [d.dim_param or d.dim_value for d in dims] == [1, 257, "T", 2]


# ---- streaming


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("pulse", PULSES)
def test_every_frame(exporter: str, pulse: int, model: Model) -> None:
    path = model(exporter)
    check(path, streamed(path, pulse), [*range(1, 2 * pulse + 3), 17, 33])


def test_fixed_batch(model: Model) -> None:
    path = model(batch=1)
    check(path, pulsify.stream(path, pulse=1, verify=False), [1, 2, 12])


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_parallel_streams(exporter: str, model: Model) -> None:
    path = model(exporter)
    check(path, pulsify.stream(path, pulse=2, verify=False), [1, 2, 7, 18], batch=3)


@pytest.mark.parametrize("pulse", PULSES)
def test_no_delay_and_the_states_a_careful_hand_would_write(pulse: int, model: Model) -> None:
    stream = streamed(model(), pulse)
    assert stream.outputs[0].delay == 0 and stream.outputs[0].rate == 1 and stream.granularity == 1
    ours = sorted(math.prod(s.shape) for s in stream.states if s.dtype == np.float32)
    assert ours == sorted(s.numel() for s in Step(build()).states().values())
    session = stream.session()
    assert session.push(spectrum(pulse)).shape == (1, 257, pulse, 2)
    assert session.flush().shape == (1, 257, 0, 2)


def test_own_verification_agrees(model: Model) -> None:
    assert pulsify.stream(model(), pulse=5, set={"B": 1}).verification is not None


def test_saved_stream_is_enough(model: Model, tmp_path: Path) -> None:
    streamed(model(), 2).save(tmp_path / "stream.onnx")
    check(model(), pulsify.load(tmp_path / "stream.onnx"), [1, 9])


def test_stream_by_hand_is_the_same(model: Model, tmp_path: Path) -> None:
    step = opened(export_step(build(), tmp_path / "step.onnx"))
    x = spectrum(40)
    states = {i.name: np.zeros(i.shape, np.float32) for i in step.get_inputs()[1:]}
    parts = []
    for t in range(x.shape[2]):
        y, *new = step.run(None, {"spec": x[:, :, t : t + 1], **states})
        states = dict(zip(states, new, strict=True))
        parts.append(y)
    got, wanted = np.concatenate(parts, 2), run_batch(model(), x)
    assert close(got, wanted) and close(run_stream(streamed(model(), 1), x, [40]), got)


# ---- the long way


@pytest.mark.slow
@pytest.mark.parametrize(
    ("exporter", "opset"), [("legacy", 13), ("legacy", 17), ("legacy", 20), ("dynamo", None), ("dynamo", 22)]
)
def test_many_lengths(exporter: str, opset: int | None, model: Model) -> None:
    path = model(exporter, opset)
    for pulse in (*PULSES, 8, 31):
        check(path, streamed(path, pulse), [*range(1, 24), 50, 62, 101, 400])

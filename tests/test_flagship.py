"""The flagship from sound to tokens: log-mel preprocessor and encoder, each alone and both as one stream."""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

import dataclasses
import math
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

from examples.fastconformer.export import export, export_preprocessor, main  # noqa: E402
from examples.fastconformer.model import SIZES, build  # noqa: E402
from examples.fastconformer.preprocessor import FFT, HOP, WINDOW, Preprocessor, mel_bands  # noqa: E402

Array = npt.NDArray[Any]
Files = Callable[..., tuple[Path, Path]]

TOLERANCE = 1e-5  # of the largest magnitude in the batch output; floats differ by some 1e-6
MELS = SIZES["tiny"].mels
CONNECT = {"audio_signal": "features", "length": "features_length"}
EXPORTERS = ["legacy", "dynamo"]
CHUNKS = {(70, 13): 112 * HOP, (70, 6): 56 * HOP, (70, 1): 16 * HOP, (70, 0): 8 * HOP}  # samples
SHORT = [1, 2, 100, 159, 160, 161, 199, 200, 201, 255, 256, 257, 399, 400, 401, 512, 513]


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Exports a preprocessor; the same one only once."""
    folder = tmp_path_factory.mktemp("preprocessor")
    return cache(lambda exporter, mels=MELS: export_preprocessor(mels, folder / f"{exporter}-{mels}.onnx", exporter))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, front: Callable[..., Path]) -> Files:
    """Exports a preprocessor and an encoder behind it; the same ones only once."""
    folder = tmp_path_factory.mktemp("encoder")

    @cache
    def make(exporter: str, size: str = "tiny", **changes: Any) -> tuple[Path, Path]:
        config = dataclasses.replace(SIZES[size], **changes)
        name = f"{make.cache_info().misses}.onnx"
        return front(exporter, config.mels), export(build(config), folder / name, exporter)

    return make


# ---- running both


@cache
def _session(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run_batch(paths: Iterable[Path], audio: Array) -> list[Array]:
    """The batch models, one behind the other: what the last one gives, and how many frames of it count."""
    values = [audio, np.full(len(audio), audio.shape[1], np.int64)]
    for path in paths:
        names = [i.name for i in _session(path).get_inputs()]
        values = _session(path).run(None, dict(zip(names, values, strict=True)))
    return values


def run_stream(stream: pulsify.Stream, audio: Array, cuts: list[int]) -> list[Array]:
    """Samples no chunk has brought are NaN, so that any use of them shows."""
    frames, count = (o.name for o in stream.outputs)
    session = stream.session(batch=len(audio), padding=math.nan)
    ready = [session.push(chunk) for chunk in np.split(audio, np.cumsum(cuts)[:-1], 1)]
    assert all(count not in r for r in ready)  # nobody can know it yet
    last = session.flush()
    return [np.concatenate([r[frames] for r in [*ready, last]], 2), last[count]]


def sound(batch: int, samples: int, rng: np.random.Generator) -> Array:
    """Noise that gets louder and softer."""
    loud = 0.2 + 0.15 * np.sin(np.arange(samples) / 900)
    return (loud * rng.standard_normal((batch, samples))).astype(np.float32)


def check(paths: Iterable[Path], stream: pulsify.Stream, lengths: Iterable[int], batch: int = 1) -> None:
    """Stream and batch agree at all lengths, however the stream is cut."""
    rng = np.random.default_rng(batch)
    for samples in lengths:
        audio = sound(batch, samples, rng)
        wanted, count = run_batch(paths, audio)
        assert np.isfinite(wanted).all() and wanted.shape[2] > 0
        for cuts in (chunking(how, samples, stream.pulse, rng) for how in ("pulses", "random")):
            got, got_count = run_stream(stream, audio, cuts)
            where = f"{samples} samples, cut {cuts}"
            assert got.shape == wanted.shape, where
            assert got_count.dtype == count.dtype and (got_count == count).all(), where
            assert np.abs(got - wanted).max() < TOLERANCE * max(1.0, np.abs(wanted).max()), where


@cache
def chained(paths: tuple[Path, Path], pulse: int) -> pulsify.Stream:
    return pulsify.stream(pulsify.chain(*paths, connect=CONNECT), pulse=pulse, verify=False)  # done here


def residues(pulse: int) -> list[int]:
    """One frame more each time, until a token is full: at one of them the encoder makes a token that does not count."""
    return [pulse + 3 * 8 * HOP + n * HOP + extra for n in range(8) for extra in (0, 57)]


# ---- the preprocessor


def test_features_by_definition() -> None:
    """Frame by frame in double precision."""
    rng = np.random.default_rng(0)
    audio = sound(1, 16 * HOP + 33, rng)
    x = audio[0].astype(np.float64)
    x[1:] -= 0.97 * audio[0, :-1]
    x = np.pad(x, FFT // 2)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / (WINDOW - 1))
    side = (FFT - WINDOW) // 2
    frames = np.stack([x[k * HOP + side : k * HOP + side + WINDOW] * window for k in range(17)])
    wanted = np.log(mel_bands(128) @ np.abs(np.fft.rfft(frames, FFT)).T ** 2 + 2.0**-24)
    wanted[:, 16:] = 0
    got, length = Preprocessor()(torch.from_numpy(audio), torch.tensor([audio.shape[1]]))
    assert length.tolist() == [16]
    np.testing.assert_allclose(got[0].numpy(), wanted, rtol=0, atol=2e-4)  # a logarithm of little power


def test_mel_bands() -> None:
    """Known values of the Slaney scale: 3 mel are 200 Hz, 15 are 1 kHz, 42 are 6.4 kHz."""
    for mels in (16, 80, 128):
        assert mel_bands(mels).shape == (mels, FFT // 2 + 1)
    bands = mel_bands(44)  # edges about a mel apart, from 0 to 45.245
    step = (15 + 27 * math.log(8) / math.log(6.4)) / 45
    for band in (2, 9, 40):
        mel = (band + 1) * step
        centre = mel / 0.015 if mel < 15 else 1000 * 6.4 ** ((mel - 15) / 27)
        bins = np.arange(FFT // 2 + 1) * 16000 / FFT
        assert abs((bands[band] @ bins) / bands[band].sum() - centre) < 16000 / FFT
    wide = bands[30:]  # enough bins for sums to be areas
    np.testing.assert_allclose(wide.sum(1) * 16000 / FFT, 1, rtol=0.01)


def test_samples_past_the_length_do_not_count() -> None:
    audio = torch.randn(2, 5 * HOP)
    both, length = Preprocessor(MELS)(audio, torch.tensor([5 * HOP, 3 * HOP + 10]))
    alone, _ = Preprocessor(MELS)(audio[1:, : 3 * HOP + 10], torch.tensor([3 * HOP + 10]))
    assert length.tolist() == [5, 3]
    assert (both[1, :, 3:] == 0).all() and (both[0, :, :5] != 0).all()
    torch.testing.assert_close(both[1:, :, :3], alone[:, :, :3], rtol=0, atol=1e-5)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_export_command(exporter: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "preprocessor.onnx"
    main(["--part", "preprocessor", "--size", "small", "--exporter", exporter, str(out)])
    assert "80 mel bands" in capsys.readouterr().out
    proto = onnx.load(out)
    assert next(o.version for o in proto.opset_import if not o.domain) == (17 if exporter == "legacy" else 18)
    ports = {
        p.name: [d.dim_param or d.dim_value for d in p.type.tensor_type.shape.dim]
        for p in [*proto.graph.input, *proto.graph.output]
    }
    assert ports["audio"] == ["B", "S"] and ports["audio_length"] == ["B"]
    assert ports["features"][:2] == ["B", 80] and ports["features_length"] == ["B"]


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("pulse", [160, 480, 8 * 160])
def test_preprocessor_streams(exporter: str, pulse: int, front: Callable[..., Path]) -> None:
    path = front(exporter)
    stream = pulsify.stream(path, pulse=pulse, verify=False)
    assert stream.granularity == HOP
    assert [(o.name, o.delay) for o in stream.outputs] == [("features", 1), ("features_length", 0)]
    check([path], stream, [*SHORT, *range(10 * HOP - 1, 10 * HOP + 2), 7 * pulse + 77])
    check([path], stream, [1, 161, 5 * HOP + 3, 3000], batch=2)


def test_pulse_of_a_fraction_of_a_frame(front: Callable[..., Path]) -> None:
    with pytest.raises(pulsify.InvalidPulse) as error:
        pulsify.stream(front("legacy"), pulse=100)
    assert error.value.granularity == HOP


# ---- from sound to tokens


@pytest.mark.parametrize(
    ("exporter", "context"), [("legacy", (70, 13)), pytest.param("dynamo", (70, 0), marks=pytest.mark.slow)]
)
def test_sound_to_tokens(exporter: str, context: tuple[int, int], files: Files) -> None:
    """Every chunk of sound gives its tokens at once, though a frame waits for half a window of samples."""
    paths, pulse = files(exporter, context=context), CHUNKS[context]
    stream = chained(paths, pulse)
    assert stream.granularity == 8 * HOP
    assert [(o.name, o.delay) for o in stream.outputs] == [("outputs", 0), ("encoded_lengths", 0)]
    check(paths, stream, [*SHORT, *residues(0)[::2], *residues(pulse), 4 * pulse + 333])
    for samples in (1, 159, 160, 1119, 1120, 1280, 1440, 1600, 9999):
        tokens, count = run_stream(stream, sound(2, samples, np.random.default_rng(0)), [samples])
        assert count.tolist() == 2 * [(samples // HOP + 14) // 8]
        assert tokens.shape[2] == (samples // HOP + 1 + 14) // 8  # one may be too many


def test_one_file(files: Files, tmp_path: Path) -> None:
    """Nothing but the saved file: from sound to tokens, two recordings in step."""
    paths, pulse = files("legacy", context=(70, 13)), CHUNKS[70, 13]
    chained(paths, pulse).save(tmp_path / "stream.onnx")
    assert [f.name for f in tmp_path.iterdir()] == ["stream.onnx"]
    stream = pulsify.load(tmp_path / "stream.onnx")
    assert stream.pulse == pulse and [i.name for i in stream.inputs] == ["audio"]
    check(paths, stream, [1, 160, 161, 1441, pulse + 9 * HOP, 3 * pulse - 1], batch=2)


@pytest.mark.slow
def test_sound_outlives_the_position_table(files: Files) -> None:
    """More tokens than the batch model has positions for; the reference has the same weights and a longer table."""
    short, longer = files("legacy", context=(8, 3), positions=48), files("legacy", context=(8, 3))
    with pytest.raises(Exception, match=r"(?i)shape|dimension|broadcast|add"):
        run_batch(short, np.zeros((1, 8 * 60 * HOP), np.float32))
    check(longer, chained(short, 32 * HOP), [100, 8 * 60 * HOP, 8 * 120 * HOP + 9 * HOP + 5])


# ---- the long way


@pytest.mark.slow
def test_own_verification_agrees(files: Files) -> None:
    model = pulsify.chain(*files("legacy", context=(70, 13)), connect=CONNECT)
    stream = pulsify.stream(model, pulse=CHUNKS[70, 13])
    assert stream.verification.runs > 0
    assert pulsify.verify(model, stream, lengths=[*SHORT, *residues(0)]).runs >= len(SHORT)


@pytest.mark.slow
@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("context", CHUNKS)
def test_every_context(exporter: str, context: tuple[int, int], files: Files) -> None:
    """One chunk, several, and part of one, which waits for the rest."""
    paths, chunk = files(exporter, context=context), CHUNKS[context]
    for pulse in {chunk, 3 * chunk, 8 * HOP}:
        stream = chained(paths, pulse)
        assert (stream.outputs[0].delay == 0) == (pulse % chunk == 0)
        rng = np.random.default_rng(pulse)
        check(paths, stream, [*SHORT, *residues(0), *residues(chunk), *residues(8 * chunk)])
        check(paths, stream, rng.integers(1, 20 * 16000, 3).tolist(), batch=2)


@pytest.mark.slow
@pytest.mark.parametrize("context", [(70, 13), (70, 0)])
def test_small_size(context: tuple[int, int], files: Files) -> None:
    paths, pulse = files("dynamo", "small", context=context), CHUNKS[context]
    check(paths, chained(paths, pulse), [100, *residues(pulse)[::3], 16000 * 20 + 1])


@pytest.mark.slow
def test_same_as_the_toolkit() -> None:
    """With the numbers of its streaming checkpoints; only where nemo_toolkit happens to be installed."""
    toolkit = pytest.importorskip("nemo.collections.asr.modules")
    theirs = toolkit.AudioToMelSpectrogramPreprocessor(
        sample_rate=16000, window_size=0.025, window_stride=0.01, normalize="NA", n_fft=FFT, features=128,
        dither=0.0, pad_to=0,
    ).eval()  # fmt: skip
    ours = Preprocessor(128)
    for samples in (1, 159, 160, 400, 16000, 48123):
        audio = torch.from_numpy(sound(2, samples, np.random.default_rng(samples)))
        lengths = torch.tensor([samples, 1 + samples * 2 // 3])
        wanted, got = theirs(input_signal=audio.clone(), length=lengths), ours(audio, lengths)
        assert torch.equal(got[1], wanted[1])
        torch.testing.assert_close(got[0], wanted[0], rtol=0, atol=1e-3)  # logarithms, of an FFT and of a sum

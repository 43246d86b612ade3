"""Streams as C: the zoo, the flagship and the denoiser are the batch model there too, and states travel."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pulsify
from pulsify.backends.native import library
from tests import models
from tests.models import close, frames
from tests.side import Batch, streamed
from tests.zoo.manifest import Entry, Exporter, load, runnable
from tests.zoo.table import check_entry, model_path

NATIVE: dict[str, Any] = {"backend": "native"}
TOLERANCE = 1e-5
GROWS = {"attn_full_causal"}
REPRESENTATIVE = {
    "attn_chunk_rope", "attn_relpos_skew", "avgpool_same_nopadcount", "conv2d_subsample", "conv_lstm",
    "convtranspose_overlap", "cumulative_layernorm", "gru_intra_frame", "lstm_2layer", "pad_reflect", "pixel_shuffle",
    "posenc_table", "running_mean", "stft_mel_center", "unet", "upsample_linear", "wavenet_noncausal",
}  # fmt: skip

pytestmark = pytest.mark.skipif(not library.available(), reason="no C compiler")


def cases() -> list[Any]:
    """The rest is slow: both exporters write much the same graphs."""
    return [
        pytest.param(
            entry, exporter, id=f"{entry.name}-{exporter}",
            marks=[] if entry.name in REPRESENTATIVE and exporter == "legacy" else [pytest.mark.slow],
        )
        for entry, exporter in runnable(load())
        if entry.streamable and not entry.exports[exporter].large and entry.name not in GROWS
    ]  # fmt: skip


@pytest.mark.parametrize(("entry", "exporter"), cases())
def test_the_zoo(entry: Entry, exporter: Exporter, tmp_path: Path) -> None:
    result = check_entry(entry, model_path(entry, exporter, tmp_path), **NATIVE)
    assert result.status == "exact", result.detail
    assert result.worst < TOLERANCE


def test_a_cache_that_grows_is_refused_by_name() -> None:
    entry = next(e for e in load() if e.name in GROWS)
    stream = pulsify.stream(entry.fixture("legacy"), pulse=entry.pulse, unbounded="grow", verify=False)
    with pytest.raises(pulsify.NotSupported, match="grows with the stream") as refused:
        stream.session(**NATIVE)
    assert refused.value.node and refused.value.target == "C" and "unbounded=N" in refused.value.hint


# ---- examples


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("onnxscript")
    from examples.fastconformer.export import export
    from examples.fastconformer.model import SIZES, build

    config = dataclasses.replace(SIZES["tiny"], context=(8, 3))
    return export(build(config), tmp_path_factory.mktemp("encoder") / "tiny.onnx", "legacy", None)


@pytest.fixture(scope="module")
def denoiser(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("onnxscript")
    from examples.gtcrn.export import export
    from examples.gtcrn.model import build

    return export(build(), tmp_path_factory.mktemp("denoiser") / "gtcrn.onnx", "legacy", None, None)


@pytest.mark.parametrize("length", [1, 37, 150])
def test_the_flagship(encoder: Path, length: int) -> None:
    stream = pulsify.stream(encoder, pulse=32, verify=False)
    mels = stream.inputs[0].dims[1]
    assert isinstance(mels, int)
    x = frames(1, mels, length)
    feeds = {"audio_signal": x, "length": np.full(1, length, np.int64)}
    got = streamed(stream, feeds, [min(5, length), length - min(5, length)], **NATIVE)
    for name, array in Batch(encoder).run(feeds).items():
        close(got[name], array)


@pytest.mark.parametrize(("pulse", "length"), [(1, 7), (2, 9)])
def test_the_denoiser(denoiser: Path, pulse: int, length: int) -> None:
    stream = pulsify.stream(denoiser, pulse=pulse, set={"B": 1}, verify=False)
    x = np.random.default_rng(0).standard_normal((1, 257, length, 2)).astype(np.float32)
    got = streamed(stream, x, [3, length - 3], **NATIVE)
    (want,) = Batch(denoiser).run({"spec": x}).values()
    close(got[stream.outputs[0].name], want)


# ---- states and sessions

MODELS = {"look_ahead": models.look_ahead("B"), "causal": models.causal("B"), "with_length": models.with_length("B")}


def alone(result: Any) -> Any:
    return result["y"] if isinstance(result, dict) else result


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("cuts", [(0, 3), (3, 17), (16, 20), (20, 25)])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_stream_moves_to_c_and_back(name: str, cuts: tuple[int, int], batch: int) -> None:
    stream, x = pulsify.stream(MODELS[name], pulse=4, verify=False), frames(batch, 2, 27)
    sessions = [stream.session(batch=batch), stream.session(batch=batch, **NATIVE)]
    whole = stream.session(batch=batch)
    want = [alone(whole.push(x)), alone(whole.flush())]
    got = [alone(sessions[0].push(x[..., : cuts[0]]))]
    sessions[1].restore(sessions[0].state())
    got.append(alone(sessions[1].push(x[..., cuts[0] : cuts[1]])))
    sessions[0].restore(sessions[1].state())
    got += [alone(sessions[0].push(x[..., cuts[1] :])), alone(sessions[0].flush())]
    close(np.concatenate(got, -1), np.concatenate(want, -1))


def test_reset_fork_and_what_is_not_finite() -> None:
    stream, x = pulsify.stream(MODELS["look_ahead"], pulse=4, verify=False), frames(1, 2, 40)
    session = stream.session(**NATIVE)
    first = alone(session.push(x))
    fork = session.fork()
    np.testing.assert_array_equal(alone(session.flush()), alone(fork.flush()))
    session.reset()
    np.testing.assert_array_equal(alone(session.push(x)), first)
    bad = x[..., :4].copy()
    bad[0, 1, 2] = np.inf
    with pytest.raises(pulsify.InvalidChunk, match="infinite"):
        session.push(bad)
    assert alone(session.push(x[..., :4])).shape[-1] == 4  # nothing of it was taken


def test_counters_are_set_back_on_endless_streams() -> None:
    stream, x = pulsify.stream(MODELS["with_length"], pulse=4, verify=False), frames(1, 2, 16)
    session, other = stream.session(**NATIVE), stream.session()
    for s in (session, other):
        s.push(x)
        s._stepper.rebase(8)
        s._framer.rebased += 8
    close(alone(session.push(x)), alone(other.push(x)))
    close(alone(session.flush()), alone(other.flush()))


@pytest.mark.parametrize("pulse", [1, 5, 24])
def test_a_long_state_moves_on_and_is_put_back_now_and_then(pulse: int) -> None:
    """Far past where it is put back, moved to another back end and back in between, forked, started anew."""
    proto, x = models.long_memory(), frames(1, 2, 700)
    stream = pulsify.stream(proto, pulse=pulse, verify=False)
    assert "moved" in stream.session(**NATIVE)._stepper._on.source.kernels
    want = Batch(proto).run({"x": x})["y"]
    session, other, got, at = stream.session(**NATIVE), stream.session(), [], 0
    for end in (100, 333, 334, 500, 700):
        got.append(alone(session.push(x[..., at:end])))
        other.restore(session.state())
        session, at = session.fork() if end == 334 else session, end
        session.restore(other.state())
    got.append(alone(session.flush()))
    close(np.concatenate(got, -1), want)
    session.reset()
    again = [alone(session.push(x[..., :40])), alone(session.flush())]
    close(np.concatenate(again, -1), want[..., :40])


# ---- choosing


def test_none_takes_c_for_small_steps_and_the_runtime_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    from pulsify.backends import choosing

    stream, x = pulsify.stream(MODELS["causal"], pulse=4, verify=False), frames(1, 2, 20)
    assert stream.quickest() == "native"
    close(alone(stream.run(x, backend=None)), alone(stream.run(x)))
    monkeypatch.setattr(choosing, "MOST", 0)
    assert pulsify.stream(MODELS["causal"], pulse=4, verify=False).quickest() == "ort"
    monkeypatch.undo()
    monkeypatch.setattr("pulsify.backends.native.library.compiler", nothing)
    monkeypatch.setattr("pulsify.backends.native.backend.compiler", nothing)
    assert pulsify.stream(MODELS["causal"], pulse=4, verify=False).quickest() == "ort"


def nothing() -> tuple[str, ...]:
    raise pulsify.InvalidArgument("no compiler")


def test_the_source_can_be_read() -> None:
    texts = pulsify.stream(MODELS["look_ahead"], pulse=4, verify=False).sources("native")
    assert set(texts) == {"general", "steady"}
    assert "/* Conv" in texts["steady"] and "state" in texts["steady"]


# ---- without Python


def batch_vectors(stream: pulsify.Stream, inputs: list[dict[str, Any]], outputs: list[dict[str, Any]]) -> bytes:
    """Streams and what the batch model makes of them, as `test_vectors.bin` has them."""
    words = [np.int32(len(inputs)).tobytes()]
    for feeds, made in zip(inputs, outputs, strict=True):
        port = stream.inputs[0]
        words.append(np.int32(feeds[port.name].shape[port.axis]).tobytes())
        words += [np.ascontiguousarray(feeds[i.name]).tobytes() for i in stream.inputs]
        for o in stream.outputs:
            words += [np.int32(made[o.name].size).tobytes(), np.ascontiguousarray(made[o.name], o.dtype).tobytes()]
    return b"".join(words)


def run_as_c(stream: pulsify.Stream, folder: Path, vectors: bytes) -> str:
    stream.export(folder, "c", name="net")
    (folder / "test_vectors.bin").write_bytes(vectors)
    files = [str(folder / f) for f in ("net.c", "net_weights.c", "test.c")]
    subprocess.run(["cc", "-std=c11", "-O2", "-DNET_PADDING=NAN", *files, "-o", str(folder / "t"), "-lm"], check=True)
    done = subprocess.run([str(folder / "t"), str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_recognisers_encoder_as_a_c_program_is_the_batch_model(tmp_path: Path) -> None:
    """To 1e-5 of the scale, to the last frame: the program itself compares."""
    path = Path(pulsify.__file__).parent / "demo" / "recogniser" / "encoder.onnx"
    stream, batch = pulsify.stream(path, pulse=32, verify=False), Batch(path)
    given = [{"audio_signal": frames(1, 40, n), "length": np.array([n])} for n in (1, 31, 150, 333)]
    said = run_as_c(stream, tmp_path / "net", batch_vectors(stream, given, [batch.run(x) for x in given]))
    assert said.count("length") == 8 and said.endswith("ok\n")


@pytest.mark.slow
def test_the_denoiser_as_a_c_program_is_the_batch_model(denoiser: Path, tmp_path: Path) -> None:
    stream, batch = pulsify.stream(denoiser, pulse=1, set={"B": 1}, verify=False), Batch(denoiser)
    rng = np.random.default_rng(0)
    given = [{"spec": rng.standard_normal((1, 257, n, 2)).astype(np.float32)} for n in (1, 2, 7, 60)]
    said = run_as_c(stream, tmp_path / "net", batch_vectors(stream, given, [batch.run(x) for x in given]))
    assert said.count("length") == 8 and said.endswith("ok\n")


@pytest.mark.parametrize("length", [1, 2, 3, 4, 11])
def test_an_opening_is_compiled_too(length: int) -> None:
    nodes = [models.node("Pad", "x pads", "h", mode="reflect"), models.node("Conv", "h k", "y")]
    known = {"pads": np.array([0, 0, 2, 0, 0, 0]), "k": models.weights(3, 2, 3)}
    proto = models.model(nodes, {"x": [1, 2, "T"]}, ["y"], known)
    stream = pulsify.stream(proto, pulse=1, verify=False)
    assert stream.opening is not None
    x = frames(1, 2, max(length, stream.spec.shortest))
    close(streamed(stream, x, [1] * x.shape[-1], **NATIVE)["y"], Batch(proto).run({"x": x})["y"])


OPENINGS = {
    "lstm": (models.mirrored_lstm(1), 1),
    "lstm by 2": (models.mirrored_lstm(1), 2),
    "conv": (models.mirrored(1), 3),
}


@pytest.mark.parametrize("name", OPENINGS)
def test_a_c_program_opens_as_a_session_does(name: str, tmp_path: Path) -> None:
    """Lengths up to the second pulse behind the opening, whole and ragged, NaN behind the end: the batch model."""
    proto, pulse = OPENINGS[name]
    stream, batch = pulsify.stream(proto, pulse=pulse, verify=False), Batch(proto)
    assert stream.spec.opening > 1
    shortest, first = stream.spec.shortest, stream.spec.opening * pulse
    given = [{"x": frames(1, 2, n, seed=n)} for n in range(shortest, first + pulse + 2)]
    said = run_as_c(stream, tmp_path / "net", batch_vectors(stream, given, [batch.run(x) for x in given]))
    assert said.endswith("ok\n") and "net_opening" in (tmp_path / "net" / "net.h").read_text()

"""Streams on the back end torch: the zoo, the flagship and the denoiser are the batch model there too."""

from __future__ import annotations

import dataclasses
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import pulsify
from tests import models
from tests.models import close, frames, run_batch
from tests.side import Batch, streamed
from tests.zoo.manifest import Entry, Exporter, load, runnable
from tests.zoo.table import check_entry, model_path

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from examples.fastconformer.export import export as export_encoder  # noqa: E402
from examples.fastconformer.model import SIZES  # noqa: E402
from examples.fastconformer.model import build as build_encoder  # noqa: E402
from examples.gtcrn.export import export as export_denoiser  # noqa: E402
from examples.gtcrn.model import build as build_denoiser  # noqa: E402

CPU: dict[str, Any] = {"backend": "torch", "options": {"device": "cpu"}}
STRICT: dict[str, Any] = {"backend": "torch", "options": {"device": "cpu", "allow_cpu": []}}
REPRESENTATIVE = {
    "attn_chunk_rope", "attn_full_causal", "attn_relpos_skew", "attn_sliding_alibi", "attn_chunk_float_floor",
    "avgpool_same_nopadcount", "conv2d_subsample", "conv_lstm", "convtranspose_overlap", "cumulative_layernorm",
    "encoder_chunk", "fastconformer", "gru_intra_frame", "lstm_2layer", "pad_reflect", "pixel_shuffle", "posenc_table",
    "running_mean", "stft_mel_center", "unet", "upsample_linear", "wavenet_noncausal",
}  # fmt: skip
TOLERANCE = 1e-5


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def cases() -> list[Any]:
    """The rest is slow: both exporters write much the same graphs."""
    return [
        pytest.param(
            entry, exporter, id=f"{entry.name}-{exporter}",
            marks=[] if entry.name in REPRESENTATIVE and exporter == "legacy" else [pytest.mark.slow],
        )
        for entry, exporter in runnable(load())
        if entry.streamable and not entry.exports[exporter].large
    ]  # fmt: skip


@pytest.mark.parametrize(("entry", "exporter"), cases())
def test_the_zoo_without_an_island(entry: Entry, exporter: Exporter, tmp_path: Path) -> None:
    result = check_entry(entry, model_path(entry, exporter, tmp_path), **STRICT)
    assert result.status == "exact", result.detail
    assert result.worst < TOLERANCE


# ---- examples


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = dataclasses.replace(SIZES["tiny"], context=(8, 3))
    return export_encoder(build_encoder(config), tmp_path_factory.mktemp("encoder") / "tiny.onnx", "legacy", None)


@pytest.fixture(scope="module")
def denoiser(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_denoiser(build_denoiser(), tmp_path_factory.mktemp("denoiser") / "gtcrn.onnx", "legacy", None, None)


@cache
def stream_of(path: Path, pulse: int) -> pulsify.Stream:
    return pulsify.stream(path, pulse=pulse, verify=False)


@pytest.mark.parametrize("length", [1, 37, 32, 150])
@pytest.mark.parametrize("batch", [1, 3])
def test_the_flagship(encoder: Path, length: int, batch: int) -> None:
    stream = stream_of(encoder, 32)
    mels = stream.inputs[0].dims[1]
    assert isinstance(mels, int)
    x = frames(batch, mels, length)
    feeds = {"audio_signal": x, "length": np.full(batch, length, np.int64)}
    want = Batch(encoder).run(feeds)
    got = streamed(stream, feeds, [min(5, length), length - min(5, length)], **STRICT)
    for name, array in want.items():
        close(got[name], array)


@pytest.mark.parametrize(("pulse", "length"), [(1, 7), (2, 9)])
def test_the_denoiser(denoiser: Path, pulse: int, length: int) -> None:
    stream = pulsify.stream(denoiser, pulse=pulse, set={"B": 1}, verify=False)
    x = np.random.default_rng(0).standard_normal((1, 257, length, 2)).astype(np.float32)
    got = streamed(stream, x, [3, length - 3], **STRICT)
    (want,) = Batch(denoiser).run({"spec": x}).values()
    close(got[stream.outputs[0].name], want)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_flagship_in_a_lower_type(encoder: Path, dtype: str) -> None:
    """Another type, another number: near, and not the same."""
    stream = stream_of(encoder, 32)
    mels = stream.inputs[0].dims[1]
    assert isinstance(mels, int)
    x = frames(1, mels, 100)
    feeds = {"audio_signal": x, "length": np.array([100])}
    got = streamed(stream, feeds, [100], backend="torch", options={"device": "cpu", "dtype": dtype})
    want = Batch(encoder).run(feeds)
    error = np.abs(got["outputs"] - want["outputs"]).max() / np.abs(want["outputs"]).max()
    assert 1e-5 < error < (0.1 if dtype == "bfloat16" else 0.02)
    np.testing.assert_array_equal(got["encoded_lengths"], want["encoded_lengths"])


@pytest.mark.parametrize("case", ["cumsum", "running_mean", "gru", "attn_linear_causal"])
def test_sums_that_go_on_are_float32_in_a_lower_type(case: str) -> None:
    """In bfloat16, 256 and 1 are 256."""
    entry = next(e for e in load() if e.name == case)
    stream = pulsify.stream(entry.fixture("legacy"), pulse=entry.pulse, verify=False)
    x = np.abs(entry.inputs(800)["x"])
    got = streamed(stream, x, [800], backend="torch", options={"device": "cpu", "dtype": "bfloat16"})
    for name, want in Batch(entry.fixture("legacy")).run({"x": x}).items():
        assert np.abs(got[name] - want).max() < 2e-2 * np.abs(want).max()


# ---- states, islands, sessions

MODELS = {"look_ahead": models.look_ahead("B"), "causal": models.causal("B"), "with_length": models.with_length("B")}


def alone(result: Any) -> Any:
    return result["y"] if isinstance(result, dict) else result


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("cuts", [(0, 3), (3, 17), (16, 20), (20, 25)])
def test_a_stream_moves_to_torch_and_back(name: str, cuts: tuple[int, int]) -> None:
    stream, x = pulsify.stream(MODELS[name], pulse=4, verify=False), frames(2, 2, 27)
    sessions = [stream.session(batch=2), stream.session(batch=2, backend="torch", device="cpu")]
    parts, here = [], 0
    for start, end in zip((0, *cuts), (*cuts, 27), strict=True):
        parts.append(alone(sessions[here].push(x[..., start:end])))
        sessions[1 - here].restore(sessions[here].state())
        here = 1 - here
    parts.append(alone(sessions[here].flush()))
    feeds = {"x": x} | ({"length": np.full(2, 27)} if name == "with_length" else {})
    close(np.concatenate(parts, 2), run_batch(MODELS[name], feeds)["y"])


def test_the_flagship_moves_in_mid_stream(encoder: Path) -> None:
    stream = stream_of(encoder, 32)
    mels = stream.inputs[0].dims[1]
    assert isinstance(mels, int)
    x = frames(1, mels, 300)
    a, b = stream.session(), stream.session(backend="torch", device="cpu")
    parts = [a.push(x[..., :130])]
    b.restore(a.state())
    parts.append(b.push(x[..., 130:260]))
    a.restore(b.state())
    parts += [a.push(x[..., 260:]), a.flush()]
    got = np.concatenate([p["outputs"] for p in parts if isinstance(p, dict)], 2)
    close(got, Batch(encoder).run({"audio_signal": x, "length": np.array([300])})["outputs"])


@pytest.mark.parametrize("force", [["Softmax"], ["MatMul", "Add"], ["Conv"], ["Where", "Concat"], ["a"], ["e", "o"]])
def test_islands_anywhere_in_the_flagship(encoder: Path, force: list[str]) -> None:
    stream = stream_of(encoder, 32)
    mels = stream.inputs[0].dims[1]
    assert isinstance(mels, int)
    feeds = {"audio_signal": frames(1, mels, 100), "length": np.array([100])}
    got = streamed(stream, feeds, [33, 67], backend="torch", options={"device": "cpu", "force_cpu": force})
    close(got["outputs"], Batch(encoder).run(feeds)["outputs"])


def test_where_nodes_are(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = pulsify.stream(MODELS["look_ahead"], pulse=4, verify=False)
    assert stream.session().placement == ()
    found = stream.session(backend="torch", device="cpu").placement
    assert {p.device for p in found} == {"cpu"} and not any(p.reason for p in found)
    assert {p.step for p in found} == {"general", "steady"}
    monkeypatch.setenv("PULSIFY_FORCE_CPU", "Conv")
    moved = pulsify.stream(MODELS["look_ahead"], pulse=4, verify=False).session(backend="torch", device="cpu").placement
    assert {p.op for p in moved if p.reason} == {"Conv"} and all(p.nbytes for p in moved if p.reason)


def test_options_that_are_none() -> None:
    stream = pulsify.stream(MODELS["causal"], pulse=4, verify=False)
    with pytest.raises(
        pulsify.InvalidArgument, match=r"no option or static input 'speed'.*'torch' has device, dtype, mode"
    ):
        stream.session(backend="torch", speed="9")
    with pytest.raises(pulsify.InvalidArgument, match=r"no option or static input 'device'.*'ort' has none of its own"):
        stream.session(device="cpu")
    with pytest.raises(pulsify.InvalidArgument, match=r"'torch': unknown \['speed'\]; there are device, dtype"):
        stream.session(backend="torch", options={"speed": "9"})
    with pytest.raises(pulsify.InvalidArgument, match="it has none of its own"):
        pulsify.Pool(stream, options={"device": "cpu"})
    if not torch.cuda.is_available():
        with pytest.raises(pulsify.InvalidArgument, match="sees no CUDA device"):
            stream.session(backend="torch", device="cuda")


def test_streams_of_their_own_and_pools() -> None:
    stream, x = pulsify.stream(MODELS["look_ahead"], pulse=4, verify=False), frames(1, 2, 23)
    pool = pulsify.Pool(stream, 2, backend="torch", options={"device": "cpu"})
    lane = pool.open()
    lane.push(x)
    lane.flush()
    close(pool.run()[lane], run_batch(MODELS["look_ahead"], x)["y"])
    both = stream.session(batch=2, independent=True, backend="torch", device="cpu")
    pushed = both.push(np.concatenate([x, x]))[1]
    close(np.concatenate([pushed, both.flush([1])[1]], 2), run_batch(MODELS["look_ahead"], x)["y"])


def test_the_source_on_the_command_line(tmp_path: Path) -> None:
    from pulsify.cli.main import main

    path = str(tmp_path / "stream.onnx")
    pulsify.stream(MODELS["look_ahead"], pulse=4, verify=False).save(path)
    said = CliRunner().invoke(main, ["inspect", path, "--stage", "torch"])
    assert said.exit_code == 0, said.output
    assert (
        "def step(x, " in said.output and "F.conv1d(" in said.output and "The steady step of one stream" in said.output
    )
    with pytest.raises(pulsify.InvalidArgument, match="'ort' writes no source"):
        pulsify.load(path).sources("ort")


@pytest.mark.parametrize("length", [1, 4, 5, 30])
def test_frames_past_the_end_are_never_seen(length: int) -> None:
    """NaN in the padding, ragged chunks."""
    for name, proto in MODELS.items():
        stream, x = pulsify.stream(proto, pulse=4, verify=False), frames(3, 2, length)
        feeds = {"x": x} | ({"length": np.full(3, length)} if name == "with_length" else {})
        got = streamed(stream, {"x": x}, [length // 3, length - length // 3], **{**STRICT, "padding": math.nan})
        close(got["y"], run_batch(proto, feeds)["y"])

"""The flagship's encoder, small but of true geometry: what streams is its batch export, to the last token."""

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

from examples.fastconformer.export import export, main  # noqa: E402
from examples.fastconformer.model import SIZES, Config, Encoder, build  # noqa: E402

Array = npt.NDArray[Any]
Model = Callable[..., Path]

TOLERANCE = 1e-5  # of the largest magnitude in the batch output; floats differ by some 5e-7
SMALL, FULL, CAUSAL = (8, 3), (70, 13), (70, 0)  # contexts
SHORT = range(1, 21)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Exports a tiny encoder; the same one only once."""
    folder = tmp_path_factory.mktemp("fastconformer")

    @cache
    def make(exporter: str = "legacy", opset: int | None = None, **changes: Any) -> Path:
        config = dataclasses.replace(SIZES["tiny"], **changes)
        name = f"{make.cache_info().misses}.onnx"
        return export(build(config), folder / name, exporter, opset)

    return make


# ---- running both


@cache
def streamed(path: Path, pulse: int) -> pulsify.Stream:
    return pulsify.stream(path, pulse=pulse, verify=False)  # done here, at more lengths


@cache
def _batch(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run_batch(path: Path, x: Array) -> tuple[Array, Array]:
    length = np.full(x.shape[0], x.shape[2], np.int64)
    return tuple(_batch(path).run(["outputs", "encoded_lengths"], {"audio_signal": x, "length": length}))


def run_stream(stream: pulsify.Stream, x: Array, cuts: Iterable[int]) -> tuple[Array, Array]:
    """Frames no chunk has brought are NaN, so that any use of them shows."""
    session = stream.session(batch=x.shape[0], padding=math.nan)
    parts, at = [], 0
    for count in cuts:
        ready = session.push(x[:, :, at : at + count])
        assert "encoded_lengths" not in ready  # nobody can know it yet
        parts.append(ready["outputs"])
        at += count
    assert at == x.shape[2]
    last = session.flush()
    return np.concatenate([*parts, last["outputs"]], 2), last["encoded_lengths"]


def check(
    path: Path, stream: pulsify.Stream, lengths: Iterable[int], batch: int = 1, reference: Path | None = None
) -> None:
    """Stream and batch agree at all lengths, however the stream is cut."""
    rng = np.random.default_rng(batch)
    mels = stream.inputs[0].dims[1]
    for frames in lengths:
        x = rng.standard_normal((batch, mels, frames)).astype(np.float32)
        wanted, count = run_batch(reference or path, x)
        assert (count == (frames + 14) // 8).all()
        for cuts in (chunking(how, frames, stream.pulse, rng) for how in ("pulses", "random")):
            got, got_count = run_stream(stream, x, cuts)
            where = f"{frames} frames, cut {cuts}"
            assert got.shape == wanted.shape, where
            assert got_count.dtype == count.dtype and (got_count == count).all(), where
            error = np.abs(got - wanted).max() / max(1.0, np.abs(wanted).max())
            assert error < TOLERANCE, where


def leftovers(frames: int) -> range:
    """A whole number of tokens and 0 to 7 more frames, and the same a frame before."""
    return range(frames - 1, frames + 9)


# ---- the batch model


def test_published_geometry() -> None:
    with torch.device("meta"):
        encoder = Encoder(Config())
    assert encoder.config.bands == 17
    assert encoder.pre_encode.out.weight.shape == (1024, 4352)
    assert encoder.pos_enc.pe.shape[1] == 2 * 5000 - 1
    assert 600e6 < sum(p.numel() for p in encoder.parameters()) < 615e6


def test_token_sees_fifteen_frames() -> None:
    """Token j of the subsampling sees frames 8j - 14 ... 8j."""
    encoder = build(SIZES["tiny"])
    x = torch.randn(1, 80, 16, requires_grad=True)
    tokens, _ = encoder.pre_encode(x, torch.tensor([80]))
    for j in (0, 1, 4, 9):
        (seen,) = torch.autograd.grad(tokens[0, j].square().sum(), x, retain_graph=True)
        frames = torch.nonzero(seen.abs().sum((0, 2))).flatten().tolist()
        assert frames == list(range(max(8 * j - 14, 0), 8 * j + 1))


@pytest.mark.parametrize("context", [SMALL, FULL, CAUSAL])
def test_frames_past_the_length_do_not_count(context: tuple[int, int]) -> None:
    encoder = build(dataclasses.replace(SIZES["tiny"], context=context))
    x = torch.randn(2, 16, 200)
    with torch.no_grad():
        padded, tokens = encoder(x, torch.tensor([200, 150]))
        alone, _ = encoder(x[1:, :, :150], torch.tensor([150]))
    assert tokens.tolist() == [26, 20]
    torch.testing.assert_close(padded[1:, :, :20], alone, rtol=0, atol=1e-5)


def test_activations_stay_near_one() -> None:
    encoder = build(dataclasses.replace(SIZES["tiny"], layers=8))
    sizes = []
    for layer in encoder.layers:
        layer.norm_out.register_forward_pre_hook(lambda _, inputs: sizes.append(float(inputs[0].std())))
    with torch.no_grad():
        encoder(torch.randn(1, 16, 400), torch.tensor([400]))
    assert all(0.3 < s < 4 for s in sizes)


@pytest.mark.parametrize("exporter", ["legacy", pytest.param("dynamo", marks=pytest.mark.slow)])
def test_export_command(exporter: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "encoder.onnx"
    main(["--size", "tiny", "--context", "70,0", "--exporter", exporter, "--norm", "batch_norm", str(out)])
    assert "pulse 8 frames" in capsys.readouterr().out
    proto = onnx.load(out)
    assert next(o.version for o in proto.opset_import if not o.domain) >= 17
    ports = {
        p.name: [d.dim_param or d.dim_value for d in p.type.tensor_type.shape.dim]
        for p in [*proto.graph.input, *proto.graph.output]
    }
    assert ports["audio_signal"] == ["B", 16, "T"] and ports["length"] == ["B"]
    assert ports["outputs"][:2] == ["B", 32] and ports["encoded_lengths"] == ["B"]


# ---- streaming


@pytest.mark.parametrize("norm", ["layer_norm", "batch_norm"])
def test_small_context(norm: str, model: Model) -> None:
    path = model(context=SMALL, norm=norm)
    check(path, streamed(path, 32), [*SHORT, *leftovers(5 * 32), 301])


@pytest.mark.parametrize("exporter", ["legacy", pytest.param("dynamo", marks=pytest.mark.slow)])
@pytest.mark.parametrize("pulse", [112, pytest.param(224, marks=pytest.mark.slow)])
def test_full_context(exporter: str, pulse: int, model: Model) -> None:
    path = model(exporter, context=FULL)
    lengths = [*range(1, 21, 4), *leftovers(112 * 8), 1501]
    check(path, streamed(path, pulse), lengths)


@pytest.mark.parametrize("pulse", [8, pytest.param(16, marks=pytest.mark.slow)])
def test_causal_context(pulse: int, model: Model) -> None:
    path = model(context=CAUSAL)
    check(path, streamed(path, pulse), [*SHORT, *leftovers(8 * 75)])


@pytest.mark.parametrize(("context", "pulse"), [((70, 6), 56), ((70, 1), 16)])
@pytest.mark.slow
def test_contexts_between(context: tuple[int, int], pulse: int, model: Model) -> None:
    path = model(context=context)
    stream = streamed(path, pulse)
    assert stream.outputs[0].delay == 0
    check(path, stream, [1, 9, *leftovers(8 * 84)])
    check(path, stream, [2, 8 * 84 + 1], batch=2)


@pytest.mark.parametrize(
    ("context", "pulse"), [(SMALL, 32), pytest.param(FULL, 112, marks=pytest.mark.slow), (CAUSAL, 8)]
)
def test_parallel_streams(context: tuple[int, int], pulse: int, model: Model) -> None:
    path = model(context=context)
    stream = streamed(path, pulse)
    assert stream.inputs[0].dims[0] == "B"
    check(path, stream, [3, 8, 113, 350], batch=3)


@pytest.mark.parametrize(
    ("context", "pulse"),
    [
        (SMALL, 32),
        (FULL, 112),
        *(pytest.param(*of, marks=pytest.mark.slow) for of in ((FULL, 224), (CAUSAL, 16))),
        (CAUSAL, 8),
    ],
)
def test_no_delay_and_no_state_too_many(context: tuple[int, int], pulse: int, model: Model) -> None:
    """Every chunk gives all its tokens at once, out of the caches a careful hand would write."""
    stream = streamed(model(context=context), pulse)
    assert [(o.name, o.delay, o.axis) for o in stream.outputs] == [("outputs", 0, 2), ("encoded_lengths", 0, None)]
    assert stream.outputs[0].rate * 8 == 1 and stream.granularity == 8
    session = stream.session()
    for _ in range(3):
        assert session.push(np.zeros((1, 16, pulse), np.float32))["outputs"].shape == (1, 32, pulse // 8)
    assert session.flush()["outputs"].shape == (1, 32, 1)

    chunk = context[1] + 1
    left = context[0] // chunk * chunk
    subsampling = [2 * 16, 8 * 2 * 9, 8 * 2 * 5]  # two frames each
    layer = [32 * left, 32 * left, 32 * 8]  # projected keys and values, the depthwise convolution
    sizes = sorted(math.prod(s.shape[1:]) for s in stream.states)
    assert sizes == sorted([1, *subsampling, *layer, *layer])  # and a counter


@pytest.mark.parametrize("exporter", ["legacy", pytest.param("dynamo", marks=pytest.mark.slow)])
def test_stream_outlives_the_position_table(exporter: str, model: Model) -> None:
    """A table for 64 tokens caps the batch model, not the stream: more tokens, the same weights, a longer table."""
    path, longer = model(exporter, context=SMALL, positions=64), model(exporter, context=SMALL)
    x = np.zeros((1, 16, 8 * 66), np.float32)  # with one token too many it would still run, on a table of one row
    with pytest.raises(Exception, match=r"(?i)shape|dimension|broadcast|add"):
        run_batch(path, x)
    stream = streamed(path, 32)
    check(path, stream, [5, 8 * 63, 8 * 200, 8 * 200 + 3, 8 * 333 - 1], reference=longer)
    with pytest.raises(pulsify.InvalidLength, match="512 frames"):  # which is not what the stream gives
        run_stream(stream, np.zeros((1, 16, 8 * 64), np.float32), [8 * 64])


@pytest.mark.slow
def test_own_verification_agrees(model: Model) -> None:
    assert pulsify.stream(model(context=FULL), pulse=112).verification is not None


def test_saved_stream_is_enough(model: Model, tmp_path: Path) -> None:
    path = model(context=SMALL)
    streamed(path, 32).save(tmp_path / "stream.onnx")
    check(path, pulsify.load(tmp_path / "stream.onnx"), [1, 45, 131], batch=2)


def test_pulse_of_a_fraction_of_a_token(model: Model) -> None:
    with pytest.raises(pulsify.InvalidPulse) as error:
        pulsify.stream(model(context=SMALL), pulse=100)
    assert error.value.granularity == 8


# ---- the long way


@pytest.mark.slow
@pytest.mark.parametrize("exporter", ["legacy", "dynamo"])
@pytest.mark.parametrize("norm", ["layer_norm", "batch_norm"])
@pytest.mark.parametrize(
    ("context", "pulses"),
    [
        (SMALL, (32, 64, 8, 24)),
        (FULL, (112, 224, 336, 8, 56)),
        (CAUSAL, (8, 16, 24, 560)),
        ((70, 6), (56, 112)),
        ((70, 1), (16,)),
        ((6, 3), (32,)),  # not a whole number of chunks: one is seen
        ((0, 3), (32,)),
    ],
)
def test_every_length(
    exporter: str, norm: str, context: tuple[int, int], pulses: tuple[int, ...], model: Model
) -> None:
    """Aligned pulses and others, which wait for the rest of the chunk."""
    path = model(exporter, context=context, norm=norm)
    rng = np.random.default_rng(context)
    for pulse in pulses:
        stream = streamed(path, pulse)
        assert (stream.outputs[0].delay == 0) == (pulse // 8 % (context[1] + 1) == 0)
        check(path, stream, [*range(1, 40), *leftovers(112), *leftovers(1120), *rng.integers(130, 2500, 4).tolist()])


@pytest.mark.slow
@pytest.mark.parametrize(("exporter", "opset"), [("legacy", o) for o in (18, 20)] + [("dynamo", o) for o in (20, 23)])
def test_every_opset(exporter: str, opset: int, model: Model) -> None:
    path = model(exporter, opset, context=SMALL, bias=True, scaled=True)
    check(path, streamed(path, 32), [*SHORT, *leftovers(160)])


@pytest.mark.slow
@pytest.mark.parametrize(("context", "pulse"), [(FULL, 112), (CAUSAL, 8)])
def test_small_size(context: tuple[int, int], pulse: int, tmp_path: Path) -> None:
    path = export(build(dataclasses.replace(SIZES["small"], context=context)), tmp_path / "small.onnx")
    check(path, streamed(path, pulse), [7, *leftovers(8 * 112)[::3], 3000])


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["layer_norm", "batch_norm"])
@pytest.mark.parametrize("context", [SMALL, FULL, CAUSAL])
def test_same_as_the_toolkit(context: tuple[int, int], norm: str) -> None:
    """Bit by bit, with the same weights; only where nemo_toolkit happens to be installed."""
    toolkit = pytest.importorskip("nemo.collections.asr.modules.conformer_encoder")
    c = dataclasses.replace(SIZES["tiny"], context=context, norm=norm)
    ours = build(c)
    theirs = toolkit.ConformerEncoder(
        feat_in=c.mels, n_layers=c.layers, d_model=c.width, subsampling="dw_striding", subsampling_factor=8,
        subsampling_conv_channels=c.channels, causal_downsampling=True, ff_expansion_factor=c.expansion,
        n_heads=c.heads, att_context_size=list(context), att_context_style="chunked_limited", xscaling=c.scaled,
        untie_biases=True, pos_emb_max_len=c.positions, conv_kernel_size=c.kernel, conv_norm_type=norm,
        conv_context_size="causal", use_bias=c.bias,
    ).eval()  # fmt: skip
    theirs.load_state_dict(ours.state_dict())
    for frames in (1, 8, 113, 300):
        x, length = torch.randn(3, c.mels, frames), torch.tensor([frames, max(frames - 3, 1), (frames + 1) // 2])
        with torch.no_grad():
            wanted, got = theirs.forward_internal(x, length), ours(x, length)
        assert torch.isfinite(wanted[0]).all()
        assert torch.equal(got[0], wanted[0]) and torch.equal(got[1], wanted[1])

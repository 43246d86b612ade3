"""Streaming encoders of transformers with the masks that it builds: exact, and as early as the model allows.

Only where transformers is installed. Files are by the newer exporter, which alone takes all of them; modules by
whichever does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import pulsify
from pulsify.core.chunks import chunkings
from tests.models import Array
from tests.side import Batch, streamed

TOLERANCE = 1e-5
MELS, WIDTH = 16, 16
SMALL = {"hidden_size": WIDTH, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


@dataclass(frozen=True)
class Encoder:
    """A small encoder of random weights: frames (and a mask of them) -> frames.

    shape: of its input, -1 for time. unit: frames of which the input must be a multiple. delay: of the output, in its
    own frames. pulse: frames of input by pulse. exportable: whether torch writes a file of it.
    """

    build: Callable[[Any], Any]
    call: Callable[[Any, Any, Any], Any]
    shape: tuple[int, ...]
    pulse: int
    delay: int = 0
    unit: int = 1
    exportable: bool = True

    @property
    def axis(self) -> int:
        return self.shape.index(-1)

    def input(self, length: int, batch: int = 2) -> Array:
        dims = [batch, *(length if n < 0 else n for n in self.shape[1:])]
        return np.random.default_rng(length).standard_normal(dims).astype(np.float32)


def nemotron(transformers: Any) -> Any:
    config = transformers.NemotronAsrStreamingEncoderConfig(
        **SMALL, subsampling_conv_channels=8, num_mel_bins=MELS, sliding_window=15
    )
    return transformers.NemotronAsrStreamingEncoder(config)


def moonshine(transformers: Any) -> Any:
    from transformers.models.moonshine_streaming.modeling_moonshine_streaming import MoonshineStreamingEncoder

    config = transformers.MoonshineStreamingEncoderConfig(
        **SMALL, num_key_value_heads=2, frame_ms=1.0, sliding_windows=[[5, 3], [4, 0]]
    )
    return MoonshineStreamingEncoder(config)


def voxtral(transformers: Any) -> Any:
    config = transformers.VoxtralRealtimeEncoderConfig(**SMALL, head_dim=8, num_mel_bins=MELS, sliding_window=6)
    return transformers.VoxtralRealtimeEncoder(config)


def mimi(transformers: Any) -> Any:
    config = transformers.MimiConfig(
        **SMALL, num_key_value_heads=2, head_dim=8, num_filters=4, sliding_window=6, upsampling_ratios=[2, 2],
        codebook_size=8, codebook_dim=8, num_quantizers=4, vector_quantization_hidden_dimension=8,
        upsample_groups=WIDTH, layer_scale_initial_scale=1.0,
    )  # fmt: skip
    return transformers.MimiModel(config)


def _encoded(m: Any, x: Any, mask: Any) -> Any:
    return m(x, attention_mask=mask).last_hidden_state


def _transformed(m: Any, x: Any, mask: Any) -> Any:
    return m.encoder.encoder_transformer(x, attention_mask=mask, use_cache=False).last_hidden_state


ENCODERS: dict[str, Encoder] = {
    "nemotron": Encoder(nemotron, _encoded, (1, -1, MELS), pulse=8 * 14),
    "nemotron-masked": Encoder(nemotron, _encoded, (1, -1, MELS), pulse=8 * 14),
    "moonshine-masked": Encoder(moonshine, _encoded, (1, -1), pulse=64, delay=2, unit=16),
    "voxtral": Encoder(
        voxtral, lambda m, x, a: m(x, use_cache=False).last_hidden_state, (1, MELS, -1), pulse=2
    ),
    "mimi-transformer": Encoder(mimi, _transformed, (1, -1, WIDTH), pulse=1),
    "mimi-transformer-masked": Encoder(mimi, _transformed, (1, -1, WIDTH), pulse=1),
    "mimi-encoder": Encoder(mimi, lambda m, x, a: m.encoder(x).latents, (1, 1, -1), pulse=8, exportable=False),
    "mimi-decoder": Encoder(mimi, lambda m, x, a: m.decoder(x).audio_values, (1, WIDTH, -1), pulse=1),
}  # fmt: skip
LENGTHS = (1, 2, 8, 16, 48, 57, 112, 113, 144, 230, 400)


def built(name: str) -> Any:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers", minversion="5")
    torch.manual_seed(0)
    case = ENCODERS[name]
    inner = case.build(transformers)
    for parameter in inner.parameters():
        if parameter.dim() > 1:
            parameter.data = torch.randn_like(parameter) * 0.2

    class Outputs(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Any, attention_mask: Any = None) -> Any:
            return case.call(self.inner, x, attention_mask)

    return Outputs().eval()


def feeds(name: str, length: int, batch: int = 2) -> dict[str, Array]:
    masks = {"attention_mask": np.ones((batch, length), bool)} if name.endswith("masked") else {}
    return {"x": ENCODERS[name].input(length, batch), **masks}


def exported(name: str, folder: Path) -> onnx.ModelProto:
    import torch

    case, path = ENCODERS[name], folder / "encoder.onnx"
    given = feeds(name, 16 * case.unit if case.unit > 1 else 160)
    time = torch.export.Dim("T", min=16)
    if case.unit > 1:
        time = torch.export.Dim.AUTO
    streams = torch.export.Dim.AUTO if case.unit > 1 else torch.export.Dim("B")
    free = tuple({0: streams, 1 if n == "attention_mask" else case.axis: time} for n in given)
    with torch.no_grad():
        torch.onnx.export(
            built(name), tuple(map(torch.from_numpy, given.values())), str(path), input_names=list(given),
            output_names=["y"], dynamo=True, dynamic_shapes=free, verbose=False,
        )  # fmt: skip
    return onnx.load(path)


def check(name: str, stream: pulsify.Stream, whole: Callable[[dict[str, Array]], Array | None]) -> None:
    """Exact at every length that the model takes, in many chunkings; and nothing could be given out sooner."""
    case, rng = ENCODERS[name], np.random.default_rng(1)
    assert (stream.pulse, stream.outputs[0].delay) == (case.pulse, case.delay)
    compared = 0
    for length in LENGTHS:
        given = feeds(name, length * case.unit)
        wanted = whole(given)
        if wanted is None:
            continue
        for cuts in chunkings(length * case.unit, stream.pulse, rng):
            got = streamed(stream, {"x": given["x"]}, cuts)[stream.outputs[0].name]
            assert got.shape == wanted.shape
            assert np.abs(got - wanted).max(initial=0) < TOLERANCE * max(1.0, float(np.abs(wanted).max(initial=0)))
            compared += 1
    assert compared > 20
    length = 6 * max(case.pulse, 64)
    given = feeds(name, length)
    later = np.moveaxis(given["x"].copy(), case.axis, 0)
    later[length // 2 :] += 1
    before, after = whole(given), whole({**given, "x": np.moveaxis(later, 0, case.axis)})
    assert before is not None and after is not None
    axis = stream.outputs[0].axis
    changed = np.moveaxis(np.abs(before - after), axis, 0).reshape(before.shape[axis], -1).max(1) > 0
    assert int(changed.argmax()) == before.shape[axis] // 2 - case.delay


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n, case in ENCODERS.items() if case.exportable])
def test_files(name: str, tmp_path: Path) -> None:
    built(name)
    proto = exported(name, tmp_path)
    bind = {"attention_mask": "ones"} if name.endswith("masked") else None
    batch = Batch(proto)

    def whole(given: dict[str, Array]) -> Array | None:
        outputs = batch.attempt(given)
        return None if outputs is None else outputs["y"]

    check(name, pulsify.stream(proto, verify=False, bind=bind), whole)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODERS)
def test_modules(name: str) -> None:
    module = built(name)
    import torch

    case = ENCODERS[name]
    example = {k: torch.from_numpy(v) for k, v in feeds(name, 16 * case.unit if case.unit > 1 else 160, 1).items()}
    bind = {"attention_mask": "ones"} if name.endswith("masked") else None
    stream = pulsify.stream(module, example=example, verify=False, bind=bind)

    def whole(given: dict[str, Array]) -> Array | None:
        with torch.no_grad():
            try:
                found: Array = module(**{k: torch.from_numpy(v) for k, v in given.items()}).numpy()
            except RuntimeError:  # a length that it does not take
                return None
        return found

    check(name, stream, whole)


@pytest.mark.slow
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_attention_to_all_frames_is_refused(masked: bool) -> None:
    """Parakeet's mask hides padding only, and Moonshine without one has none at all."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers", minversion="5")
    torch.manual_seed(0)
    config = transformers.ParakeetEncoderConfig(**SMALL, subsampling_conv_channels=8, num_mel_bins=MELS)
    encoder = transformers.ParakeetEncoder(config).eval()
    example: dict[str, Any] = {"input_features": torch.randn(1, 160, MELS)}
    if masked:
        example["attention_mask"] = torch.ones(1, 160, dtype=torch.bool)
    bind = {"attention_mask": "ones"} if masked else None
    with pytest.raises(pulsify.NotStreamable, match="looks ahead without bound"):
        pulsify.stream(encoder, example=example, verify=False, bind=bind)

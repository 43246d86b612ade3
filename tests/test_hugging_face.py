"""The streaming FastConformer of transformers, without and with a mask; only where transformers is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import pulsify
from pulsify.core.chunks import chunkings
from tests.side import Batch, streamed

MELS, TOLERANCE = 16, 1e-5
LENGTHS = (1, 8, 57, 112, 113, 230, 400, 1000)


def exported(masked: bool, folder: Path) -> onnx.ModelProto:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers", minversion="5")
    torch.manual_seed(0)
    config = transformers.NemotronAsrStreamingEncoderConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, subsampling_conv_channels=8,
        num_mel_bins=MELS,
    )  # fmt: skip
    encoder = transformers.NemotronAsrStreamingEncoder(config)

    class Outputs(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder

        def forward(self, x: Any, attention_mask: Any = None) -> Any:
            return self.encoder(x, attention_mask=attention_mask).last_hidden_state

    inputs = (torch.randn(2, 160, MELS), *([torch.ones(2, 160, dtype=torch.bool)] if masked else []))
    free = {0: torch.export.Dim("B"), 1: torch.export.Dim("T", min=16)}
    path = folder / "encoder.onnx"
    with torch.no_grad():
        torch.onnx.export(
            Outputs().eval(), inputs, str(path), input_names=["x", "attention_mask"][: len(inputs)],
            output_names=["y"], dynamo=True, dynamic_shapes=tuple(free for _ in inputs), verbose=False,
        )  # fmt: skip
    return onnx.load(path)


@pytest.mark.slow
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_exact_without_delay(masked: bool, tmp_path: Path) -> None:
    proto = exported(masked, tmp_path)
    stream = pulsify.stream(proto, verify=False, **({"bind": {"attention_mask": "ones"}} if masked else {}))
    assert stream.pulse == 8 * 14 and [o.delay for o in stream.outputs] == [0]
    batch, rng = Batch(proto), np.random.default_rng(1)
    for length in LENGTHS:
        x = rng.standard_normal((2, length, MELS)).astype(np.float32)
        feeds = {"x": x, **({"attention_mask": np.ones((2, length), bool)} if masked else {})}
        wanted = batch.run(feeds)["y"]
        for cuts in chunkings(length, stream.pulse, rng):
            got = streamed(stream, {"x": x}, cuts)["y"]
            assert got.shape == wanted.shape
            assert np.abs(got - wanted).max() < TOLERANCE

"""A recogniser of tiny random models: a log-mel preprocessor, a FastConformer, CTC head or RNNT decoder, exported."""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

import dataclasses
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.fastconformer.model import SIZES, Encoder, build

Array = np.ndarray[Any, Any]
RATE, HOP, FFT = 1600, 16, 64
CONFIG = dataclasses.replace(SIZES["tiny"], channels=4, width=16, layers=1, heads=2, context=(4, 1))
PULSE = 8 * CONFIG.chunk
UNITS = ["▁one", "▁two", "▁th", "ree", "▁", "x", "yz", "▁a", "b", "c", "d"]  # the blank follows
HIDDEN = 12


class Preprocessor(nn.Module):
    """Log-mel frames by a strided convolution, centred: S // hop + 1 of them; the length leaves out the last."""

    basis: Tensor
    mel: Tensor

    def __init__(self) -> None:
        super().__init__()
        angle = 2 * math.pi * torch.arange(FFT // 2 + 1).unsqueeze(1) * torch.arange(FFT) / FFT
        window = torch.hann_window(FFT)
        self.register_buffer("basis", (torch.cat([angle.cos(), angle.sin()]) * window).unsqueeze(1))
        self.register_buffer("mel", torch.rand(CONFIG.mels, FFT // 2 + 1, generator=torch.Generator().manual_seed(0)))

    def forward(self, audio: Tensor, audio_length: Tensor) -> tuple[Tensor, Tensor]:
        x = F.conv1d(F.pad(audio.unsqueeze(1), (FFT // 2, FFT // 2)), self.basis, stride=HOP)
        real, imaginary = x.chunk(2, dim=1)
        return torch.log(self.mel @ (real**2 + imaginary**2) + 2**-24) / 4, audio_length // HOP


class CtcEncoder(nn.Module):
    """[B, T', units] log-probabilities."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.encoder, self.head = encoder, nn.Linear(CONFIG.width, len(UNITS) + 1)
        nn.init.normal_(self.head.weight)

    def forward(self, audio_signal: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        x, tokens = self.encoder(audio_signal, length)
        return self.head(x.transpose(1, 2)).log_softmax(-1), tokens


class Prediction(nn.Module):
    """Two layers of LSTM over the last token: [B, D, U]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.embed = nn.Embedding(len(UNITS) + 1, HIDDEN)
        self.lstm = nn.LSTM(HIDDEN, HIDDEN, 2)
        for weight in self.lstm.parameters():
            nn.init.normal_(weight)

    def forward(
        self, targets: Tensor, target_length: Tensor, h: Tensor, c: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x, (h, c) = self.lstm(self.embed(targets).transpose(0, 1), (h, c))
        return x.permute(1, 2, 0), target_length + 0, h, c


class Joint(nn.Module):
    """[B, D, T] and [B, D, U] to [B, T, U, units]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.encoder, self.prediction = nn.Linear(CONFIG.width, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.out = nn.Linear(HIDDEN, len(UNITS) + 1)
        nn.init.normal_(self.out.weight)
        nn.init.normal_(self.prediction.weight, std=4.0)
        nn.init.normal_(self.encoder.weight, std=0.5)
        with torch.no_grad():
            self.out.bias[-1] += 3.0  # the blank: a token now and then

    def forward(self, encoder_outputs: Tensor, decoder_outputs: Tensor) -> Tensor:
        a = self.encoder(encoder_outputs.transpose(1, 2)).unsqueeze(2)
        b = self.prediction(decoder_outputs.transpose(1, 2)).unsqueeze(1)
        return self.out(torch.tanh(a + b))


class DecoderJoint(nn.Module):
    """Both in one, as NeMo exports it."""

    def __init__(self, prediction: Prediction, joint: Joint) -> None:
        super().__init__()
        self.prediction, self.joint = prediction, joint

    def forward(self, encoder_outputs: Tensor, targets: Tensor, target_length: Tensor, h: Tensor, c: Tensor) -> Any:
        x, lengths, h, c = self.prediction(targets, target_length, h, c)
        return self.joint(encoder_outputs, x), lengths, h, c


def sound(samples: int, seed: int = 0) -> Array:
    """Tones that change, in noise."""
    rng = np.random.default_rng(seed)
    pitch = np.repeat(rng.uniform(20, 700, samples // 120 + 1), 120)[:samples]
    loud = np.repeat(rng.uniform(0, 0.4, samples // 90 + 1), 90)[:samples]
    wave = loud * np.sin(2 * np.pi * np.cumsum(pitch) / RATE) + 0.02 * rng.standard_normal(samples)
    return wave.astype(np.float32)


def export_all(folder: Path) -> None:
    """All files a recogniser of either kind needs."""
    encoder = build(CONFIG)
    frames, mels = 3 * PULSE + 5, torch.randn(2, CONFIG.mels, 3 * PULSE + 5)
    signal = {"audio_signal": {0: "B", 2: "T"}, "length": {0: "B"}}
    counted = torch.tensor([frames, frames - 9])
    audio, samples = torch.randn(2, 400), torch.tensor([400, 333])
    _export(
        Preprocessor(), (audio, samples), folder / "preprocessor.onnx",
        {"audio": {0: "B", 1: "S"}, "audio_length": {0: "B"}},
        {"features": {0: "B", 2: "T"}, "features_length": {0: "B"}},
    )  # fmt: skip
    lengths = {"encoded_lengths": {0: "B"}}
    _export(
        CtcEncoder(encoder), (mels, counted), folder / "ctc.onnx", signal, {"logprobs": {0: "B", 1: "N"}, **lengths}
    )
    _export(encoder, (mels, counted), folder / "encoder.onnx", signal, {"outputs": {0: "B", 2: "N"}, **lengths})
    prediction, joint = Prediction().eval(), Joint().eval()
    states = {"input_states_1": {1: "B"}, "input_states_2": {1: "B"}}
    after = {"output_states_1": {1: "B"}, "output_states_2": {1: "B"}}
    tokens = {"targets": {0: "B", 1: "U"}, "target_length": {0: "B"}}
    h = torch.zeros(2, 2, HIDDEN)
    ids, count = torch.ones(2, 3, dtype=torch.int32), torch.tensor([3, 3], dtype=torch.int32)
    _export(
        prediction, (ids, count, h, h), folder / "decoder.onnx", {**tokens, **states},
        {"outputs": {0: "B", 2: "U"}, "prednet_lengths": {0: "B"}, **after},
    )  # fmt: skip
    heard, predicted = torch.randn(2, CONFIG.width, 5), torch.randn(2, HIDDEN, 3)
    _export(
        joint, (heard, predicted), folder / "joint.onnx",
        {"encoder_outputs": {0: "B", 2: "N"}, "decoder_outputs": {0: "B", 2: "U"}},
        {"outputs": {0: "B", 1: "N", 2: "U"}},
    )  # fmt: skip
    _export(
        DecoderJoint(prediction, joint), (heard, ids, count, h, h), folder / "decoder_joint.onnx",
        {"encoder_outputs": {0: "B", 2: "N"}, **tokens, **states},
        {"outputs": {0: "B", 1: "N", 2: "U"}, "prednet_lengths": {0: "B"}, **after},
    )  # fmt: skip
    (folder / "vocabulary.txt").write_text("\n".join(UNITS) + "\n", "utf-8")


def _export(module: nn.Module, example: Any, path: Path, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.eval(), example, str(path), input_names=list(inputs), output_names=list(outputs),
            dynamic_axes={**inputs, **outputs}, opset_version=17, dynamo=False,
        )  # fmt: skip

"""The models of the benchmark, as PyTorch writes them: one recording, a symbolic time axis, one input and one output.

    python -m benchmarks.models FOLDER [NAME ...]

`cases.prepare` runs this in a process of its own: no torch is loaded where streams are timed.
"""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable
from functools import reduce
from pathlib import Path

import onnx
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import architectures  # noqa: F401  registers its own
from benchmarks.encoder import chunk_encoder
from benchmarks.exports import EXPORTS, module, written
from examples.fastconformer.by_hand import export as export_encoder_step
from examples.fastconformer.model import SIZES, Encoder
from examples.fastconformer.model import build as build_encoder
from examples.gtcrn.export import export as export_denoiser
from examples.gtcrn.export import export_step as export_denoiser_step
from examples.gtcrn.model import build as build_denoiser
from examples.recogniser.model import FFT, HOP, Preprocessor

# ---- convolutions and recurrences


def _causal(inputs: int, outputs: int, kernel: int, dilation: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.ConstantPad1d(((kernel - 1) * dilation, 0), 0.0), nn.Conv1d(inputs, outputs, kernel, dilation=dilation)
    )


@module(1, 32, "T", many=True)
def conv_4() -> nn.Module:
    return nn.Sequential(*(m for _ in range(4) for m in (_causal(32, 32, 5), nn.ReLU())))


def _wavenet(layers: int, channels: int) -> nn.Module:
    """Gated dilated causal convolutions; every layer also adds to a common output."""

    class Layer(nn.Module):
        def __init__(self, dilation: int) -> None:
            super().__init__()
            self.filter, self.gate = (_causal(channels, channels, 3, dilation) for _ in range(2))
            self.stay, self.skip = (nn.Conv1d(channels, channels, 1) for _ in range(2))

    class WaveNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Layer(2 ** (i % 8)) for i in range(layers))
            self.out = nn.Conv1d(channels, 8, 1)

        def forward(self, x: Tensor) -> Tensor:
            skips = []
            for layer in self.layers:
                z = torch.tanh(layer.filter(x)) * torch.sigmoid(layer.gate(x))
                x = x + layer.stay(z)
                skips.append(layer.skip(z))
            return self.out(torch.relu(reduce(torch.add, skips)))

    return WaveNet()


@module(1, 24, "T")
def wavenet_6x24() -> nn.Module:
    return _wavenet(6, 24)


@module(1, 64, "T")
def wavenet_24x64() -> nn.Module:
    return _wavenet(24, 64)


@module(1, 64, "T")
def tcn() -> nn.Module:
    """Six residual blocks of two dilated causal convolutions."""

    class Block(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return (x + super().forward(x)).relu()

    pairs = ((_causal(64, 64, 3, 2**i), nn.ReLU(), _causal(64, 64, 3, 2**i), nn.ReLU()) for i in range(6))
    return nn.Sequential(*(Block(*pair) for pair in pairs))


def _first(recurrent: nn.Module) -> nn.Module:
    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent = recurrent

        def forward(self, x: Tensor) -> Tensor:
            return self.recurrent(x)[0]

    return First()


@module(1, "T", 32, many=True)
def lstm_64() -> nn.Module:
    return _first(nn.LSTM(32, 64, batch_first=True))


@module(1, "T", 256)
def gru_2x256() -> nn.Module:
    return _first(nn.GRU(256, 256, num_layers=2, batch_first=True))


# ---- attention


def _attention(seen: Callable[[Tensor, Tensor], Tensor], width: int = 32, heads: int = 4) -> nn.Module:
    """One layer of self-attention, its mask made of positions."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

        def forward(self, x: Tensor) -> Tensor:
            batch, time, _ = x.shape
            q, k, v = self.qkv(x).reshape(batch, time, 3, heads, width // heads).permute(2, 0, 3, 1, 4).unbind(0)
            place = torch.arange(time)
            mask = seen(place[:, None], place[None, :])
            scores = q @ k.transpose(-1, -2) / math.sqrt(width // heads)
            scores = torch.where(mask, scores, torch.full_like(scores, -math.inf))
            return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, time, width))

    return Attention()


@module(1, "T", 32, many=True)
def attention_chunk() -> nn.Module:
    """Chunks of 4 see themselves and two chunks before."""

    def seen(i: Tensor, j: Tensor) -> Tensor:
        back = torch.div(i, 4, rounding_mode="floor") - torch.div(j, 4, rounding_mode="floor")
        return (back >= 0) & (back <= 2)

    return _attention(seen)


@module(1, "T", 32)
def attention_sliding() -> nn.Module:
    """Every frame sees itself and eleven before."""
    return _attention(lambda i, j: (i - j >= 0) & (i - j <= 11))


@written
def encoder_8x256(path: Path) -> None:
    onnx.save(chunk_encoder(8, width=256), path)


@written
def encoder_12x(path: Path) -> None:
    onnx.save(chunk_encoder(12), path)


# ---- the examples


@written
def gtcrn(path: Path) -> None:
    export_denoiser(build_denoiser(), path, batch=1)


@written
def gtcrn_many(path: Path) -> None:
    export_denoiser(build_denoiser(), path)


@written
def gtcrn_by_hand(path: Path) -> None:
    export_denoiser_step(build_denoiser(), path)


def _encoder(context: tuple[int, int]) -> Encoder:
    return build_encoder(dataclasses.replace(SIZES["tiny"], context=context))


class WholeRecording(nn.Module):
    """An encoder for one recording whose length is the input's."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x, torch.ones(1, dtype=torch.long) * x.size(2))[0]


@module(1, 16, "T")
def fastconformer_32() -> nn.Module:
    return WholeRecording(_encoder((28, 3)))


@written
def fastconformer_32_by_hand(path: Path) -> None:
    export_encoder_step(_encoder((28, 3)), path)


@module(1, 16, "T")
def fastconformer_112() -> nn.Module:
    return WholeRecording(_encoder((70, 13)))


@written
def fastconformer_112_by_hand(path: Path) -> None:
    export_encoder_step(_encoder((70, 13)), path)


@module(1, "S", dynamo=True)
def logmel_stft() -> nn.Module:
    """The recogniser's front end, with the STFT operator."""
    return Preprocessor()


@module(1, 1, "S")
def logmel_conv() -> nn.Module:
    """The same, the spectrum a convolution: no padding at either end."""

    class Front(nn.Module):
        basis: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.front = Preprocessor()
            angle = 2 * math.pi / FFT * torch.outer(torch.arange(FFT // 2 + 1), torch.arange(FFT))
            self.register_buffer("basis", (torch.cat([angle.cos(), -angle.sin()]) * self.front.window).unsqueeze(1))

        def forward(self, x: Tensor) -> Tensor:
            real, imaginary = F.conv1d(x, self.basis, stride=HOP).chunk(2, dim=1)
            power = real.square() + imaginary.square()
            return ((self.front.mel @ power + 2**-24).log() + 6.0) / 4.0

    return Front()


def main() -> None:
    folder, *names = sys.argv[1:]
    for name in names or EXPORTS:
        torch.manual_seed(0)
        path = Path(folder) / f"{name}.onnx"
        partial = path.with_suffix(".part")  # a model that is there is whole
        EXPORTS[name](partial)
        partial.rename(path)


if __name__ == "__main__":
    main()

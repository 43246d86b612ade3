"""Models of published shapes, seeded: an amplifier's WaveNet, a codec's encoder, a denoiser in two stages."""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.exports import module, written
from examples.quiet import quiet

# ---- an amplifier: two arrays of dilated convolutions, every layer hears the guitar itself

DILATIONS = [2**i for i in range(10)]
TAPS = 3
Pad = Callable[[Tensor, int], Tensor]


def _newest(x: Tensor, like: Tensor) -> Tensor:
    """As many frames as another value has, from the end."""
    return x[:, :, -like.shape[2] :]


class AmpLayer(nn.Module):
    def __init__(self, channels: int, dilation: int, pad: Pad) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, TAPS, dilation=dilation)
        self.mix = nn.Conv1d(1, channels, 1, bias=False)
        self.stay = nn.Conv1d(channels, channels, 1)
        self.before, self.pad = (TAPS - 1) * dilation, pad

    def forward(self, x: Tensor, dry: Tensor) -> tuple[Tensor, Tensor]:
        y = self.conv(self.pad(x, self.before))
        z = torch.tanh(y + self.mix(_newest(dry, y)))
        return _newest(x, z) + self.stay(z), z


class AmpArray(nn.Module):
    """Layers of one width; the sum of what they find, its oldest frames cut off as the layers go on, is the head."""

    def __init__(self, inputs: int, channels: int, heads: int, bias: bool, pad: Pad) -> None:
        super().__init__()
        self.enter = nn.Conv1d(inputs, channels, 1, bias=False)
        self.layers = nn.ModuleList(AmpLayer(channels, d, pad) for d in DILATIONS)
        self.leave = nn.Conv1d(channels, heads, 1, bias=bias)

    def forward(self, x: Tensor, dry: Tensor, head: Tensor | None) -> tuple[Tensor, Tensor]:
        x = self.enter(x)
        for layer in self.layers:
            x, z = layer(x, dry)
            head = z if head is None else _newest(head, z) + z
        return x, self.leave(head)


class Amp(nn.Module):
    """Padded `once`, by all that its layers look back, or in front of every convolution."""

    def __init__(self, once: bool) -> None:
        super().__init__()
        pad: Pad = (lambda x, _: x) if once else (lambda x, frames: F.pad(x, (frames, 0)))
        self.before = 2 * (TAPS - 1) * sum(DILATIONS) if once else 0
        self.arrays = nn.ModuleList([AmpArray(1, 16, 8, False, pad), AmpArray(16, 8, 1, True, pad)])

    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(x, (self.before, 0)) if self.before else x
        dry, head = x, None
        for array in self.arrays:
            x, head = array(x, dry, head)
        return 0.02 * head


@module(1, 1, "S")
def amp_once() -> nn.Module:
    return Amp(once=True)


@module(1, 1, "S")
def amp_layers() -> nn.Module:
    return Amp(once=False)


# ---- a codec's encoder: 320 samples a frame


class CodecConv(nn.Module):
    """Mirrored in front, and behind by as much as the last stride lacks, which follows from the length."""

    kernel: Tensor
    stride: Tensor
    before: Tensor

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, kernel, stride=stride)
        for name, number in (("kernel", kernel), ("stride", stride), ("before", kernel - stride)):
            self.register_buffer(name, torch.tensor(number), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[-1]
        frames = torch.ceil((length - self.kernel + self.before) / self.stride + 1).to(torch.int64)
        behind = (frames - 1) * self.stride + self.kernel - self.before - length
        return self.conv(F.pad(x, (self.before, behind), mode="reflect"))


class CodecUnit(nn.Module):
    """Half as many channels and back, beside a path of its own."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.ELU(), CodecConv(channels, channels // 2, 3), nn.ELU(), CodecConv(channels // 2, channels, 1)
        )
        self.beside = CodecConv(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.beside(x) + self.inner(x)


@module(1, 1, "S")
def codec_encoder() -> nn.Module:
    parts: list[nn.Module] = [CodecConv(1, 16, 7)]
    for i, stride in enumerate((2, 4, 5, 8)):
        width = 16 << i
        parts += [CodecUnit(width), nn.ELU(), CodecConv(width, 2 * width, 2 * stride, stride)]
    return nn.Sequential(*parts, nn.ELU(), CodecConv(256, 64, 7))


# ---- a denoiser in two stages: a mask of the spectrum, then one of a learned basis

FRAME, SHIFT, BINS, BASIS, WIDTH = 512, 128, 257, 256, 128


class Stage(nn.Module):
    """Two LSTMs and a mask; `step`: with their states [2, 1, width] in and out, where it is streamed by hand."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, WIDTH, num_layers=2, batch_first=True)
        self.mask = nn.Linear(WIDTH, inputs)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.mask(self.lstm(x)[0]))

    def step(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y, (h, c) = self.lstm(x, (h, c))
        return torch.sigmoid(self.mask(y)), h, c


class Learned(nn.Module):
    """The second stage, of frames [1, T, 512]."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Conv1d(FRAME, BASIS, 1, bias=False)
        self.norm = nn.LayerNorm(BASIS, eps=1e-7)
        self.stage = Stage(BASIS)
        self.decode = nn.Conv1d(BASIS, FRAME, 1, bias=False)

    def forward(self, frames: Tensor) -> Tensor:
        code = self.encode(frames.transpose(1, 2))
        mask = self.stage(self.norm(code.transpose(1, 2)))
        return self.decode(code * mask.transpose(1, 2))

    def step(self, frame: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        code = self.encode(frame.transpose(1, 2))
        mask, h, c = self.stage.step(self.norm(code.transpose(1, 2)), h, c)
        return self.decode(code * mask.transpose(1, 2)), h, c


class Dtln(nn.Module):
    """Samples [1, T] to as many, 384 late: a mask of the spectrum, its phase the noisy one, then `Learned`.

    Frames are not windowed. The spectrum is PyTorch's own; what goes back is a product with a constant basis and
    overlap-add a transposed convolution: neither exporter writes an inverse transform behind an LSTM.
    """

    back: Tensor
    overlap: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Stage(BINS), Learned()
        angle = 2 * math.pi / FRAME * torch.outer(torch.arange(FRAME), torch.arange(BINS)).remainder(FRAME)
        weight = torch.full((BINS,), 2 / FRAME)
        weight[0] = weight[-1] = 1 / FRAME
        basis = torch.cat([angle.cos() * weight, -angle.sin() * weight], dim=1)
        self.register_buffer("back", basis.unsqueeze(2))
        self.register_buffer("overlap", torch.eye(FRAME).unsqueeze(1))

    def forward(self, x: Tensor) -> Tensor:
        padded = F.pad(x, (FRAME - SHIFT, 0))
        spectrum = torch.stft(padded, FRAME, SHIFT, window=torch.ones(FRAME), center=False, return_complex=False)
        real, imaginary = spectrum[..., 0], spectrum[..., 1]
        loud = (real.square() + imaginary.square()).sqrt()
        mask = self.first(loud.transpose(1, 2)).transpose(1, 2)
        frames = F.conv1d(torch.cat([real * mask, imaginary * mask], dim=1), self.back)
        made = self.second(frames.transpose(1, 2))
        return F.conv_transpose1d(made, self.overlap, stride=SHIFT)[:, 0, : x.shape[1]]


class Step(nn.Module):
    """One stage of it for one frame, states in and out."""

    def __init__(self, stage: nn.Module) -> None:
        super().__init__()
        self.stage = stage

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.stage.step(x, h, c)


@module(1, "S")
def dtln() -> nn.Module:
    return Dtln()


@written
def dtln_spectrum_by_hand(path: Path) -> None:
    _export_step(Dtln().first, BINS, path)


@written
def dtln_learned_by_hand(path: Path) -> None:
    _export_step(Dtln().second, FRAME, path)


def _export_step(stage: nn.Module, inputs: int, path: Path) -> None:
    state = torch.zeros(2, 1, WIDTH)
    with quiet():
        torch.onnx.export(
            Step(stage).eval(), (torch.randn(1, 1, inputs), state, state), str(path), dynamo=False, opset_version=17,
            input_names=["x", "h", "c"], output_names=["y", "new_h", "new_c"],
        )  # fmt: skip

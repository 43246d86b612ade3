"""A speech denoiser of the geometry of GTCRN (grouped temporal convolutional recurrent network), in its own words.

    spec [B, 257, T, 2]   frames of a 512-point STFT, real and imaginary      out [B, 257, T, 2]   the denoised ones

    257 bins ─ bands 129 ─ neighbours ─ 2 strided convolutions ─ 3 temporal blocks ─ 2 dual-path GRUs ┐
    257 bins ─ mask ◁ bins 257 ◁── 2 transposed convolutions ◁── 3 temporal blocks, transposed ◁──────┘   (with skips)

Nothing here knows about streaming: no caches, no step. Time is causal by padding on the left, by trimming transposed
convolutions on the right and by GRUs that run forward; across frequency everything sees everything. The stream one
would write by hand is in `by_hand.py`, for comparison.
"""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

KERNEL = 3  # of the temporal blocks, in time and in frequency


@dataclass(frozen=True)
class Config:
    """The published geometry: about 24 thousand trained weights, and as many fixed ones between bins and bands."""

    bins: int = 257
    low: int = 65  # bins that are their own band
    high: int = 64  # bands of the bins above
    rate: int = 16000
    channels: int = 16
    dilations: tuple[int, ...] = (1, 2, 5)  # of the temporal blocks, in time
    paths: int = 2  # dual-path blocks
    groups: int = 2

    @property
    def bands(self) -> int:
        return self.low + self.high

    @property
    def width(self) -> int:
        """Bands that two strides leave."""
        return (self.bands + 3) // 4


class Bands(nn.Module):
    """Lowest bins stay, those above are merged to bands of equal width on the ERB scale: triangles, not trained."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.low = c.low
        triangles = _triangles(c)
        self.merge = nn.Linear(c.bins - c.low, c.high, bias=False)
        self.split = nn.Linear(c.high, c.bins - c.low, bias=False)
        self.merge.weight = nn.Parameter(triangles, requires_grad=False)
        self.split.weight = nn.Parameter(triangles.T.contiguous(), requires_grad=False)

    def to_bands(self, x: Tensor) -> Tensor:
        return torch.cat([x[..., : self.low], self.merge(x[..., self.low :])], dim=-1)

    def to_bins(self, x: Tensor) -> Tensor:
        return torch.cat([x[..., : self.low], self.split(x[..., self.low :])], dim=-1)


def _triangles(c: Config) -> Tensor:
    """[high, bins - low]: each band rises from the peak before to its own and falls to the next."""
    hertz = torch.arange(c.low, c.bins, dtype=torch.float64) * (c.rate / 2 / (c.bins - 1))
    erb = 21.4 * torch.log10(0.00437 * hertz + 1)
    peaks = torch.linspace(float(erb[0]), float(erb[-1]), c.high, dtype=torch.float64)
    return (1 - (erb - peaks[:, None]).abs() / (peaks[1] - peaks[0])).clamp_min(0).float()


class Neighbours(nn.Module):
    """Every band's channels with those of the band below and above: [B, C, T, F] -> [B, 3C, T, F]."""

    def __init__(self) -> None:
        super().__init__()
        self.unfold = nn.Unfold((1, KERNEL), padding=(0, KERNEL // 2))

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, time, bands = x.shape
        return self.unfold(x).reshape(batch, channels * KERNEL, time, bands)


class Gate(nn.Module):
    """Temporal recurrent attention: how loud each channel is, followed through time, opens or closes it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gru = nn.GRU(channels, 2 * channels, batch_first=True)
        self.linear = nn.Linear(2 * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        energy = x.square().mean(-1)  # [B, C, T]
        hidden, _ = self.gru(energy.transpose(1, 2))
        weight = torch.sigmoid(self.linear(hidden)).transpose(1, 2)
        return x * weight[..., None]


class ConvBlock(nn.Module):
    """A convolution over frequency, every other band, or its transpose; norm and activation."""

    def __init__(self, inputs: int, outputs: int, groups: int = 1, transposed: bool = False, last: bool = False):
        super().__init__()
        kind = nn.ConvTranspose2d if transposed else nn.Conv2d
        self.conv = kind(inputs, outputs, (1, 5), (1, 2), (0, 2), groups=groups)
        self.norm = nn.BatchNorm2d(outputs)
        self.act = nn.Tanh() if last else nn.PReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.conv(x)))


class TemporalBlock(nn.Module):
    """Half of the channels pass a dilated causal depthwise convolution and a gate; then all are shuffled."""

    def __init__(self, channels: int, dilation: int, transposed: bool = False) -> None:
        super().__init__()
        half, self.before, self.transposed = channels // 2, (KERNEL - 1) * dilation, transposed
        self.neighbours = Neighbours()
        self.enter = nn.Sequential(nn.Conv2d(half * KERNEL, channels, 1), nn.BatchNorm2d(channels), nn.PReLU())
        kind = nn.ConvTranspose2d if transposed else nn.Conv2d
        self.depth = kind(channels, channels, KERNEL, padding=(0, 1), groups=channels, dilation=(dilation, 1))
        self.norm = nn.Sequential(nn.BatchNorm2d(channels), nn.PReLU())
        self.leave = nn.Sequential(nn.Conv2d(channels, half, 1), nn.BatchNorm2d(half))
        self.gate = Gate(half)

    def forward(self, x: Tensor) -> Tensor:
        changed, kept = x.chunk(2, dim=1)
        hidden = self.causal(self.enter(self.neighbours(changed)))
        return shuffle(self.gate(self.leave(self.norm(hidden))), kept)

    def causal(self, x: Tensor) -> Tensor:
        if self.transposed:
            return self.depth(x)[:, :, : -self.before]
        return self.depth(F.pad(x, (0, 0, self.before, 0)))


def shuffle(a: Tensor, b: Tensor) -> Tensor:
    """Channels of both in turn."""
    batch, _, time, bands = a.shape
    return torch.stack([a, b], dim=2).reshape(batch, -1, time, bands)


class GroupedGRU(nn.Module):
    """Each group of channels has a GRU of its own. [N, steps, inputs] -> [N, steps, outputs]"""

    def __init__(self, inputs: int, outputs: int, groups: int, both_ways: bool = False) -> None:
        super().__init__()
        size = outputs // groups // (2 if both_ways else 1)
        self.grus = nn.ModuleList(
            nn.GRU(inputs // groups, size, batch_first=True, bidirectional=both_ways) for _ in range(groups)
        )

    def forward(self, x: Tensor) -> Tensor:
        parts = x.chunk(len(self.grus), dim=-1)
        return torch.cat([gru(part)[0] for gru, part in zip(self.grus, parts)], dim=-1)


class DualPath(nn.Module):
    """GRUs over frequency, frame by frame, both ways; then over time, band by band, forward."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.intra = GroupedGRU(c.channels, c.channels, c.groups, both_ways=True)
        self.intra_linear = nn.Linear(c.channels, c.channels)
        self.intra_norm = nn.LayerNorm((c.width, c.channels), eps=1e-8)
        self.inter = GroupedGRU(c.channels, c.channels, c.groups)
        self.inter_linear = nn.Linear(c.channels, c.channels)
        self.inter_norm = nn.LayerNorm((c.width, c.channels), eps=1e-8)

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, time, bands = x.shape
        x = x.permute(0, 2, 3, 1)  # [B, T, F, C]
        intra = self.intra_linear(self.intra(x.reshape(batch * time, bands, channels)))
        x = x + self.intra_norm(intra.reshape(batch, time, bands, channels))
        inter = self.inter_linear(self.inter(x.permute(0, 2, 1, 3).reshape(batch * bands, time, channels)))
        x = x + self.inter_norm(inter.reshape(batch, bands, time, channels).permute(0, 2, 1, 3))
        return x.permute(0, 3, 1, 2)


class Denoiser(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config, c = config, config.channels
        self.bands = Bands(config)
        self.neighbours = Neighbours()
        self.encoder = nn.ModuleList(
            [ConvBlock(3 * KERNEL, c), ConvBlock(c, c, config.groups)]
            + [TemporalBlock(c, dilation) for dilation in config.dilations]
        )
        self.paths = nn.ModuleList(DualPath(config) for _ in range(config.paths))
        self.decoder = nn.ModuleList(
            [TemporalBlock(c, dilation, transposed=True) for dilation in reversed(config.dilations)]
            + [ConvBlock(c, c, config.groups, transposed=True), ConvBlock(c, 2, transposed=True, last=True)]
        )

    def forward(self, spec: Tensor) -> Tensor:
        x, skips = self.neighbours(self.bands.to_bands(features(spec))), []
        for block in self.encoder:
            x = block(x)
            skips.append(x)
        for path in self.paths:
            x = path(x)
        for block in self.decoder:
            x = block(x + skips.pop())
        return apply_mask(self.bands.to_bins(x), spec)


def features(spec: Tensor) -> Tensor:
    """Magnitude, real and imaginary part as channels: [B, 3, T, 257]."""
    real, imag = spec[..., 0].transpose(1, 2), spec[..., 1].transpose(1, 2)
    return torch.stack([(real.square() + imag.square() + 1e-12).sqrt(), real, imag], dim=1)


def apply_mask(mask: Tensor, spec: Tensor) -> Tensor:
    """The complex product of mask [B, 2, T, 257] and spectrum [B, 257, T, 2]."""
    mask = mask.permute(0, 3, 2, 1)
    real = spec[..., 0] * mask[..., 0] - spec[..., 1] * mask[..., 1]
    imag = spec[..., 1] * mask[..., 0] + spec[..., 0] * mask[..., 1]
    return torch.stack([real, imag], dim=-1)


# ---- weights


def build(config: Config | None = None, seed: int = 0) -> Denoiser:
    """A denoiser with seeded random weights and statistics, such that activations stay near 1."""
    model = Denoiser(config or Config())
    generator = torch.Generator().manual_seed(seed)
    norms = {name for name, m in model.named_modules() if isinstance(m, (nn.BatchNorm2d, nn.LayerNorm))}
    with torch.no_grad():
        for name, value in sorted(model.state_dict().items()):
            module, _, kind = name.rpartition(".")
            if module.startswith("bands.") or not value.is_floating_point():
                continue
            if kind == "running_var" or (kind == "weight" and module in norms):
                value.uniform_(0.5, 1.5, generator=generator)
            elif value.dim() > 1:
                value.normal_(0.0, math.sqrt(1.5 / value[0].numel()), generator=generator)
            elif value.numel() > 1:  # biases and means; the one weight of a PReLU stays
                value.normal_(0.0, 0.1, generator=generator)
    return model.eval()

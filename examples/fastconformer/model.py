"""The batch FastConformer encoder of cache-aware recognisers, in its own words.

    audio_signal [B, mels, T]   log-mel frames            outputs         [B, width, T']   tokens, T' = (T + 14) // 8
    length       [B]            how many are real         encoded_lengths [B]

Nothing here knows about streaming: no caches, no chunks in or out. What bounds the context is the attention mask
(chunks of right + 1 tokens, each sees itself and left // (right + 1) chunks before it) and causal padding. The names
of the parameters are those of the NeMo toolkit, so its checkpoints load: `encoder.load_state_dict(nemo.state_dict())`.
"""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MASKED = -10000.0  # scores nobody sees; also the base of the sinusoids' periods
STRIDE, KERNEL = 2, 3  # of the subsampling
BEFORE, AFTER = KERNEL - 1, STRIDE - 1  # its padding, in time and in frequency


@dataclass(frozen=True)
class Config:
    """The published geometry (about 609 million parameters); `SIZES` has smaller ones."""

    mels: int = 128
    channels: int = 256  # of the subsampling
    width: int = 1024
    layers: int = 24
    heads: int = 8
    expansion: int = 4  # of the feed-forward layers
    kernel: int = 9  # of the causal depthwise convolution
    context: tuple[int, int] = (70, 13)  # tokens seen before and after, in chunks of after + 1
    norm: str = "layer_norm"  # of the convolution: or "batch_norm"
    bias: bool = False
    scaled: bool = False  # tokens are multiplied by sqrt(width) before the first layer
    positions: int = 5000  # tokens the table of relative positions reaches: the longest batch input

    @property
    def chunk(self) -> int:
        """Tokens that see each other."""
        return self.context[1] + 1

    @property
    def left_chunks(self) -> int:
        return self.context[0] // self.chunk

    @property
    def bands(self) -> int:
        """What three strides leave of the mel bands."""
        bands = self.mels
        for _ in range(3):
            bands = shrunk(bands)
        return bands


SIZES = {
    "tiny": Config(mels=16, channels=8, width=32, layers=2, heads=4, positions=1024),
    "small": Config(mels=80, channels=64, width=256, layers=6, heads=4),
    "full": Config(),
}


def shrunk(size: Any) -> Any:
    """The output size of one strided convolution, of an int or a tensor of floats (floored, as floats)."""
    return (size + BEFORE + AFTER - KERNEL) // STRIDE + 1


def within(lengths: Tensor, size: int) -> Tensor:
    """[B, size]: which frames are real."""
    return torch.arange(size, device=lengths.device).expand(lengths.size(0), size) < lengths.unsqueeze(1)


class PaddedConv2d(nn.Conv2d):
    """Time and frequency are both padded 2 before and 1 after: output frame k sees inputs 2k - 2 ... 2k."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, (BEFORE, AFTER, BEFORE, AFTER)))


class Subsampling(nn.Module):
    """One full and two depthwise-separable convolutions of stride 2; frames past the length are zeroed all the way."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        stages: list[nn.Module] = [PaddedConv2d(1, c.channels, KERNEL, STRIDE), nn.ReLU()]
        for _ in range(2):
            stages.append(PaddedConv2d(c.channels, c.channels, KERNEL, STRIDE, groups=c.channels))
            stages += [nn.Conv2d(c.channels, c.channels, 1), nn.ReLU()]
        self.conv = nn.ModuleList(stages)
        self.out = nn.Linear(c.channels * c.bands, c.width)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """x [B, T, mels] -> tokens [B, T', width] and their number."""
        x, lengths = x.unsqueeze(1), lengths.float()
        mask = self._mask(x, lengths)
        for stage in self.conv:
            x = stage(self._real(x, mask))
            if isinstance(stage, PaddedConv2d):
                lengths = shrunk(lengths)
                mask = self._mask(x, lengths)
        x = self._real(x, mask).transpose(1, 2)
        return self.out(x.reshape(x.size(0), x.size(1), -1)), lengths.long()

    @staticmethod
    def _mask(x: Tensor, lengths: Tensor) -> Tensor:
        """Ones and zeros [B, T, bands]."""
        batch, _, time, bands = x.shape
        return within(lengths.long(), time).unsqueeze(-1).expand(batch, time, bands).to(x.dtype)

    @staticmethod
    def _real(x: Tensor, mask: Tensor) -> Tensor:
        return x * mask.unsqueeze(1).expand(x.shape)


class RelativePositions(nn.Module):
    """Sinusoids of the distances positions - 1 ... 1 - positions, cut to the 2T - 1 that T tokens need."""

    pe: Tensor

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.width, self.positions = c.width, c.positions
        self.register_buffer("pe", torch.empty(1, 2 * c.positions - 1, c.width), persistent=False)

    def fill(self) -> None:
        """Sine and cosine alternate."""
        distance = torch.arange(self.positions - 1, -self.positions, -1, dtype=torch.float32)
        rate = torch.exp(torch.arange(0, self.width, 2, dtype=torch.float32) * (-math.log(-MASKED) / self.width))
        angle = distance.unsqueeze(1) * rate
        self.pe.copy_(torch.stack([angle.sin(), angle.cos()], -1).flatten(1).unsqueeze(0))

    def forward(self, tokens: int) -> Tensor:
        middle = self.pe.size(1) // 2
        return self.pe[:, middle - tokens + 1 : middle + tokens]


class Attention(nn.Module):
    """Transformer-XL: content and position scores, each with its own bias on the queries."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.heads, self.size = c.heads, c.width // c.heads
        self.linear_q = nn.Linear(c.width, c.width, c.bias)
        self.linear_k = nn.Linear(c.width, c.width, c.bias)
        self.linear_v = nn.Linear(c.width, c.width, c.bias)
        self.linear_out = nn.Linear(c.width, c.width, c.bias)
        self.linear_pos = nn.Linear(c.width, c.width, bias=False)
        self.pos_bias_u = nn.Parameter(torch.empty(c.heads, self.size))
        self.pos_bias_v = nn.Parameter(torch.empty(c.heads, self.size))

    def forward(self, x: Tensor, hidden: Tensor, table: Tensor) -> Tensor:
        """x [B, T, width], hidden [B, T, T] (True: not seen), table [1, 2T - 1, width]."""
        batch = x.size(0)
        q = self._split(self.linear_q(x))
        k = self._split(self.linear_k(x)).transpose(1, 2)
        v = self._split(self.linear_v(x)).transpose(1, 2)
        p = self._split(self.linear_pos(table)).transpose(1, 2)
        by_position = self._skew((q + self.pos_bias_v).transpose(1, 2) @ p.transpose(-2, -1))
        by_content = (q + self.pos_bias_u).transpose(1, 2) @ k.transpose(-2, -1)
        scores = (by_content + by_position[:, :, :, : by_content.size(-1)]) / math.sqrt(self.size)
        hidden = hidden.unsqueeze(1)
        weights = scores.masked_fill(hidden, MASKED).softmax(-1).masked_fill(hidden, 0.0)
        return self.linear_out((weights @ v).transpose(1, 2).reshape(batch, -1, self.heads * self.size))

    def _split(self, x: Tensor) -> Tensor:
        return x.view(x.size(0), -1, self.heads, self.size)

    @staticmethod
    def _skew(raw: Tensor) -> Tensor:
        """Column r of row i is the score at distance T - 1 - r: moves it to column r - (T - 1) + i."""
        batch, heads, rows, columns = raw.shape
        tall = F.pad(raw, (1, 0)).view(batch, heads, -1, rows)
        return tall[:, :, 1:].view(batch, heads, rows, columns)


class FeedForward(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.linear1 = nn.Linear(c.width, c.width * c.expansion, c.bias)
        self.linear2 = nn.Linear(c.width * c.expansion, c.width, c.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear2(F.silu(self.linear1(x)))


class Convolution(nn.Module):
    """Gated pointwise, causal depthwise, norm, swish, pointwise."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.before = c.kernel - 1
        self.pointwise_conv1 = nn.Conv1d(c.width, 2 * c.width, 1, bias=c.bias)
        self.depthwise_conv = nn.Conv1d(c.width, c.width, c.kernel, groups=c.width, bias=c.bias)
        norms = {"layer_norm": nn.LayerNorm, "batch_norm": nn.BatchNorm1d}
        self.batch_norm = norms[c.norm](c.width)  # called so in checkpoints, whichever it is
        self.pointwise_conv2 = nn.Conv1d(c.width, c.width, 1, bias=c.bias)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        """x [B, T, width], padding [B, T] (True: not real)."""
        x = F.glu(self.pointwise_conv1(x.transpose(1, 2)), dim=1)
        x = x.masked_fill(padding.unsqueeze(1), 0.0)
        x = self.depthwise_conv(F.pad(x, (self.before, 0)))
        if isinstance(self.batch_norm, nn.LayerNorm):
            x = self.batch_norm(x.transpose(1, 2)).transpose(1, 2)
        else:
            x = self.batch_norm(x)
        return self.pointwise_conv2(F.silu(x)).transpose(1, 2)


class Layer(nn.Module):
    """Half a feed-forward, attention, convolution, half a feed-forward; a norm before each and one after all."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.norm_feed_forward1, self.feed_forward1 = nn.LayerNorm(c.width), FeedForward(c)
        self.norm_self_att, self.self_attn = nn.LayerNorm(c.width), Attention(c)
        self.norm_conv, self.conv = nn.LayerNorm(c.width), Convolution(c)
        self.norm_feed_forward2, self.feed_forward2 = nn.LayerNorm(c.width), FeedForward(c)
        self.norm_out = nn.LayerNorm(c.width)

    def forward(self, x: Tensor, hidden: Tensor, table: Tensor, padding: Tensor) -> Tensor:
        x = x + 0.5 * self.feed_forward1(self.norm_feed_forward1(x))
        x = x + self.self_attn(self.norm_self_att(x), hidden, table)
        x = x + self.conv(self.norm_conv(x), padding)
        x = x + 0.5 * self.feed_forward2(self.norm_feed_forward2(x))
        return self.norm_out(x)


class Encoder(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.pre_encode = Subsampling(config)
        self.pos_enc = RelativePositions(config)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))

    def forward(self, audio_signal: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        x, tokens = self.pre_encode(audio_signal.transpose(1, 2), length)
        if self.config.scaled:
            x = x * math.sqrt(self.config.width)
        table = self.pos_enc(x.size(1))
        hidden, padding = self._masks(x, tokens)
        for layer in self.layers:
            x = layer(x, hidden, table, padding)
        return x.transpose(1, 2), tokens

    def _masks(self, x: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Which tokens are hidden from which [B, T, T], and which are no tokens at all [B, T]."""
        size = x.size(1)
        chunk = torch.div(torch.arange(size, device=x.device), self.config.chunk, rounding_mode="trunc")
        back = chunk.unsqueeze(1) - chunk.unsqueeze(0)
        seen = torch.ones(1, size, size, dtype=torch.bool, device=x.device)
        seen = seen & ((back <= self.config.left_chunks) & (back >= 0)).unsqueeze(0)
        real = within(tokens, size)
        both = real.unsqueeze(1).repeat(1, size, 1)
        both = both & both.transpose(1, 2)
        return ~(both & seen), ~real


# ---- weights


def build(config: Config, seed: int = 0) -> Encoder:
    """An encoder with seeded random weights, scaled so that activations stay near 1 through any number of layers."""
    with torch.device("meta"):
        encoder = Encoder(config)
    encoder.to_empty(device="cpu")
    encoder.pos_enc.fill()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in _weights(encoder):
            if value.is_floating_point():
                mean, spread = _spread(name, value)
                value.normal_(0.0, spread, generator=generator).add_(mean)
                if name.endswith("running_var"):
                    value.abs_()
            else:
                value.zero_()
    return encoder.eval()


def _weights(encoder: Encoder) -> Iterator[tuple[str, Tensor]]:
    """Parameters and running statistics, in a fixed order."""
    yield from sorted(encoder.state_dict().items())


def _spread(name: str, value: Tensor) -> tuple[float, float]:
    """Mean and standard deviation: 1 / sqrt(fan in), twice the variance where a ReLU follows."""
    if value.dim() > 1 and "pos_bias" not in name:
        gain = 2.0 if name.startswith("pre_encode.conv") else 1.0
        return 0.0, math.sqrt(gain / value[0].numel())
    if "norm" in name and name.endswith(("weight", "running_var")):
        return 1.0, 0.1
    return 0.0, 0.3 if "pos_bias" in name else 0.1

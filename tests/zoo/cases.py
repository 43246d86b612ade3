"""The zoo: small models with one symbolic time axis `S`, one idea each.

    case = CASES["wavenet_causal"]
    export(case, "w.onnx", "legacy")     # or "dynamo"
    y = case.reference(case.input())     # torch, the whole sequence at once

Every case is self-contained: `case.module()` builds a seeded torch module that takes one float32 tensor of
shape `case.shape` (ints and the string "S"). This is the only file of the zoo that imports torch.
"""

# A torch module is Any where torch is not typed, and so is the result of calling one.
# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import onnx
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo.manifest import Exporter, Family, mask_inputs, standard_input

Builder = Callable[[], nn.Module]
PairFunction = Callable[[Tensor, Tensor], Tensor]  # of query positions [t, 1] and key positions [1, t]


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    build: Builder
    shape: tuple[int | str, ...]
    pulse: int
    length: int  # whole-sequence length used for checks (multiple of pulse)
    streamable: bool  # does an exact bounded- or constant-state stream exist?
    note: str
    family: Family
    opset: int
    masks: Mapping[str, str] = dataclasses.field(default_factory=dict)  # inputs [1, S] that are all ones, or zeros

    @property
    def axis(self) -> int:
        return self.shape.index("S")

    def module(self) -> nn.Module:
        torch.manual_seed(0)
        return self.build().eval()

    def input(self, length: int | None = None, seed: int = 1) -> npt.NDArray[np.float32]:
        return standard_input(self.shape, length or self.length, seed)

    def reference(self, x: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
        given = [x, *mask_inputs(self.masks, x.shape[self.axis]).values()]
        with torch.no_grad():
            return cast("npt.NDArray[Any]", self.module()(*map(torch.from_numpy, given)).numpy())


CASES: dict[str, Case] = {}


def case(
    shape: Sequence[int | str],
    pulse: int = 8,
    length: int | None = None,
    streamable: bool = True,
    note: str = "",
    family: Family = "foundation",
    opset: int = 17,
    masks: Mapping[str, str] | None = None,
) -> Callable[[Builder], Builder]:
    def register(build: Builder) -> Builder:
        name = build.__name__
        whole = length or pulse * 24
        CASES[name] = Case(name, build, tuple(shape), pulse, whole, streamable, note, family, opset, masks or {})
        return build

    return register


def export(c: Case, path: str | Path, exporter: Exporter = "legacy") -> None:
    module = c.module()
    given = tuple(map(torch.from_numpy, (c.input(), *mask_inputs(c.masks, c.length).values())))
    names, size = ["x", *c.masks], torch.export.Dim("S", min=2, max=1 << 20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter == "legacy":
            torch.onnx.export(
                module,
                given,
                str(path),
                dynamo=False,
                opset_version=c.opset,
                input_names=names,
                output_names=["y"],
                dynamic_axes={"x": {c.axis: "S"}, **{name: {1: "S"} for name in c.masks}},
            )
        else:
            torch.onnx.export(
                module,
                given,
                str(path),
                dynamo=True,
                external_data=False,
                input_names=names,
                output_names=["y"],
                verbose=False,
                dynamic_shapes=({c.axis: size}, *({1: size} for _ in c.masks)),
            )
            # Some of the inferred shapes are baked to the length of the example.
            proto = onnx.load(path)
            del proto.graph.value_info[:]
            onnx.save(proto, path)


class Fn(nn.Module):
    """A module from a function of (itself, x) and optional submodules or parameters."""

    def __init__(self, fn: Callable[[Any, Tensor], Tensor], **subs: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.fn = fn
        for k, v in subs.items():
            setattr(self, k, v)

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(self, x)


# ---------------------------------------------------------------- convolutions
class CausalConv(nn.Module):
    def __init__(self, i: int, o: int, k: int, d: int = 1, s: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.left = (k - 1) * d
        self.conv = nn.Conv1d(i, o, k, dilation=d, stride=s, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x, (self.left, 0)))


@case([1, 32, "S"])
def conv_causal() -> nn.Module:
    return nn.Sequential(*[m for i in range(4) for m in (CausalConv(32, 32, 5), nn.ReLU())])


@case([1, 32, "S"])
def conv_valid() -> nn.Module:
    return nn.Sequential(nn.Conv1d(32, 64, 5), nn.ReLU(), nn.Conv1d(64, 32, 3))


@case([1, 32, "S"])
def conv_same() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.Conv1d(64, 64, 5, padding=2),
        nn.ReLU(),
        nn.Conv1d(64, 32, 3, padding=1),
    )


@case([1, 32, "S"], pulse=16)
def conv_same_stride() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(32, 64, 5, padding=2, stride=2),
        nn.ReLU(),
        nn.Conv1d(64, 64, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.Conv1d(64, 64, 3, padding=1),
    )


@case([1, 32, "S"], pulse=6, note="pulse 6 is not a multiple of the total stride 4")
def conv_stride_misaligned_pulse() -> nn.Module:
    return conv_same_stride()


@case([1, 1, "S", 40], pulse=16)
def conv2d_subsample() -> nn.Module:
    return Fn(
        lambda s, x: s.proj(s.c(x).permute(0, 2, 1, 3).flatten(2)),
        c=nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, stride=2, padding=1),
            nn.ReLU(),
        ),
        proj=nn.Linear(160, 64),
    )


class WaveBlock(nn.Module):
    def __init__(self, c: int, d: int, causal: bool = True) -> None:
        super().__init__()
        self.pads = (2 * d, 0) if causal else (d, d)
        self.f, self.g = nn.Conv1d(c, c, 3, dilation=d), nn.Conv1d(c, c, 3, dilation=d)
        self.res, self.skip = nn.Conv1d(c, c, 1), nn.Conv1d(c, c, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        p = F.pad(x, self.pads)
        z = torch.tanh(self.f(p)) * torch.sigmoid(self.g(p))
        return x + self.res(z), self.skip(z)


class WaveNet(nn.Module):
    def __init__(self, c: int = 24, layers: int = 6, causal: bool = True) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(WaveBlock(c, 2**i, causal) for i in range(layers))
        self.out = nn.Conv1d(c, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        total: Any = 0
        for b in self.blocks:
            x, s = b(x)
            total = total + s
        return self.out(F.relu(total))


@case([1, 24, "S"], length=400)
def wavenet_causal() -> nn.Module:
    return WaveNet()


@case([1, 24, "S"], length=400)
def wavenet_noncausal() -> nn.Module:
    return WaveNet(causal=False)


@case([1, 24, "S"], length=400, note="hey_snips layout: valid convs, residual sliced to match")
def wavenet_valid() -> nn.Module:
    class M(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cs = nn.ModuleList(nn.Conv1d(24, 24, 3, dilation=2**i) for i in range(4))

        def forward(self, x: Tensor) -> Tensor:
            for i, c in enumerate(self.cs):
                x = torch.tanh(c(x)) + x[:, :, 2 * 2**i :]
            return x

    return M()


@case([1, "S", 32], note="conformer convolution module: GLU, depthwise, batch norm, swish, residual")
def conformer_conv() -> nn.Module:
    class M(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ln, self.p1 = nn.LayerNorm(32), nn.Conv1d(32, 64, 1)
            self.dw, self.bn = nn.Conv1d(32, 32, 9, padding=4, groups=32), nn.BatchNorm1d(32)
            self.p2 = nn.Conv1d(32, 32, 1)

        def forward(self, x: Tensor) -> Tensor:
            z = F.glu(self.p1(self.ln(x).transpose(1, 2)), dim=1)
            return x + self.p2(F.silu(self.bn(self.dw(z)))).transpose(1, 2)

    return M()


@case([1, 16, "S"], pulse=8, note="U-Net: stride-2 down, transposed up, skip concat on channels")
def unet() -> nn.Module:
    class M(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.i, self.d1 = nn.Conv1d(16, 16, 3, padding=1), nn.Conv1d(16, 24, 4, stride=2, padding=1)
            self.d2 = nn.Conv1d(24, 32, 4, stride=2, padding=1)
            self.u2, self.u1 = nn.ConvTranspose1d(32, 24, 4, 2, 1), nn.ConvTranspose1d(48, 16, 4, 2, 1)
            self.o = nn.Conv1d(32, 4, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            a = F.relu(self.i(x))
            b = F.relu(self.d1(a))
            c = F.relu(self.d2(b))
            b2 = torch.cat([F.relu(self.u2(c)), b], 1)
            return self.o(torch.cat([F.relu(self.u1(b2)), a], 1))

    return M()


# --------------------------------------------------------------------- pooling
@case([1, 32, "S"])
def maxpool_same() -> nn.Module:
    return nn.Sequential(nn.Conv1d(32, 32, 3, padding=1), nn.MaxPool1d(3, 1, 1))


@case([1, 32, "S"])
def maxpool_stride() -> nn.Module:
    return nn.Sequential(nn.MaxPool1d(2), nn.Conv1d(32, 32, 3, padding=1))


@case([1, 32, "S"])
def avgpool_stride() -> nn.Module:
    return nn.Sequential(nn.AvgPool1d(4), nn.Conv1d(32, 32, 1))


@case([1, 32, "S"])
def avgpool_same() -> nn.Module:
    return nn.AvgPool1d(3, 1, 1)


@case([1, 32, "S"], note="edge windows divided by the count of real samples")
def avgpool_same_nopadcount() -> nn.Module:
    return nn.AvgPool1d(3, 1, 1, count_include_pad=False)


@case([1, 32, "S"], note="MaxPool ceil_mode: a partial last window")
def maxpool_ceil() -> nn.Module:
    return nn.MaxPool1d(3, 2, ceil_mode=True)


# ------------------------------------------------------------------ upsampling
@case([1, 16, "S"])
def convtranspose() -> nn.Module:
    return nn.ConvTranspose1d(16, 16, 4, 4)


@case([1, 16, "S"], note="kernel 8 > stride 4, padding 2, bias; then a conv (vocoder block)")
def convtranspose_overlap() -> nn.Module:
    return nn.Sequential(nn.ConvTranspose1d(16, 16, 8, 4, 2), nn.LeakyReLU(), nn.Conv1d(16, 8, 3, padding=1))


@case([1, 16, "S"])
def upsample_nearest() -> nn.Module:
    return nn.Sequential(nn.Upsample(scale_factor=2, mode="nearest"), nn.Conv1d(16, 8, 3, padding=1))


@case([1, 16, "S"], note="half-pixel linear: each output reads a neighbour of the last and next frame")
def upsample_linear() -> nn.Module:
    return nn.Upsample(scale_factor=2, mode="linear", align_corners=False)


@case([1, 16, "S"], note="repeat_interleave on time")
def repeat_interleave() -> nn.Module:
    return Fn(lambda s, x: torch.repeat_interleave(x, 2, dim=2))


@case([1, "S", 16], note="pixel shuffle in time: [S,2C] -> [2S,C] by reshape")
def pixel_shuffle() -> nn.Module:
    return Fn(lambda s, x: s.l(x).reshape(1, -1, 16), l=nn.Linear(16, 32))


# ------------------------------------------------------------------- recurrent
@case([1, "S", 32], family="recurrence")
def lstm() -> nn.Module:
    return Fn(lambda s, x: s.r(x)[0], r=nn.LSTM(32, 64, batch_first=True))


@case([1, "S", 32], family="recurrence")
def lstm_2layer() -> nn.Module:
    return Fn(lambda s, x: s.r(x)[0], r=nn.LSTM(32, 64, num_layers=2, batch_first=True))


@case([1, "S", 32], family="recurrence")
def gru() -> nn.Module:
    return Fn(lambda s, x: s.r(x)[0], r=nn.GRU(32, 64, batch_first=True))


@case([1, "S", 32], streamable=False, note="reverse direction reads the whole future", family="recurrence")
def lstm_bidirectional() -> nn.Module:
    return Fn(lambda s, x: s.r(x)[0], r=nn.LSTM(32, 64, batch_first=True, bidirectional=True))


@case(
    [1, 32, "S"],
    note="look-ahead conv, then LSTM: the state must not see the warm-up frames",
    family="recurrence",
)
def conv_lstm() -> nn.Module:
    return Fn(
        lambda s, x: s.r(s.c(x).transpose(1, 2))[0],
        c=nn.Conv1d(32, 32, 5, padding=2),
        r=nn.LSTM(32, 32, batch_first=True),
    )


@case([1, 32, "S"], note="look-ahead conv, then GRU and a residual", family="recurrence")
def conv_gru_residual() -> nn.Module:
    class M(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c, self.r = nn.Conv1d(32, 32, 5, padding=2), nn.GRU(32, 32, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            z = F.relu(self.c(x))
            return x + self.r(z.transpose(1, 2))[0].transpose(1, 2)

    return M()


@case(
    ["S", 8, 16],
    note="time is the batch axis of a GRU over axis 1 (dual-path, intra-frame)",
    family="recurrence",
)
def gru_intra_frame() -> nn.Module:
    return Fn(lambda s, x: s.r(x)[0], r=nn.GRU(16, 16, batch_first=True, bidirectional=True))


# --------------------------------------------------- running sums and averages
@case([1, 16, "S"], family="recurrence")
def cumsum() -> nn.Module:
    return Fn(lambda s, x: torch.cumsum(x, 2))


@case([1, 16, "S"], note="cumsum / (1..S): running mean", family="recurrence")
def running_mean() -> nn.Module:
    return Fn(lambda s, x: torch.cumsum(x, 2) / torch.arange(1, x.shape[2] + 1, dtype=x.dtype))


@case([1, 16, "S"], note="cumulative layer norm (Conv-TasNet cLN)", family="recurrence")
def cumulative_layernorm() -> nn.Module:
    def f(s: Any, x: Tensor) -> Tensor:
        n = torch.arange(1, x.shape[2] + 1, dtype=x.dtype) * x.shape[1]
        m = torch.cumsum(x.sum(1, keepdim=True), 2) / n
        q = torch.cumsum((x * x).sum(1, keepdim=True), 2) / n
        return (x - m) / torch.sqrt(q - m * m + 1e-5)

    return Fn(f)


@case([1, 16, "S"], streamable=False, note="mean over all time (squeeze-excite): not causal")
def global_mean() -> nn.Module:
    return Fn(lambda s, x: x * torch.sigmoid(x.mean(2, keepdim=True)))


# --------------------------------------------------------------- normalisation
@case([1, "S", 32])
def layernorm() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32), nn.GELU())


@case([1, 32, "S"])
def batchnorm() -> nn.Module:
    m = nn.Sequential(nn.Conv1d(32, 32, 3, padding=1), nn.BatchNorm1d(32), nn.ReLU())
    norm: Any = m[1]
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    return m


@case([1, "S", 32], note="RMS norm, written out")
def rmsnorm() -> nn.Module:
    return Fn(lambda s, x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


# -------------------------------------------------------- slices, pads, joins
@case([1, 16, "S"], note="x[..., ::2]")
def slice_stride() -> nn.Module:
    return Fn(lambda s, x: x[:, :, ::2])


@case([1, 16, "S"], note="x[..., 1:] - x[..., :-1]")
def difference() -> nn.Module:
    return Fn(lambda s, x: x[:, :, 1:] - x[:, :, :-1])


@case([1, 16, "S"], note="3-frame context stack on channels, zero padded: [x[t-1], x[t], x[t+1]]")
def context_stack() -> nn.Module:
    def f(s: Any, x: Tensor) -> Tensor:
        p = F.pad(x, (1, 1))
        return torch.cat([p[:, :, :-2], x, p[:, :, 2:]], 1)

    return Fn(f)


@case([1, "S", 16], note="4-frame stacking by reshape: [S,16] -> [S/4,64]")
def frame_stack() -> nn.Module:
    return Fn(lambda s, x: s.l(x.reshape(1, -1, 64)), l=nn.Linear(64, 32))


@case([1, 16, "S"], note="prepend 3 learned frames on the time axis")
def concat_time_const() -> nn.Module:
    return Fn(lambda s, x: torch.cat([s.p, x], 2), p=nn.Parameter(torch.randn(1, 16, 3)))


@case([1, 16, "S"], note="x ++ x[..., :2] on time (joins the stream with an early part of itself)")
def concat_time_self() -> nn.Module:
    return Fn(lambda s, x: torch.cat([x[:, :, :2], x], 2))


@case([1, 16, "S"], streamable=False, note="concat(x, x) on time")
def concat_time_double() -> nn.Module:
    return Fn(lambda s, x: torch.cat([x, x], 2))


@case([1, 16, "S"])
def pad_edge() -> nn.Module:
    return nn.Sequential(nn.ReplicationPad1d(2), nn.Conv1d(16, 16, 5))


@case([1, 16, "S"])
def pad_reflect() -> nn.Module:
    return nn.Sequential(nn.ReflectionPad1d(2), nn.Conv1d(16, 16, 5))


@case([1, 16, "S"], streamable=False)
def flip() -> nn.Module:
    return Fn(lambda s, x: torch.flip(x, [2]))


@case([1, 16, "S"], note="x.unfold(2, 8, 4): overlapping frames")
def unfold() -> nn.Module:
    return Fn(lambda s, x: x.unfold(2, 8, 4))


@case([1, "S", 16], note="add a learned absolute position table sliced to [:S]")
def posenc_table() -> nn.Module:
    return Fn(lambda s, x: x + s.t[:, : x.shape[1]], t=nn.Parameter(torch.randn(1, 4096, 16)))


@case([1, "S", 16], note="add sin/cos of arange(S)")
def posenc_arange() -> nn.Module:
    def f(s: Any, x: Tensor) -> Tensor:
        p = torch.arange(x.shape[1], dtype=x.dtype)[:, None]
        w = torch.exp(torch.arange(0, 16, 2, dtype=x.dtype) * (-math.log(10000.0) / 16))
        return x + torch.cat([torch.sin(p * w), torch.cos(p * w)], 1)

    return Fn(f)


@case([1, 16, "S"], note="conv with look-ahead, then arange positions: delay and position must agree")
def conv_then_posenc() -> nn.Module:
    def f(s: Any, x: Tensor) -> Tensor:
        z = s.c(x)
        return z + 0.01 * torch.arange(z.shape[2], dtype=x.dtype)

    return Fn(f, c=nn.Conv1d(16, 16, 5, padding=2))


# ------------------------------------------------------------------- front end
@case([1, "S"], pulse=160, length=160 * 30, note="torch.stft, center=False, power, mel, log", family="signal")
def stft_mel() -> nn.Module:
    class M(nn.Module):
        win: Tensor
        mel: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("win", torch.hann_window(400))
            self.register_buffer("mel", torch.rand(201, 40))

        def forward(self, x: Tensor) -> Tensor:
            s = torch.stft(x, 400, 160, 400, self.win, center=False, return_complex=False)
            return torch.log(torch.matmul(s.pow(2).sum(-1).transpose(1, 2), self.mel) + 1e-6)

    return M()


@case(
    [1, "S"],
    pulse=160,
    length=160 * 30,
    note="torch.stft with center=True: reflect padding at both ends",
    family="signal",
)
def stft_mel_center() -> nn.Module:
    m = stft_mel()

    def f(s: Any, x: Tensor) -> Tensor:
        z = torch.stft(x, 400, 160, 400, s.win, center=True, return_complex=False)
        return torch.log(torch.matmul(z.pow(2).sum(-1).transpose(1, 2), s.mel) + 1e-6)

    m.forward = lambda x: f(m, x)
    return m


@case([1, 1, "S"], pulse=160, length=160 * 30, note="STFT written as a strided conv with the DFT basis")
def stft_conv_mel() -> nn.Module:
    class M(nn.Module):
        k: Tensor
        mel: Tensor

        def __init__(self) -> None:
            super().__init__()
            n = torch.arange(400)[None] * torch.arange(201)[:, None] * (2 * math.pi / 400)
            w = torch.hann_window(400)
            self.register_buffer("k", torch.cat([torch.cos(n) * w, -torch.sin(n) * w])[:, None])
            self.register_buffer("mel", torch.rand(40, 201))

        def forward(self, x: Tensor) -> Tensor:
            s = F.conv1d(x, self.k, stride=160)
            p = s[:, :201] ** 2 + s[:, 201:] ** 2
            return torch.log(torch.matmul(self.mel, p) + 1e-6)

    return M()


# ------------------------------------------------------------------- attention
class Attention(nn.Module):
    """Multi-head self-attention [1,S,D] with a mask made of positions inside the graph."""

    def __init__(
        self,
        mask: PairFunction,
        d: int = 32,
        h: int = 4,
        bias: PairFunction | None = None,
        how: str = "where",
    ) -> None:
        super().__init__()
        self.h, self.mask, self.bias, self.how = h, mask, bias, how
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(x).reshape(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4).unbind(0)
        p = torch.arange(t)
        i, j = p[:, None], p[None, :]
        m = self.mask(i, j)
        if self.how == "sdpa":
            z = F.scaled_dot_product_attention(q, k, v, attn_mask=m)
        else:
            s = q @ k.transpose(-1, -2) / math.sqrt(d // self.h)
            if self.bias is not None:
                s = s + self.bias(i, j)
            if self.how == "where":
                s = torch.where(m, s, torch.full_like(s, float("-inf")))
            elif self.how == "masked_fill":
                s = s.masked_fill(~m, float("-inf"))
            elif self.how == "additive":
                s = s + torch.where(m, 0.0, -1e9)
            z = torch.softmax(s, -1) @ v
        return self.o(z.transpose(1, 2).reshape(b, t, d))


def band(chunk: int, left: int, right: int = 0) -> PairFunction:
    def m(i: Tensor, j: Tensor) -> Tensor:
        dlt = torch.div(i, chunk, rounding_mode="floor") - torch.div(j, chunk, rounding_mode="floor")
        return (dlt >= -right) & (dlt <= left)

    return m


def window(left: int, right: int = 0) -> PairFunction:
    return lambda i, j: (i - j <= left) & (i - j >= -right)


@case([1, "S", 32], pulse=4, length=64, note="chunk 4, no left context", family="attention")
def attn_block_diag() -> nn.Module:
    return Attention(band(4, 0))


@case([1, "S", 32], pulse=4, length=64, note="chunk 4, 2 left chunks, where(-inf)", family="attention")
def attn_chunk_left2() -> nn.Module:
    return Attention(band(4, 2))


@case(
    [1, "S", 32],
    pulse=8,
    length=64,
    note="chunk 4, 2 left chunks, pulse is two chunks",
    family="attention",
)
def attn_chunk_left2_pulse8() -> nn.Module:
    return Attention(band(4, 2))


@case([1, "S", 32], pulse=4, length=64, note="same, masked_fill(~m)", family="attention")
def attn_chunk_maskedfill() -> nn.Module:
    return Attention(band(4, 2), how="masked_fill")


@case([1, "S", 32], pulse=4, length=64, note="same, additive -1e9 mask", family="attention")
def attn_chunk_additive() -> nn.Module:
    return Attention(band(4, 2), how="additive")


@case([1, "S", 32], pulse=4, length=64, note="same, F.scaled_dot_product_attention", family="attention")
def attn_chunk_sdpa() -> nn.Module:
    return Attention(band(4, 2), how="sdpa")


@case(
    [1, "S", 32],
    pulse=4,
    length=64,
    note="chunk 4, 1 left and 1 right chunk (look-ahead)",
    family="attention",
)
def attn_chunk_lookahead() -> nn.Module:
    return Attention(band(4, 1, 1))


@case([1, "S", 32], pulse=4, length=64, note="token window: 0 <= i-j <= 11", family="attention")
def attn_sliding_causal() -> nn.Module:
    return Attention(window(11))


@case([1, "S", 32], pulse=4, length=64, note="token window: -3 <= i-j <= 8", family="attention")
def attn_sliding_lookahead() -> nn.Module:
    return Attention(window(8, 3))


@case(
    [1, "S", 32],
    pulse=4,
    length=64,
    note="causal in chunk: j <= i and same or previous chunk",
    family="attention",
)
def attn_chunk_causal() -> nn.Module:
    return Attention(lambda i, j: band(4, 1)(i, j) & (j <= i))


@case(
    [1, "S", 32],
    pulse=4,
    length=64,
    note="full causal attention: state grows with time",
    family="attention",
)
def attn_full_causal() -> nn.Module:
    return Attention(lambda i, j: j <= i)


@case([1, "S", 32], pulse=4, length=64, streamable=False, note="no mask at all", family="attention")
def attn_full() -> nn.Module:
    return Attention(lambda i, j: (i - j) * 0 == 0)


@case([1, "S", 32], pulse=4, length=64, note="chunk mask and ALiBi bias -0.125*(i-j)", family="attention")
def attn_chunk_alibi() -> nn.Module:
    return Attention(band(4, 2), bias=lambda i, j: -0.125 * (i - j).to(torch.float32))


@case([1, "S", 32], pulse=4, length=64, note="sliding causal window and ALiBi bias", family="attention")
def attn_sliding_alibi() -> nn.Module:
    return Attention(window(11), bias=lambda i, j: -0.125 * (i - j).to(torch.float32))


@case([1, "S", 32], pulse=4, length=64, note="chunk mask, rotary embeddings from arange", family="attention")
def attn_chunk_rope() -> nn.Module:
    class M(Attention):
        def forward(self, x: Tensor) -> Tensor:
            b, t, d = x.shape
            q, k, v = self.qkv(x).reshape(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4).unbind(0)
            p = torch.arange(t)
            a = p[:, None].to(torch.float32) * torch.tensor([1.0, 0.1, 0.01, 0.001])
            c, s_ = torch.cos(a), torch.sin(a)

            def rot(z: Tensor) -> Tensor:
                z1, z2 = z[..., :4], z[..., 4:]
                return torch.cat([z1 * c - z2 * s_, z1 * s_ + z2 * c], -1)

            s = rot(q) @ rot(k).transpose(-1, -2) / math.sqrt(d // self.h)
            s = torch.where(self.mask(p[:, None], p[None, :]), s, torch.full_like(s, float("-inf")))
            return self.o((torch.softmax(s, -1) @ v).transpose(1, 2).reshape(b, t, d))

    return M(band(4, 2))


class RelPosAttention(nn.Module):
    """Transformer-XL / Conformer relative position attention by the skew trick."""

    table: Tensor

    def __init__(self, mask: PairFunction, d: int = 32, h: int = 4, max_len: int = 512) -> None:
        super().__init__()
        self.h, self.mask, self.max_len = h, mask, max_len
        self.qkv, self.o, self.pos = nn.Linear(d, 3 * d), nn.Linear(d, d), nn.Linear(d, d, bias=False)
        self.u, self.v = nn.Parameter(torch.randn(h, d // h)), nn.Parameter(torch.randn(h, d // h))
        self.register_buffer("table", torch.randn(2 * max_len - 1, d))

    def table_rows(self, t: int) -> Tensor:
        return self.table[self.max_len - t : self.max_len + t - 1]

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(x).reshape(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4).unbind(0)
        r = self.pos(self.table_rows(t))
        r = r.reshape(2 * t - 1, self.h, d // self.h).permute(1, 2, 0)
        content = (q + self.u[:, None]) @ k.transpose(-1, -2)
        pos = (q + self.v[:, None]) @ r  # [b,h,t,2t-1]
        pos = F.pad(pos, (1, 0)).reshape(b, self.h, 2 * t, t)[:, :, 1:].reshape(b, self.h, t, 2 * t - 1)
        s = (content + pos[..., :t]) / math.sqrt(d // self.h)
        p = torch.arange(t)
        s = torch.where(self.mask(p[:, None], p[None, :]), s, torch.full_like(s, float("-inf")))
        return self.o((torch.softmax(s, -1) @ v).transpose(1, 2).reshape(b, t, d))


@case([1, "S", 32], pulse=4, length=64, note="rel-pos skew, chunk 4, no left context", family="attention")
def attn_relpos_skew_left0() -> nn.Module:
    return RelPosAttention(band(4, 0))


@case([1, "S", 32], pulse=4, length=64, note="rel-pos skew, chunk 4, 2 left chunks", family="attention")
def attn_relpos_skew() -> nn.Module:
    return RelPosAttention(band(4, 2))


@case([1, "S", 32], pulse=4, length=64, note="rel-pos skew, token window 0 <= i-j <= 11", family="attention")
def attn_relpos_skew_sliding() -> nn.Module:
    return RelPosAttention(window(11))


@case(
    [1, "S", 32],
    pulse=4,
    length=64,
    note="rel-pos skew, table gathered at arange(-(t-1), t), chunk 4, 2 left chunks",
    family="attention",
)
def attn_relpos_skew_gather() -> nn.Module:
    class M(RelPosAttention):
        def table_rows(self, t: int) -> Tensor:
            return self.table[torch.arange(-(t - 1), t) + self.max_len - 1]

    return M(band(4, 2))


@case(
    [1, "S", 32],
    pulse=4,
    length=64,
    note="rel-pos skew, sinusoid of arange(-(t-1), t) in the graph, chunk 4, 2 left chunks",
    family="attention",
)
def attn_relpos_skew_sinusoid() -> nn.Module:
    class M(RelPosAttention):
        def table_rows(self, t: int) -> Tensor:
            p = torch.arange(-(t - 1), t).to(torch.float32)[:, None]
            w = torch.exp(torch.arange(0, 32, 2, dtype=torch.float32) * (-math.log(10000.0) / 32))
            return torch.cat([torch.sin(p * w), torch.cos(p * w)], 1)

    return M(band(4, 2))


class EncoderLayer(nn.Module):
    def __init__(self, attn: nn.Module, d: int = 32) -> None:
        super().__init__()
        self.a, self.n1, self.n2 = attn, nn.LayerNorm(d), nn.LayerNorm(d)
        self.ff = nn.Sequential(nn.Linear(d, 4 * d), nn.SiLU(), nn.Linear(4 * d, d))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.a(self.n1(x))
        return x + self.ff(self.n2(x))


@case([1, "S", 32], pulse=4, length=64, note="2 pre-norm layers, chunk 4, 2 left chunks", family="attention")
def encoder_chunk() -> nn.Module:
    return nn.Sequential(*[EncoderLayer(Attention(band(4, 2))) for _ in range(2)])


@case([1, "S", 32], pulse=4, length=64, note="2 pre-norm layers, token window 12", family="attention")
def encoder_sliding() -> nn.Module:
    return nn.Sequential(*[EncoderLayer(Attention(window(11))) for _ in range(2)])


@case(
    [1, "S", 80],
    pulse=32,
    length=512,
    note="nemotron shape: 2D conv stride 8, 2 conformer layers, chunk 4, 2 left chunks",
    family="attention",
)
def fastconformer() -> nn.Module:
    def convolve(s: Any, x: Tensor) -> Tensor:
        z = F.glu(s.p1(x.transpose(1, 2)), dim=1)
        return x + s.p2(F.silu(s.dw(F.pad(z, (8, 0))))).transpose(1, 2)

    class M(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sub = nn.Sequential(
                nn.Conv2d(1, 16, 3, 2, 1),
                nn.ReLU(),
                nn.Conv2d(16, 16, 3, 2, 1),
                nn.ReLU(),
                nn.Conv2d(16, 16, 3, 2, 1),
                nn.ReLU(),
            )
            self.proj = nn.Linear(160, 32)
            self.layers = nn.ModuleList()
            for _ in range(2):
                self.layers.append(EncoderLayer(Attention(band(4, 2))))
                self.layers.append(
                    Fn(
                        convolve,
                        p1=nn.Conv1d(32, 64, 1),
                        dw=nn.Conv1d(32, 32, 9, groups=32),
                        p2=nn.Conv1d(32, 32, 1),
                    )
                )

        def forward(self, x: Tensor) -> Tensor:
            z = self.sub(x[:, None])
            z = self.proj(z.permute(0, 2, 1, 3).flatten(2))
            for layer in self.layers:
                z = layer(z)
            return z

    return M()


class Beside(Attention):
    """With a decay by distance, a sink or learned memory beside the frames."""

    def __init__(self, mask: PairFunction, beside: str) -> None:
        super().__init__(mask)
        self.beside = beside
        self.sink, self.memory = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(2, 4, 3, 8))

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(x).reshape(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4).unbind(0)
        p = torch.arange(t)
        i, j = p[:, None], p[None, :]
        m = self.mask(i, j)
        if self.beside == "memory":
            k, v = (torch.cat([own.expand(b, -1, -1, -1), y], 2) for own, y in zip(self.memory, (k, v), strict=True))
            m = F.pad(m, (3, 0), value=True)
        s = q @ k.transpose(-1, -2) / math.sqrt(d // self.h)
        if self.beside == "decay":
            w = s * torch.where(m, 0.8 ** (i - j).clamp(min=0), 0)
        else:
            s = s.masked_fill(~m, float("-inf"))
            if self.beside == "sink":
                s = torch.cat([s, self.sink.reshape(1, -1, 1, 1).expand(b, -1, t, -1)], -1)
            w = torch.softmax(s, -1)
            w = w[..., :-1] if self.beside == "sink" else w
        return self.o((w @ v).transpose(1, 2).reshape(b, t, d))


@case([1, "S", 32], pulse=4, length=64, note="a decay by distance under a window: retention", family="attention")
def attn_decay_window() -> nn.Module:
    return Beside(window(7), "decay")


@case([1, "S", 32], pulse=4, length=64, note="a learned sink beside the scores", family="attention")
def attn_sink_logit() -> nn.Module:
    return Beside(window(7), "sink")


@case([1, "S", 32], pulse=4, length=64, note="learned keys and values in front of the frames", family="attention")
def attn_memory_tokens() -> nn.Module:
    return Beside(window(7, 2), "memory")


@case([1, "S", 32], pulse=4, length=64, note="the first 3 frames of the stream, and a window", family="attention")
def attn_first_frames() -> nn.Module:
    return Attention(lambda i, j: ((i - j < 8) | (j < 3)) & (i - j >= 0))


@case([1, "S", 32], pulse=4, length=64, note="|i - j| <= 6, every second one", family="attention")
def attn_dilated() -> nn.Module:
    return Attention(lambda i, j: ((i - j).abs() <= 6) & ((i - j) % 2 == 0))


@case([1, "S", 32], pulse=4, length=64, streamable=False, note="the first 3 rows see everything", family="attention")
def attn_first_rows() -> nn.Module:
    return Attention(lambda i, j: ((i - j).abs() < 5) | (i < 3))


# ------------------------------------------------------------------ pipelines
@case(
    [1, 32, "S"],
    pulse=8,
    note="TCN keyword spotter: look-ahead convs, residuals with 1x1, max pool, per-frame logits",
)
def tcn() -> nn.Module:
    class B(nn.Module):
        def __init__(self, i: int, o: int, d: int) -> None:
            super().__init__()
            self.c1, self.c2 = (
                nn.Conv1d(i, o, 3, padding=d, dilation=d),
                nn.Conv1d(o, o, 3, padding=d, dilation=d),
            )
            self.s = nn.Conv1d(i, o, 1)

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.c2(F.relu(self.c1(x))) + self.s(x))

    return nn.Sequential(B(32, 32, 1), B(32, 32, 2), nn.MaxPool1d(2), B(32, 48, 1), nn.Conv1d(48, 10, 1))


@case(
    [1, 1, "S"],
    pulse=64,
    length=64 * 20,
    note="encoder stride 16, GRU, decoder transposed (denoiser)",
    family="recurrence",
)
def denoiser() -> nn.Module:
    class M(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.e, self.r = nn.Conv1d(1, 32, 32, stride=16), nn.GRU(32, 32, batch_first=True)
            self.d = nn.ConvTranspose1d(32, 1, 32, stride=16)

        def forward(self, x: Tensor) -> Tensor:
            z = F.relu(self.e(x))
            m = torch.sigmoid(self.r(z.transpose(1, 2))[0].transpose(1, 2))
            return self.d(z * m)

    return M()


# --------------------------------------------- more ways to write the same masks
@case(
    [1, "S", 32],
    pulse=4,
    length=64,
    note="window of 12 written with torch.tril / triu of ones(t, t)",
    family="attention",
)
def attn_sliding_tril() -> nn.Module:
    class M(Attention):
        def forward(self, x: Tensor) -> Tensor:
            t = x.shape[1]
            one = torch.ones(t, t)
            m = torch.tril(one) * torch.triu(one, diagonal=-11) > 0
            self.mask = lambda i, j: m
            return super().forward(x)

    return M(window(11))


@case(
    [1, "S", 32],
    pulse=4,
    length=64,
    note="chunk mask by floor division in float (NeMo: pos.div(chunk).floor)",
    family="attention",
)
def attn_chunk_float_floor() -> nn.Module:
    def chunk(p: Tensor) -> Tensor:
        return torch.floor(p.to(torch.float32) / 4).to(torch.int64)

    def m(i: Tensor, j: Tensor) -> Tensor:
        d = chunk(i) - chunk(j)
        return (d >= 0) & (d <= 2)

    return Attention(m)


@case(
    [1, "S", 32],
    pulse=4,
    length=64,
    note="chunk mask and a learned bias table gathered at clip(i-j)",
    family="attention",
)
def attn_chunk_relpos_gather() -> nn.Module:
    class M(Attention):
        def __init__(self) -> None:
            super().__init__(band(4, 2))
            self.table = nn.Parameter(torch.randn(25, 4))
            self.bias = lambda i, j: self.table[(i - j).clamp(-12, 12) + 12].permute(2, 0, 1)

    return M()


@case(
    [1, "S", 32],
    pulse=4,
    length=64,
    note="sliding causal window and a learned bias table gathered at clip(i-j)",
    family="attention",
)
def attn_sliding_relpos_gather() -> nn.Module:
    m: Any = attn_chunk_relpos_gather()
    m.mask = window(11)
    return m


@case(
    [1, "S", 32],
    pulse=4,
    length=64,
    note="keys framed explicitly: pad left 11, stack 12 shifted slices, softmax over the frame",
)
def attn_local_framed() -> nn.Module:
    class M(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.o = nn.Linear(32, 96), nn.Linear(32, 32)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).chunk(3, -1)
            t = x.shape[1]
            kp, vp = F.pad(k, (0, 0, 11, 0)), F.pad(v, (0, 0, 11, 0))
            kk = torch.stack([kp[:, n : n + t] for n in range(12)], 2)
            vv = torch.stack([vp[:, n : n + t] for n in range(12)], 2)
            a = torch.softmax((kk * q[:, :, None]).sum(-1), -1)
            return self.o((a[..., None] * vv).sum(2))

    return M()


@case(
    [1, "S", 32],
    pulse=4,
    length=64,
    note="linear attention: cumsum of outer products, causal",
    family="recurrence",
)
def attn_linear_causal() -> nn.Module:
    class M(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(32, 48)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).chunk(3, -1)
            q, k = F.elu(q) + 1, F.elu(k) + 1
            kv = torch.cumsum(k[..., :, None] * v[..., None, :], 1)
            z = torch.cumsum(k, 1)
            return (q[..., None, :] @ kv)[..., 0, :] / (q * z).sum(-1, keepdim=True)

    return M()


@case(
    [1, 16, "S"],
    note="convolution with look-ahead, then a transposed convolution: delay must scale by the stride",
)
def conv_then_convtranspose() -> nn.Module:
    return nn.Sequential(nn.Conv1d(16, 16, 5), nn.ReLU(), nn.ConvTranspose1d(16, 8, 4, 2))


@case([1, 16, "S"], note="causal max over the last 8 frames")
def maxpool_causal() -> nn.Module:
    return Fn(lambda s, x: F.max_pool1d(F.pad(x, (7, 0), value=-1e30), 8, 1))


@case([1, 16, "S"], note="two branches of different delay, joined on channels")
def branches() -> nn.Module:
    return Fn(
        lambda s, x: torch.cat([s.a(x), s.b(x), x], 1),
        a=nn.Conv1d(16, 8, 3, padding=1),
        b=nn.Conv1d(16, 8, 9, padding=4),
    )


@case([1, 16, "S"], note="two branches of different stride, the slow one repeated, then added")
def multirate_branches() -> nn.Module:
    return Fn(
        lambda s, x: x + torch.repeat_interleave(s.a(x), 2, dim=2),
        a=nn.Conv1d(16, 16, 4, stride=2, padding=1),
    )


@case([1, 16, "S"], note="causal cumulative max (cummax)", family="recurrence")
def cummax() -> nn.Module:
    return Fn(lambda s, x: torch.cummax(x, 2)[0])


# ------------------------------------------- scans written otherwise
@case([1, "S", 8], length=64, note="minGRU in log space (logcumsumexp): the maximum cancels", family="recurrence")
def min_gru() -> nn.Module:
    """Beyond a hundred frames, what the exporter writes has no sums at the start: they are below the last by e^87."""

    def forward(s: Any, x: Tensor) -> Tensor:
        k = s.gate(x)
        kept = torch.cumsum(-F.softplus(k), 1)
        return torch.exp(kept + torch.logcumsumexp(-F.softplus(-k) + F.logsigmoid(s.new(x)) - kept, 1))

    return Fn(forward, gate=nn.Linear(8, 8), new=nn.Linear(8, 8))


@case([1, "S", 8], note="logcumsumexp by hand, the maximum over all frames taken off", family="recurrence")
def log_sum_by_hand() -> nn.Module:
    def forward(s: Any, x: Tensor) -> Tensor:
        most = x.amax(1, keepdim=True)
        return (x - most).exp().cumsum(1).log() + most

    return Fn(forward)


@case([1, "S", 8], streamable=False, note="exponentials below the maximum of all frames", family="recurrence")
def below_the_maximum() -> nn.Module:
    return Fn(lambda s, x: (x - x.amax(1, keepdim=True)).exp().cumsum(1))


@case([1, "S", 4], note="selective state space, by running sums", family="recurrence")
def selective_sums() -> nn.Module:
    from tests.modules.scans import Selective

    return Selective()


@case([1, "S", 4], note="selective state space, in chunks", family="recurrence")
def selective_chunks() -> nn.Module:
    from tests.modules.scans import SelectiveChunks

    return SelectiveChunks()


@case([1, "S", 4], note="gated linear attention, in chunks", family="recurrence")
def gated_chunks() -> nn.Module:
    from tests.modules.scans import LinearAttention

    return LinearAttention()


@case([1, "S", 4], note="the delta rule, in chunks", family="recurrence")
def delta_chunks() -> nn.Module:
    from tests.modules.scans import Delta

    return Delta()


@case([1, "S", 3], note="a loop with a branch that every third turn takes", family="recurrence")
def every_third_turn() -> nn.Module:
    from tests.recurrence import scripted

    return scripted.Alone(scripted.every_third)


@case([1, "S", 3], note="a loop that squeezes every frame", family="recurrence")
def squeezed_frames() -> nn.Module:
    from tests.recurrence import scripted

    return scripted.Alone(scripted.squeezed)


@case([1, "S", 3], streamable=False, note="a loop that appends every second turn", family="recurrence")
def appended_sometimes() -> nn.Module:
    from tests.recurrence import scripted

    return scripted.Alone(scripted.appended_sometimes)


# ------------------------------------------- must be refused (no exact stream)
@case([1, 16, "S"], streamable=False, note="softmax over time")
def softmax_time() -> nn.Module:
    return Fn(lambda s, x: torch.softmax(x, 2))


@case([1, 16, "S"], streamable=False, note="instance norm over time")
def instancenorm() -> nn.Module:
    return nn.InstanceNorm1d(16)


@case([1, 16, "S"], streamable=False, note="x @ x^T over time, broadcast back")
def gram() -> nn.Module:
    return Fn(lambda s, x: (x @ x.transpose(1, 2)) @ x)


@case([1, 16, "S"], streamable=False, note="values sorted over time")
def sort_time() -> nn.Module:
    return Fn(lambda s, x: torch.topk(x, x.shape[2], dim=2)[0])


@case([1, 16, "S"], streamable=False, note="cumsum from the end", family="recurrence")
def cumsum_reverse() -> nn.Module:
    return Fn(lambda s, x: x.sum(2, keepdim=True) - torch.cumsum(x, 2))


@case([1, 16, "S"], streamable=False, note="position counted from the end: x * (S - 1 - t)")
def posenc_reverse() -> nn.Module:
    return Fn(lambda s, x: x * (x.shape[2] - 1 - torch.arange(x.shape[2])))


@case([1, 16, "S"], streamable=False, note="divided by the length of the whole sequence", family="recurrence")
def divide_by_length() -> nn.Module:
    return Fn(lambda s, x: torch.cumsum(x, 2) / x.shape[2])


# ------------------------------------------------- first frames, whole recordings
@case([1, 16, "S"], note="every frame less the first one", family="whole")
def latch_subtracted() -> nn.Module:
    return Fn(lambda s, x: s.c(x - x[..., :1]), c=nn.Conv1d(16, 16, 3, padding=1))


@case([1, 16, "S"], note="both ends repeated by concatenation", family="whole")
def latch_edges() -> nn.Module:
    return Fn(lambda s, x: s.c(torch.cat([x[..., :1], x, x[..., -1:]], 2)), c=nn.Conv1d(16, 16, 3))


@case([1, "S", 16], note="the first frame sets a GRU's state", family="whole")
def latch_state() -> nn.Module:
    first = nn.Linear(16, 16)
    return Fn(lambda s, x: s.r(x, torch.tanh(s.f(x[:, 0]))[None])[0], r=nn.GRU(16, 16, batch_first=True), f=first)


@case([1, 16, "S"], note="a classifier: the mean of all frames", family="whole")
def fold_mean() -> nn.Module:
    body = nn.Sequential(nn.Conv1d(16, 16, 5, padding=2), nn.ReLU())
    return Fn(lambda s, x: s.out(s.body(x).mean(2)), body=body, out=nn.Linear(16, 4))


@case([1, 16, "S"], note="an x-vector: mean and deviation of all frames", family="whole")
def fold_statistics() -> nn.Module:
    body = nn.Sequential(nn.Conv1d(16, 16, 5), nn.ReLU())

    def pooled(s: Any, x: Tensor) -> Tensor:
        h = s.body(x)
        return cast("Tensor", s.out(torch.cat([h.mean(2), h.std(2)], 1)))

    return Fn(pooled, body=body, out=nn.Linear(32, 4))


@case([1, 16, "S"], note="attentive pooling: a softmax over time, times frames", family="whole")
def fold_attentive() -> nn.Module:
    def pooled(s: Any, x: Tensor) -> Tensor:
        h = s.body(x)
        return (h * torch.softmax(s.score(torch.tanh(h)), 2)).sum(2)

    return Fn(pooled, body=nn.Conv1d(16, 16, 3, padding=1), score=nn.Conv1d(16, 16, 1))


@case([1, "S", 16], note="the last state", family="whole")
def fold_last() -> nn.Module:
    return Fn(lambda s, x: s.out(s.r(x)[0][:, -1]), r=nn.GRU(16, 16, batch_first=True), out=nn.Linear(16, 4))


@case([1, 16, "S"], note="the three largest of every channel", family="whole")
def fold_best() -> nn.Module:
    return Fn(lambda s, x: torch.topk(s.c(x), 3, dim=2)[0], c=nn.Conv1d(16, 16, 3, padding=1))


@case([1, 16, "S"], streamable=False, note="a log-softmax over time, frame by frame", family="whole")
def log_softmax_time() -> nn.Module:
    return Fn(lambda s, x: torch.log_softmax(x, 2))


@case([1, "S"], pulse=40, note="frames by an index table mirrored at both ends (Kaldi's)", family="signal")
def frames_mirrored() -> nn.Module:
    def framed(s: Any, x: Tensor) -> Tensor:
        n = x.shape[1]
        i = torch.arange((n + 5) // 10)[:, None] * 10 + torch.arange(-7, 18)
        i = torch.where(i < 0, -i - 1, i)
        return x[:, torch.where(i >= n, 2 * n - 1 - i, i)] * torch.hann_window(25)

    return Fn(framed)


# ------------------------------------------------------------- masks as inputs
class Masked(nn.Module):
    """A function of (itself, x, mask)."""

    def __init__(self, fn: Callable[[Any, Tensor, Tensor], Tensor], **subs: nn.Module) -> None:
        super().__init__()
        self.fn = fn
        for k, v in subs.items():
            setattr(self, k, v)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.fn(self, x, mask)


def _seen_by_chunk(t: int, chunk: int, past: int) -> Tensor:
    at = torch.arange(t)
    behind = at[:, None] // chunk - at[None] // chunk
    return (behind >= 0) & (behind <= past)


@case([1, "S", 16], note="chunked attention, keys by attention_mask", family="inputs", masks={"attention_mask": "ones"})
def mask_input_chunks() -> nn.Module:
    def attend(s: Any, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = s.q(x), s.k(x), s.v(x)
        seen = _seen_by_chunk(x.shape[1], 4, 1) & (mask[:, None] > 0)
        bias = (1.0 - seen.to(x.dtype)) * torch.finfo(x.dtype).min
        return torch.softmax(q @ k.transpose(1, 2) / 4 + bias, -1) @ v

    return Masked(attend, q=nn.Linear(16, 16), k=nn.Linear(16, 16), v=nn.Linear(16, 16))


@case([1, 16, "S"], note="mean of the frames that count", family="inputs", masks={"attention_mask": "ones"})
def mask_input_mean() -> nn.Module:
    def pooled(s: Any, x: Tensor, mask: Tensor) -> Tensor:
        h = s.c(x) * mask[:, None].to(x.dtype)
        return s.out(h.sum(2) / mask.sum(1, keepdim=True).to(x.dtype))

    return Masked(pooled, c=nn.Conv1d(16, 16, 3, padding=1), out=nn.Linear(16, 4))


@case([1, 1, "S"], pulse=16, note="what counts, through a stride", family="inputs", masks={"attention_mask": "ones"})
def mask_input_stride() -> nn.Module:
    def strided(s: Any, x: Tensor, mask: Tensor) -> Tensor:
        h = torch.relu(s.c(x))
        frames = (mask.sum(-1) - 5) // 4 + 1
        inside = torch.arange(h.shape[2])[None] < frames[:, None]
        return s.d(h * inside[:, None].to(h.dtype))

    return Masked(strided, c=nn.Conv1d(1, 16, 5, stride=4), d=nn.Conv1d(16, 16, 3, padding=1))


@case([1, "S", 16], note="keys by a padding mask that is bound to zeros", family="inputs", masks={"padding": "zeros"})
def mask_input_padding() -> nn.Module:
    def attend(s: Any, x: Tensor, padding: Tensor) -> Tensor:
        q, k, v = s.q(x), s.k(x), s.v(x)
        hidden = ~_seen_by_chunk(x.shape[1], 4, 1) | (padding[:, None] != 0)
        return torch.softmax((q @ k.transpose(1, 2)).masked_fill(hidden, -math.inf), -1) @ v

    return Masked(attend, q=nn.Linear(16, 16), k=nn.Linear(16, 16), v=nn.Linear(16, 16))


@case([1, "S", 16], note="as many frames as count, by a bound mask", family="inputs", masks={"keep": "ones"})
def mask_input_keep() -> nn.Module:
    return Masked(lambda s, x, keep: s.r(x * keep[..., None].to(x.dtype))[0], r=nn.GRU(16, 16, batch_first=True))


@case(
    [1, "S", 16], streamable=False, note="all frames that count see each other", family="inputs",
    masks={"attention_mask": "ones"},
)  # fmt: skip
def mask_input_unbounded() -> nn.Module:
    def attend(s: Any, x: Tensor, mask: Tensor) -> Tensor:
        scores = (s.q(x) @ x.transpose(1, 2)).masked_fill(mask[:, None] == 0, -math.inf)
        return torch.softmax(scores, -1) @ x

    return Masked(attend, q=nn.Linear(16, 16))


# --------------------------------------------------------- in-place assignment
def writes(fn: Callable[[Tensor], Tensor]) -> nn.Module:
    """In-place writes into what a linear layer makes of every frame."""
    return Fn(lambda s, x: fn(s.l(x)), l=nn.Linear(6, 6)).requires_grad_(False)


@case([1, 6, "S"], note="ranges, single entries and every second of the channels")
def write_channels() -> nn.Module:
    def fn(y: Tensor) -> Tensor:
        y[:, :2] = 2 * y[:, 2:4]
        y[:, -1] *= 0.5
        y = y.index_copy(1, torch.tensor([4, 0]), y[:, 1:3])
        y[:, 1::2] += 1
        return y.index_fill(1, torch.tensor([4]), 1.5)

    return Fn(lambda s, x: fn(s.c(x)), c=nn.Conv1d(6, 6, 1)).requires_grad_(False)


@case([1, "S", 6], note="a list of frames, the first and the last few, every third of them")
def write_frames() -> nn.Module:
    def fn(y: Tensor) -> Tensor:
        y[:, [4, 0, 1]] = torch.arange(18.0).reshape(1, 3, 6)
        y[:, :3] *= 2
        y[:, 1::3] = -1
        y[:, -2:] = 0
        return y

    return writes(fn)


@case([1, 6, "S"], note="entries by a mask that is computed twice, and by one of another value")
def write_masked() -> nn.Module:
    def fn(y: Tensor) -> Tensor:
        z = 2 * y
        y[y > 0.5] = -y[y > 0.5]
        mask = z < 0
        y[mask] = z[mask]
        return y.masked_scatter(mask, y[mask])

    return Fn(lambda s, x: fn(s.c(x)), c=nn.Conv1d(6, 6, 3, padding=1)).requires_grad_(False)


@case([1, 6, "S"], note="a sum into channels, one of them twice")
def write_index_add() -> nn.Module:
    return Fn(lambda s, x: s.c(x).index_add(1, torch.tensor([0, 1, 0]), x[:, 2:5]), c=nn.Conv1d(6, 6, 1))


def _layers_of_one_context(c: nn.Module, x: Tensor, context: Tensor, overlap: int = 0) -> Tensor:
    for i in (0, 2):
        y = torch.cat([context[..., max(i - overlap, 0) : i + 2], x], -1)
        context[..., i : i + 2] = y[..., -2:]
        x = x + c(y)[..., -x.shape[-1] :]
    return x


@case([1, 6, "S"], note="one tensor holds the context of all layers")
def write_context() -> nn.Module:
    fn = lambda s, x: _layers_of_one_context(s.c, x, torch.zeros(1, 6, 4))  # noqa: E731
    return Fn(fn, c=nn.Conv1d(6, 6, 3)).requires_grad_(False)


@case([1, 6, "S"], streamable=False, note="a layer reads the context that another has written: its last frames")
def write_context_shared() -> nn.Module:
    fn = lambda s, x: _layers_of_one_context(s.c, x, torch.zeros(1, 6, 4), overlap=1)  # noqa: E731
    return Fn(fn, c=nn.Conv1d(6, 6, 3)).requires_grad_(False)


@case([1, "S", 6], note="some channels from the next frame, some from the one before")
def write_temporal_shift() -> nn.Module:
    def fn(y: Tensor) -> Tensor:
        out = torch.zeros_like(y)
        out[:, :-1, :2] = y[:, 1:, :2]
        out[:, 1:, 2:4] = y[:, :-1, 2:4]
        out[:, :, 4:] = y[:, :, 4:]
        return out

    return writes(fn)


@case([1, "S", 6], note="the gates of a mixture of experts: the two best of a frame")
def write_gates() -> nn.Module:
    def fn(y: Tensor) -> Tensor:
        values, places = y.topk(2, -1)
        return torch.zeros_like(y).scatter(-1, places, values.softmax(-1))

    return writes(fn)


@case([1, "S", 6], streamable=False, note="gates of the two best frames of the whole stream")
def write_gates_of_frames() -> nn.Module:
    def fn(y: Tensor) -> Tensor:
        values, places = y.topk(2, 1)
        return torch.zeros_like(y).scatter(1, places, values)

    return writes(fn)


@case([1, 6, "S"], streamable=False, note="the n-th entry of the mask takes the n-th of the source, of any frame")
def write_masked_scatter() -> nn.Module:
    return Fn(lambda s, x: s.c(x).masked_scatter(x < 0, -x), c=nn.Conv1d(6, 6, 1))


@case([1, "S", 6], streamable=False, note="frames written in reverse")
def write_reversed() -> nn.Module:
    def fn(y: Tensor) -> Tensor:
        y[:, torch.arange(y.shape[1] - 1, -1, -1)] = 2 * y
        return y

    return writes(fn)


# ------------------------------------------------------------- masks and positions as published models write them
def _attended(x: Tensor, kept: Tensor, bias: Tensor | float = 0.0) -> Tensor:
    scores = (x @ x.transpose(1, 2)) / x.shape[-1] ** 0.5 + bias
    return scores.masked_fill(~kept, -1e9).softmax(-1) @ x


def _behind(x: Tensor) -> Tensor:
    """How many frames a key is behind its query."""
    at = torch.arange(x.shape[1])
    return at[:, None] - at[None]


@case([1, "S", 8], family="attention", note="a padding mask of ones, picked by stream and position of the key")
def mask_by_positions() -> nn.Module:
    def fn(s: Any, x: Tensor) -> Tensor:
        streams, keys = torch.arange(x.shape[0])[:, None, None], torch.arange(x.shape[1])[None, None]
        padding = torch.ones_like(x[..., 0]) > 0
        behind = _behind(x)
        return _attended(s.l(x), (behind >= 0) & (behind < 6) & padding[streams, keys])

    return Fn(fn, l=nn.Linear(8, 8))


@case([1, "S", 8], family="attention", note="sequences packed into one are told by jumps of their positions: none")
def mask_of_packed_sequences() -> nn.Module:
    def fn(s: Any, x: Tensor) -> Tensor:
        at = torch.arange(x.shape[1])[None]
        steps = torch.diff(at, prepend=at[:, :1] - 1, dim=-1)
        sequence = (steps != 1).cumsum(-1)
        behind = _behind(x)
        return _attended(s.l(x), (behind >= 0) & (behind < 6) & (sequence[:, :, None] == sequence[:, None]))

    return Fn(fn, l=nn.Linear(8, 8))


@case([1, "S", 8], family="attention", note="relative positions in the keys and in the values, clipped to a window")
def attn_relative_values() -> nn.Module:
    def fn(s: Any, x: Tensor) -> Tensor:
        y, behind = s.l(x), _behind(x)
        place = behind.clamp(-4, 4) + 4
        scores = y @ y.transpose(1, 2) + torch.einsum("btd,tsd->bts", y, s.k[place])
        weights = scores.masked_fill((behind < 0) | (behind > 4), -math.inf).softmax(-1)
        return weights @ y + torch.einsum("bts,tsd->btd", weights, s.v[place])

    return Fn(fn, l=nn.Linear(8, 8), k=nn.Parameter(torch.randn(9, 8)), v=nn.Parameter(torch.randn(9, 8)))


@case([1, "S", 8], family="attention", note="scores by distance, the table flipped to the length and shifted by rows")
def attn_shifted_flip() -> nn.Module:
    def fn(s: Any, x: Tensor) -> Tensor:
        y, size = s.l(x), x.shape[1]
        far = y @ s.r[:size].flip(0).t()
        far = F.pad(far, (1, 0)).reshape(x.shape[0], size + 1, size)[:, 1:]
        behind = _behind(x)
        return _attended(y, (behind >= 0) & (behind < 6), far)

    return Fn(fn, l=nn.Linear(8, 8), r=nn.Parameter(torch.randn(400, 8)))


@case([1, "S", 8], family="attention", note="a bias by buckets that grow with the logarithm of the distance")
def attn_buckets() -> nn.Module:
    def fn(s: Any, x: Tensor) -> Tensor:
        behind = _behind(x)
        past = behind.clamp(min=0)
        coarse = 4 + (torch.log(past.clamp(min=1).float() / 4) / math.log(16 / 4) * 4).long()
        bucket = torch.where(past < 4, past, coarse.clamp(max=7))
        return _attended(s.l(x), (behind >= 0) & (behind < 12), s.b[bucket])

    return Fn(fn, l=nn.Linear(8, 8), b=nn.Parameter(torch.randn(8)))


@case(
    [1, 16, "S"],
    family="signal",
    opset=18,
    note="overlapping frames and their envelope, both cut before they are divided",
)
def overlap_add_cut_first() -> nn.Module:
    def fn(s: Any, x: Tensor) -> Tensor:
        frames = s.c(x) * s.w[:, None]
        size, count = (1, 4 * (x.shape[-1] - 1) + 16), x.shape[-1]
        whole = F.fold(frames, size, (1, 16), stride=(1, 4))[:, 0, 0, 6:-6]
        squares = (s.w**2)[None, :, None].expand(1, 16, count)
        envelope = F.fold(squares, size, (1, 16), stride=(1, 4))[:, 0, 0, 6:-6]
        return whole / envelope

    return Fn(fn, c=nn.Conv1d(16, 16, 1), w=nn.Parameter(torch.hann_window(16) + 0.1))


# ------------------------------------------------------------- larger, for speed
@case([1, 64, "S"], pulse=8, length=800, note="24 causal gated layers, 64 channels (hey_snips scale)")
def wavenet_large() -> nn.Module:
    return nn.Sequential(
        WaveNet(64, 6),
        nn.Conv1d(8, 64, 1),
        WaveNet(64, 6),
        nn.Conv1d(8, 64, 1),
        WaveNet(64, 6),
        nn.Conv1d(8, 64, 1),
        WaveNet(64, 6),
    )


@case([1, "S", 256], pulse=8, length=800, family="recurrence")
def gru_large() -> nn.Module:
    return Fn(lambda s, x: s.r(x)[0], r=nn.GRU(256, 256, num_layers=2, batch_first=True))


@case(
    [1, "S", 256],
    pulse=8,
    length=400,
    note="8 layers, d 256, 4 heads, chunk 8, 4 left chunks",
    family="attention",
)
def encoder_chunk_large() -> nn.Module:
    return nn.Sequential(*[EncoderLayer(Attention(band(8, 4), 256, 4), 256) for _ in range(8)])

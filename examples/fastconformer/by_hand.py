"""The same encoder, streamed by hand: one chunk a step, every memory an input and an output.

    audio_signal [1, mels, 8C]        the chunk's frames            outputs [1, width, C]    its tokens, no delay
    valid        [1]                  tokens in the caches, at most `left`
    frames_*     [1, ch, bands, 2]    in front of each strided convolution            new_frames_*
    keys_*       [1, heads, left, d]  projected, `left` tokens                        new_keys_*
    values_*     [1, heads, left, d]                                                  new_values_*
    past_*       [1, width, 1, 8]     in front of the depthwise convolution           new_past_*
                 [1, 8, width]        (if C is 1)

It takes the batch model's weights, so its tokens must be the batch model's. This is the work `pulsify` saves: to
know which caches there are and how long, which rows of the position table a window needs, and what is not there yet
in the first chunks. As most such steps it takes whole chunks only and has no end: the last tokens of a recording,
which the batch model makes from its padding, are left out.

What measured quickest in ONNX Runtime is here: projections of queries, keys and values in one product, positions
projected beforehand, the runtime's own attention operator with its caches, time last while there are bands, pads
inside the convolutions, a depthwise convolution that the runtime can block (or a sum, for one token).

    python -m examples.fastconformer.by_hand                  how far tokens are from the batch model's
    python -m examples.fastconformer.by_hand --size small --context 70,13 step.onnx
"""

# mypy: disable-error-code="no-any-return, misc, no-untyped-call"

from __future__ import annotations

import argparse
import dataclasses
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.fastconformer.export import _one_file
from examples.fastconformer.model import (
    AFTER,
    BEFORE,
    MASKED,
    SIZES,
    STRIDE,
    Config,
    Encoder,
    Layer,
    PaddedConv2d,
    build,
    shrunk,
)
from examples.quiet import quiet

Array = npt.NDArray[Any]


# ---- operators that PyTorch cannot write as ONNX by itself


class Strided(torch.autograd.Function):
    """A convolution over [1, ch, bands, time], with the bands' uneven pads as part of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, groups: int) -> Tensor:
        return F.conv2d(F.pad(x, (0, 0, BEFORE, AFTER)), weight, bias, STRIDE, groups=groups)

    @staticmethod
    def symbolic(g: Any, x: Any, weight: Any, bias: Any, groups: int) -> Any:
        pads = [BEFORE, 0, AFTER, 0]
        return g.op("Conv", x, weight, bias, group_i=groups, strides_i=[STRIDE, STRIDE], pads_i=pads)


class Attend(torch.autograd.Function):
    """Scores, bias, softmax and values, joined to the caches: ONNX Runtime's MultiHeadAttention."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, keys: Tensor, values: Tensor) -> Any:
        heads = keys.size(1)
        q, k, v = (x.view(1, x.size(1), heads, -1).transpose(1, 2) for x in (q, k, v))
        k, v = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        y = (q @ k.transpose(2, 3) + bias).softmax(-1) @ v
        return y.transpose(1, 2).flatten(2), k, v

    @staticmethod
    def symbolic(g: Any, q: Any, k: Any, v: Any, bias: Any, keys: Any, values: Any) -> Any:
        none = g.op("prim::Constant")
        none.setType(torch._C.OptionalType.ofTensor())
        _, heads, left, size = keys.type().sizes()
        chunk = bias.type().sizes()[2]
        y, k, v = g.op(
            "com.microsoft::MultiHeadAttention", q, k, v, none, none, bias, keys, values,
            outputs=3, num_heads_i=heads, scale_f=1.0,
        )  # fmt: skip
        y.setType(keys.type().with_sizes([1, chunk, heads * size]))
        for window in (k, v):
            window.setType(keys.type().with_sizes([1, heads, left + chunk, size]))
        return y, k, v


# ---- the step


def constant(value: Tensor) -> nn.Parameter:
    return nn.Parameter(value.detach(), requires_grad=False)


class StepLayer(nn.Module):
    """A layer on one chunk. Weights stand ready for `x @ w`; halves, the scores' scale and positions are in them."""

    def __init__(self, layer: Layer, c: Config, table: Tensor) -> None:
        super().__init__()
        self.layer, self.chunk, self.heads, self.size = layer, c.chunk, c.heads, c.width // c.heads
        a, conv, scale = layer.self_attn, layer.conv, 1 / math.sqrt(self.size)
        self.up1, self.down1 = self._feed_forward(layer.feed_forward1)
        self.up2, self.down2 = self._feed_forward(layer.feed_forward2)
        self.qkv = constant(torch.cat([a.linear_q.weight * scale, a.linear_k.weight, a.linear_v.weight]).T)
        self.out = constant(a.linear_out.weight.T)
        self.u, self.v = (constant(b.flatten() * scale) for b in (a.pos_bias_u, a.pos_bias_v))
        positions = (table @ a.linear_pos.weight.T).view(-1, self.heads, self.size)
        self.positions = constant(positions.permute(1, 2, 0))  # [heads, size, distances]
        self.gate, self.leave = (constant(p.weight[:, :, 0].T) for p in (conv.pointwise_conv1, conv.pointwise_conv2))
        taps = conv.depthwise_conv.weight
        self.taps = constant(taps[:, 0].T if c.chunk == 1 else taps.unsqueeze(2))

    @staticmethod
    def _feed_forward(block: Any) -> tuple[nn.Parameter, nn.Parameter]:
        return constant(block.linear1.weight.T), constant(0.5 * block.linear2.weight.T)

    def forward(self, x: Tensor, hidden: Tensor, keys: Tensor, values: Tensor, past: Tensor) -> tuple[Tensor, ...]:
        """x [1, C, width], hidden [1, 1, 1, left + C]: very low where the caches are not filled yet."""
        layer = self.layer
        x = x + F.silu(layer.norm_feed_forward1(x) @ self.up1) @ self.down1
        y, keys, values = self._attend(layer.norm_self_att(x), hidden, keys, values)
        x = x + y
        y, past = self._convolve(layer.norm_conv(x), past)
        x = x + y
        x = x + F.silu(layer.norm_feed_forward2(x) @ self.up2) @ self.down2
        return layer.norm_out(x), keys, values, past

    def _attend(self, x: Tensor, hidden: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (x @ self.qkv).split(self.heads * self.size, -1)
        turned = (q + self.v).view(1, self.chunk, self.heads, self.size).transpose(1, 2)
        bias = self._skew(turned @ self.positions) + hidden
        y, k, v = Attend.apply(q + self.u, k, v, bias, keys, values)
        return y @ self.out, k[:, :, self.chunk :], v[:, :, self.chunk :]

    def _skew(self, raw: Tensor) -> Tensor:
        """Row i begins at column C - 1 - i: read the rows as one, in steps one shorter than they are."""
        if self.chunk == 1:
            return raw
        columns, rows = raw.size(3), self.chunk
        flat = raw.view(1, self.heads, rows * columns)[:, :, rows - 1 : rows - 1 + rows * (columns - 1)]
        return flat.view(1, self.heads, rows, columns - 1)[..., : columns - rows + 1]

    def _convolve(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        x = F.glu(x @ self.gate, -1)
        if self.chunk == 1:
            x = torch.cat([past, x], 1)
            past, x = x[:, 1:], (x * self.taps).sum(1, keepdim=True)
        else:
            x = torch.cat([past, x.transpose(1, 2).unsqueeze(2)], 3)
            past, x = x[..., self.chunk :], F.conv2d(x, self.taps, groups=x.size(1)).squeeze(2).transpose(1, 2)
        return F.silu(self.layer.conv.batch_norm(x)) @ self.leave, past


class Step(nn.Module):
    """One chunk and all states in, one chunk's tokens and all states out."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.c = c = encoder.config
        if c.bias or c.norm != "layer_norm":
            raise ValueError("this step is for encoders without biases and with layer norms, as the published one")
        self.left = c.left_chunks * c.chunk
        table, middle = encoder.pos_enc.pe[0], encoder.pos_enc.pe.size(1) // 2
        table = table[middle - self.left - c.chunk + 1 : middle + c.chunk]  # distances left + C - 1 ... 1 - C
        self.stages, self.out = encoder.pre_encode.conv, encoder.pre_encode.out
        self.layers = nn.ModuleList(StepLayer(layer, c, table) for layer in encoder.layers)

    def states(self) -> dict[str, Tensor]:
        """Zeros, by name, in the order in which `forward` takes them."""
        c, out, bands = self.c, {}, self.c.mels
        for i in range(3):
            out[f"frames_{i}"] = torch.zeros(1, c.channels if i else 1, bands, BEFORE)
            bands = shrunk(bands)
        for i in range(c.layers):
            for name in ("keys", "values"):
                out[f"{name}_{i}"] = torch.zeros(1, c.heads, self.left, c.width // c.heads)
            past = (1, c.width, 1, c.kernel - 1) if c.chunk > 1 else (1, c.kernel - 1, c.width)
            out[f"past_{i}"] = torch.zeros(past)
        return out

    def forward(self, audio_signal: Tensor, valid: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        left, new, x = list(states), list[Tensor](), audio_signal.unsqueeze(1)
        for stage in self.stages:
            if isinstance(stage, PaddedConv2d):
                x = torch.cat([left.pop(0), x], 3)
                new.append(x[..., -BEFORE:])
                x = Strided.apply(x, stage.weight.transpose(2, 3), stage.bias, stage.groups)
            else:
                x = stage(x)
        x = self.out(x.flatten(1, 2).transpose(1, 2))
        if self.c.scaled:
            x = x * math.sqrt(self.c.width)
        hidden = (torch.arange(self.left + self.c.chunk) < self.left - valid).to(x.dtype) * MASKED
        for layer in self.layers:
            x, *made = layer(x, hidden.view(1, 1, 1, -1), *(left.pop(0) for _ in range(3)))
            new += made
        return x.transpose(1, 2), *new


def export(encoder: Encoder, path: str | Path) -> Path:
    """The step as ONNX, one stream and one size of chunk."""
    path, c = Path(path), encoder.config
    step = Step(encoder)
    states = step.states()
    example = (torch.randn(1, c.mels, 8 * c.chunk), torch.tensor([0]), *states.values())
    with quiet(), _one_file(encoder, path) as written:
        torch.onnx.export(
            step, example, str(written), input_names=["audio_signal", "valid", *states],
            output_names=["outputs", *(f"new_{name}" for name in states)], opset_version=17, dynamo=False,
            custom_opsets={"com.microsoft": 1},
        )  # fmt: skip
    return path


# ---- running it


class Runner:
    """Chunks in, tokens out. All tensors have their places; caches come out where they go in at the next chunk."""

    def __init__(self, path: str | Path, options: ort.SessionOptions | None = None) -> None:
        # The runtime's fused sum and norm takes more time than the two of them.
        self.model = ort.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"], disabled_optimizers=["SkipLayerNormFusion"]
        )
        ins, outs = _zeros(self.model.get_inputs()), _zeros(self.model.get_outputs())
        self._ins, self._outs = ins, outs  # bindings know only their addresses
        self._chunk, self._valid, self._tokens = ins["audio_signal"], ins["valid"], outs["outputs"]
        self._left = ins["keys_0"].shape[2]
        there = {name: outs.get(f"new_{name}", array) for name, array in ins.items()}
        back = {name: ins.get(name.removeprefix("new_"), array) for name, array in outs.items()}
        self._sides = [self._bind(ins, outs), self._bind(there, back)]
        self._side = 0

    def push(self, chunk: Array) -> Array:
        self._chunk[...] = chunk
        self.model.run_with_iobinding(self._sides[self._side])
        self._side = 1 - self._side
        self._valid[0] = min(self._valid[0] + self._tokens.shape[2], self._left)
        return self._tokens.copy()

    def reset(self) -> None:
        self._side = 0
        for array in self._ins.values():
            array.fill(0)

    def _bind(self, ins: Mapping[str, Array], outs: Mapping[str, Array]) -> ort.IOBinding:
        binding = self.model.io_binding()
        for name, a in ins.items():
            binding.bind_input(name, "cpu", 0, a.dtype.type, a.shape, a.ctypes.data)
        for name, a in outs.items():
            binding.bind_output(name, "cpu", 0, a.dtype.type, a.shape, a.ctypes.data)
        return binding


def _zeros(ports: Any) -> dict[str, Array]:
    return {p.name: np.zeros(p.shape, np.int64 if p.type == "tensor(int64)" else np.float32) for p in ports}


def error(encoder: Encoder, path: str | Path, chunks: int) -> float:
    """The largest difference to the batch model's tokens in a stream from its start, in parts of their scale."""
    size, runner = 8 * encoder.config.chunk, Runner(path)
    x = torch.randn(1, encoder.config.mels, chunks * size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        want = encoder(x, torch.tensor([x.size(2)]))[0].numpy()
    got = np.concatenate([runner.push(chunk.numpy()) for chunk in x.split(size, 2)], 2)
    return float(np.abs(got - want[..., : got.shape[2]]).max() / np.abs(want).max())


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, metavar="OUT", nargs="?", help="without it, both contexts are only checked")
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--context", default="70,13", help="tokens seen before and after: 70,13 or 70,0")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    for context in [args.context] if args.out else ["70,13", "70,0"]:
        left, right = (int(n) for n in context.split(","))
        encoder = build(dataclasses.replace(SIZES[args.size], context=(left, right)), args.seed)
        if args.out:
            print(export(encoder, args.out))
            continue
        with tempfile.TemporaryDirectory() as folder:
            chunks = 3 * (left + right + 1) // (right + 1)
            worst = error(encoder, export(encoder, Path(folder) / "step.onnx"), chunks)
            print(f"[{context}] {chunks} chunks: {worst:.1e} of the scale from the batch model")


if __name__ == "__main__":
    main()

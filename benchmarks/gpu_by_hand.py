"""The FastConformer's steady step, written by hand in torch for a card: what a careful person would run there.

    x [B, mels, 8C]  ->  tokens [B, C, width]          caches are tensors, and hold what the next chunk needs

Rows [B, C, width] from the subsampling to the end, queries, keys and values in one product, positions projected
beforehand, torch's own attention, convolutions of one tap as products. Weights are those of the batch encoder.
"""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from examples.fastconformer.model import AFTER, BEFORE, STRIDE, Encoder, Layer, PaddedConv2d, shrunk

Caches = list[Tensor]


def aligned(x: Tensor) -> Tensor:
    """The same in memory of its own, rows of whole 32 bytes: kernels of attention read them in large pieces."""
    width = x.shape[-1]
    return F.pad(x, (0, -width % 16))[..., :width]


class ByHand:
    """Weights on a device, in one type; a step for any number of streams."""

    def __init__(self, encoder: Encoder, device: str, dtype: torch.dtype) -> None:
        self.c = c = encoder.config
        if c.bias or c.norm != "layer_norm" or c.scaled:
            raise ValueError("this step is for encoders without biases and with layer norms, as the published one")
        self.device, self.dtype, self.left = device, dtype, c.left_chunks * c.chunk
        middle = encoder.pos_enc.pe.size(1) // 2
        table = encoder.pos_enc.pe[0, middle - self.left - c.chunk + 1 : middle + c.chunk]
        self.stages = [self._stage(s) for s in encoder.pre_encode.conv]
        self.out = self._put(encoder.pre_encode.out.weight), self._put(encoder.pre_encode.out.bias)
        self.layers = [self._layer(layer, table) for layer in encoder.layers]

    def _put(self, value: Tensor) -> Tensor:
        return value.detach().to(self.device, self.dtype).contiguous()

    def _stage(self, stage: Any) -> tuple[str, Any]:
        if isinstance(stage, PaddedConv2d):
            return "strided", (self._put(stage.weight), self._put(stage.bias), stage.groups)
        if isinstance(stage, torch.nn.Conv2d):
            return "channels", (self._put(stage.weight[:, :, 0, 0]), self._put(stage.bias))
        return "relu", None

    def _layer(self, layer: Layer, table: Tensor) -> dict[str, Any]:
        a, c = layer.self_attn, self.c
        size = c.width // c.heads
        scale = 1 / math.sqrt(size)
        positions = (table @ a.linear_pos.weight.T).view(-1, c.heads, size)
        norms = ("norm_feed_forward1", "norm_self_att", "norm_conv", "norm_feed_forward2", "norm_out")
        made: dict[str, Any] = {
            "up1": layer.feed_forward1.linear1.weight, "down1": 0.5 * layer.feed_forward1.linear2.weight,
            "up2": layer.feed_forward2.linear1.weight, "down2": 0.5 * layer.feed_forward2.linear2.weight,
            "qkv": torch.cat([a.linear_q.weight * scale, a.linear_k.weight, a.linear_v.weight]),
            "out": a.linear_out.weight, "u": a.pos_bias_u.flatten() * scale, "v": a.pos_bias_v.flatten() * scale,
            "positions": positions.transpose(0, 1), "gate": layer.conv.pointwise_conv1.weight[:, :, 0],
            "taps": layer.conv.depthwise_conv.weight[:, 0].T, "leave": layer.conv.pointwise_conv2.weight[:, :, 0],
        }  # fmt: skip
        made = {name: self._put(w) for name, w in made.items()}
        for name in norms:
            norm = getattr(layer, name)
            made[name] = self._put(norm.weight), self._put(norm.bias), norm.eps
        inner = layer.conv.batch_norm
        return made | {"norm_inner": (self._put(inner.weight), self._put(inner.bias), inner.eps)}

    def caches(self, batch: int) -> Caches:
        """Zeros: frames in front of each strided convolution; keys, values and rows by layer."""
        c, bands, dims = self.c, self.c.mels, list[tuple[int, ...]]()
        for i in range(3):
            dims.append((batch, c.channels if i else 1, BEFORE, bands))
            bands = shrunk(bands)
        window = (batch, c.heads, self.left, c.width // c.heads)
        dims += [window, window, (batch, c.kernel - 1, c.width)] * c.layers
        return [torch.zeros(d, device=self.device, dtype=self.dtype) for d in dims]

    def step(self, x: Tensor, caches: Caches) -> Tensor:
        """One chunk. Caches are written in place."""
        left = iter(caches)
        x = x.transpose(1, 2).unsqueeze(1)
        for kind, weights in self.stages:
            if kind == "strided":
                frames = next(left)
                x = torch.cat([frames, x], 2)
                frames.copy_(x[:, :, -BEFORE:])
                x = F.conv2d(F.pad(x, (BEFORE, AFTER)), weights[0], weights[1], STRIDE, groups=weights[2])
            elif kind == "channels":
                x = F.linear(x.permute(0, 2, 3, 1), *weights).permute(0, 3, 1, 2)
            else:
                x = F.relu(x)
        x = F.linear(x.transpose(1, 2).flatten(2), *self.out)
        for w in self.layers:
            x = x + F.linear(F.silu(F.linear(_norm(x, w["norm_feed_forward1"]), w["up1"])), w["down1"])
            x = x + self._attend(_norm(x, w["norm_self_att"]), w, next(left), next(left))
            x = x + self._convolve(_norm(x, w["norm_conv"]), w, next(left))
            x = x + F.linear(F.silu(F.linear(_norm(x, w["norm_feed_forward2"]), w["up2"])), w["down2"])
            x = _norm(x, w["norm_out"])
        return x

    def _attend(self, x: Tensor, w: dict[str, Any], keys: Tensor, values: Tensor) -> Tensor:
        batch, chunk, width = x.shape
        heads, size = self.c.heads, width // self.c.heads
        q, k, v = F.linear(x, w["qkv"]).split(width, -1)
        by_place = (q + w["v"]).view(batch * chunk, heads, size).transpose(0, 1)  # a product a head, all streams
        raw = torch.bmm(by_place, w["positions"].transpose(1, 2)).view(heads, batch, chunk, -1).transpose(0, 1)
        bias = self._skew(raw)
        q, k, v = (t.view(batch, chunk, heads, size).transpose(1, 2) for t in (q + w["u"], k, v))
        k, v = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        if self.dtype == torch.float32:
            y = (q @ k.transpose(2, 3) + bias).softmax(-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=aligned(bias), scale=1.0)
        keys.copy_(k[:, :, chunk:])
        values.copy_(v[:, :, chunk:])
        return F.linear(y.transpose(1, 2).reshape(batch, chunk, width), w["out"])

    @staticmethod
    def _skew(raw: Tensor) -> Tensor:
        """Row i begins at column C - 1 - i: read the rows as one, in steps one shorter than they are."""
        batch, heads, rows, columns = raw.shape
        if rows == 1:
            return raw
        flat = raw.reshape(batch, heads, rows * columns)[:, :, rows - 1 : rows - 1 + rows * (columns - 1)]
        return flat.view(batch, heads, rows, columns - 1)[..., : columns - rows + 1]

    @staticmethod
    def _convolve(x: Tensor, w: dict[str, Any], past: Tensor) -> Tensor:
        chunk = x.shape[1]
        x = torch.cat([past, F.glu(F.linear(x, w["gate"]), -1)], 1)
        past.copy_(x[:, chunk:])
        taps = w["taps"].float()
        y = sum(x[:, k : k + chunk].float() * taps[k] for k in range(len(taps)))
        assert isinstance(y, Tensor)
        return F.linear(F.silu(_norm(y.to(x.dtype), w["norm_inner"])), w["leave"])


def _norm(x: Tensor, norm: tuple[Tensor, Tensor, float]) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], *norm)


def captured(step: ByHand, x: Tensor, caches: Caches, compiled: bool) -> tuple[Callable[[], None], Tensor]:
    """A step that is one call on a card, and the tokens it writes."""
    run = torch.compile(step.step, dynamic=False, fullgraph=True) if compiled else step.step
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run(x, caches)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens = run(x, caches)
    return graph.replay, tokens

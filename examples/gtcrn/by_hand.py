"""The same denoiser, streamed by hand: one frame a step, every memory an input and an output.

    spec [1, 257, 1, 2]                                       out [1, 257, 1, 2]
    conv_* [1, 16, 2 * dilation, 33]   frames a convolution still needs      new_conv_*
    gate_* [1, 1, 16]                  GRUs of the gates                     new_gate_*
    path_* [1, 33, 8]                  GRUs over time, by group              new_path_*

It takes the batch model's weights, so its frames must be the batch model's. This is the work `pulsify` saves.
"""

# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

import torch
from torch import Tensor, nn

from examples.gtcrn.model import Denoiser, DualPath, TemporalBlock, apply_mask, features, shuffle


class Temporal(nn.Module):
    """A temporal block on one frame. A transposed convolution of stride 1 is one with its kernel turned around."""

    def __init__(self, block: TemporalBlock) -> None:
        super().__init__()
        self.block = block
        self.depth = block.depth
        if block.transposed:
            d = block.depth
            self.depth = nn.Conv2d(
                d.in_channels, d.out_channels, d.kernel_size, padding=d.padding, groups=d.groups, dilation=d.dilation
            )
            self.depth.weight = nn.Parameter(d.weight.detach().flip(2, 3))
            self.depth.bias = d.bias

    def forward(self, x: Tensor, past: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        changed, kept = x.chunk(2, dim=1)
        hidden = torch.cat([past, self.block.enter(self.block.neighbours(changed))], dim=2)
        y = self.block.leave(self.block.norm(self.depth(hidden)))
        loud, state = self.block.gate.gru(y.square().mean(-1).transpose(1, 2), state)
        weight = torch.sigmoid(self.block.gate.linear(loud)).transpose(1, 2)
        return shuffle(y * weight[..., None], kept), hidden[:, :, 1:], state


class Path(nn.Module):
    """A dual-path block on one frame: bands are the batch of the GRUs over time."""

    def __init__(self, path: DualPath) -> None:
        super().__init__()
        self.path = path

    def forward(self, x: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        p = self.path
        x = x.permute(0, 2, 3, 1).squeeze(0)  # [1, F, C]
        x = x + p.intra_norm(p.intra_linear(p.intra(x)))
        parts = x.transpose(0, 1).chunk(len(states), dim=-1)
        made = [gru(part, state) for gru, part, state in zip(p.inter.grus, parts, states)]
        inter = p.inter_linear(torch.cat([y for y, _ in made], dim=-1)).transpose(0, 1)
        x = (x + p.inter_norm(inter)).unsqueeze(0).permute(0, 3, 1, 2)
        return x, *(state for _, state in made)


class Step(nn.Module):
    """One frame and all states in, one frame and all states out."""

    def __init__(self, model: Denoiser) -> None:
        super().__init__()
        self.model, self.c = model, model.config
        self.encoder = nn.ModuleList(Temporal(b) if isinstance(b, TemporalBlock) else b for b in model.encoder)
        self.decoder = nn.ModuleList(Temporal(b) if isinstance(b, TemporalBlock) else b for b in model.decoder)
        self.paths = nn.ModuleList(Path(p) for p in model.paths)

    def states(self) -> dict[str, Tensor]:
        """Zeros, by name, in the order in which `forward` takes them."""
        c, out = self.c, {}
        for side, dilations in (("down", c.dilations), ("up", c.dilations[::-1])):
            for dilation in dilations:
                out[f"conv_{side}_{dilation}"] = torch.zeros(1, c.channels, 2 * dilation, c.width)
                out[f"gate_{side}_{dilation}"] = torch.zeros(1, 1, c.channels)
            for i in range(c.paths * c.groups if side == "down" else 0):
                out[f"path_{i}"] = torch.zeros(1, c.width, c.channels // c.groups)
        return out

    def forward(self, spec: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        left, new = list(states), list[Tensor]()

        def step(block: nn.Module, x: Tensor) -> Tensor:
            if not isinstance(block, (Temporal, Path)):
                return block(x)
            count = 2 if isinstance(block, Temporal) else self.c.groups
            x, *made = block(x, *(left.pop(0) for _ in range(count)))
            new.extend(made)
            return x

        x, skips = self.model.neighbours(self.model.bands.to_bands(features(spec))), []
        for block in self.encoder:
            x = step(block, x)
            skips.append(x)
        for path in self.paths:
            x = step(path, x)
        for block in self.decoder:
            x = step(block, x + skips.pop())
        return apply_mask(self.model.bands.to_bins(x), spec), *new

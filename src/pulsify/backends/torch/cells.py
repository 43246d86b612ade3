"""Recurrent layers as ONNX has them: gates in its order, initial states, lengths, clipping, any activations.

Nothing here waits for the device: lengths are compared there, frame by frame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
import torch.nn.functional as F

Tensor: TypeAlias = torch.Tensor
Function = Callable[[Tensor], Tensor]
Cell = Callable[[Tensor, tuple[Tensor, ...], "Weights"], tuple[Tensor, ...]]
Named = Sequence[tuple[str, float, float]]

FUNCTIONS: dict[str, Callable[[Tensor, float, float], Tensor]] = {
    "Sigmoid": lambda x, a, b: torch.sigmoid(x),
    "Tanh": lambda x, a, b: torch.tanh(x),
    "Relu": lambda x, a, b: torch.where(x > 0, x, 0.0),  # 0 for NaN, as in the runtime
    "Affine": lambda x, a, b: a * x + b,
    "LeakyRelu": lambda x, a, b: F.leaky_relu(x, a),
    "ThresholdedRelu": lambda x, a, b: torch.where(x > a, x, 0.0),
    "ScaledTanh": lambda x, a, b: a * torch.tanh(b * x),
    "HardSigmoid": lambda x, a, b: torch.clamp((a * x + b).nan_to_num(0.0), 0.0, 1.0),  # here too
    "Elu": lambda x, a, b: F.elu(x, a),
    "Softsign": lambda x, a, b: F.softsign(x),
    "Softplus": lambda x, a, b: F.softplus(x),
}


class Weights:
    """Of one direction, in float32 at least, with its activations."""

    def __init__(
        self, w: Tensor, r: Tensor, bias: Tensor | None, functions: Sequence[Function], clip: float, gated: bool
    ) -> None:
        self.w, self.r, self.functions, self.clip, self.gated = w, r, functions, clip, gated
        self.wb: Tensor | None = None
        self.rb: Tensor | None = None
        if bias is not None:
            self.wb, self.rb = bias.chunk(2)

    def clipped(self, x: Tensor) -> Tensor:
        """As the runtime: gates are always clipped, and where it adds a bias NaN becomes the upper bound."""
        if not self.gated:
            return x.clamp(-self.clip, self.clip) if self.clip else x
        most = self.clip or torch.finfo(torch.float32).max
        x = x.clamp(-most, most)
        return x if self.wb is None else x.nan_to_num(most)


def lstm(
    x: Tensor, w: Tensor, r: Tensor, *, hidden: int, functions: Named = (), direction: str = "forward",
    clip: float = 0.0, batch_first: bool = False, bias: Tensor | None = None, lengths: Tensor | None = None,
    h: Tensor | None = None, c: Tensor | None = None, peepholes: Tensor | None = None, coupled: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gates i, o, f, c. coupled: what is not taken in is kept."""
    usual = functions or (("Sigmoid", 0, 0), ("Tanh", 0, 0), ("Tanh", 0, 0)) * 2
    ps = [None, None] if peepholes is None else [p.to(_wide(x)) for p in peepholes]

    def step(a: Tensor, state: tuple[Tensor, ...], v: Weights, peep: Tensor | None) -> tuple[Tensor, ...]:
        (h, c), (f, g, out) = state, v.functions
        gates = a + F.linear(h, v.r, v.rb)
        i, o, forget, new = gates.chunk(4, -1)
        if peep is not None:
            pi, po, pf = peep.chunk(3)
            i, forget = i + pi * c, forget + pf * c
        taken = f(v.clipped(i))
        c = (1 - taken if coupled else f(v.clipped(forget))) * c + taken * g(v.clipped(new))
        o = o if peep is None else o + po * c
        return f(v.clipped(o)) * out(c), c

    cells: list[Cell] = [lambda a, s, v, p=p: step(a, s, v, p) for p in ps]  # type: ignore[misc]
    return _layer(x, w, r, bias, (h, c), cells, hidden, _chosen(usual, 3), direction, clip, batch_first, lengths)


def gru(
    x: Tensor, w: Tensor, r: Tensor, *, hidden: int, functions: Named = (), direction: str = "forward",
    clip: float = 0.0, batch_first: bool = False, bias: Tensor | None = None, lengths: Tensor | None = None,
    h: Tensor | None = None, linear_before_reset: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gates z, r, h."""
    usual = functions or (("Sigmoid", 0, 0), ("Tanh", 0, 0)) * 2

    def step(a: Tensor, state: tuple[Tensor, ...], v: Weights) -> tuple[Tensor, ...]:
        (h,), (f, g) = state, v.functions
        if linear_before_reset:
            zx, rx, nx = a.chunk(3, -1)
            zh, rh, nh = F.linear(h, v.r, v.rb).chunk(3, -1)
            z, reset = f(v.clipped(zx + zh)), f(v.clipped(rx + rh))
            new = g(v.clipped(nx + reset * nh))
        else:
            (zr_r, n_r), n = (v.r[: 2 * hidden], v.r[2 * hidden :]), 2 * hidden
            zr_b, n_b = (None, None) if v.rb is None else (v.rb[:n], v.rb[n:])
            z, reset = f(v.clipped(a[:, :n] + F.linear(h, zr_r, zr_b))).chunk(2, -1)
            new = g(v.clipped(a[:, n:] + F.linear(reset * h, n_r, n_b)))
        return ((1 - z) * new + z * h,)

    return _layer(x, w, r, bias, (h,), [step, step], hidden, _chosen(usual, 2), direction, clip, batch_first, lengths)


def rnn(
    x: Tensor, w: Tensor, r: Tensor, *, hidden: int, functions: Named = (), direction: str = "forward",
    clip: float = 0.0, batch_first: bool = False, bias: Tensor | None = None, lengths: Tensor | None = None,
    h: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    usual = functions or (("Tanh", 0, 0),) * 2

    def step(a: Tensor, state: tuple[Tensor, ...], v: Weights) -> tuple[Tensor, ...]:
        return (v.functions[0](v.clipped(a + F.linear(state[0], v.r, v.rb))),)

    return _layer(x, w, r, bias, (h,), [step, step], hidden, _chosen(usual, 1), direction, clip, batch_first, lengths)


def _chosen(named: Named, count: int) -> list[list[Function]]:
    """The activations by direction."""
    made: list[Function] = [lambda x, f=FUNCTIONS[n], a=a, b=b: f(x, a, b) for n, a, b in named]  # type: ignore[misc]
    return [made[:count], made[count : 2 * count] or made[:count]]


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _layer(
    x: Tensor, w: Tensor, r: Tensor, bias: Tensor | None, starts: Sequence[Tensor | None], cells: Sequence[Cell],
    hidden: int, functions: list[list[Function]], direction: str, clip: float, batch_first: bool,
    lengths: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """All directions: Y [T, directions, B, H], and the last of every state [directions, B, H]."""
    kind, narrow = _wide(x), x.dtype
    x, w, r, bias = x.to(kind), w.to(kind), r.to(kind), None if bias is None else bias.to(kind)
    if batch_first:
        x, starts = x.transpose(0, 1), [None if s is None else s.transpose(0, 1) for s in starts]
    made, lasts = [], []
    for d, way in enumerate(("forward", "reverse") if direction == "bidirectional" else (direction,)):
        gated = len(functions[d]) > 1
        weights = Weights(w[d], r[d], None if bias is None else bias[d], functions[d], clip, gated)
        zero = torch.zeros(x.shape[1], hidden, dtype=kind, device=x.device)
        state = tuple(zero if s is None else s[d].to(kind) for s in starts)
        ys, state = _frames(x, state, cells[d], weights, way == "reverse", lengths)
        made.append(ys)
        lasts.append(state)
    y, ends = torch.stack(made, 1), [torch.stack(s) for s in zip(*lasts, strict=True)]
    if batch_first:
        y, ends = y.permute(2, 0, 1, 3), [e.transpose(0, 1) for e in ends]
    return tuple(v.to(narrow) for v in (y, *ends))


def _frames(
    x: Tensor, state: tuple[Tensor, ...], cell: Cell, weights: Weights, backwards: bool, lengths: Tensor | None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Frame by frame. Behind a stream's length states stay as they are, and zero comes out."""
    gates, count = F.linear(x, weights.w, weights.wb), x.shape[0]
    ys: list[Tensor] = []
    for t in reversed(range(count)) if backwards else range(count):
        new = cell(gates[t], state, weights)
        if lengths is None:
            y = new[0]
        else:
            real = (t < lengths).unsqueeze(-1)
            y = torch.where(real, new[0], 0.0)
            new = tuple(torch.where(real, n, s) for n, s in zip(new, state, strict=True))
        state = new
        ys.append(y)
    if not ys:
        return gates.new_zeros(0, *state[0].shape), state
    if lengths is not None:  # of a stream without frames the runtime gives zero, not where it started
        some = (lengths > 0).unsqueeze(-1)
        state = tuple(torch.where(some, s, 0.0) for s in state)
    return torch.stack(ys[::-1] if backwards else ys), state

"""Running maxima, products and log-sums, and LSTMs with projections, as scripted loops, which recurrences come from."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from pulsify.frontend.complex_tensors.rewrites import rewrite


def _largest(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # [frames, ...]
    values: list[torch.Tensor] = []
    places: list[torch.Tensor] = []
    top = torch.full_like(x[0], -math.inf)
    place = torch.zeros_like(x[0]).to(torch.int64)
    for t in range(x.size(0)):
        place = torch.where(x[t] >= top, torch.zeros_like(place) + t, place)
        top = torch.maximum(top, x[t])
        values.append(top)
        places.append(place)
    return torch.stack(values), torch.stack(places)


def _log_sum(x: torch.Tensor) -> torch.Tensor:
    out: list[torch.Tensor] = []
    total = torch.full_like(x[0], -math.inf)
    for t in range(x.size(0)):
        high, low = torch.maximum(total, x[t]), torch.minimum(total, x[t])
        total = high + torch.log1p(torch.exp(torch.where(high == low, torch.zeros_like(high), low - high)))
        out.append(total)
    return torch.stack(out)


def _product(x: torch.Tensor) -> torch.Tensor:
    out: list[torch.Tensor] = []
    total = torch.ones_like(x[0])
    for t in range(x.size(0)):
        total = total * x[t]
        out.append(total)
    return torch.stack(out)


def _projected(
    gates: torch.Tensor, h: torch.Tensor, c: torch.Tensor, recurrent: torch.Tensor, projection: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    out: list[torch.Tensor] = []
    size = c.size(1)
    for t in range(gates.size(0)):
        z = gates[t] + torch.matmul(h, recurrent.t())
        kept = torch.sigmoid(z[:, size : 2 * size]) * c
        c = kept + torch.sigmoid(z[:, :size]) * torch.tanh(z[:, 2 * size : 3 * size])
        h = torch.matmul(torch.sigmoid(z[:, 3 * size :]) * torch.tanh(c), projection.t())
        out.append(h)
    return torch.stack(out), h, c


@functools.cache
def _scripted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled when it is first needed."""
    compiled: Callable[..., Any] = torch.jit.script(function)
    return compiled


def _along(function: Callable[..., Any], x: Any, axis: int) -> Any:
    """With the axis in front; of what a loop makes, an exporter does not know how many axes there are."""
    axis = axis % x.dim()
    rest = [a for a in range(x.dim()) if a != axis]
    back = [*range(1, axis + 1), 0, *range(axis + 1, x.dim())]
    results = _scripted(function)(x.permute(axis, *rest))
    return tuple(r.permute(back) for r in results) if isinstance(results, tuple) else results.permute(back)


@rewrite("cummax")
def cummax(x: Any, dim: int) -> Any:
    return torch.return_types.cummax(_along(_largest, x, dim))


@rewrite("cummin")
def cummin(x: Any, dim: int) -> Any:
    values, places = _along(_largest, -x, dim)
    return torch.return_types.cummin((-values, places))


@rewrite("logcumsumexp")
def logcumsumexp(x: Any, dim: int) -> Any:
    return _along(_log_sum, x, dim)


@rewrite("cumprod")
def cumprod(x: Any, dim: int, dtype: Any = None) -> Any:
    return _along(_product, x if dtype is None else x.to(dtype), dim)


@rewrite("lstm")
def lstm(x: Any, *args: Any, **kwargs: Any) -> Any:
    """With projections (`proj_size`), layer by layer; any other is left as it is."""
    if len(args) != 8 or kwargs or not isinstance(args[0], (tuple, list)):  # a packed sequence
        return torch.lstm(x, *args, **kwargs)
    (h, c), weights, has_biases, layers, _, _, bidirectional, batch_first = args
    each = 5 if has_biases else 3
    if bidirectional or len(weights) != each * layers:  # without projections there are fewer weights
        return torch.lstm(x, *args)
    x = x.transpose(0, 1) if batch_first else x
    ends = []
    for i in range(layers):
        into, recurrent, *biases, projection = weights[each * i : each * (i + 1)]
        gates = torch.nn.functional.linear(x, into, sum(biases) if biases else None)
        x, last, cell = _scripted(_projected)(gates, h[i], c[i], recurrent, projection)
        ends.append((last, cell))
    out = x.transpose(0, 1) if batch_first else x
    return out, torch.stack([h for h, _ in ends]), torch.stack([c for _, c in ends])

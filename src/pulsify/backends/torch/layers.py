"""Recurrent layers in one call: torch's own GRU and LSTM, for those of ONNX that are the same.

Gates are in torch's order here (`ops_recurrent` turns the weights). All of it is in float32 at least.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TypeAlias

import torch
from torch.utils.weak import WeakIdKeyDictionary

Tensor: TypeAlias = torch.Tensor
CUDNN = {"lstm": 2, "gru": 3}  # as the library numbers them
_flat: WeakIdKeyDictionary = WeakIdKeyDictionary()  # the first weights of layers that lie in one piece


def gru_layer(
    x: Tensor, weights: Sequence[Tensor], h: Tensor | None, both_ways: bool = False, batch_first: bool = False
) -> tuple[Tensor, ...]:
    """Y [T, directions, B, H] and the last state [directions, B, H], as ONNX has them."""
    kind, (x, h) = x.dtype, _in_front(batch_first, x, h)
    h = _start(x, weights, both_ways) if h is None else h
    if len(x) == 1 and not both_ways:
        new = torch.gru_cell(x[0], h[0], *weights)
        return _as_given(kind, batch_first, new[None, None], new[None])
    _flatten("gru", x, weights, both_ways)
    y, last = torch.gru(x, h, list(weights), _biased(weights, both_ways), 1, 0.0, False, both_ways, False)
    return _as_given(kind, batch_first, _by_direction(y, last), last)


def lstm_layer(
    x: Tensor, weights: Sequence[Tensor], h: Tensor | None, c: Tensor | None,
    both_ways: bool = False, batch_first: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The same, and the last cells."""
    kind, (x, h, c) = x.dtype, _in_front(batch_first, x, h, c)
    h, c = (_start(x, weights, both_ways) if s is None else s for s in (h, c))
    if len(x) == 1 and not both_ways:
        new, cell = torch.lstm_cell(x[0], (h[0], c[0]), *weights)
        return _as_given(kind, batch_first, new[None, None], new[None], cell[None])
    _flatten("lstm", x, weights, both_ways)
    biased = _biased(weights, both_ways)
    y, last, cells = torch.lstm(x, (h, c), list(weights), biased, 1, 0.0, False, both_ways, False)
    return _as_given(kind, batch_first, _by_direction(y, last), last, cells)


def _in_front(batch_first: bool, x: Tensor, *states: Tensor | None) -> tuple[Tensor, ...]:
    """Frames, then directions, as the first axis, and in float32 at least."""
    wide = torch.promote_types(x.dtype, torch.float32)
    given = [v if v is None else v.to(wide) for v in (x, *states)]
    if batch_first:
        given = [v if v is None else v.transpose(0, 1) for v in given]
    return tuple(v if v is None else v.contiguous() for v in given)


def _start(x: Tensor, weights: Sequence[Tensor], both_ways: bool) -> Tensor:
    return x.new_zeros(1 + both_ways, x.shape[1], weights[1].shape[1])


def _biased(weights: Sequence[Tensor], both_ways: bool) -> bool:
    return len(weights) == 4 * (1 + both_ways)


def _by_direction(y: Tensor, last: Tensor) -> Tensor:
    """[T, B, directions * H] -> [T, directions, B, H]"""
    return y.unflatten(2, (last.shape[0], last.shape[2])).transpose(1, 2)


def _as_given(kind: torch.dtype, batch_first: bool, y: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
    if batch_first:
        y, states = y.permute(2, 0, 1, 3), tuple(s.transpose(0, 1) for s in states)
    return tuple(v.to(kind) for v in (y, *states))


def _flatten(name: str, x: Tensor, weights: Sequence[Tensor], both_ways: bool) -> None:
    """On a card the weights of a layer lie in one piece, or they are copied at every call."""
    if x.device.type != "cuda" or weights[0] in _flat or torch.compiler.is_compiling():
        return
    each = 4 if _biased(weights, both_ways) else 2
    with torch.inference_mode(False), torch.no_grad(), suppress(RuntimeError):  # else it is only slower
        torch._cudnn_rnn_flatten_weight(
            list(weights), each, x.shape[2], CUDNN[name], weights[1].shape[1], 0, 1, False, both_ways
        )
    _flat[weights[0]] = True

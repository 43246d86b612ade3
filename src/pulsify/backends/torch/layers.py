"""Recurrent layers in one call: torch's own GRU and LSTM, for those of ONNX that are the same.

Gates are in torch's order here (`ops_recurrent` turns the weights). All of it is in float32 at least.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TypeAlias

import torch
from torch.utils.weak import WeakIdKeyDictionary

from pulsify.backends.torch.cells import gru, lstm

Tensor: TypeAlias = torch.Tensor
ONNX = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2)}  # its order of gates, i o f c and z r h, of torch's i f g o and r z n
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
        made = new[None, None], new[None]
    else:
        _flatten("gru", x, weights, both_ways)
        y, last = torch.gru(x, h, list(weights), _biased(weights, both_ways), 1, 0.0, False, both_ways, False)
        made = _by_direction(y, last), last
    return _as_given(kind, batch_first, *_clipped("gru", x, weights, (h,), made))


def lstm_layer(
    x: Tensor, weights: Sequence[Tensor], h: Tensor | None, c: Tensor | None,
    both_ways: bool = False, batch_first: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The same, and the last cells."""
    kind, (x, h, c) = x.dtype, _in_front(batch_first, x, h, c)
    h, c = (_start(x, weights, both_ways) if s is None else s for s in (h, c))
    if len(x) == 1 and not both_ways:
        new, cell = torch.lstm_cell(x[0], (h[0], c[0]), *weights)
        made = new[None, None], new[None], cell[None]
    else:
        _flatten("lstm", x, weights, both_ways)
        biased = _biased(weights, both_ways)
        y, last, cells = torch.lstm(x, (h, c), list(weights), biased, 1, 0.0, False, both_ways, False)
        made = _by_direction(y, last), last, cells
    return _as_given(kind, batch_first, *_clipped("lstm", x, weights, (h, c), made))


def _clipped(
    name: str, x: Tensor, weights: Sequence[Tensor], starts: tuple[Tensor, ...], made: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Streams with NaN are computed once more, frame by frame: ONNX Runtime clips gates that are NaN, torch does not.

    On the CPU only: a GPU would wait for the answer, and its streams stay NaN.
    """
    ways = made[0].shape[1]
    if x.device.type != "cpu" or torch.compiler.is_compiling() or not _biased(weights, ways > 1):
        return made
    bad = made[1].isnan().any(2).any(0)  # of the last state: once NaN, a gate stays so
    if not bad.any():
        return made
    w, r, wb, rb = (torch.stack([_in_order(name, v) for v in weights[i::4]]) for i in range(4))
    hidden, bias = r.shape[-1], torch.cat([wb, rb], 1)
    given = [s[:, bad] for s in starts]
    common = {"hidden": hidden, "bias": bias, "direction": "bidirectional" if ways > 1 else "forward", "h": given[0]}
    if name == "gru":
        again = gru(x[:, bad], w, r, linear_before_reset=True, **common)
    else:
        again = lstm(x[:, bad], w, r, c=given[1], **common)
    out = tuple(v.clone() for v in made)
    for i, part in enumerate(again):
        out[i][(slice(None),) * (2 if i == 0 else 1) + (bad,)] = part
    return out


def _in_order(name: str, weights: Tensor) -> Tensor:
    """Gates as ONNX has them."""
    gates = weights.chunk(len(ONNX[name]))
    return torch.cat([gates[i] for i in ONNX[name]])


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

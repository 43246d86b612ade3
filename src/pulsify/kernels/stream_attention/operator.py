"""`stream_attention` as two operators of torch, so that torch.compile and recordings take it whole.

    pulsify::stream_attention           reads
    pulsify::stream_attention_append    writes to keys and values, too

Nothing in them waits for the device. What computes is chosen by the device alone (`targets`).
"""

from __future__ import annotations

import math
from typing import Any

import torch

from pulsify.kernels.stream_attention.sizes import sizes
from pulsify.kernels.targets import chosen, implementation

Tensor = Any
TYPES = {  # of all that has a default, in the operators' order: their tensors cannot be keywords
    **dict.fromkeys(("bias", "mask", "first", "last", "table", "u", "v", "start", "read", "write"), "Tensor?"),
    **{"scale": "float", "fill": "float", "hollow": "str", "shift": "int"},
}
NEW = ("new_keys", "new_values")
OTHERS = ", ".join(f"{kind} {name}" for name, kind in TYPES.items())
READ = f"(Tensor q, Tensor keys, Tensor values, {OTHERS}) -> Tensor"
APPEND = f"(Tensor q, Tensor(a!) keys, Tensor(b!) values, {OTHERS}, Tensor new_keys, Tensor new_values) -> Tensor"


def stream_attention(
    q: Tensor, keys: Tensor, values: Tensor, *, scale: float = 1.0, bias: Tensor = None, mask: Tensor = None,
    fill: float = -math.inf, hollow: str = "nan", first: Tensor = None, last: Tensor = None, table: Tensor = None,
    shift: int = 0, u: Tensor = None, v: Tensor = None, start: Tensor = None, new_keys: Tensor = None,
    new_values: Tensor = None, read: Tensor = None, write: Tensor = None,
) -> Tensor:  # fmt: skip
    """[B, H, Tq, Dv], in memory [B, Tq, H, Dv]. New frames are written to keys and values after all was read."""
    named: dict[str, Any] = {
        "scale": scale, "fill": fill, "hollow": hollow, "shift": shift, "bias": bias, "mask": mask, "first": first,
        "last": last, "table": table, "u": u, "v": v, "start": start, "read": read, "write": write,
    }  # fmt: skip
    sizes(q, keys, values, new_keys=new_keys, new_values=new_values, **named)
    given = (q, keys, values, *(named[name] for name in TYPES))
    if new_keys is None:
        return torch.ops.pulsify.stream_attention(*given)
    return torch.ops.pulsify.stream_attention_append(*given, new_keys, new_values)


def _compute(q: Tensor, keys: Tensor, values: Tensor, *others: Any) -> Tensor:
    found = implementation("stream_attention", chosen(q.device.type))
    return found(q, keys, values, **dict(zip((*TYPES, *NEW), others)))


def _shaped(q: Tensor, keys: Tensor, values: Tensor, *others: Any) -> Tensor:
    batch, heads, queries, _ = q.shape
    return q.new_empty(batch, queries, heads, values.shape[3]).transpose(1, 2)


for _name, _schema, _written in (
    ("pulsify::stream_attention", READ, ()),
    ("pulsify::stream_attention_append", APPEND, ("keys", "values")),
):
    torch.library.custom_op(_name, _compute, mutates_args=_written, schema=_schema).register_fake(_shaped)

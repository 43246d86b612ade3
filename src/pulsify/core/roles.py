"""What a node of a step is for, where whoever runs the step may want to know: said by the one who emits it.

    queries, keys --scores--> (scale, biases, masks) --weights--> --values--> the sum
    queries, table --positions--> --shifted--/                     values -/

A role is metadata of the node: it is written to the file, and any reader may leave it aside.
"""

from __future__ import annotations

import onnx_ir as ir

KEY = "pulsify.attention"
SCORES = "scores"  # the product of queries and keys, frames by frames
POSITIONS = "positions"  # the product of queries and a table with a row for every offset j - i
SHIFTED = "shifted"  # the same, read along the diagonal: [i, j] is [i, j - i + rows - 1] of it
WEIGHTS = "weights"  # the softmax over the columns
VALUES = "values"  # the sum of values by weights


def mark(value: ir.Value, role: str) -> ir.Value:
    """The node that makes a value has this role."""
    node = value.producer()
    if node is not None:
        node.metadata_props[KEY] = role
    return value


def role(node: ir.Node | None) -> str | None:
    return None if node is None else node.metadata_props.get(KEY)

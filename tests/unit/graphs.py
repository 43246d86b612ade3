"""Small graphs for passes: one in, one out."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes import PassBase
from onnx_ir.passes.common import ShapeInferencePass

from pulsify.core.runner import open_model, run_model
from tests.models import Array, Dims, close, model, node


def parsed(text: str) -> list[onnx.NodeProto]:
    """'Slice x i j k > h; Conv h w > y strides=[2]': inputs, outputs, attributes."""
    made = []
    for line in text.split(";"):
        left, right = line.split(">")
        op, *inputs = left.split()
        outputs = [word for word in right.split() if "=" not in word]
        attributes = {k: ast.literal_eval(v) for k, v in (word.split("=") for word in right.split() if "=" in word)}
        made.append(node(op, " ".join(inputs), " ".join(outputs), **attributes))
    return made


def graph(
    nodes: Sequence[onnx.NodeProto] | str,
    inputs: Mapping[str, Dims],
    outputs: str,
    constants: Mapping[str, Array],
    **options: Any,
) -> ir.Model:
    """With all sizes inferred. options: of `tests.models.model`."""
    listed = parsed(nodes) if isinstance(nodes, str) else nodes
    return ShapeInferencePass()(ir.from_proto(model(listed, inputs, outputs.split(), constants, **options))).model


def ops(made: ir.Model) -> list[str]:
    return [n.op_type for n in made.graph]


def run(made: ir.Model, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Every operator as it is written."""
    return run_model(open_model(made, optimize=False), feeds)


def made_up(of: ir.Model, seed: int = 1) -> dict[str, Array]:
    """Random inputs; a free size is 2."""
    rng = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for v in of.graph.inputs:
        if v.const_value is None:
            assert v.shape is not None and v.dtype is not None
            dims = [d if isinstance(d, int) else 2 for d in v.shape]
            feeds[str(v.name)] = rng.standard_normal(dims).astype(v.dtype.numpy())
    return feeds


def alike(before: ir.Model, after: ir.Model) -> None:
    """Outputs that both have are equal, and there are some."""
    feeds = made_up(before)
    want, got = run(before, feeds), run(after, feeds)
    assert want.keys() & got.keys()
    for name in want.keys() & got.keys():
        assert got[name].shape == want[name].shape
        close(got[name], want[name])


def becomes(change: PassBase, before: ir.Model, *after: str) -> ir.Model:
    """The model a pass makes, which has these operators in this order and computes the same."""
    original = before.clone()
    result = change(before)
    assert result.modified
    assert ops(result.model) == list(after)
    alike(original, result.model)
    return result.model


def stays(change: PassBase, before: ir.Model) -> None:
    """The pass has nothing to do, and says so."""
    wanted = ops(before)
    result = change(before)
    assert not result.modified
    assert ops(result.model) == wanted

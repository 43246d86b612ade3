"""One known node on arrays, and which nodes do the same to theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from pulsify.core.errors import NotStreamable
from pulsify.core.one_node import NoKernel, OneNode
from pulsify.core.refusal import Kind
from pulsify.frontend.model import Model, Node
from pulsify.trace.traced import Array

SMALL = 16  # elements of an attribute


def alike(node: Node) -> tuple[Any, ...]:
    """What two nodes must share to do the same to their inputs."""
    names = list(node.inputs)
    given = tuple(names.index(n) if n else -1 for n in names)
    attrs = tuple((k, _written(v, node.outputs)) for k, v in sorted(node.attrs.items()))
    return node.domain, node.op, node.version, given, tuple(map(bool, node.outputs)), attrs


def _written(value: Any, own: object) -> object:
    """An attribute's value, if it is small; else whose it is."""
    if isinstance(value, (int, float, str, bytes, tuple)):
        return repr(value)
    # of some versions of onnx_ir a tensor as an array loses its type
    tensor = value.numpy() if isinstance(value, ir.TensorProtocol) else value
    array = None if isinstance(value, (ir.Graph, list)) else np.asarray(tensor)
    small = array is not None and array.size <= SMALL and array.dtype.kind in "biuf"
    return (array.dtype.char, array.shape, array.tobytes()) if small and array is not None else own


def alone(model: Model, node: Node) -> OneNode:
    body = model.bodies.get((node.domain, node.op))
    return OneNode(node.proto, node.attrs, model.opset_imports, model.ir_version, () if body is None else (body,))


def runner_of(model: Model, node: Node) -> Callable[[list[Array | None]], list[Array]]:
    """Executes one node on arrays, None for an input that is left out.

    Raises NotStreamable where ONNX Runtime has no kernel for it: then it does not run the batch model either.
    """
    one = alone(model, node)

    def run(arrays: list[Array | None]) -> list[Array]:
        try:
            return one.run(arrays)
        except NoKernel as problem:
            raise NotStreamable(
                f"the batch model itself does not run: ONNX Runtime does not take it ({str(problem)[:160]})",
                node=node.name,
                op=node.op,
                hint="export the model with types that ONNX Runtime has this operator for (float32, int32 or int64)",
                kind=Kind.EXPORT,
            ) from problem

    return run

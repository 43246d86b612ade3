"""One known node on arrays: by the reference evaluator where that is the same, else by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from pulsify.frontend.model import Model, Node

Array = np.ndarray

# Functions that ONNX Runtime, and so the batch model, works out otherwise than NumPy by more than a few units in the
# last place. What else is rounded is left to NumPy: there it is the same wherever it stands in an array.
CLAMPED = {"Sigmoid", "Tanh", "Erf", "HardSigmoid", "Gelu"}
BY_ZERO = {"Div", "Mod"}
SMALL = 16  # elements of an attribute
NO_NUMBERS = {"Range", "Cast", "CastLike", "ReduceMax", "ReduceMin"}  # what is rounded, infinite or no number


def _plain(node: Node, arrays: Sequence[Array]) -> bool:
    """Does NumPy do the same as ONNX Runtime does, as far as can be seen? (Its masks are views, and take no room.)"""
    floats = any(a.dtype.kind == "f" for a in arrays)
    if node.op == "Slice":
        return len(node.inputs) < 5 or not node.inputs[4] or bool((arrays[-1] > 0).all())  # backwards it clamps
    if node.op == "Pad":
        return len(arrays) < 2 or (node.attr("mode", "constant") == "constant" and bool((arrays[1] >= 0).all()))
    if node.op in BY_ZERO:
        return floats or bool(arrays[1].all())
    if node.op in NO_NUMBERS:
        return not floats
    return node.op not in CLAMPED and (node.op != "Pow" or floats)


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
    array = None if isinstance(value, (ir.Graph, list)) else np.asarray(value)
    small = array is not None and array.size <= SMALL and array.dtype.kind in "biuf"
    return (array.dtype.char, array.shape, array.tobytes()) if small and array is not None else own


def runner_of(model: Model, node: Node) -> Callable[[list[Array]], list[Array]]:
    """Executes one node on arrays: the reference evaluator where that is the same, else ONNX Runtime."""
    from onnx.reference import ReferenceEvaluator

    names = list(dict.fromkeys(i for i in node.inputs if i))
    positions = [list(filter(None, node.inputs)).index(n) for n in names]
    sessions: dict[tuple[Any, ...], Any] = {}
    try:
        evaluator: Any = ReferenceEvaluator(single_node_model(model, node, [None] * len(names)))
    except Exception:  # not implemented there
        evaluator = None

    def spread(arrays: list[Array]) -> list[Array | None]:
        """With a None for every input that is left out."""
        there = iter(arrays)
        return [next(there) if i else None for i in node.inputs]

    direct = _operator(evaluator)

    def session(arrays: list[Array]) -> Any:
        """Kept for inputs of these types and ranks; None where ONNX Runtime has no kernel for them."""
        types = tuple((a.dtype, a.ndim) for a in arrays)  # nodes that are alike share it
        if types not in sessions:
            try:
                sessions[types] = _runtime(single_node_model(model, node, arrays))
            except Exception:
                if evaluator is None:
                    raise
                sessions[types] = None
        return sessions[types]

    def run(arrays: list[Array]) -> list[Array]:
        given = [arrays[p] for p in positions]
        held = all(a.dtype.kind in "biuf" for a in given) and node.domain == ""
        known_alike = evaluator is not None and (not held or _plain(node, arrays))
        runner = None if known_alike else session(given)
        if runner is None and direct is not None:
            return [np.asarray(a) for a in direct.run(*spread(arrays))]
        return [np.asarray(a) for a in (runner or evaluator).run(None, dict(zip(names, given, strict=True)))]

    return run


def _operator(evaluator: Any) -> Any:
    """The one operator of an evaluator, which costs as much again around it; None if it needs what is around it."""
    (op,) = getattr(evaluator, "rt_nodes_", None) or [None]
    return None if op is None or op.need_context() or op.has_linked_attribute else op


def _runtime(proto: onnx.ModelProto) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4  # where it does not run the model does not, which is what is asked
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def single_node_model(model: Model, node: Node, arrays: Sequence[Array | None]) -> onnx.ModelProto:
    names = dict.fromkeys(i for i in node.inputs if i)
    inputs = [_info(n, a) for n, a in zip(names, arrays, strict=True)]
    outputs = [onnx.ValueInfoProto(name=n) for n in node.outputs if n]
    graph = helper.make_graph([node.proto], "one", inputs, outputs)
    opsets = [helper.make_opsetid(k, v) for k, v in model.opset_imports.items()]
    body = model.bodies.get((node.domain, node.op))
    return helper.make_model(
        graph, opset_imports=opsets, ir_version=model.ir_version, functions=[] if body is None else [body]
    )


def _info(name: str, array: Array | None) -> onnx.ValueInfoProto:
    if array is None:
        return onnx.ValueInfoProto(name=name)
    dims = [None] * array.ndim  # of any size
    return helper.make_tensor_value_info(name, int(ir.DataType.from_numpy(array.dtype)), dims)

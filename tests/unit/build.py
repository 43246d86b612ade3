"""Models as each layer hands them on to the next, so that a test can start in the middle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

import pulsify.ops  # noqa: F401  fills the registry
from pulsify.analysis.options import Options
from pulsify.analysis.questions import Questions
from pulsify.convert.analyse import analyse
from pulsify.core.arrays import Array
from pulsify.core.runner import open_model
from pulsify.frontend.load import load
from pulsify.frontend.model import Model
from pulsify.frontend.time import find_time
from pulsify.plan.context import Context
from pulsify.trace.lengths import Tracer
from pulsify.trace.resolve import resolve


def written(model: Model) -> onnx.ModelProto:
    """A settled model as a file has it, to be run as a whole."""
    graph = onnx.helper.make_graph(
        [n.proto for n in model.nodes],
        "settled",
        [onnx.helper.make_tensor_value_info(p.name, int(p.dtype), p.dims) for p in model.inputs],
        [onnx.ValueInfoProto(name=n) for n in model.outputs],
        [onnx.numpy_helper.from_array(np.asarray(t.numpy()), n) for n, t in model.constants.items()],
    )
    opsets = [onnx.helper.make_opsetid(k, v) for k, v in model.opset_imports.items()]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)


def traced(proto: onnx.ModelProto, **about: Any) -> Tracer:
    """about: time, bind, set, as of `pulsify.stream`."""
    loaded = load(proto)
    time = find_time(loaded, **about)
    return Tracer(resolve(loaded, time), time)


def converting(proto: onnx.ModelProto, pulse: int = 4, proof: str = "proven", **about: Any) -> Context:
    """All rules applied; nothing is settled or assembled yet."""
    return analyse(traced(proto, **about), pulse, Options(proof=proof))[0]


def asked(proto: onnx.ModelProto, **about: Any) -> Questions:
    return converting(proto, **about).ask


def run_built(ctx: Context, outputs: Sequence[ir.Value], feeds: Mapping[ir.Value, Array]) -> list[Array]:
    """Runs what a builder holds: of the nodes only those the outputs need, fed by value."""
    b = ctx.builder
    wanted = list(outputs)
    needed, todo = set[ir.Value](), list(wanted)
    while todo:
        value = todo.pop()
        made = value.producer()
        if value not in needed and made is not None:
            todo.extend(v for v in made.inputs if v is not None)
        needed.add(value)
    proto = onnx.helper.make_graph(
        [ir.to_proto(n) for n in b.nodes if any(o in needed for o in n.outputs)],
        "built",
        [
            onnx.helper.make_tensor_value_info(str(v.name), int(ir.DataType.from_numpy(a.dtype)), a.shape)
            for v, a in feeds.items()
        ],
        [onnx.ValueInfoProto(name=str(v.name)) for v in wanted],
        [
            onnx.numpy_helper.from_array(np.asarray(v.const_value.numpy()), name)
            for name, v in b.constants.items()
            if v.const_value is not None
        ],
    )
    opsets = [onnx.helper.make_opsetid("", ctx.ask.model.opset_imports[""])]
    session = open_model(onnx.helper.make_model(proto, opset_imports=opsets, ir_version=10), optimize=False)
    given = {str(v.name): a for v, a in feeds.items() if v in needed}
    return [np.asarray(a) for a in session.run(None, dict(given.items()))]

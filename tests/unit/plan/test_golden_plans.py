"""The plan of one small model of every family, as text: windows, what is read, kept and waited for.

python -m tests.unit.plan.test_golden_plans      writes the files anew: read what changed before you commit it
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from pulsify.analysis.facts import Static, Window, Wire
from pulsify.analysis.ledger import Ledger
from pulsify.analysis.options import Options
from pulsify.analysis.questions import Questions
from pulsify.convert import pulses
from pulsify.convert.emit import emit
from pulsify.emit.builder import Builder
from pulsify.ops.registry import RULES
from pulsify.plan.context import Context
from pulsify.report.plan_text import plan_lines
from tests.attention.graphs import Case, build
from tests.attention.masks import Mask
from tests.attention.test_found import attention
from tests.models import OPSET, model, node, port, weights
from tests.unit.build import traced

FOLDER = Path(__file__).parent / "golden"
X = {"x": [1, 2, "T"]}
FAR = np.array([1 << 40])


def chain(*nodes: onnx.NodeProto, dims: Any = None, opset: int = OPSET, **constants: Any) -> onnx.ModelProto:
    return model(list(nodes), dims or X, ["y"], {k: np.asarray(v) for k, v in constants.items()}, opset=opset)


def conv(name: str, given: str, size: int = 3, pad: int = 0, stride: int = 1) -> onnx.NodeProto:
    return node("Conv", f"{given} w{size}", name, pads=[pad, pad], strides=[stride])


W1, W2, W3 = (weights(2, 2, n) for n in (1, 2, 3))
POSITIONS = [node("Shape", "x", "dims"), node("Gather", "dims two", "t", axis=0), node("Range", "zero t one", "p"),
             ]  # fmt: skip
QUANTIZED = {"s": np.float32(0.1), "z": np.uint8(3)}
BODY = onnx.helper.make_graph(
    [node("Add", "h f", "s"), node("Tanh", "s", "h2"), node("Identity", "h2", "g")], "body",
    [port("h", [1, 3]), port("f", [1, 3])], [port("h2", None), port("g", None)],
)  # fmt: skip
NUMBERS = {"zero": 0, "one": 1, "two": 2}

MODELS: dict[str, tuple[onnx.ModelProto, int | None, dict[str, Any]]] = {
    "pointwise": (chain(node("Relu", "x", "h"), node("Add", "h x", "y")), 4, {}),
    "conv": (chain(conv("h", "x", 3, 1), node("Add", "h x", "y"), w3=W3), 4, {}),
    "conv_strided": (chain(conv("h", "x", 3, 1, 2), node("Relu", "h", "y"), w3=W3), None, {}),
    "conv_transpose": (chain(node("ConvTranspose", "x w3", "y", strides=[2]), w3=W3), 2, {}),
    "pool": (chain(node("MaxPool", "x", "y", kernel_shape=[3], pads=[1, 1])), 4, {}),
    "pool_average": (chain(node("AveragePool", "x", "y", kernel_shape=[3], pads=[1, 1], count_include_pad=1)), 4, {}),
    "pad_constant": (chain(node("Pad", "x n v", "h"), conv("y", "h"), n=[0, 0, 2, 0, 0, 0], v=np.float32(1.5), w3=W3),
                     4, {}),
    "pad_reflect": (chain(node("Pad", "x n", "h", mode="reflect"), conv("y", "h"), n=[0, 0, 2, 0, 0, 2], w3=W3), 2, {}),
    "slice": (chain(node("Slice", "x a b c", "h"), node("Add", "h h", "y"), a=[3], b=FAR, c=[2]), 4, {}),
    "concat": (chain(node("Concat", "k x k", "y", axis=2), k=weights(1, 2, 2)), 4, {}),
    "reshape": (chain(node("Reshape", "x s", "y"), dims={"x": [1, "T", 4]}, s=[1, -1, 2]), 2, {}),
    "expand": (chain(node("Expand", "x s", "h"), conv("y", "h", 2), dims={"x": [1, 1, "T"]}, s=[1, 2, 1], w2=W2),
               4, {}),
    "table": (chain(*POSITIONS, node("Gather", "table p", "rows"), node("Transpose", "rows", "r", perm=[1, 0]),
                    node("Add", "x r", "y"), table=weights(99, 2), **NUMBERS), 4, {}),
    "resize": (chain(node("Resize", "x _ s", "y", mode="nearest", coordinate_transformation_mode="asymmetric",
                          nearest_mode="floor"), s=np.array([1, 1, 2], np.float32)), 2, {}),
    "positions": (chain(*POSITIONS, node("Cast", "p", "f", to=1), node("Add", "x f", "y"), **NUMBERS), 4, {}),
    "recurrent": (chain(conv("c", "x", 3, 1), node("Transpose", "c", "s", perm=[2, 0, 1]),
                        node("GRU", "s g r", "y", hidden_size=2), w3=W3, g=weights(1, 6, 2), r=weights(1, 6, 2)),
                  2, {}),
    "cumulative": (chain(node("CumSum", "x two", "y"), two=2), 4, {}),
    "fold": (chain(node("ReduceMax", "x", "y", axes=[2], keepdims=0)), 4, {}),
    "first_frames": (chain(node("Slice", "x a b c", "h"), node("ReduceSum", "h c", "s"), node("Sub", "x s", "y"),
                    a=[0], b=[6], c=[2]), 4, {}),
    "late": (chain(node("ReduceMean", "x", "m", axes=[2]), node("Sub", "x m", "d"), node("Mul", "d d", "q"),
                   node("ReduceMean", "q", "y", axes=[2])), 4, {}),
    "axes": (chain(node("Transpose", "x", "t", perm=[0, 2, 1]), node("Softmax", "t", "s", axis=-1),
                   node("LayerNormalization", "s w2", "n"), node("ReduceMax", "n", "m", axes=[2]),
                   node("ArgMax", "n", "a", axis=2), node("Cast", "a", "f", to=1), node("Add", "m f", "y"),
                   w2=weights(2)), 4, {}),
    "best": (chain(node("TopK", "x two", "y i", axis=2), two=[2]), 4, {}),
    "matmul": (chain(node("Transpose", "x", "t", perm=[0, 2, 1]), node("MatMul", "t w", "y"), w=weights(2, 3)), 4, {}),
    "matmul_summed": (chain(node("Transpose", "x", "t", perm=[0, 2, 1]), node("MatMul", "x t", "y")), 4, {}),
    "quantize": (chain(node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "y"), **QUANTIZED),
                 4, {}),
    "scan": (chain(node("Scan", "h0 x", "last y", body=BODY, num_scan_inputs=1), dims={"x": ["T", 1, 3]},
                   h0=weights(1, 3)), 2, {}),
    "spectral": (chain(node("STFT", "x two _ size", "y"), dims={"x": [1, "T"]}, two=2, size=4), 4, {}),
    "gather_nd": (chain(node("GatherND", "x i", "y"), i=[[0, 1]]), 4, {}),
    "gather_delayed": (chain(*POSITIONS, node("Sub", "p two", "b"), node("Max", "b zero", "i"),
                             node("Gather", "x i", "y", axis=2), **NUMBERS), 4, {}),
    "overlap": (chain(node("Shape", "x", "dims"), node("Slice", "dims two three", "t"), node("Sub", "t one", "t1"),
                      node("Mul", "t1 two", "t2"), node("Add", "t2 four", "size"),
                      node("Concat", "one size", "s", axis=0), node("Col2Im", "x s k", "y", strides=[1, 2]),
                      dims={"x": [1, 4, "T"]}, opset=18,
                      one=[1], two=[2], three=[3], four=[4], k=[1, 4]), 4, {}),
    "other_axes": (chain(node("Pad", "x n v", "p"), node("Gather", "p i", "g", axis=1),
                         node("Concat", "x g", "c", axis=1),
                         node("Slice", "c a b a", "s"), node("Split", "s", "u w", axis=1),
                         node("Unsqueeze", "u d", "e"), node("Squeeze", "e d", "q"), node("Add", "q w", "y"),
                         n=[0, 1, 0, 0, 0, 0], v=np.float32(1.5), i=[2, 0], a=[1], b=[3], d=[3]), 4, {}),
    "attention": (attention(-5, 1), 4, {}),
    "attention_chunks": (build(Case(mask=Mask("chunk", 4, left=1))).model, None, {}),
    "attention_grown": (attention(-(1 << 40), 0), 2, {"unbounded": "grow"}),
}  # fmt: skip


def planned(name: str) -> pulses.Planned:
    proto, pulse, options = MODELS[name]
    tracer, chosen = traced(proto), Options(**options)
    if pulse is None:
        plan = pulses.natural_plan(tracer, chosen)[1]
        assert plan is not None
        return plan
    return pulses.planned(tracer, pulse, chosen)


@pytest.mark.parametrize("name", MODELS)
def test_the_plan_of_a_family_is_as_it_was(name: str) -> None:
    assert "\n".join(plan_lines(planned(name))) + "\n" == (FOLDER / f"{name}.txt").read_text("utf-8")


@pytest.mark.parametrize("name", MODELS)
def test_no_node_is_made_before_a_pulse_is_chosen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(Builder, "ops", lambda *args, **more: made.append(args[1]))
    monkeypatch.setattr(Builder, "tensor", lambda *args, **more: made.append("constant"))
    tracer = traced(MODELS[name][0])
    before = ir.Node.__init__
    monkeypatch.setattr(ir.Node, "__init__", lambda *args, **more: made.append(args[2]))
    plan = pulses.natural_plan(tracer, Options(**MODELS[name][2]))[1]
    monkeypatch.setattr(ir.Node, "__init__", before)
    assert plan is not None and plan.ctx.steps and not made
    assert plan.ctx.emission is None and (plan.opening is None or plan.opening[0].emission is None)


@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_asked_or_claimed_while_nodes_are_emitted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(name)
    for owner, method in ((Questions, "fact"), (Questions, "operand"), (Questions, "refuse"), (Ledger, "require"),
                          (Ledger, "up_to"), (Ledger, "assume"), (Context, "frames"), (Context, "add")):  # fmt: skip
        monkeypatch.setattr(owner, method, lambda *args, **more: pytest.fail("that belongs into planning"))
    emission = emit(plan.ctx)
    assert all(value.value.producer() is not None for _, value in plan.outputs) and emission.buffers


def test_every_family_of_operators_has_a_plan_here() -> None:
    operators = {n.op_type for proto, _, _ in MODELS.values() for n in proto.graph.node}
    families = {entry.family for entry in RULES.values()} - {"cache"}  # it refuses whatever it gets
    assert {RULES[op].family for op in operators & set(RULES)} == families


def follows_from(value: ir.Value, allowed: set[ir.Value]) -> bool:
    """Is it made of nothing but constants and what is allowed? A shape is the same whatever the data are."""
    todo, seen = [value], set(allowed)
    while todo:
        value = todo.pop()
        if value in seen or value.const_value is not None:
            continue
        seen.add(value)
        maker = value.producer()
        if maker is None:
            return False
        todo += [v for v in maker.inputs if v is not None] if maker.op_type != "Shape" else []
    return True


@pytest.mark.parametrize("name", MODELS)
def test_what_is_planned_as_fixed_follows_from_constants_and_the_position(name: str) -> None:
    """The declarations of rules, held against the nodes that they emit."""
    ctx = planned(name).ctx
    values = [v for step in ctx.steps for v in step.values]
    for fact in list(ctx.ask.facts.values()):
        if isinstance(fact, Static):
            values.append(fact.recipe)
        elif isinstance(fact, Wire) and fact.end is None:
            values.append(fact.take(Window(ctx.pulse, 0, ctx.pulse)))
    for value in values:
        ctx.read(value.reads)
    emission = emit(ctx)
    for value in values:
        made = value.value
        position = {emission.clock.position} - {None}
        assert not value.fixed or follows_from(made, position), made.name


def write() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in MODELS:
        (FOLDER / f"{name}.txt").write_text("\n".join(plan_lines(planned(name))) + "\n", "utf-8")


if __name__ == "__main__":
    write()

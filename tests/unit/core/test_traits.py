"""What operators are: the table agrees with onnx and with the rules, and its words with what operators do."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import pulsify.ops  # noqa: F401  fills the registry
from pulsify.core.traits import ELEMENTWISE, NONE, TRAITS, traits
from pulsify.ops.registry import RULES
from tests.models import model, node

LATEST = onnx.defs.onnx_opset_version()
BINARY = {"Add", "Sub", "Mul", "Div", "Min", "Max", "And", "Or", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"}
# With a rule of their own, and of no kind that anybody else asks about.
OF_THEIR_OWN = {
    "Col2Im", "ConstantOfShape", "ConvInteger", "ConvTranspose", "DFT", "DepthToSpace", "EyeLike", "Gemm",
    "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "Loop", "MatMulInteger", "NonZero", "OneHot", "QLinearConv",
    "QLinearMatMul", "Range", "Scan", "ScatterElements", "ScatterND", "Shape", "Size",
    "TensorScatter",
}  # fmt: skip


COMPARED = {"<": [1, 0, 0], "<=": [1, 1, 0], ">": [0, 0, 1], ">=": [0, 1, 1], "==": [0, 1, 0]}  # of 1 2 3 and 3 2 1


def run(op: str, *arrays: Any, **attributes: Any) -> Any:
    names = [f"x{i}" for i in range(len(arrays))]
    proto = model([node(op, " ".join(names), "y", **attributes)], {n: [] for n in names}, ["y"])
    for port in (*proto.graph.input, *proto.graph.output):
        port.ClearField("type")
    return ReferenceEvaluator(proto).run(None, dict(zip(names, arrays, strict=True)))[0]


@pytest.mark.parametrize("op", sorted(TRAITS))
def test_every_name_is_an_operator_of_onnx(op: str) -> None:
    assert onnx.defs.has(op, LATEST), f"{op} is misspelt, or gone"


def test_every_operator_with_traits_has_a_rule_unless_it_draws_numbers() -> None:
    assert {op for op, t in TRAITS.items() if not t.random} <= set(RULES)
    assert not {op for op, t in TRAITS.items() if t.random} & set(RULES)


@pytest.mark.parametrize("op", sorted(op for op, t in TRAITS.items() if t.compares))
def test_comparisons_compare_as_written(op: str) -> None:
    x = np.array([1.0, 2.0, 3.0], np.float32)
    assert run(op, x, x[::-1]).tolist() == COMPARED[traits(op).compares]


def test_every_operator_with_a_rule_has_traits_or_goes_its_own_way() -> None:
    plain = {op for op in RULES if "::" not in op}
    assert plain - set(TRAITS) == OF_THEIR_OWN, "give it its line in core/traits.py, or name it here"


def test_elementwise_operators_share_one_rule_and_broadcast() -> None:
    assert {op for op, t in TRAITS.items() if t.elementwise} == ELEMENTWISE
    assert all(TRAITS[op].axes == "broadcast" for op in ELEMENTWISE)
    assert {RULES[op].rule for op in ELEMENTWISE & set(RULES)} == {RULES["Add"].rule}


@pytest.mark.parametrize("op", sorted(op for op, t in TRAITS.items() if t.bends or t.straight))
def test_straight_operators_keep_lines_but_where_they_are_zero(op: str) -> None:
    line = np.arange(-4.0, 5.0, dtype=np.float32)
    if op in ("Add", "Sub", "Mul", "Div"):
        made = run(op, line, np.float32(2))
    elif op == "Where":
        made = run(op, np.array(True), line, line)
    elif op in ("Reshape", "Expand"):
        made = run(op, line, np.array([1, 9]))
    elif op in ("Unsqueeze", "Squeeze"):
        made = run(op, line if op == "Unsqueeze" else line[None], np.array([0]))
    else:
        made = run(op, line, **({"to": 1} if op == "Cast" else {}))
    bends = np.flatnonzero(np.diff(made.reshape(-1), n=2)) - 3
    assert set(bends) <= ({0} if traits(op).bends else set()), "bent elsewhere than at zero"
    assert bool(bends.size) is traits(op).bends


@pytest.mark.parametrize("op", sorted(op for op in BINARY if TRAITS[op].law))
def test_a_law_decides_whatever_the_other_operand_is(op: str) -> None:
    law = traits(op).law
    decides = {"zero": 0.0, "one": 1.0, "low": -1e9}[law]
    others = np.array([0, 1, 0, 1], np.float32) if law == "one" else np.array([-3.0, 0.0, 1.0, 40.0], np.float32)
    if op in ("And", "Or"):
        made = run(op, others != 0, np.array(bool(decides)))
    elif traits(op).either:
        made = run(op, others, np.float32(decides))
    else:  # the first operand decides; of nothing divided by nothing nobody says anything
        made = run(op, np.float32(decides), others[others != 0])
    assert np.allclose(np.asarray(made, np.float32), decides, rtol=1e-6)


@pytest.mark.parametrize("op", sorted(op for op, t in TRAITS.items() if t.keeps_size and t.elementwise))
def test_what_keeps_its_size_has_one_operand_that_counts(op: str) -> None:
    schema = onnx.defs.get_schema(op, LATEST)
    same = schema.inputs[0].type_str == schema.outputs[0].type_str or schema.outputs[0].name in ("Y", "output", "y")
    assert same and schema.min_input <= 2


@pytest.mark.parametrize("op", sorted(op for op, t in TRAITS.items() if t.finite))
def test_finite_operators_make_finite_numbers_of_finite_ones(op: str) -> None:
    line, other = np.array([-2.0, 0.0, 3.0], np.float32), np.array([0.0, -1.0, 0.0], np.float32)
    made = run(op, *((line, other) if op in BINARY or op == "Max" else (line,)), **({"to": 1} if op == "Cast" else {}))
    assert np.isfinite(made).all()


@pytest.mark.parametrize("op", sorted(op for op, t in TRAITS.items() if t.copies))
def test_copies_have_all_entries_of_the_first_input_and_no_others(op: str) -> None:
    x = np.arange(6.0, dtype=np.float32).reshape(2, 1, 3)
    second = {"Reshape": [3, 2], "Squeeze": [1], "Unsqueeze": [0], "Expand": [2, 4, 3], "Tile": [1, 2, 3]}.get(op)
    made = run(op, x, *(() if second is None else (np.array(second),)))
    assert set(made.reshape(-1)) == set(x.reshape(-1))


@pytest.mark.parametrize("op", sorted(op for op, t in TRAITS.items() if t.along is not None))
def test_operators_along_an_axis_have_that_one_by_default(op: str) -> None:
    assert onnx.defs.get_schema(op, LATEST).attributes["axis"].default_value.i == traits(op).along


def test_other_operators_have_no_traits_and_domains_are_apart() -> None:
    assert traits("Nothing") == NONE
    assert not NONE.elementwise and not NONE.axes
    assert traits("Add", "acme") == NONE, "acme::Add is another operator"
    assert traits("Add").elementwise


def test_traits_registered_for_another_domain_are_found() -> None:
    TRAITS["acme::Boost"] = traits("Relu")
    try:
        assert traits("Boost", "acme").elementwise
        assert not traits("Boost").elementwise
    finally:
        del TRAITS["acme::Boost"]

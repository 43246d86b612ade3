"""Elementwise operators: torch and the runtime agree, on integers to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsify.backends.elementwise import FORMULAS
from tests.unit.backends.torch.both import alike, reason, small

FINE = {  # where they are defined, or interesting
    "Sqrt": "Abs", "Log": "Abs", "Acosh": "Exp", "Asin": "Sin", "Acos": "Sin", "Atanh": "Sin",
}  # fmt: skip
BOOLEAN = ("And", "Or", "Xor")
UNARY = [op for op, text in FORMULAS.items() if text.startswith("x:")]
BINARY = [op for op, text in FORMULAS.items() if text.startswith("x, y:") and op != "PRelu"]
INTEGER = ("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot")


@pytest.mark.parametrize("op", [k for k in UNARY if k not in ("Not", "BitwiseNot")])
def test_one_number_to_another(op: str) -> None:
    before = FINE.get(op, "Identity")
    kinds = {"y": bool} if op == "IsNaN" else {}
    alike(small(f"{before} x > h; {op} h > y", {"x": [3, 40]}, opset=18, dtypes=kinds), tolerance=3e-6)


@pytest.mark.parametrize("op", BINARY)
@pytest.mark.parametrize("number", [False, True])
def test_two_to_one(op: str, number: bool) -> None:
    kind = bool if op in BOOLEAN else np.int32 if op in INTEGER else np.float32
    made = bool if op in BOOLEAN or op.startswith(("Less", "Greater", "Equal")) else kind
    constants = {"c": np.array(1, kind)} if number else {}
    shapes: dict[str, list[int | str | None]] = {"x": [2, 1, 5], **({} if number else {"c": [3, 1]})}
    model = small(f"{op} x c > y", shapes, constants, opset=18, dtypes={"x": kind, "c": kind, "y": made})
    alike(model)
    if number:
        alike(small(f"{op} c x > y", shapes, constants, opset=18, dtypes={"x": kind, "y": made}))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=9), st.integers(1, 50), st.booleans(), st.booleans())
def test_integers_are_divided_towards_zero_and_rests_have_the_divisors_sign(
    numbers: list[int], by: int, negative: bool, constant: bool
) -> None:
    x, by = np.array(numbers, np.int32), -by if negative else by
    for op in ("Div x c > y", "Mod x c > y", "Mod x c > y fmod=1"):
        shapes: dict[str, list[int | str | None]] = {"x": [len(numbers)], **({} if constant else {"c": [1]})}
        c = np.array([by], np.int32)
        kinds = {"x": np.int32, "c": np.int32, "y": np.int32}
        alike(
            small(op, shapes, {"c": c} if constant else {}, dtypes=kinds),
            {"x": x, "c": c} if not constant else {"x": x},
        )


@pytest.mark.parametrize(
    "text",
    [
        "Div x z > y", "Pow x two > y", "Max x z two > y", "Min x z > y", "Max x one > y", "Min one x > y",
        "Mean x z > y",
        "Sum x z x > y", "Elu x > y alpha=0.7", "Celu x > y", "LeakyRelu x > y alpha=0.2", "Selu x > y",
        "ThresholdedRelu x > y alpha=0.3", "HardSigmoid x > y alpha=0.3", "Shrink x > y lambd=0.4 bias=0.1",
        "PRelu x z > y", "Clip x one > y", "Clip x _ one > y", "Clip x low one > y", "Clip x > y", "Mod x z > y fmod=1",
        "Clip x m one > y", "Less x one > c; Where c x one > y", "Less x one > c; Where c one two > y",
        "Cast x > i to=7; Cast i > y to=1", "Cast x > i to=9; Cast i > y to=1", "CastLike x z > y", "Reciprocal x > y",
        "IsInf x > c; Cast c > y to=1", "Dropout x > y",
    ],
)  # fmt: skip
def test_with_settings(text: str) -> None:
    constants = {"one": np.float32(0.5), "two": np.float32(2), "low": np.float32(-0.5)}
    constants = {k: np.array(v) for k, v in constants.items()}
    model = small(text, {"x": [3, 7], "z": [7], "m": []}, constants, dtypes={"y": np.float32}, opset=18)
    alike(model)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(approximate: str) -> None:
    alike(small(f"Gelu x > y approximate='{approximate}'", {"x": [3, 7]}, opset=20))


def test_where_keeps_all_axes_of_a_constant() -> None:
    model = small("Where c one x > y", {"x": [3], "c": [3]}, {"one": np.ones((1, 1), np.float32)}, dtypes={"c": bool})
    alike(model)


def test_types_that_torch_does_not_have_stay_with_the_runtime() -> None:
    kinds = {"x": np.uint32, "y": np.uint32}
    assert "uint32" in reason(small("Add x x > y", {"x": [3]}, dtypes=kinds))


@pytest.mark.parametrize("kind", [np.float64, np.float16, np.int64, np.int8, np.uint8])
def test_other_types(kind: type) -> None:
    kinds = {"x": kind, "z": kind, "y": kind}
    model = small("Add x z > h; Mul h c > y", {"x": [3], "z": [3]}, {"c": np.array(3, kind)}, dtypes=kinds)
    alike(model, tolerance=2e-3 if kind is np.float16 else 2e-6)

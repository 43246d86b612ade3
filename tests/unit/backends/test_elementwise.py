"""A formula, computed by numpy as it stands, is what ONNX Runtime computes; both back ends write all of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from pulsify.backends.elementwise import FORMULAS, formula
from pulsify.backends.native.table import expression
from pulsify.backends.torch.table import op
from tests.unit.backends.alike import fed, same, small
from tests.unit.graphs import run

NUMPY: dict[str, Any] = {name: getattr(np, name) for name in dir(np)} | {
    "erf": np.vectorize(math.erf), "pick": np.where, "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "softplus": lambda x: np.log1p(np.exp(x)), "acosh": np.arccosh, "atanh": np.arctanh, "acos": np.arccos,
    "asin": np.arcsin, "atan": np.arctan, "asinh": np.arcsinh,
}  # fmt: skip
DEFINED = {"Sqrt": "Abs", "Log": "Abs", "Acosh": "Cosh", "Asin": "Sin", "Acos": "Sin", "Atanh": "Sin"}
BOOLEAN, WHOLE = ("And", "Or", "Xor", "Not"), ("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot")
TRUTHS = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal", "IsNaN")
NEWER = {"Swish": 24}  # than opset 20


@pytest.mark.parametrize(
    ("name", "given"), [(n, g) for n in FORMULAS for g in (False, True) if formula(n).settings or not g]
)
def test_a_formula_is_the_operator(name: str, given: bool) -> None:
    """given: attributes with values of their own, instead of left out."""
    f = formula(name)
    settings = {k: 0.75 * v + 0.1 for k, v in f.settings.items()} if given else {}
    kind = bool if name in BOOLEAN else np.int32 if name in WHOLE else np.float32
    shapes: dict[str, Any] = dict(zip(f.operands, ([3, 40], [40]), strict=False))
    kinds = dict.fromkeys(f.operands, kind) | {"z": bool if name in TRUTHS else kind}
    text = f"{name} {' '.join(f.operands)} > z " + " ".join(f"{k}={v}" for k, v in settings.items())
    model = small(text, shapes, outputs="z", opset=NEWER.get(name, 20), dtypes=kinds)
    feeds = fed(model)
    if name in DEFINED:
        feeds["x"] = NUMPY[DEFINED[name].lower()](feeds["x"])
    computed = eval(f"lambda {FORMULAS[name].replace('not x', 'logical_not(x)')}", dict(NUMPY))
    same(np.asarray(computed(*feeds.values(), **settings), kinds["z"]), run(model, feeds)["z"], 3e-6)


def test_both_back_ends_write_every_formula() -> None:
    assert {*FORMULAS} <= {*op.table()} & {*expression.table()}

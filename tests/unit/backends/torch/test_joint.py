"""Several nodes as one line: what torch has a function for, and where it may not be used."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from pulsify.backends.torch.passes import Joined
from tests.models import weights
from tests.unit.backends.torch.both import alike, by_torch, same, small, written
from tests.unit.graphs import run

HALF = {"half": np.array(0.5, np.float32)}
FORMS = {
    "silu": ("Sigmoid x > s; Mul x s > y", {}, "F.silu(x)"),
    "silu, the other way round": ("Sigmoid x > s; Mul s x > y", {}, "F.silu(x)"),
    "glu": ("Split x > a b axis=1; Sigmoid b > s; Mul a s > y", {}, "F.glu(x, 1)"),
    "linear": ("MatMul x w > m; Add m b > y", {"w": weights(5, 3), "b": weights(3)}, "F.linear(x, w.t(), b)"),
    "scaled sum": ("Mul x half > h; Relu x > r; Add r h > y", HALF, "torch.add(r, x, alpha=0.5)"),
    "first scaled": ("Mul x half > h; Relu x > r; Add h r > y", HALF, "torch.add(r, x, alpha=0.5)"),
}


def joined(model: ir.Model, **settings: object) -> list[str]:
    return written(model, joined=Joined(), **settings).text.splitlines()


@pytest.mark.parametrize("name", FORMS)
def test_one_line(name: str) -> None:
    nodes, constants, text = FORMS[name]
    model = small(nodes, {"x": [2, 4, 5]}, constants)
    lines = joined(model)
    assert any(f"y = {text};" in line or f"y = {text} " in line for line in lines), lines
    alike(model, joined=Joined())


def test_the_line_names_all_of_them_and_frees_what_they_read() -> None:
    model = small("Relu x > r; Sigmoid r > s; Mul r s > y", {"x": [2, 4]})
    assert "    y = F.silu(r); del r  # Sigmoid, Mul y" in joined(model)


def test_what_somebody_else_reads_is_a_line() -> None:
    model = small("Sigmoid x > s; Mul x s > y; Neg s > z", {"x": [2, 4]}, outputs="y z")
    assert not any("silu" in line for line in joined(model))
    alike(model, joined=Joined())
    model = small("Sigmoid x > s; Mul x s > y", {"x": [2, 4]}, outputs="y s")
    assert not any("silu" in line for line in joined(model))


def test_what_is_on_the_cpu_is_no_part_of_a_line() -> None:
    model, feeds = small("Sigmoid x > s; Mul x s > y", {"x": [2, 4]}), {"x": weights(2, 4)}
    made = written(model, force=["Sigmoid"], joined=Joined())
    assert "F.silu" not in made.text and len(made.islands) == 1
    same(by_torch(model, feeds, force=["Sigmoid"], joined=Joined())["y"], run(model, feeds)["y"])


def test_halves_in_the_wrong_order_are_no_glu() -> None:
    model = small("Split x > a b axis=1; Sigmoid a > s; Mul b s > y", {"x": [2, 4, 5]})
    assert not any("glu" in line for line in joined(model))
    alike(model, joined=Joined())

"""Several nodes as one line: what torch has a function for, and where it may not be used."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch

from pulsify.backends.torch import functions
from pulsify.backends.torch.passes import Joined
from tests.models import weights
from tests.unit.backends.torch.both import alike, by_torch, fed, same, small, written
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


# ---- attention

ATTENTION = "MatMul q k > m; Mul m scale > s; Add s bias > b; Softmax b > p axis=-1; MatMul p v > y"
SCALE = {"scale": np.array(0.25, np.float32)}
DIMS = {"q": [2, 3, 4, 16], "k": [2, 3, 16, 7], "v": [2, 3, 7, 16], "bias": [1, 3, 4, 7]}


def test_attention_in_a_lower_type() -> None:
    model = small(ATTENTION, DIMS, SCALE)
    lines = joined(model, low="bfloat16")
    call = "y = F.scaled_dot_product_attention(q, k.transpose(2, 3), v, attn_mask=op.aligned(bias), scale=0.25)"
    assert any(call in line for line in lines)
    feeds = fed(model)
    same(by_torch(model, feeds, low="bfloat16", joined=Joined())["y"], run(model, feeds)["y"], 2e-2)


def test_attention_without_a_bias_or_a_scale() -> None:
    model = small("MatMul q k > m; Softmax m > p axis=-1; MatMul p v > y", {n: DIMS[n] for n in "qkv"})
    assert any("attn_mask=None, scale=1.0" in line for line in joined(model, low="float16"))
    feeds = fed(model)
    same(by_torch(model, feeds, low="float16", joined=Joined())["y"], run(model, feeds)["y"], 5e-3)


def test_attention_stays_as_it_is_in_float32_and_where_it_is_another() -> None:
    assert not any("attention" in line for line in joined(small(ATTENTION, DIMS, SCALE)))
    hidden = ATTENTION.replace("Softmax b", "Where seen b low > h; Softmax h")
    more = {"seen": np.eye(4, 7, dtype=bool), "low": np.array(-np.inf, np.float32), **SCALE}
    assert not any("attention" in line for line in joined(small(hidden, DIMS, more), low="bfloat16"))
    across = ATTENTION.replace("axis=-1", "axis=2")
    assert not any("attention" in line for line in joined(small(across, DIMS, SCALE), low="bfloat16"))
    shared = {**DIMS, "k": [2, 1, 16, 7]}
    assert not any("attention" in line for line in joined(small(ATTENTION, shared, SCALE), low="bfloat16"))


@pytest.mark.parametrize("width", [5, 16, 84])
def test_a_bias_lies_in_whole_pieces_of_memory(width: int) -> None:
    seen = torch.randn(2, 3, 14, 128)[..., 3 : 3 + width]  # as a relative shift leaves it
    made = functions.aligned(seen)
    assert torch.equal(made, seen) and made.data_ptr() % 16 == 0
    assert all(stride % 16 == 0 for stride in made.stride()[:-1]) and made.stride(-1) == 1

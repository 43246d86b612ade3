"""An attention as one line: the kernel's call, with what each way of writing one becomes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from pulsify.backends.torch.passes import Joined
from pulsify.core.roles import mark
from tests.models import weights
from tests.unit.backends.torch.both import by_torch, fed, same, small, written
from tests.unit.graphs import run
from tests.unit.optimize.test_attention import KNOWN, ROLES, SKEW

FOUR = {"q": [2, 3, 4, 8], "k": [2, 3, 8, 6], "v": [2, 3, 6, 8], "bias": [1, 3, 4, 6], "a": [2, 3, 4, 8]}
PLAIN = "MatMul q k > m; Mul m half > s; Softmax s > p axis=-1; MatMul p v > y"
BOTH = SKEW.replace("MatMul a table", "Add x cv > xv; Transpose xv > a perm=[0,2,1,3]; MatMul a table").replace(
    "MatMul q k", "Add x cu > xu; Transpose xu > q perm=[0,2,1,3]; MatMul q k"
)
FORMS = {  # text, sizes, constants, what the call has
    "plain": (PLAIN, FOUR, {}, "attend(q, k.transpose(-1, -2), v, scale=0.5)"),
    "bias": (PLAIN.replace("Softmax s", "Add s bias > b; Softmax b"), FOUR, {}, "bias=bias)"),
    "bias of two axes": (
        PLAIN.replace("Softmax s", "Add s few > b; Softmax b"),
        FOUR,
        {"few": weights(4, 6)},
        "bias=few[None, None])",
    ),
    "two added": (
        PLAIN.replace("Mul m half > s", "Add m bias > b; Mul b half > c; Add c bias > s"),
        FOUR,
        {},
        "bias=bias + bias * 0.5)",
    ),
    "mask": (PLAIN.replace("Softmax s", "Where seen s low > h; Softmax h"), FOUR, {}, "mask=seen[None, None])"),
    "the other way": (
        PLAIN.replace("Softmax s", "Where dark far s > h; Softmax h"),
        FOUR,
        {"dark": ~KNOWN["seen"]},
        "mask=~dark[None, None], fill=-10000.0)",
    ),
    "no heads": (
        PLAIN.replace("Softmax s", "Add s bias > b; Softmax b"),
        {"q": [2, 4, 8], "k": [2, 8, 6], "v": [2, 6, 8], "bias": [2, 4, 6]},
        {},
        "bias=bias.unsqueeze(1)).squeeze(1)",
    ),
    "no streams": (PLAIN, {"q": [4, 8], "k": [8, 6], "v": [6, 8]}, {}, "v[None, None], scale=0.5)[0, 0]"),
    "keys of all heads": (PLAIN, {**FOUR, "k": [2, 1, 8, 6], "v": [2, 1, 6, 8]}, {}, "v.expand(2, 3, -1, -1)"),
    "positions": (SKEW.replace("MatMul a table", "MatMul q table"), FOUR, {}, "_table, shift=3)"),
    "positions by others": (SKEW, FOUR, {}, "bias=r)"),
    "u and v": (
        BOTH,
        {"x": [2, 4, 3, 8], "k": [2, 3, 8, 6], "v": [2, 3, 6, 8]},
        {"cu": weights(3, 8), "cv": weights(3, 8)},
        "attend(x.transpose(1, 2), k.transpose(-1, -2), v, scale=1.0, table=",
    ),
}


def made(text: str, dims: dict[str, list[int]], more: dict[str, np.ndarray]) -> ir.Model:
    used = set(text.replace(";", " ").split())
    constants = {n: a for n, a in (KNOWN | more).items() if n in used}
    model = small(text, {n: d for n, d in dims.items() if n in used}, constants)
    for node in model.graph:
        if node.outputs[0].name in ROLES:
            mark(node.outputs[0], ROLES[node.outputs[0].name])
    return model


@pytest.mark.parametrize("name", FORMS)
def test_one_call(name: str) -> None:
    text, dims, more, said = FORMS[name]
    model = made(text, dims, more)
    settings = {"joined": Joined(), "attention": "torch"}
    lines = [line for line in written(model, **settings).text.splitlines() if "attend(" in line]
    assert len(lines) == 1 and said in lines[0], lines
    feeds = fed(model)
    same(by_torch(model, feeds, **settings)["y"], run(model, feeds)["y"])


def test_in_a_lower_type() -> None:
    model = made(FORMS["u and v"][0], FORMS["u and v"][1], FORMS["u and v"][2])
    feeds = fed(model)
    low = by_torch(model, feeds, low="bfloat16", joined=Joined(), attention="torch")["y"]
    same(low, run(model, feeds)["y"], 2e-2)


def test_why_one_is_left_as_it_is_is_said() -> None:
    model = made(PLAIN.replace("Softmax s", "Tanh s > t; Softmax t"), FOUR, {})
    source = written(model, joined=Joined(), attention="torch")
    assert "(attention as it is written: scores pass through Tanh)" in source.text and "attend(" not in source.text
    model = made(PLAIN, FOUR, {})
    assert "no kernel for it here" in written(model, joined=Joined()).text
    forced = written(model, joined=Joined(), attention="torch", force=["Softmax"])
    assert "is not on the device" in forced.text and len(forced.islands) == 1
    wide = {"q": [2, 3, 4, 300], "k": [2, 3, 300, 6], "v": [2, 3, 6, 8]}
    assert "more than the kernel takes" in written(made(PLAIN, wide, {}), joined=Joined(), attention="torch").text


def test_positions_that_differ_by_stream_are_left_as_they_are() -> None:
    """With as many streams as heads they looked like a table by head."""
    dims = {"q": [2, 2, 4, 8], "k": [2, 2, 8, 6], "v": [2, 2, 6, 8], "x": [2, 4, 2, 8]}
    known = {"table": weights(2, 1, 8, 9), "flat": np.array([2, 2, 36]), "back": np.array([2, 2, 4, 8])}
    model = made(SKEW.replace("MatMul a table", "MatMul q table"), dims, known)
    settings = {"joined": Joined(), "attention": "torch"}
    assert "differs from stream to stream" in written(model, **settings).text
    feeds = fed(model)
    same(by_torch(model, feeds, **settings)["y"], run(model, feeds)["y"])


def test_constants_by_row_are_no_bias_of_queries() -> None:
    skew = SKEW.replace("MatMul a table", "Add x cv > a; MatMul a table").replace(
        "MatMul q k", "Add x cu > q; MatMul q k"
    )
    dims = {"x": [2, 4, 8], "k": [2, 8, 6], "v": [2, 6, 8]}
    known = {
        "table": weights(8, 9), "flat": np.array([2, 36]), "back": np.array([2, 4, 8]), "ax": np.array([1]),
        "last": np.array([2]), "cu": weights(4, 8), "cv": weights(4, 8),
    }  # fmt: skip
    for more in ({}, {"cu": weights(1, 8), "cv": weights(1, 8)}):
        model = made(skew, dims, known | more)
        settings = {"joined": Joined(), "attention": "torch"}
        assert ("table=" in written(model, **settings).text) == bool(more)
        feeds = fed(model)
        same(by_torch(model, feeds, **settings)["y"], run(model, feeds)["y"])


def test_what_has_no_role_is_no_attention() -> None:
    model = small(PLAIN, {n: FOUR[n] for n in "qkv"}, {"half": KNOWN["half"]})
    assert "attend(" not in written(model, joined=Joined(), attention="torch").text

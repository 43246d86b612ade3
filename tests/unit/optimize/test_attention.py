"""An attention, read off a step by its roles: what it adds, hides and scales, and why one is left as it is."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
import pytest

from pulsify.core.roles import KEY, POSITIONS, SCORES, SHIFTED, VALUES, WEIGHTS, mark, role
from pulsify.optimize.attention import Apart, Attention, attentions, read, reasons
from tests.models import weights
from tests.unit.graphs import graph

ROLES = {"m": SCORES, "p": WEIGHTS, "y": VALUES, "raw": POSITIONS, "r": SHIFTED}
DIMS = {"q": [2, 3, 4, 8], "k": [2, 3, 8, 6], "v": [2, 3, 6, 8], "bias": [1, 3, 4, 6], "a": [2, 3, 4, 8]}
KNOWN = {
    "half": np.array(0.5, np.float32),
    "low": np.array(-np.inf, np.float32),
    "far": np.full((1, 1, 1, 6), -1e4, np.float32),
    "zero": np.array(0, np.float32),
    "seen": np.eye(4, 6, dtype=bool),
    "other": np.ones((4, 6), bool),
    "table": weights(3, 8, 9),
    "flat": np.array([2, 3, 36]),
    "i": np.array([3]),
    "j": np.array([35]),
    "ax": np.array([2]),
    "back": np.array([2, 3, 4, 8]),
    "o": np.array([0]),
    "six": np.array([6]),
    "last": np.array([3]),
}
SKEW = (
    "MatMul a table > raw; Reshape raw flat > f; Slice f i j ax > c; Reshape c back > b; Slice b o six last > r; "
    "MatMul q k > m; Add m r > s; Softmax s > p axis=-1; MatMul p v > y"
)


def marked(text: str, outputs: str = "y") -> ir.Model:
    used = set(text.replace(";", " ").split())
    constants = {n: a for n, a in KNOWN.items() if n in used}
    made = graph(text, {n: d for n, d in DIMS.items() if n in used}, outputs, constants)
    for node in made.graph:
        if node.outputs[0].name in ROLES:
            mark(node.outputs[0], ROLES[node.outputs[0].name])
    return made


def found(text: str) -> Attention:
    (last,) = attentions(marked(text))
    return read(last)


def test_a_role_is_metadata_that_a_copy_keeps() -> None:
    made = marked("MatMul q k > m; Softmax m > p axis=-1; MatMul p v > y")
    again = ir.from_proto(ir.to_proto(made.clone()))
    assert [role(n) for n in again.graph] == [SCORES, WEIGHTS, VALUES]
    assert all(n.metadata_props[KEY] for n in again.graph) and role(None) is None


def test_plain() -> None:
    a = found("MatMul q k > m; Softmax m > p axis=-1; MatMul p v > y")
    assert (a.scale, a.terms, a.masks, a.hollow, a.positions) == (1, (), (), "nan", None)
    assert [v.name for v in (a.queries, a.keys, a.values)] == ["q", "k", "v"]
    assert [n.op_type for n in a.nodes] == ["Softmax", "MatMul"]


def test_factors_reach_what_is_added_inside_of_them() -> None:
    a = found("MatMul q k > m; Add m bias > b; Mul half b > s; Add s bias > t; Softmax t > p axis=-1; MatMul p v > y")
    assert a.scale == 0.5 and [t.factor for t in a.terms] == [1, 0.5]
    a = found("MatMul q k > m; Sub m bias > b; Div b half > s; Softmax s > p axis=-1; MatMul p v > y")
    assert a.scale == 2 and [t.factor for t in a.terms] == [-2]


def test_masks() -> None:
    a = found("MatMul q k > m; Where seen m low > h; Softmax h > p axis=-1; MatMul p v > y")
    assert a.fill == -math.inf and not a.masks[0].inverted and a.hollow == "nan"
    a = found("MatMul q k > m; Where seen far m > h; Softmax h > p axis=-1; MatMul p v > y")
    assert a.fill == -1e4 and a.masks[0].inverted
    text = "MatMul q k > m; Where seen m low > h; Softmax h > p axis=-1; Where seen p zero > w; MatMul w v > y"
    assert found(text).hollow == "zero"


def test_positions() -> None:
    a = found(SKEW)
    assert a.positions is not None and a.positions.queries.name == "a" and a.positions.factor == 1
    assert [n.op_type for n in a.positions.nodes] == ["Slice", "Reshape", "Slice", "Reshape", "MatMul"]
    a = found(SKEW.replace("Add m r > s", "Mul r half > d; Add m d > s"))
    assert a.positions is not None and a.positions.factor == 0.5 and not a.terms
    a = found(
        SKEW.replace("MatMul a table > raw", "Add a a > raw; MatMul raw table > t").replace("Reshape raw", "Reshape t")
    )
    assert a.positions is None and len(a.terms) == 1  # not what a role says: it is added as it is


APART = {
    "MatMul q k > m; Softmax m > p axis=-1; Relu p > w; MatMul w v > y": "weights pass through Relu",
    "MatMul q k > m; Tanh m > t; Softmax t > p axis=-1; MatMul p v > y": "scores pass through Tanh",
    "MatMul q k > m; Mul m bias > t; Softmax t > p axis=-1; MatMul p v > y": "more than a number",
    "MatMul q k > m; Sub bias m > t; Softmax t > p axis=-1; MatMul p v > y": "subtracted from something",
    "MatMul q k > m; Softmax m > p axis=2; MatMul p v > y": "not over the last axis",
    "MatMul q k > m; Where seen m bias > h; Softmax h > p axis=-1; MatMul p v > y": "not a number",
    "MatMul q k > m; Where seen m far > h; Where other h low > g; Softmax g > p axis=-1; MatMul p v > y": "one fills",
    "MatMul q k > m; Where seen m far > h; Mul h half > g; Softmax g > p axis=-1; MatMul p v > y": "changed behind",
    "MatMul q k > m; Where seen m low > h; Softmax h > p axis=-1; Where other p zero > w; MatMul w v > y": "another m",
    "MatMul q k > m; Softmax m > p axis=-1; Where seen p half > w; MatMul w v > y": "replaced behind",
}


ONE_OF_TWO = (
    "MatMul q k > m; Where seen m low > h; Where other h low > g; Softmax g > p axis=-1; Where other p zero > w; "
    "MatMul w v > y"
)
FILLED_FIRST = SKEW.replace("Add m r > s", "Where seen m far > h; Add h r > s")
QUIET = "MatMul q k > m; Softmax m > p axis=-1; IsNaN p > n; Where n zero p > w; MatMul w v > y"
APART |= {QUIET: "NaN are set to zero", ONE_OF_TWO: "another m", FILLED_FIRST: "changed behind"}


@pytest.mark.parametrize("text", APART)
def test_apart(text: str) -> None:
    with pytest.raises(Apart, match=APART[text]):
        found(text)


def test_what_somebody_else_reads_stays_as_it_is() -> None:
    (last,) = attentions(marked("MatMul q k > m; Softmax m > p axis=-1; MatMul p v > y", "y p"))
    with pytest.raises(Apart, match="something else reads 'p' too"):
        read(last)


def test_reasons_by_node() -> None:
    plain = marked("MatMul q k > m; Softmax m > p axis=-1; MatMul p v > y")
    assert list(reasons(plain).values()) == [""]
    other = marked("MatMul q k > m; Tanh m > t; Softmax t > p axis=-1; MatMul p v > y")
    assert list(reasons(other).values()) == ["scores pass through Tanh"]
    assert reasons(graph("Relu q > y", {"q": [2]}, "y", {})) == {}

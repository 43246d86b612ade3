"""Pieces of a split tensor, picked by their places, are what ONNX Runtime has them to be."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from pulsify.frontend.load import load
from tests.models import run_batch
from tests.unit.build import written

HEAD = '<ir_version: 8, opset_import: ["" : 17]> split (float[B, T, 6] x) => (float[?, ?, ?] y)'
KEPT = "Unsqueeze(v, last)"
BODIES = {
    "a frame": "s = SplitToSequence <axis: int = 1, keepdims: int = 0> (x, one) v = SequenceAt(s, two)",
    "a frame from the end": "s = SplitToSequence <axis: int = 1, keepdims: int = 0> (x) v = SequenceAt(s, minus)",
    "a frame that keeps its axis": "s = SplitToSequence <axis: int = 1> (x) y = SequenceAt(s, two)",
    "the number of frames": """
        s = SplitToSequence <axis: int = 1> (x) n = SequenceLength(s) f = Cast <to: int = 1> (n)
        y = Mul(x, f)""",
    "pieces of one size": "s = SplitToSequence <axis: int = -1> (x, two) y = SequenceAt(s, one)",
    "pieces of sizes": "s = SplitToSequence <axis: int = 2> (x, sizes) y = SequenceAt(s, two)",
    "pieces of computed sizes": """
        d = Shape(x) e = Slice(d, last, three) h = Div(e, twos) b = Sub(e, h) p = Concat <axis: int = 0> (h, b)
        s = SplitToSequence <axis: int = 2> (x, p) u = SequenceAt(s, one) w = SequenceAt(s, zero) y = Add(u, w)""",
    "a list of values": """
        u = Neg(x) s = SequenceConstruct(x, u) w = SequenceAt(s, minus) n = SequenceLength(s)
        f = Cast <to: int = 1> (n) y = Mul(w, f)""",
}
NUMBERS = {"zero": 0, "one": 1, "two": 2, "minus": -1, "last": [2], "three": [3], "twos": [2], "sizes": [1, 3, 2]}


def split(body: str) -> onnx.ModelProto:
    ending = "" if " y = " in body else f" y = {KEPT}"
    proto = onnx.parser.parse_model(f"{HEAD} {{ {body}{ending} }}")
    values = [onnx.numpy_helper.from_array(np.array(v, np.int64), n) for n, v in NUMBERS.items()]
    proto.graph.initializer.extend(values)
    return proto


@pytest.mark.parametrize("name", BODIES)
def test_a_picked_piece_is_a_slice(name: str) -> None:
    proto = split(BODIES[name])
    settled = written(load(proto))
    assert not [n.op_type for n in settled.graph.node if "Sequence" in n.op_type]
    for length in (3, 5):
        x = np.random.default_rng(0).standard_normal((2, length, 6)).astype(np.float32)
        want, got = run_batch(proto, x), run_batch(settled, x)
        np.testing.assert_array_equal(got["y"], want["y"])


def test_a_list_that_is_used_otherwise_stays_one() -> None:
    proto = split("s = SplitToSequence <axis: int = 1> (x) y = ConcatFromSequence <axis: int = 2> (s)")
    assert "SplitToSequence" in [n.op_type for n in written(load(proto)).graph.node]
    assert ir.from_proto(proto).graph.num_nodes() == 2

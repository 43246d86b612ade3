"""Operators that move elements, take them or put them somewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from tests.unit.backends.torch.both import alike, by_torch, fed, reason, same, small

I = np.int64


def ints(*numbers: int) -> Any:
    return np.array(numbers, I)


SHAPES: dict[str, dict[str, Any]] = {
    "Reshape x a > y": {"a": ints(0, -1)},
    "Reshape x a > y allowzero=1": {"a": ints(4, 6)},
    "Flatten x > y axis=2": {},
    "Flatten x > y axis=-1": {},
    "Unsqueeze x a > y": {"a": ints(-1, 0)},
    "Unsqueeze x a > h; Squeeze h a > y": {"a": ints(1, 3)},
    "Unsqueeze x a > h; Squeeze h > y": {"a": ints(0, 4)},
    "Transpose x > y": {},
    "Transpose x > y perm=[2,0,1]": {},
    "Transpose x > y perm=[0,2,1]": {},
    "Expand x a > y": {"a": ints(5, 1, 3, 1)},
    "Tile x a > y": {"a": ints(1, 2, 3)},
    "Concat x x x > y axis=-1": {},
    "Split x a > y z axis=2": {"a": ints(1, 3)},
    "Split x > y z axis=2 num_outputs=2": {},
    "Slice x a b c > y": {"a": ints(1), "b": ints(3), "c": ints(-1)},
    "Slice x a b c d > y": {"a": ints(0, 0), "b": ints(2**62, 2), "c": ints(2, 1), "d": ints(2, 1)},
    "Slice x a b c d > y ": {"a": ints(-1), "b": ints(-(2**62)), "c": ints(2), "d": ints(-1)},
    "Slice x a b c d  > y": {"a": ints(3), "b": ints(0), "c": ints(2), "d": ints(-2)},
    "Slice x a b > y": {"a": ints(0, -2), "b": ints(1, 5)},
    "Pad x a > y": {"a": ints(0, 1, 2, 0, 0, 1)},
    "Pad x a b > y": {"a": ints(0, 0, 2, 0, 0, -1), "b": np.array(1.5, np.float32)},
    "Pad x a > y mode='reflect'": {"a": ints(0, 1, 2, 0, 0, 3)},
    "Pad x a > y mode='edge'": {"a": ints(0, 1, 2, 0, 0, 3)},
    "Pad x a _ b > y": {"a": ints(1, 2), "b": ints(-1)},
    "Trilu x > y upper=0": {},
    "Trilu x a > y": {"a": np.array(1, I)},
    "Gather x a > y axis=1": {"a": np.array(-1, I)},
    "Gather x a > y axis=2": {"a": ints(0, 1, 2)},
    "Gather x a > y axis=2 ": {"a": ints(-1, 0, 2)},
    "Gather x a > y axis=-1": {"a": np.array([[0, 3], [1, 1]], I)},
    "GatherND x a > y": {"a": np.array([[0, 1], [1, 2]], I)},
    "GatherND x a > y batch_dims=1": {"a": np.array([[[0], [2]], [[-1], [1]]], I)},
    "GatherND x a > y batch_dims=1 ": {"a": np.array([[[0, 3]], [[-1, 1]]], I)},
    "GatherND x a > y batch_dims=2": {"a": np.arange(6).reshape(2, 3, 1) % 4},
    "GatherElements x a > y axis=2": {"a": np.arange(12).reshape(2, 3, 2) % 4},
    "ScatterElements x a u > y axis=2": {"a": np.arange(6).reshape(2, 3, 1) % 4, "u": np.ones((2, 3, 1), np.float32)},
    "ScatterElements x a u > y axis=2 reduction='add'": {
        "a": np.zeros((2, 3, 2), I), "u": np.ones((2, 3, 2), np.float32),
    },
    "ScatterND x a u > y": {"a": np.array([[0, 1], [1, 2]], I), "u": np.ones((2, 4), np.float32)},
    "TopK x a > y i axis=2": {"a": ints(2)},
    "TopK x a > y i axis=1 largest=0": {"a": ints(3)},
    "ArgMax x > i axis=1 keepdims=0; Cast i > y to=1": {},
    "ArgMin x > i axis=-1; Cast i > y to=1": {},
    "OneHot j a u > y": {"a": ints(5), "u": np.array([-1, 2], np.float32)},
    "Shape x > i; Cast i > y to=1": {},
    "Size x > i; Cast i > y to=1": {},
    "CumSum x a > y": {"a": np.array(1, I)},
    "CumSum x a > y exclusive=1": {"a": np.array(-1, I)},
    "CumSum x a > y exclusive=1 reverse=1": {"a": np.array(-1, I)},
    "ConstantOfShape a > h; Add h x > y": {"a": ints(2, 3, 4)},
}  # fmt: skip


@pytest.mark.parametrize("text", SHAPES)
def test_as_the_runtime(text: str) -> None:
    outputs = "y z" if " z " in text else "y i" if text.startswith("TopK") else "y"
    inputs: dict[str, Any] = {"x": [2, 3, 4], **({"j": [3]} if " j " in text else {})}
    alike(small(text, inputs, SHAPES[text], outputs, opset=18, dtypes={"i": I, "j": I}))


@pytest.mark.parametrize("opset", [9, 11, 12])
def test_what_were_attributes_once(opset: int) -> None:
    alike(small("Unsqueeze x > h axes=[0,2]; Squeeze h > y axes=[0]", {"x": [3, 4]}, opset=opset))
    alike(small("Split x > y z axis=1 split=[1,3]", {"x": [3, 4]}, {}, "y z", opset=opset))
    alike(small("ReduceSum x > y axes=[1] keepdims=0", {"x": [3, 4]}, opset=opset))
    alike(small("Softmax x > y", {"x": [3, 4, 2]}, opset=opset))
    if opset < 11:
        alike(small("Slice x > y starts=[1] ends=[3] axes=[1]", {"x": [3, 4]}, opset=9))
        alike(small("Clip x > y min=-0.5 max=0.5", {"x": [3, 4]}, opset=10))
        alike(small("Pad x > y pads=[0,1,0,2] value=2.0", {"x": [3, 4]}, opset=10))


@pytest.mark.parametrize("settings", ["exclusive=0", "exclusive=1", "reverse=1", "exclusive=1 reverse=1"])
def test_running_products(settings: str) -> None:
    """The runtime may not have them; onnx's own evaluator says what is right."""
    from onnx.reference import ReferenceEvaluator

    model = small(f"CumProd x a > y {settings}", {"x": [2, 5]}, {"a": np.array(1, I)}, opset=26)
    feeds = fed(model)
    (want,) = ReferenceEvaluator(ir.to_proto(model)).run(None, feeds)
    same(by_torch(model, feeds)["y"], want)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_blocks(mode: str) -> None:
    alike(small(f"DepthToSpace x > h blocksize=2 mode='{mode}'; SpaceToDepth h > y blocksize=2", {"x": [1, 8, 2, 3]}))


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_places_that_are_data(kind: type) -> None:
    at = {"x": np.arange(24, dtype=np.float32).reshape(2, 3, 4), "i": np.array([[-1, 0], [2, 1]], kind)}
    for text in ("Gather x i > y axis=1", "Gather x j > y axis=2"):
        model = small(text, {"x": [2, 3, 4], "i": [2, 2], "j": [3]}, dtypes={"i": kind, "j": kind})
        alike(model, {"x": at["x"], "i": at["i"], "j": np.array([0, -4, 3], kind)})
    model = small("Gather x s > y axis=1", {"x": [2, 3, 4], "s": []}, dtypes={"s": kind})
    alike(model, {"x": at["x"], "s": np.array(-1, kind)})
    model = small("GatherElements x i > y axis=1", {"x": [2, 3], "i": [2, 2]}, dtypes={"i": kind})
    alike(model, {"x": at["x"][:, :, 0], "i": at["i"]})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Slice x i j > y", "start must be known"),
        ("NonZero x > h; Cast h > y to=1", "no expression for NonZero"),
        ("ScatterND x b u > y reduction='max'", "reduction max"),
    ],
)
def test_what_is_not_covered_says_why(text: str, why: str) -> None:
    constants = {"a": ints(0, 1).reshape(2, 1), "b": ints(0, 1).reshape(2, 1), "u": np.ones((2, 3), np.float32)}
    inputs: dict[str, Any] = {"x": [2, 3], **({"i": [1], "j": [1]} if " i " in text else {})}
    assert why in reason(small(text, inputs, constants, dtypes={"i": I, "j": I}, opset=18))

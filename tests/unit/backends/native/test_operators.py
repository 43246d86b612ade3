"""Every operator there is C for gives what the runtime gives; another one is refused, by name."""

from __future__ import annotations

import numpy as np
import pytest

from pulsify.backends.elementwise import FUNCTIONS
from pulsify.backends.native.table import operators
from tests.models import Array, node, weights
from tests.unit.backends.native.both import alike, by_c, reason, same, small
from tests.unit.graphs import run

COMPARED = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")
FINE = {"Sqrt": "Abs", "Log": "Abs", "Acosh": "Exp", "Asin": "Sin", "Acos": "Sin", "Atanh": "Sin"}  # where defined
SETTINGS = [
    "Elu x > y alpha=0.5", "Celu x > y alpha=0.7", "Selu x > y", "LeakyRelu x > y alpha=0.3", "HardSigmoid x > y",
    "HardSwish x > y", "Softsign x > y", "Mish x > y", "Gelu x > y", "Gelu x > y approximate='tanh'", "Shrink x > y",
    "ThresholdedRelu x > y", "Clip x low high > y", "Clip x low > y", "PRelu x slope > y", "Reciprocal x > y",
    "Sign x > y", "Pow x two > y", "Pow x half > y", "Max x low > y", "Min x low high > y", "Mean x low > y",
    "Sum x low high > y", "IsInf x > h; Cast h > y to=1", "IsNaN x > h; Cast h > y to=1", "Neg x > y", "Relu x > y",
]  # fmt: skip
SHAPES = [
    "Transpose x > y perm=[2,0,1]", "Reshape x flat > y", "Transpose x > h perm=[2,1,0]; Reshape h flat > y",
    "Slice x one end axis two > y", "Slice x end one axis back > y", "Concat x x > y axis=1", "Tile x times > y",
    "Pad x pads > y", "Pad x pads > y mode='reflect'", "Pad x pads > y mode='edge'", "Gather x places > y axis=2",
    "Gather x single > y axis=1", "Expand row shape > y", "Split x > y z axis=1 num_outputs=2", "Trilu x > y",
    "Unsqueeze x axis > h; Squeeze h axis > y", "DepthToSpace q > y blocksize=2", "SpaceToDepth q > y blocksize=2",
    "CumSum x cum > y", "CumSum x cum > y reverse=1 exclusive=1", "Softmax x > y axis=1", "LogSoftmax x > y axis=2",
    "TopK x k > y z axis=2", "ArgMax x > h axis=2; Cast h > y to=1", "ArgMin x > h axis=1 keepdims=0; Cast h > y to=1",
    "Hardmax x > y", "Hardmax x > y axis=1", "LRN q > y size=3 alpha=0.5", "LRN q > y size=1 beta=0.5 bias=2.0",
    "MeanVarianceNormalization x > y axes=[0,2]", "ReverseSequence x lens > y time_axis=1 batch_axis=0",
    "ReverseSequence x many > y time_axis=0 batch_axis=1", "Gather x odd > y axis=2",
    "ReduceLogSumExp x > y keepdims=1", "LpNormalization x > y axis=1", "LpNormalization x > y p=1",
]  # fmt: skip
CONSTANTS: dict[str, Array] = {
    "low": np.float32(-0.5), "high": np.float32(0.8), "slope": weights(4, 1), "two": np.array([2]),
    "half": np.float32(0.5),
    "flat": np.array([-1, 6]), "one": np.array([1]), "end": np.array([5]), "axis": np.array([2]),
    "back": np.array([-1]),
    "times": np.array([1, 2, 3]), "pads": np.array([0, 1, 2, 0, 2, 1]), "places": np.array([[3, 0], [5, 5]]),
    "single": np.array(-1), "shape": np.array([2, 4, 6]), "row": weights(4, 1), "cum": np.array(2), "k": np.array([3]),
    "lens": np.array([3, 1]), "many": np.array([2, 1, 2, 0]), "odd": np.array([0, 0, 1, 1, 3, 3, 2, 5, 5]),
}  # fmt: skip


def checked(text: str, tolerance: float = 3e-6, **inputs: list[int]) -> None:
    shapes = inputs or {"x": [2, 4, 6]}
    used = set(text.replace(";", " ").split())
    made = small(text, shapes, {k: v for k, v in CONSTANTS.items() if k in used}, opset=20)
    alike(made, tolerance=tolerance)


@pytest.mark.parametrize("op", FUNCTIONS)
def test_functions(op: str) -> None:
    checked(f"{FINE.get(op, 'Identity')} x > h; {op} h > y", x=[3, 40])


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", *COMPARED])
def test_two_operands_that_broadcast(op: str) -> None:
    checked(f"{op} x z > {'h; Cast h > y to=1' if op in COMPARED else 'y'}", x=[2, 1, 5], z=[3, 1])


@pytest.mark.parametrize("op", ["And", "Or", "Xor"])
def test_truths(op: str) -> None:
    checked(f"Greater x low > a; Less x high > b; {op} a b > c; Not c > d; Where d x high > y")


@pytest.mark.parametrize("text", SETTINGS)
def test_activations_and_bounds(text: str) -> None:
    checked(text)


@pytest.mark.parametrize("text", SHAPES)
def test_what_moves_elements(text: str) -> None:
    inputs = {"q": [1, 4, 4, 6]} if " q " in text else {}
    outputs = "y z" if " z" in text.split(">")[-1] else "y"
    used = set(text.replace(";", " ").split())
    shapes = inputs or ({"x": [2, 4, 6]} if " x " in text else {"u": [1]})
    constants = {k: v for k, v in CONSTANTS.items() if k in used}
    if "u" in shapes:
        text += "; Identity u > z"
        outputs = "y z"
    kinds = {"z": np.int64} if "TopK" in text else {}
    alike(small(text, shapes, constants, outputs, opset=20, dtypes=kinds))


@pytest.mark.parametrize("op", ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare"])
@pytest.mark.parametrize("axes", [[1], [2], [0, 2], [0, 1, 2]])
@pytest.mark.parametrize("keep", [0, 1])
def test_reductions_of_what_is_worked_out_there(op: str, axes: list[int], keep: int) -> None:
    text = f"Mul x x > h; Sub h x > i; Reduce{op} i a > y keepdims={keep}"
    alike(small(text, {"x": [3, 4, 19]}, {"a": np.array(axes)}, opset=20), tolerance=1e-5)


@pytest.mark.parametrize(
    ("text", "w", "x"),
    [
        ("MatMul x w > y", (24, 40), [3, 5, 24]), ("MatMul x w > y", (24, 3), [1, 24]),
        ("MatMul w x > y", (7, 5), [2, 5, 9]),
        ("Gemm x w b > y transB=1 alpha=0.5", (17, 24), [6, 24]), ("Gemm x w b > y transA=1", (6, 17), [6, 9]),
        ("Conv x w b > y pads=[1,2]", (17, 6, 3), [2, 6, 9]),
        ("Conv x w b > y strides=[2] dilations=[2]", (17, 6, 3), [1, 6, 15]),
        ("Conv x w > y group=2", (34, 3, 2), [1, 6, 9]), ("Conv x w > y group=12", (12, 1, 3), [1, 12, 9]),
        ("Conv x w > y group=5", (5, 1, 3), [1, 5, 9]),
        ("Conv x w > y auto_pad='SAME_UPPER'", (2, 3, 3, 3), [1, 3, 4, 21]),
        ("Conv x w > y", (2, 3, 1, 2), [1, 3, 1, 40]),
        ("ConvTranspose x w b > y strides=[2] pads=[1,0]", (6, 17, 4), [1, 6, 5]),
        ("ConvTranspose x w > y group=2 output_padding=[1] strides=[3]", (6, 5, 3), [2, 6, 5]),
        ("ConvTranspose x w > y strides=[1,2]", (4, 3, 1, 3), [1, 4, 2, 9]),
    ],
)  # fmt: skip
def test_products(text: str, w: tuple[int, ...], x: list[int]) -> None:
    constants: dict[str, Array] = {"w": weights(*w), **({"b": weights(17)} if " b " in text else {})}
    alike(small(text, {"x": x}, constants, opset=20), tolerance=5e-6)


@pytest.mark.parametrize(
    ("equation", "z"), [("bik,kj->bij", [24, 9]), ("bik,bjk->bij", [2, 9, 24]), ("bik,bjk->bji", [2, 9, 24])]
)
def test_einsum(equation: str, z: list[int]) -> None:
    made = small([node("Einsum", "x z", "y", equation=equation)], {"x": [2, 5, 24], "z": z})
    alike(made, tolerance=5e-6)


def test_einsum_whose_outputs_lie_apart() -> None:
    """Many rows and outputs, heads innermost."""
    made = small([node("Einsum", "x z", "y", equation="ibhd,jbhd->ijbh")], {"x": [9, 1, 3, 4], "z": [19, 1, 3, 4]})
    alike(made, tolerance=5e-6)


@pytest.mark.parametrize(
    "shapes", [([2, 3, 5, 8], [2, 3, 8, 9]), ([1, 24], [24, 3]), ([4, 24], [24, 33]), ([3, 1, 8], [8, 16])]
)
@pytest.mark.parametrize("turned", [False, True])
def test_products_of_data(shapes: tuple[list[int], list[int]], turned: bool) -> None:
    a, b = shapes
    if turned:
        b = [*b[:-2], b[-1], b[-2]]
        perm = [*range(len(b) - 2), len(b) - 1, len(b) - 2]
        alike(
            small(f"Transpose z > t perm={perm}; MatMul x t > y".replace(", ", ","), {"x": a, "z": b}), tolerance=5e-6
        )
    else:
        alike(small("MatMul x z > y", {"x": a, "z": b}), tolerance=5e-6)


@pytest.mark.parametrize(
    "text",
    [
        "MaxPool x > y kernel_shape=[3] strides=[2]", "MaxPool x > y kernel_shape=[3] pads=[1,1] dilations=[2]",
        "AveragePool x > y kernel_shape=[3] pads=[1,1]",
        "AveragePool x > y kernel_shape=[3] pads=[1,1] count_include_pad=1",
        "AveragePool x > y kernel_shape=[2] strides=[2] ceil_mode=1", "LpPool x > y kernel_shape=[2]",
        "GlobalAveragePool x > y", "GlobalMaxPool x > y", "GlobalLpPool x > y", "GlobalLpPool x > y p=3",
    ],
)  # fmt: skip
def test_pools(text: str) -> None:
    alike(small(text, {"x": [2, 9, 11]}, opset=19))


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("how", ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
@pytest.mark.parametrize("scale", [2, 1.5, 0.5, 1.05])
def test_resize(mode: str, how: str, scale: float) -> None:
    text = f"Resize x e s > y mode='{mode}' coordinate_transformation_mode='{how}'"
    known = {"e": np.zeros(0, np.float32), "s": np.float32([1, 1, 1, scale])}
    alike(small(text, {"x": [1, 3, 4, 12]}, known, opset=19))


@pytest.mark.parametrize("more", ["", " cubic_coeff_a=-0.5", " exclude_outside=1"])
def test_resize_of_two_axes_with_settings(more: str) -> None:
    known = {"e": np.zeros(0, np.float32), "s": np.float32([1, 1, 2, 2.5])}
    alike(small(f"Resize x e s > y mode='cubic'{more}", {"x": [1, 3, 4, 6]}, known, opset=19))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("LayerNormalization x g b > y axis=-1", "g b"), ("LayerNormalization x g > y axis=-1 epsilon=0.1", "g"),
        ("InstanceNormalization x c d > y", "c d"), ("BatchNormalization x c d d v > y", "c d v"),
        ("GroupNormalization x c d > y num_groups=2", "c d"),
    ],
)  # fmt: skip
def test_norms(text: str, names: str) -> None:
    known = {"g": weights(21), "b": weights(21) + 1, "c": weights(4), "d": weights(4) + 2, "v": np.abs(weights(4)) + 1}
    alike(small(text, {"x": [2, 4, 21]}, {k: known[k] for k in names.split()}, opset=21), tolerance=5e-6)


@pytest.mark.parametrize("op", ["GRU", "LSTM", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("late", [0, 1])
def test_recurrent_cells(op: str, direction: str, late: int) -> None:
    ways, gates, hidden = 1 + (direction == "bidirectional"), {"GRU": 3, "LSTM": 4, "RNN": 1}[op], 11
    sizes = {"w": (ways, gates * hidden, 5), "r": (ways, gates * hidden, hidden), "b": (ways, 2 * gates * hidden)}
    known = {
        name: weights(*size) * np.float32(0.3) for name, size in sizes.items()
    }  # larger ones make differences grow
    more = f" linear_before_reset={late}" if op == "GRU" else ""
    extra = " c" if op == "LSTM" else ""
    shapes = {"x": [7, 3, 5], "h": [ways, 3, hidden], **({"c": [ways, 3, hidden]} if extra else {})}
    text = f"{op} x w r b _ h{extra} > y z hidden_size={hidden} direction='{direction}'{more}".replace(" _ ", " empty ")
    model = small(text.replace(" empty ", " n "), {**shapes}, {**known, "n": np.array([7, 7, 7], np.int32)}, "y z")
    alike(model, tolerance=5e-6)


@pytest.mark.parametrize("op", ["GRU", "LSTM", "RNN"])
@pytest.mark.parametrize("late", [0, 1])
def test_cells_with_a_clip(op: str, late: int) -> None:
    gates, hidden = {"GRU": 3, "LSTM": 4, "RNN": 1}[op], 8
    known = {"w": weights(1, gates * hidden, 5), "r": weights(1, gates * hidden, hidden)}
    more = f" linear_before_reset={late}" if op == "GRU" else ""
    alike(small(f"{op} x w r > y hidden_size={hidden} clip=0.4{more}", {"x": [6, 1, 5]}, known), tolerance=5e-6)


@pytest.mark.parametrize("op", ["GRU", "LSTM"])
def test_sequences_that_are_shorter(op: str) -> None:
    gates, hidden = {"GRU": 3, "LSTM": 4}[op], 8
    known = {
        "w": weights(1, gates * hidden, 5),
        "r": weights(1, gates * hidden, hidden),
        "b": weights(1, 2 * gates * hidden),
    }
    model = small(
        f"{op} x w r b n > y z hidden_size={hidden}", {"x": [6, 3, 5], "n": [3]}, known, "y z", dtypes={"n": np.int32}
    )
    alike(model, {"x": weights(6, 3, 5), "n": np.array([6, 2, 4], np.int32)}, 5e-6)


@pytest.mark.parametrize("onesided", [0, 1])
def test_fourier(onesided: int) -> None:
    known = {"hop": np.array(4), "win": np.hanning(12).astype(np.float32), "size": np.array(12)}
    text = f"STFT x hop win size > y onesided={onesided}"
    alike(small(text, {"x": [1, 40, 1]}, known, opset=17), tolerance=5e-6)
    known = {"hop": np.array(40), "win": np.hanning(128).astype(np.float32), "size": np.array(128)}  # the fast way
    alike(small(text, {"x": [2, 250, 1]}, known, opset=17), tolerance=2e-6)
    for size in (8, 9):
        known = {"n": np.array(size), "a": np.array(1)}
        alike(small("DFT x n a > y inverse=1 onesided=1", {"x": [2, 5, 2]}, known, opset=20), tolerance=5e-6)
    alike(small(f"DFT x > y axis=1 onesided={onesided}", {"x": [2, 9, 1]}, {}, opset=17), tolerance=5e-6)


@pytest.mark.parametrize("kind", [np.int8, np.uint8])
def test_quantised_as_it_is_written(kind: type) -> None:
    known: dict[str, Array] = {"s": np.float32(0.05), "z": np.array(3, kind)}
    alike(small("QuantizeLinear x s z > q; DequantizeLinear q s z > y", {"x": [3, 40]}, known), tolerance=0)


def whole(shape: tuple[int, ...], kind: type, seed: int = 3) -> Array:
    info = np.iinfo(kind)
    return np.random.default_rng(seed).integers(info.min, info.max, shape, endpoint=True).astype(kind)


CONVOLVED = ["pads=[1,2]", "strides=[2] dilations=[2]", "group=2 pads=[2,0]"]


@pytest.mark.parametrize("more", CONVOLVED)
@pytest.mark.parametrize("points", [0, 1, 4])
def test_convolutions_of_whole_numbers(more: str, points: int) -> None:
    """points: of the weights; none, one, or one for every output, where the runtime takes them."""
    each = 2 if "group" in more else 4
    known: dict[str, Array] = {"w": whole((4, each, 3), np.uint8), "zx": np.array(9, np.uint8)}
    if points:
        known["zw"] = np.array(128, np.uint8)
    names = "x w zx" + " zw" * bool(points)
    made = small(f"ConvInteger {names} > y {more}", {"x": [2, 4, 11]}, known, dtypes={"x": np.uint8, "y": np.int32})
    alike(made, {"x": whole((2, 4, 11), np.uint8)})
    scales: dict[str, Array] = {"sx": np.float32(0.02), "sw": np.float32(0.5) if points < 2 else weights(4) ** 2 + 1}
    zeros = {
        "zw": np.zeros(4 if points > 1 else (), np.int8),
        "w": whole((4, each, 3), np.int8) // 3,
    }  # no pair of products leaves 16 bits
    rest = {"sy": np.float32(4.5), "zy": np.array(100, np.uint8), "b": np.array([-9000, 5, 7, 9999], np.int32)}
    text = f"QLinearConv x sx zx w sw zw sy zy b > y {more}"
    made = small(text, {"x": [2, 4, 11]}, {**known, **scales, **zeros, **rest}, dtypes={"x": np.uint8, "y": np.uint8})
    alike(made, {"x": whole((2, 4, 11), np.uint8)})


@pytest.mark.parametrize("columns", [1, 5])
def test_matrices_of_whole_numbers(columns: int) -> None:
    """columns: zero points of the right side."""
    zeros = whole((columns,), np.uint8) if columns > 1 else np.array(7, np.uint8)
    known: dict[str, Array] = {"w": whole((6, 5), np.uint8), "za": np.array(9, np.uint8), "zb": zeros}
    feeds, kinds = {"x": whole((2, 3, 6), np.uint8)}, {"x": np.uint8, "y": np.int32}
    alike(small("MatMulInteger x w za zb > y", {"x": [2, 3, 6]}, known, dtypes=kinds), feeds)
    one = {"zb": np.array(7, np.uint8), "sa": np.float32(0.02), "sb": np.float32(0.3), "sy": np.float32(5.5)}
    known |= {**one, "zy": np.array(90, np.uint8)}
    text = "QLinearMatMul x sa za w sb zb sy zy > y"
    alike(small(text, {"x": [2, 3, 6]}, known, dtypes={"x": np.uint8, "y": np.uint8}), feeds)


@pytest.mark.parametrize("text", ["BitShift x c > y direction='LEFT'", "BitShift x c > y direction='RIGHT'"])
def test_bits(text: str) -> None:
    kinds = {"x": np.uint8, "y": np.uint8}
    made = small(text, {"x": [9]}, {"c": np.array(3, np.uint8)}, dtypes=kinds, opset=18)
    alike(made, {"x": whole((9,), np.uint8)})
    alike(small("BitwiseNot x > y", {"x": [9]}, dtypes=kinds, opset=18), {"x": whole((9,), np.uint8)})


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.float64])
def test_other_types(kind: type) -> None:
    kinds = {"x": kind, "z": kind, "y": kind}
    model = small("Add x z > a; Mul a x > b; Sub b z > c; Max c x > y", {"x": [9], "z": [9]}, dtypes=kinds)
    alike(model, tolerance=1e-12)


@pytest.mark.parametrize("sign", [-7, -1, 3])
def test_whole_numbers_are_divided_towards_zero_and_rests_have_the_divisors_sign(sign: int) -> None:
    kinds = {"x": np.int32, "c": np.int32, "y": np.int32}
    for text in ("Div x c > y", "Mod x c > y", "Mod x c > y fmod=1"):
        model = small(text, {"x": [9]}, {"c": np.array(sign, np.int32)}, dtypes=kinds)
        alike(model, {"x": np.array([-1000, -8, -7, -1, 0, 1, 6, 7, 999], np.int32)})


def test_what_is_not_a_number_stays_so_and_limits_are_exact() -> None:
    x = np.array([-np.inf, -200, -0.0, 200, np.inf, np.nan], np.float32)
    for op in ("Sigmoid", "Tanh", "Exp", "Erf", "Relu", "Softplus", "Abs"):
        model = small(f"{op} x > y", {"x": [6]})
        same(by_c(model, {"x": x})["y"], run(model, {"x": x})["y"])


def test_places_that_are_data() -> None:
    model = small("Gather w i > y axis=0", {"i": [3, 2]}, {"w": weights(7, 5)}, dtypes={"i": np.int64})
    alike(model, {"i": np.array([[0, 6], [-1, 3], [-7, 2]])})


def test_an_operator_that_is_not_there_is_refused_by_name() -> None:
    said = reason(small("Det x > y", {"x": [3, 3]}))
    assert said.startswith("Det node") and "there is no C for it" in said and "docs/native.md" in said


def test_the_page_lists_every_operator() -> None:
    from pathlib import Path

    page = (Path(__file__).parents[4] / "docs" / "native.md").read_text(encoding="utf-8")
    assert not [name for name in operators() if f"`{name}`" not in page]


def test_swish_of_double() -> None:
    kinds = {"x": np.float64, "y": np.float64}
    alike(small("Swish x > y alpha=0.7", {"x": [3, 40]}, opset=24, dtypes=kinds), tolerance=1e-12)

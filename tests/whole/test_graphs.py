"""Folds and latches written by hand: operators, axes, lengths and masks that exporters seldom write."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import pulsify
from pulsify.backends.native import library
from tests.models import model, node, weights
from tests.side import Batch, streamed
from tests.whole.check import check, same

FAR = 1 << 40
OPS = (
    "ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum",
    "ReduceSumSquare",
)  # fmt: skip


def ints(**by_name: Any) -> dict[str, Any]:
    return {name: np.array(value, np.int64) for name, value in by_name.items()}


@pytest.mark.parametrize("axes", [[1], [1, 2], [-2, 3], [1, 2, 3]])
@pytest.mark.parametrize("op", OPS)
def test_every_reduction_over_any_axes(op: str, axes: list[int]) -> None:
    proto = model(
        [node(op, "x a", "y", keepdims=len(axes) % 2)], {"x": ["B", "T", 2, 3]}, ["y"], ints(a=axes), opset=18
    )
    check(proto, pulses=(3,), lengths=(1, 2, 3, 5, 12))


@pytest.mark.parametrize("opset", [13, 17, 18])
def test_axes_as_older_models_have_them(opset: int) -> None:
    made = node("ReduceMax", "x", "y", axes=[1]) if opset < 18 else node("ReduceMax", "x a", "y")
    check(model([made], {"x": ["B", "T", 2]}, ["y"], ints(a=[1]) if opset > 17 else {}, opset=opset), pulses=(2,))


def test_without_axes_all_is_one_number() -> None:
    check(model([node("ReduceSum", "x", "y", keepdims=0)], {"x": [1, "T", 2]}, ["y"]), pulses=(1, 4))


@pytest.mark.skipif(not library.available(), reason="no C compiler")
def test_variances_as_c() -> None:
    nodes = [
        node("ReduceMean", "x", "mean", axes=[1]),
        node("Sub", "x mean", "off"),
        node("Mul", "off off", "squares"),
        node("ReduceMean", "squares", "y", axes=[1], keepdims=0),
    ]
    check(model(nodes, {"x": ["B", "T", 3]}, ["y"]), pulses=(4,), lengths=(1, 4, 9), backend="native")


@pytest.mark.skipif(not library.available(), reason="no C compiler")
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.bool_])
@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
def test_extremes_of_whole_numbers_as_c(op: str, dtype: Any) -> None:
    """The least of small numbers started at -1, their largest at 0: the limits of another type, cut off."""
    types = {"x": dtype, "y": dtype}
    proto = model([node(op, "x a", "y")], {"x": [1, "T", 2]}, ["y"], ints(a=[1]), dtypes=types, opset=20)
    stream, batch = pulsify.stream(proto, pulse=2, verify=False), Batch(proto)
    signs = (1,) if dtype in (np.uint8, np.bool_) else (1, -1)
    for length, sign in ((n, s) for n in (1, 2, 5) for s in signs):
        x = (sign * np.random.default_rng(length).integers(3, 99, (1, length, 2))).astype(dtype)
        same(streamed(stream, x, [length], backend="native", padding=0.0), batch.run({"x": x}))


def test_streams_of_a_batch_are_not_mixed() -> None:
    with pytest.raises(pulsify.NotStreamable, match="streams of a batch") as caught:
        pulsify.stream(model([node("ReduceSum", "x", "y")], {"x": ["B", "T", 2]}, ["y"]), pulse=2)
    assert caught.value.node == "y"


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_whole_numbers(op: str, dtype: Any) -> None:
    proto = model(
        [node(op, "x a", "y")], {"x": [1, "T", 2]}, ["y"], ints(a=[1]), dtypes={"x": dtype, "y": dtype}, opset=18
    )
    stream, rng = pulsify.stream(proto, pulse=3, verify=False), np.random.default_rng(0)
    for length in range(1, 11):
        x = rng.integers(-9, 9, (1, length, 2)).astype(dtype)
        same(streamed(stream, x, [length]), Batch(proto).run({"x": x}))


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
def test_the_first_or_last_of_several_that_are_alike(op: str, last: int) -> None:
    made = node(op, "x", "y", axis=1, keepdims=0, select_last_index=last)
    proto = model([made], {"x": ["B", "T", 3]}, ["y"], dtypes={"y": np.int64})
    batch, rng = Batch(proto), np.random.default_rng(0)
    for pulse in (1, 4):
        stream = pulsify.stream(proto, pulse=pulse, verify=False)
        for length in (1, 2, 5, 9, 16):
            x = rng.integers(0, 3, (2, length, 3)).astype(np.float32)
            same(streamed(stream, x, [1] * length), batch.run({"x": x}))
        x = np.full((1, 7, 3), -np.inf if op == "ArgMax" else np.inf, np.float32)
        same(streamed(stream, x, [7], check=False), batch.run({"x": x}))


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceLogSumExp", "ReduceSum", "ReduceMean"])
def test_infinite_numbers_count_as_in_batch(op: str) -> None:
    proto = model([node(op, "x a", "y")], {"x": [1, "T", 1]}, ["y"], ints(a=[1]), opset=18)
    stream, batch = pulsify.stream(proto, pulse=2, verify=False), Batch(proto)
    for values in (
        [-np.inf, 1, 2],
        [-np.inf, -np.inf, -np.inf, -np.inf, 3],
        [-np.inf],
        [1, np.inf, 2, 3],
        [2, 1, np.inf],
    ):
        x = np.array(values, np.float32).reshape(1, -1, 1)
        same(streamed(stream, x, [1] * x.shape[1], check=False), batch.run({"x": x}))


def test_scores_far_apart() -> None:
    """What was summed before the largest score came is worth nothing; nothing overflows."""
    nodes = [
        node("Softmax", "s", "w", axis=1), node("Mul", "w x", "wx"), node("ReduceSum", "wx a", "y"),
        node("ReduceLogSumExp", "s a", "z"),
    ]  # fmt: skip
    proto = model(nodes, {"x": [1, "T", 2], "s": [1, "T", 1]}, ["y", "z"], ints(a=[1]), opset=18)
    stream, rng = pulsify.stream(proto, pulse=3, verify=False), np.random.default_rng(0)
    x, s = rng.standard_normal((1, 20, 2)).astype(np.float32), rng.standard_normal((1, 20, 1)).astype(np.float32)
    for scores in (s * 1e4, np.sort(s * 300, 1), np.sort(s * 300, 1)[:, ::-1].copy()):
        feeds = {"x": x, "s": scores}
        same(streamed(stream, feeds, [7, 1, 12]), Batch(proto).run(feeds))


def test_a_softmax_by_hand() -> None:
    """exp(s - max(s)), summed and divided by: nothing overflows, here as there."""
    nodes = [
        node("ReduceMax", "s a", "top"), node("Sub", "s top", "d"), node("Exp", "d", "e"),
        node("ReduceSum", "e a", "n"), node("Div", "e n", "w"), node("Mul", "w x", "wx"),
        node("ReduceSum", "wx a", "y"),
        node("Log", "n", "l"), node("Add", "l top", "z"),
    ]  # fmt: skip
    proto = model(nodes, {"x": ["B", "T", 2], "s": ["B", "T", 1]}, ["y", "z"], ints(a=[1]), opset=18)
    stream, rng = pulsify.stream(proto, pulse=3, verify=False), np.random.default_rng(0)
    for length in (1, 4, 19):
        x = rng.standard_normal((2, length, 2)).astype(np.float32)
        feeds = {"x": x, "s": 300 * x[..., :1]}
        same(streamed(stream, feeds, [length]), Batch(proto).run(feeds))


LOGARITHMS = {
    "weights": [node("Exp", "l", "w"), node("Mul", "w x", "wx"), node("ReduceSum", "wx a", "y")],
    "sum": [node("Mul", "l x", "lx"), node("ReduceSum", "lx a", "y")],
    "squares": [node("Mul", "l l", "ll"), node("ReduceMean", "ll a", "m"), node("ReduceMax", "x a", "t"),
                node("Add", "m t", "y")],
}  # fmt: skip


@pytest.mark.parametrize("name", LOGARITHMS)
@pytest.mark.parametrize("far", [0.0, -1e4, -1e9])
def test_logarithms_of_weights_under_large_scores(name: str, far: float) -> None:
    """All frames hidden by -1e9: their log-sum-exp was rounded to that, and each of them had all of the weight."""
    nodes = [node("LogSoftmax", "s", "l", axis=1), *LOGARITHMS[name]]
    proto = model(nodes, {"x": ["B", "T", 2], "s": ["B", "T", 1]}, ["y"], ints(a=[1]), opset=18)
    stream, rng = pulsify.stream(proto, pulse=3, verify=False), np.random.default_rng(0)
    for length in (1, 4, 7):
        x = rng.standard_normal((2, length, 2)).astype(np.float32)
        feeds = {"x": x, "s": (x[..., :1] + far).astype(np.float32)}
        same(streamed(stream, feeds, [length]), Batch(proto).run(feeds))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["sum", "squares"])
def test_logarithms_of_weights_under_the_largest_scores_there_are(name: str, dtype: type) -> None:
    """All frames hidden by finfo.min: beside that the logarithm of a sum is nothing, and each of them had weight 1."""
    nodes = [node("LogSoftmax", "s", "l", axis=1), *LOGARITHMS[name]]
    types = dict.fromkeys("xsy", dtype)
    proto = model(nodes, {"x": ["B", "T", 2], "s": ["B", "T", 1]}, ["y"], ints(a=[1]), opset=18, dtypes=types)
    stream, rng, lowest = pulsify.stream(proto, pulse=3, verify=False), np.random.default_rng(0), np.finfo(dtype).min
    for length in (1, 4, 7, 11):
        x = rng.standard_normal((2, length, 2)).astype(dtype)
        own, late = x[..., :1], (np.arange(length) > 4)[:, None]
        for s in (np.full_like(own, lowest), own * 1e9, own + 1e9 * late):
            feeds = {"x": x, "s": s.astype(dtype)}
            for chunks in ([length], [1] * length):
                same(streamed(stream, feeds, chunks), Batch(proto).run(feeds))


def test_the_mean_of_logarithms_of_weights_that_are_all_the_same() -> None:
    nodes = [node("LogSoftmax", "s", "l", axis=1), node("ReduceMean", "l a", "y", keepdims=0)]
    proto = model(nodes, {"s": ["B", "T", 1]}, ["y"], ints(a=[1]), opset=18)
    stream = pulsify.stream(proto, pulse=4)
    for length, far in ((1, -1e30), (9, -3e38), (30, 3e38)):
        got = stream.run(np.full((1, length, 1), far, np.float32))
        np.testing.assert_allclose(got, [[-np.log(length)]], rtol=1e-6)


def test_a_scan_that_starts_with_the_first_frame() -> None:
    """A slow mean over frames, from the first one on; and one over the rest."""
    body = onnx.helper.make_graph(
        [
            node("Sub", "f h", "d"),
            node("Mul", "d k", "e"),
            node("Add", "h e", "after"),
            node("Identity", "after", "out"),
        ],
        "body",
        [onnx.helper.make_tensor_value_info(n, 1, [1, 3]) for n in ("h", "f")],
        [onnx.helper.make_tensor_value_info(n, 1, [1, 3]) for n in ("after", "out")],
    )
    axes = {"scan_input_axes": [1], "scan_output_axes": [1], "num_scan_inputs": 1}
    nodes = [
        node("Gather", "x n0", "first", axis=1), node("Slice", "x n1 far n1", "rest"),
        node("Scan", "first x", "end slow", body=body, **axes),
        node("Scan", "first rest", "z others", body=body, **axes),
    ]  # fmt: skip
    given = {**ints(n0=0, n1=[1], far=[FAR]), "k": np.array(0.2, np.float32)}
    proto = model(nodes, {"x": [1, "T", 3]}, ["end", "slow", "z", "others"], given)
    check(proto, pulses=(1, 4, 20))


MASKED = [
    node("Shape", "x", "dims"), node("Gather", "dims one", "t", axis=0), node("Range", "zero t one", "p"),
    node("Unsqueeze", "lengths n1", "l"), node("Less", "p l", "inside"), node("Cast", "inside", "m", to=1),
    node("Unsqueeze", "m n2", "mask"), node("Mul", "x mask", "xm"), node("ReduceSum", "xm n1", "sum", keepdims=0),
    node("ReduceSum", "mask n1", "count", keepdims=0), node("Div", "sum count", "y"),
]  # fmt: skip


@pytest.mark.parametrize("softmax", [False, True])
def test_masked_by_a_length_that_is_bound(softmax: bool) -> None:
    given = {**ints(n1=[1], n2=[2]), "zero": np.array(0), "one": np.array(1), "low": np.array(-1e9, np.float32)}
    nodes = list(MASKED)
    if softmax:
        nodes = [*MASKED[:5], node("Unsqueeze", "inside n2", "shown"), node("ReduceMax", "x", "s", axes=[2]),
                 node("Where", "shown s low", "scores"), node("Softmax", "scores", "w", axis=1),
                 node("Mul", "w x", "wx"), node("ReduceSum", "wx n1", "y", keepdims=0)]  # fmt: skip
    used = {n for k in nodes for n in k.input}
    proto = model(
        nodes, {"x": ["B", "T", 2], "lengths": ["B"]}, ["y"], {k: v for k, v in given.items() if k in used},
        dtypes={"lengths": np.int64},
    )  # fmt: skip
    stream, batch = pulsify.stream(proto, pulse=3, bind={"lengths": "T"}), Batch(proto)
    for length in (1, 2, 3, 7, 11):
        x = np.random.default_rng(length).standard_normal((2, length, 2)).astype(np.float32)
        same(streamed(stream, {"x": x}, [length]), batch.run({"x": x, "lengths": np.array([length] * 2)}))


@pytest.mark.parametrize(
    "where", [(0, 3, 1), (2, 6, 1), (0, 7, 3), (-1, FAR, 1), (-4, FAR, 1), (-6, -2, 2), (-3, -1, 1)]
)
def test_a_few_frames_as_an_output(where: tuple[int, int, int]) -> None:
    start, stop, step = where
    nodes = [
        node("Conv", "x w", "h", pads=[1, 2]), node("Slice", "h a b c d", "y"), node("Neg", "y", "z"),
        node("Relu", "h", "frames"),
    ]  # fmt: skip
    given = {"w": weights(3, 2, 3), **ints(a=[start], b=[stop], c=[2], d=[step])}
    check(model(nodes, {"x": ["B", 2, "T"]}, ["y", "z", "frames"], given), pulses=(1, 4))


@pytest.mark.parametrize(("count", "stride"), [(100, 1), (3000, 1), (500, 2)])
@pytest.mark.parametrize("behind", [(), (node("ReduceMean", "last", "y", axes=[2]),)])
def test_more_of_the_last_frames_than_short_streams_have(count: int, stride: int, behind: tuple[Any, ...]) -> None:
    nodes = [
        node("Conv", "x w", "c", strides=[stride]),
        node("Slice", "c a b t", "last" if behind else "y"),
        *behind,
    ]
    given = {**ints(a=[-count], b=[FAR], t=[2]), "w": weights(2, 1, 3)}
    proto = model(nodes, {"x": ["B", 1, "N"]}, ["y"], given)
    with pytest.raises(pulsify.NotStreamable, match=f"keeps the last {count} frames") as refused:
        pulsify.stream(proto, pulse=16)
    least = (count - 1) * stride + 3
    assert refused.value.op == "Slice" and f'set={{"N": "{least}+n"}}' in refused.value.hint
    stream, batch = pulsify.stream(proto, pulse=16, set={"N": f"{least}+n"}), Batch(proto)  # what the hint says
    for length in (least, least + 1, least + 17, 2 * least):
        x = np.random.default_rng(length).standard_normal((2, 1, length)).astype(np.float32)
        same(streamed(stream, {"x": x}, [length]), batch.run({"x": x}))
    with pytest.raises(pulsify.InvalidLength, match=f"at least {least}"):
        stream.run(np.zeros((1, 1, least - 1), np.float32))


@pytest.mark.parametrize("places", [0, 3, -1, -2, [0, 2], [-1, -3], [1]])
def test_frames_by_number(places: Any) -> None:
    nodes = [node("Gather", "x i", "y", axis=1), node("Gather", "x n0", "first", axis=1), node("Relu", "x", "z")]
    check(model(nodes, {"x": ["B", "T", 2]}, ["y", "first", "z"], ints(i=places, n0=0)), pulses=(1, 4))


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
@pytest.mark.parametrize("dims", [["B", 3, "T"], ["B", 3, "T", 4], ["B", 3, 4, "T"]])
def test_pools_of_all_frames(op: str, dims: list[Any]) -> None:
    check(model([node(op, "x", "y")], {"x": dims}, ["y"]), pulses=(3,), lengths=(1, 4, 7))


def test_a_fold_of_a_longer_and_a_shorter_wire() -> None:
    """Several at once, each with its own delay; behind them one network."""
    nodes = [
        node("Conv", "x w", "h", pads=[5, 5]), node("Conv", "x w", "thin", pads=[0, 1], strides=[2]),
        node("ReduceMean", "h", "a", axes=[2]), node("ReduceMax", "thin", "b", axes=[2]),
        node("Slice", "h m1 far n2", "c"), node("Concat", "a b c", "abc", axis=2), node("Flatten", "abc", "y"),
    ]  # fmt: skip
    proto = model(nodes, {"x": ["B", 2, "T"]}, ["y"], {"w": weights(2, 2, 3), **ints(m1=[-1], far=[FAR], n2=[2])})
    check(proto, pulses=(2, 4, 6))


def test_a_fold_whose_input_has_no_frames_is_turned_down() -> None:
    nodes = [node("Conv", "x w", "h"), node("ReduceMean", "h", "y", axes=[2])]
    stream = pulsify.stream(model(nodes, {"x": [1, 2, "T"]}, ["y"], {"w": weights(2, 2, 5)}), pulse=2)
    assert stream.spec.shortest == 5
    session = stream.session()
    session.push(np.zeros((1, 2, 4), np.float32))
    with pytest.raises(pulsify.InvalidLength, match="at least 5"):
        session.flush()


def test_states_say_what_they_are() -> None:
    nodes = [node("Slice", "x n0 n2 n1", "f"), node("ReduceMean", "f", "m", axes=[1]), node("Sub", "x m", "y"),
             node("ReduceMax", "x", "z", axes=[1])]  # fmt: skip
    stream = pulsify.stream(model(nodes, {"x": [1, "T", 3]}, ["y", "z"], ints(n0=[0], n1=[1], n2=[2])), pulse=4)
    assert {s.kind for s in stream.spec.states} == {"latch", "fold", "clock"}


def test_a_file_goes_on_where_another_left_off(tmp_path: Any) -> None:
    """Saved, loaded, and moved in the middle."""
    nodes = [node("ReduceMean", "x", "m", axes=[1]), node("Sub", "x m", "o"), node("Mul", "o o", "q"),
             node("ReduceMean", "q", "y", axes=[1]), node("Slice", "x n0 n2 n1", "z")]  # fmt: skip
    proto = model(nodes, {"x": [1, "T", 3]}, ["y", "z"], ints(n0=[0], n1=[1], n2=[2]))
    stream = pulsify.stream(proto, pulse=4)
    stream.save(tmp_path / "s.onnx")
    loaded = pulsify.load(tmp_path / "s.onnx")
    assert loaded.spec.states == stream.spec.states and loaded.spec.outputs == stream.spec.outputs
    x = np.random.default_rng(0).standard_normal((1, 21, 3)).astype(np.float32)
    first, second = stream.session(), loaded.session(backend="reference")
    first.push(x[:, :9])
    second.restore(first.state())
    second.push(x[:, 9:])
    np.testing.assert_allclose(second.flush()["y"], Batch(proto).run({"x": x})["y"], rtol=1e-5)


def test_endless_streams_count_for_themselves() -> None:
    """Counters are set back; a mean is not."""
    proto = model([node("ReduceMean", "x", "y", axes=[1])], {"x": [1, "T", 1]}, ["y"])
    assert pulsify.stream(proto, pulse=4).spec.rebase > 0


@pytest.mark.parametrize(("op", "number"), [("Add", -(3 * 10**9)), ("Mul", 10**10), ("Mul", 1 << 31)])
def test_numbers_that_a_clock_cannot_hold(op: str, number: int) -> None:
    """A raw OverflowError: a clock has 32 bits. They are worked out as the model does, in its own type."""
    nodes = [
        node("Shape", "x", "dims"), node("Gather", "dims one", "t", axis=0), node(op, "t number", "n"),
        node("Cast", "n", "f", to=1), node("ReduceSum", "x a", "s", keepdims=0), node("Mul", "s f", "y"),
    ]  # fmt: skip
    given = ints(one=1, a=[1], number=number)
    check(model(nodes, {"x": ["B", "T", 2]}, ["n", "y"], given, dtypes={"n": np.int64}), pulses=(4,))


def test_the_length_as_a_number_is_never_set_back() -> None:
    nodes = [node("Shape", "x", "dims"), node("Gather", "dims n1", "y", axis=0), node("Relu", "x", "z")]
    proto = model(nodes, {"x": [1, "T", 1]}, ["y", "z"], ints(n1=1), dtypes={"y": np.int64})
    assert pulsify.stream(proto, pulse=4).spec.rebase == 0


# ---- refused


def joined(*nodes: onnx.NodeProto, **given: Any) -> pulsify.NotStreamable:
    proto = model(list(nodes), {"x": [1, "T", 3]}, ["y"], given)
    with pytest.raises(pulsify.NotStreamable) as caught:
        pulsify.stream(proto, pulse=4)
    assert caught.value.hint
    return caught.value


MEAN = node("ReduceMean", "x", "mean", axes=[1])


@pytest.mark.parametrize("op", ["Sub", "Add", "Mul", "Div", "Max"])
def test_a_fold_joined_back_to_the_stream_names_both(op: str) -> None:
    error = joined(MEAN, node(op, "x mean", "y"))
    assert (error.node, error.op) == ("y", op) and "ReduceMean 'mean'" in error.reason


@pytest.mark.parametrize(
    "behind",
    [
        [node("Relu", "off", "y")],
        [node("Mul", "off off", "q"), node("Sqrt", "q", "r"), node("ReduceMean", "r", "y", axes=[1])],
        [node("Mul", "off off", "q"), node("Mul", "q q", "r"), node("ReduceMean", "r", "y", axes=[1])],
        [node("ReduceMax", "off", "y", axes=[1])],
        [node("CumSum", "off n1", "y")],
        [node("Pow", "off n3", "q"), node("ReduceMean", "q", "y", axes=[1])],
        [node("Softmax", "off", "w", axis=1), node("Mul", "w x", "p"), node("ReduceMean", "p", "y", axes=[1])],
        [node("Concat", "x off", "y", axis=2)],
    ],
)
def test_what_no_sum_takes_apart_names_both(behind: list[onnx.NodeProto]) -> None:
    given: dict[str, Any] = {"n1": np.array(1)} if behind[0].op_type == "CumSum" else {}
    given |= {"n3": np.array(3, np.float32)} if behind[0].op_type == "Pow" else {}
    error = joined(MEAN, node("Sub", "x mean", "off"), *behind, **given)
    assert (error.node, error.op) == ("off", "Sub") and "ReduceMean 'mean'" in error.reason


@pytest.mark.parametrize(
    "behind",
    [
        [node("Identity", "w", "y")],
        [node("Mul", "w x", "y")],
        [node("ReduceMax", "w", "y", axes=[1])],
        [node("Mul", "w w", "v"), node("ReduceMean", "v", "y", axes=[1])],
        [node("Log", "w", "v"), node("ReduceMean", "v", "y", axes=[1])],
        [node("Conv", "w k", "y")],
    ],
)
def test_weights_over_all_of_time_need_a_sum(behind: list[onnx.NodeProto]) -> None:
    given = {"k": weights(2, 3, 1)} if behind[0].op_type == "Conv" else {}
    nodes = [node("Softmax", "x", "w", axis=1), *behind]
    if given:
        nodes = [node("Softmax", "x", "v", axis=1), node("Transpose", "v", "w", perm=[0, 2, 1]), *behind]
    error = joined(*nodes, **given)
    assert error.op in ("Softmax", "Mul") and "over the whole stream" in error.reason


def test_a_frame_at_a_place_that_goes_with_the_length_is_refused() -> None:
    """x[:, T // 2]."""
    nodes = [node("Shape", "x", "dims"), node("Gather", "dims n1", "t", axis=0), node("Div", "t n2", "half"),
             node("Gather", "x half", "y", axis=1)]  # fmt: skip
    error = joined(*nodes, **ints(n1=1, n2=2))
    assert (error.node, error.op) == ("y", "Gather")


def test_where_a_fold_writes_is_refused() -> None:
    nodes = [node("ArgMax", "x", "i", axis=1, keepdims=0), node("OneHot", "i depth values", "y")]
    proto = model(nodes, {"x": [1, "T", 3]}, ["y"], {"depth": np.array(9), "values": np.array([0, 1], np.float32)})
    stream = pulsify.stream(proto, pulse=4)  # places that are too large give nothing, here as in batch
    same(streamed(stream, x := weights(1, 7, 3), [7]), Batch(proto).run({"x": x}))
    scattered = [node("ArgMax", "x", "i", axis=1, keepdims=1), node("ScatterElements", "table i ones", "y", axis=1)]
    proto = model(scattered, {"x": [1, "T", 3]}, ["y"], {"table": weights(1, 9, 3), "ones": weights(1, 1, 3)})
    with pytest.raises(pulsify.NotStreamable, match="follows from the stream"):
        pulsify.stream(proto, pulse=4)


def test_a_row_found_by_a_fold() -> None:
    """Before the end the place may be anything; nothing falls over."""
    nodes = [node("ArgMax", "x", "i", axis=1, keepdims=0), node("Gather", "table i", "y")]
    proto = model(nodes, {"x": ["B", "T", 3]}, ["y"], {"table": weights(12, 2)})
    check(proto, pulses=(1, 4), lengths=(1, 5, 12))


def test_attention_weights_that_are_tiled_over_channels() -> None:
    nodes = [
        node("MatMul", "x w", "scores"),
        node("Softmax", "scores", "weights", axis=1),
        node("Tile", "weights times", "tiled"),
        node("Mul", "tiled x", "weighted"),
        node("ReduceSum", "weighted a", "y", keepdims=0),
    ]
    given = {"w": weights(4, 1), **ints(times=[1, 1, 4], a=[1])}
    check(model(nodes, {"x": ["B", "T", 4]}, ["y"], given), pulses=(3,), lengths=(1, 3, 11))

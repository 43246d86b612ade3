"""Each graph at every length from one frame on, against batch."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import pulsify
from tests.inputs.check import check
from tests.inputs.graphs import (
    appending,
    branch_beside_mirror,
    decided,
    divided,
    folded,
    ints,
    masked,
    nested_branches,
    rounding,
    scan_in_scan,
    started_alike,
    subsampled_mask,
)
from tests.models import frames, model, node, port, weights

ONES = {"attention_mask": 1}


# ---- masks


@pytest.mark.parametrize("dtype", [np.int64, np.bool_])
@pytest.mark.parametrize("streams", [1, 2])
def test_a_mask_that_is_called_so_is_ones(dtype: type, streams: int) -> None:
    stream = check(masked(dtype), batch=streams, filled=ONES)
    assert [i.name for i in stream.inputs] == ["x"] and [f.name for f in stream.spec.filled] == ["attention_mask"]


@pytest.mark.parametrize(("how", "value"), [("ones", 1), ("zeros", 0)])
def test_any_input_may_be_bound_to_ones_or_zeros(how: str, value: int) -> None:
    proto = masked(np.float32, name="padding")
    check(proto, filled={"padding": value}, bind={"padding": how})


def test_a_mask_may_stay_a_stream() -> None:
    proto = masked(np.int64)
    del proto.graph.output[1:]
    stream = check(proto, bind={"attention_mask": None})
    assert [i.name for i in stream.inputs] == ["x", "attention_mask"] and not stream.spec.filled


def test_sums_over_a_mask_are_the_length() -> None:
    check(subsampled_mask(), filled=ONES, batch=2)


def test_a_saved_stream_still_knows_its_mask(tmp_path: Any) -> None:
    proto = masked()
    stream = pulsify.stream(proto, pulse=4)
    stream.save(tmp_path / "s.onnx")
    again = pulsify.load(tmp_path / "s.onnx")
    assert again.spec == stream.spec and again.spec.filled
    assert pulsify.verify(proto, again, lengths=[3, 9])


@pytest.mark.parametrize("bind", [{"attention_mask": "twos"}, {"x": "T"}, {"nothing": "ones"}])
def test_what_cannot_be_bound_is_said(bind: dict[str, str]) -> None:
    with pytest.raises(pulsify.InvalidArgument, match="bind"):
        pulsify.stream(masked(), pulse=4, bind=bind)


# ---- lengths


AT_LEAST = [node("GreaterOrEqual", "t least", "c")]
REMAINDER = [node("Mod", "t by", "r"), node("Equal", "r is", "c")]


def test_lengths_from_some_on_can_be_declared() -> None:
    proto = decided(AT_LEAST, least=1000)
    with pytest.raises(pulsify.NotStreamable, match="at 1000 frames") as refused:
        pulsify.stream(proto, pulse=4)
    assert 'set={"T": "1000+n"}' in refused.value.hint  # which works:
    check(proto, 4, [1000, 1001, 1003, 2000], set={"T": "1000+n"})
    stream = pulsify.stream(proto, pulse=4, set={"T": "1000+n"})
    with pytest.raises(pulsify.InvalidLength, match="at least 1000"):
        stream.run(frames(1, 2, 999))
    with pytest.raises(pulsify.NotStreamable, match="decided otherwise"):
        pulsify.stream(proto, pulse=4, set={"T": "999+n"})


@pytest.mark.parametrize(("given", "lengths"), [("7*n+3", [3, 10, 17]), ("14*n+3", [3, 17, 31]), ("3+7*n", [3, 24])])
def test_lengths_of_a_remainder_can_be_declared(given: str, lengths: list[int]) -> None:
    proto = decided(REMAINDER, by=7, **{"is": 3})
    check(proto, 4, lengths, set={"T": given})
    with pytest.raises(pulsify.InvalidLength, match="3 more than a multiple of"):
        pulsify.stream(proto, pulse=4, set={"T": given}).run(frames(1, 2, 18))


def test_lengths_that_are_decided_in_two_ways_are_refused() -> None:
    with pytest.raises(pulsify.NotStreamable, match="depends on the length"):
        pulsify.stream(decided(REMAINDER, by=7, **{"is": 3}), pulse=4, set={"T": "3*n+1"})


def test_frames_of_320_behind_80_samples() -> None:
    nodes = [node("Slice", "x from to last", "h"), node("Reshape", "h by", "y")]
    given = {"from": ints(80), "to": ints(1 << 40), "last": ints(2), "by": ints(1, -1, 320)}
    check(model(nodes, {"x": [1, 1, "T"]}, ["y"], given), None, [400, 720, 3280], set={"T": "320*n+80"})


# ---- branches and loops


def test_a_branch_inside_a_branch_reads_the_outer_one() -> None:
    check(nested_branches())


@pytest.mark.parametrize("mirrored", [100, 1500])
def test_a_branch_beside_a_long_mirror(mirrored: int) -> None:
    check(branch_beside_mirror(mirrored), 64, [mirrored, mirrored + 1, 3 * mirrored])


@pytest.mark.parametrize("over_time", [True, False])
@pytest.mark.parametrize("pulse", [1, 4, 16])
def test_a_scan_inside_a_scan(over_time: bool, pulse: int) -> None:
    check(scan_in_scan(over_time), pulse)


@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize(("count", "axis"), [(1, 1), (2, 1), (3, 1), (2, -2)])
def test_loops_that_append_several_frames(count: int, stacked: bool, axis: int) -> None:
    stream = check(appending(count, stacked, axis), 3, batch=2)
    assert stream.outputs[0].rate == count


@pytest.mark.parametrize("pulse", [1, 3, 40])
def test_frames_that_are_not_real_divide_nothing(pulse: int) -> None:
    check(divided(2), pulse)


@pytest.mark.parametrize("expanded", [True, False])
def test_states_that_start_alike_at_every_frame(expanded: bool) -> None:
    check(started_alike(expanded), batch=2)


# ---- streams folded behind time


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("heads", [1, 2])
def test_streams_folded_behind_time(streams: int, heads: int) -> None:
    check(folded(node("MatMul", "f w", "g"), heads=heads), batch=streams)
    check(folded(node("Softmax", "f", "g", axis=1), heads=heads), 1, batch=streams)


@pytest.mark.parametrize(
    ("between", "reason"),
    [
        ([node("Reshape", "f half", "g")], "splits them in another way"),
        ([node("Gather", "f first", "r"), node("Sub", "f r", "g")], "merged with another axis"),
        ([node("CumSum", "f first", "g")], "merged with another axis"),
        ([node("Transpose", "x", "xt", perm=[1, 0, 2]), node("Reshape", "xt rows", "r"), node("Add", "f r", "g")],
         r"merged with another axis \(B\*T, say\) in one operand"),
    ],
)  # fmt: skip
def test_what_looks_along_such_an_axis_is_refused(between: list[onnx.NodeProto], reason: str) -> None:
    with pytest.raises(pulsify.NotStreamable, match=reason) as refused:
        pulsify.stream(folded(*between), pulse=4)
    assert refused.value.node and refused.value.hint


# ---- other writings


@pytest.mark.parametrize("equation", ["...c,cd->...d", "b...c,cd->b...d", "...tc,cd->...td", "btc,cd"])
def test_einsum_in_any_writing(equation: str) -> None:
    proto = model([node("Einsum", "x w", "y", equation=equation)], {"x": ["B", "T", 4]}, ["y"], {"w": weights(4, 5)})
    check(proto, batch=2)


def test_compress_by_a_constant_mask() -> None:
    kept = np.array([True, False, True, True])
    proto = model([node("Compress", "x keep", "y", axis=1)], {"x": ["B", 4, "T"]}, ["y"], {"keep": kept})
    check(proto, batch=2)


def test_compress_by_data_is_refused() -> None:
    nodes = [node("Greater", "x none", "big"), node("Reshape", "big flat", "mask"), node("Compress", "x mask", "y")]
    proto = model(nodes, {"x": [1, 2, "T"]}, ["y"], {"none": np.array(0, np.float32), "flat": ints(-1)})
    with pytest.raises(pulsify.NotStreamable, match="depends on the data") as refused:
        pulsify.stream(proto, pulse=4)
    assert refused.value.node.startswith("y/")


@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(
    ("kernel", "more"),
    [(5, {"strides": [2]}), (4, {"strides": [3]}), (2, {"strides": [3]}), (3, {"strides": [2], "dilations": [2]})],
)
def test_transposed_convolutions_of_the_same_size(auto: str, kernel: int, more: dict[str, Any]) -> None:
    made = node("ConvTranspose", "x w", "y", kernel_shape=[kernel], auto_pad=auto, **more)
    check(model([made], {"x": [1, 2, "T"]}, ["y"], {"w": weights(2, 3, kernel)}))


@pytest.mark.parametrize(("opset", "size"), [(18, 2), (21, 4)])
def test_group_norm_of_either_opset(opset: int, size: int) -> None:
    made = node("GroupNormalization", "x s b", "y", num_groups=2)
    given = {"s": weights(size), "b": weights(size, seed=3)}
    check(model([made], {"x": ["T", 4, 3]}, ["y"], given, opset=opset), time="T")


@pytest.mark.parametrize("streams", [1, 3])
def test_a_shape_is_given_out(streams: int) -> None:
    nodes = [node("Conv", "x w", "y", strides=[2]), node("Shape", "y", "s")]
    proto = model(nodes, {"x": ["B", 2, "T"]}, ["y", "s"], {"w": weights(3, 2, 3)}, dtypes={"s": np.int64})
    check(proto, batch=streams)


def test_a_size_that_goes_with_batch_and_length_is_refused() -> None:
    nodes = [node("Neg", "x", "y"), node("Size", "x", "n")]
    proto = model(nodes, {"x": ["B", 2, "T"]}, ["y", "n"], dtypes={"n": np.int64})
    with pytest.raises(pulsify.NotStreamable, match="irregular"):
        pulsify.stream(proto, pulse=4, verify=False)
    check(proto, set={"B": 1})


def test_an_input_is_given_out() -> None:
    ports = [port("x", [1, 2, "T"]), port("s", [1, 2, 1])]
    graph = helper.make_graph([node("Add", "x s", "y")], "model", ports, [port("y", None), *ports])
    stream = check(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10))
    assert [o.name for o in stream.outputs] == ["y", "x_out", "s_out"]


def test_an_output_of_rounding_alone_passes_its_check() -> None:
    stream = pulsify.stream(rounding(), pulse=4)
    assert stream.verification is not None and any("rounding" in n for n in stream.verification.notes)


def test_a_wrong_output_is_no_rounding() -> None:
    """Another model of the same ports, whose output is small: it moves with its inputs no more than others do."""
    nodes = [node("Conv", "x w", "y", pads=[1, 1])]
    small = [model(nodes, {"x": [1, 2, "T"]}, ["y"], {"w": weights(3, 2, 3, seed=s) * 1e-7}) for s in (1, 2)]
    with pytest.raises(pulsify.Mismatch):
        pulsify.verify(small[1], pulsify.stream(small[0], pulse=4), lengths=[9])


# ---- what is refused, where and how soon


@pytest.mark.parametrize("shape", [ints(1, -1, 4), ints(1, -1, 2)])
def test_a_reshape_that_scrambles_time_says_so(shape: Any) -> None:
    proto = model([node("Reshape", "x to", "y")], {"x": [1, 4, "T"]}, ["y"], {"to": shape})
    with pytest.raises(pulsify.NotStreamable, match="scrambles time") as refused:
        pulsify.stream(proto, pulse=4)
    assert refused.value.node == "y" and "transpose" in refused.value.hint


def test_a_reshape_that_groups_frames_is_not_called_a_stride() -> None:
    proto = model([node("Reshape", "x to", "y")], {"x": [1, "T", 4]}, ["y"], {"to": ints(-1, 40, 4)})
    with pytest.raises(pulsify.InvalidPulse, match="Reshape node 'y' puts 40 frames together"):
        pulsify.stream(proto, pulse=4)


BAKED = {
    "reshape": ([node("Reshape", "x to", "h"), node("MatMul", "h w", "y")], "h", 40),
    "positions": ([node("Add", "x table", "h"), node("Conv", "h v", "y", strides=[1])], "h", 40),
    "stride": ([node("Conv", "x v", "c", strides=[2]), node("Reshape", "c half", "y")], "y", 40),
    "joined": ([node("Concat", "x table", "h", axis=1), node("Relu", "h", "y")], "h", 40),
}


@pytest.mark.parametrize("name", BAKED)
def test_an_export_for_one_length_is_named_at_once(name: str) -> None:
    nodes, where, length = BAKED[name]
    given = {
        "to": ints(40, 4), "w": weights(4, 4), "table": weights(1, 4, 40), "v": weights(4, 4, 2),
        "half": ints(1, 4, 20),
    }  # fmt: skip
    dims = [1, "T", 4] if name == "reshape" else [1, 4, "T"]
    read = {i for n in nodes for i in n.input}
    proto = model(nodes, {"x": dims}, ["y"], {n: v for n, v in given.items() if n in read})
    begun = time.process_time()
    with pytest.raises(pulsify.NotStreamable, match=f"{length} frames and at no other") as refused:
        pulsify.stream(proto, pulse=4)
    assert refused.value.node == where and "export" in refused.value.hint
    assert time.process_time() - begun < 2


@pytest.mark.parametrize("multiple", [7, 40])
def test_a_model_that_takes_multiples_is_no_such_export(multiple: int) -> None:
    nodes = [node("Reshape", "x to", "h"), node("Relu", "h", "r"), node("Reshape", "r back", "y")]
    given = {"to": ints(1, -1, multiple, 4), "back": ints(1, -1, 4)}
    check(model(nodes, {"x": [1, "T", 4]}, ["y"], given), multiple, [multiple, 2 * multiple, 2 * multiple + 1])


@pytest.mark.parametrize("pulse", [1, 16])
@pytest.mark.parametrize("rows", [40, 50, 100])
def test_tables_that_end_soon(pulse: int, rows: int) -> None:
    nodes = [
        node("Conv", "x w", "h", pads=[4, 0]),
        node("Shape", "h", "sizes"),
        node("Gather", "sizes two", "t"),
        node("Range", "zero t one", "places"),
        node("Gather", "table places", "rows", axis=1),
        node("Add", "h rows", "y"),
    ]
    numbers = {"two": np.array(2), "zero": np.array(0), "one": np.array(1)}
    given = {**numbers, "w": weights(2, 2, 5), "table": weights(2, rows)}
    check(model(nodes, {"x": [1, 2, "T"]}, ["y"], given), pulse, [1, 9, rows - 1, rows, rows + 1])

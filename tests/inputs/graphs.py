"""The graphs, each of one idea; x is [B, 2, T] or [B, T, 4] unless said otherwise."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from tests.models import Array, model, node, port, weights


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


# ---- masks and lengths as inputs


def masked(dtype: type = np.int64, batch: int | str = "B", name: str = "attention_mask") -> onnx.ModelProto:
    """Frames times the mask, a convolution, and how many frames count."""
    nodes = [
        node("Cast", name, "as_float", to=1),
        node("Unsqueeze", "as_float last", "by_frame"),
        node("Mul", "x by_frame", "kept"),
        node("Transpose", "kept", "turned", perm=[0, 2, 1]),
        node("Conv", "turned w", "y", pads=[1, 1]),
        node("Cast", name, "as_int", to=7),
        node("ReduceSum", "as_int one", "lengths", keepdims=0),
    ]
    given = {"last": ints(2), "one": ints(1), "w": weights(3, 4, 3)}
    inputs = {"x": [batch, "T", 4], name: [batch, "T"]}
    return model(nodes, inputs, ["y", "lengths"], given, dtypes={name: dtype, "lengths": np.int64})


def subsampled_mask() -> onnx.ModelProto:
    """As wav2vec2 has it: the mask's sum, through a convolution's formula, is where the frames end that count."""
    nodes = [
        node("ReduceSum", "attention_mask one", "frames", keepdims=0),
        node("Sub", "frames three", "less"),
        node("Div", "less two", "steps"),
        node("Add", "steps first", "lengths"),
        node("Conv", "x w", "h", strides=[2]),
        node("Shape", "h", "sizes"),
        node("Gather", "sizes two", "t"),
        node("Range", "zero t first", "places"),
        node("Unsqueeze", "lengths one", "ends"),
        node("Less", "places ends", "inside"),
        node("Unsqueeze", "inside one", "mask"),
        node("Where", "mask h nothing", "y"),
    ]
    given: dict[str, Array] = {
        "one": ints(1), "three": np.array(3), "two": np.array(2), "first": np.array(1), "zero": np.array(0),
        "nothing": np.array(0, np.float32), "w": weights(3, 2, 3),
    }  # fmt: skip
    inputs = {"x": ["B", 2, "T"], "attention_mask": ["B", "T"]}
    return model(nodes, inputs, ["y", "lengths"], given, dtypes={"attention_mask": np.int64, "lengths": np.int64})


def decided(condition: list[onnx.NodeProto], **given: int) -> onnx.ModelProto:
    """x times two, or minus x, as a condition c on the length t says."""
    branches = {
        "then_branch": helper.make_graph([node("Mul", "x two", "a")], "then", [], [port("a", None)]),
        "else_branch": helper.make_graph([node("Neg", "x", "b")], "else", [], [port("b", None)]),
    }
    nodes = [node("Shape", "x", "sizes"), node("Gather", "sizes last", "t"), *condition]
    nodes.append(helper.make_node("If", ["c"], ["y"], name="if", **branches))
    constants = {"last": np.array(2), "two": np.array(2, np.float32), **{n: np.array(v) for n, v in given.items()}}
    return model(nodes, {"x": [1, 2, "T"]}, ["y"], constants)


def nested_branches() -> onnx.ModelProto:
    """The inner branch reads what the outer one has made, and gives it out twice."""
    out = [port(n, None) for n in ("p", "q")]
    inner = {
        "then_branch": helper.make_graph([node("Add", "h one", "p"), node("Identity", "p", "q")], "then", [], out),
        "else_branch": helper.make_graph([node("Sub", "h one", "p"), node("Neg", "h", "q")], "else", [], out),
    }
    both = [
        node("Mul", "x two", "h"),
        helper.make_node("If", ["long"], ["i", "j"], name="inner", **inner),
        node("Add", "i j", "made"),
    ]
    outer = {
        "then_branch": helper.make_graph(both, "then", [], [port("made", None)]),
        "else_branch": helper.make_graph([node("Neg", "x", "other")], "else", [], [port("other", None)]),
    }
    nodes = [node("Shape", "x", "sizes"), node("Gather", "sizes last", "t"), node("Greater", "t none", "long")]
    nodes.append(helper.make_node("If", ["long"], ["y"], name="outer", **outer))
    given = {"last": np.array(2), "none": np.array(0), "one": np.array(1, np.float32), "two": np.array(2, np.float32)}
    return model(nodes, {"x": [1, 2, "T"]}, ["y"], given)


def branch_beside_mirror(frames: int) -> onnx.ModelProto:
    """A mirrored pad that needs more frames than are looked at first, and a branch behind it."""
    made = decided([node("Greater", "t none", "c")], none=0)
    pad = node("Pad", "x pads", "padded", mode="reflect")
    for n in made.graph.node:
        for graph in [a.g for a in n.attribute if a.HasField("g")]:
            for inner in graph.node:
                inner.input[0] = "padded"
    nodes = [pad, *made.graph.node]
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    made.graph.initializer.append(onnx.numpy_helper.from_array(ints(0, 0, frames, 0, 0, 0), "pads"))
    return made


# ---- streams folded behind time


def folded(*between: onnx.NodeProto, heads: int = 1) -> onnx.ModelProto:
    """[T, B, 4] -> [T*B, 4], nodes from f to g, and back; heads: [T, 2*B, 2] -> [T*B, 4]."""
    nodes = [
        node("Shape", "x", "sizes"),
        node("Slice", "sizes zero two", "outer"),
        node("Slice", "sizes zero one", "time"),
        node("Concat", "time rest width", "split", axis=0),
        node("Reshape", "x split", "apart"),
        node("Tanh", "apart", "h"),
        node("Reshape", "h rows", "f"),
        *between,
        node("Concat", "outer rest", "back", axis=0),
        node("Reshape", "g back", "y"),
    ]
    given = {
        "zero": ints(0), "one": ints(1), "two": ints(2), "rest": ints(-1), "width": ints(4 // heads),
        "rows": ints(-1, 4), "w": weights(4, 5), "half": ints(-1, 2), "first": np.array(0),
    }  # fmt: skip
    return model(nodes, {"x": ["T", "B", 4]}, ["y"], given)


# ---- loops


def scan_in_scan(over_time: bool) -> onnx.ModelProto:
    """A running sum with a running sum over features inside; over_time: the outer one goes over frames."""
    inner = helper.make_graph(
        [node("Add", "ic ix", "ico"), node("Identity", "ico", "iy")],
        "inner", [port("ic", None), port("ix", None)], [port("ico", None), port("iy", None)],
    )  # fmt: skip
    start = "zero" if over_time else "column"
    outer = helper.make_graph(
        [node("Add", "oc ox", "oco"),
         helper.make_node("Scan", [start, "oco"], ["last", "oy"], name="inner", body=inner, num_scan_inputs=1)],
        "outer", [port("oc", None), port("ox", None)], [port("oco", None), port("oy", None)],
    )  # fmt: skip
    nodes = [] if over_time else [
        node("Gather", "x first", "row", axis=0), node("Mul", "row none", "start"),
        node("Gather", "start first", "column", axis=0),
    ]  # fmt: skip
    nodes.append(helper.make_node("Scan", ["start", "x"], ["end", "y"], name="outer", body=outer, num_scan_inputs=1))
    given: dict[str, Array] = {"zero": np.array(0, np.float32), "start": np.zeros(4, np.float32)}
    if not over_time:
        given = {"first": np.array(0), "none": np.array(0, np.float32)}
    return model(nodes, {"x": ["T", 4] if over_time else [4, 3, "T"]}, ["y"], given)


def appending(frames: int, stacked: bool, axis: int = 1) -> onnx.ModelProto:
    """A loop over frames that appends so many a turn, one by one, or joined."""

    def sequence(name: str) -> onnx.ValueInfoProto:
        kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, None))
        return helper.make_value_info(name, kind)

    nodes = [node("Gather", "x i", "f0", axis=1)]
    nodes += [node("Tanh", f"f{n}", f"f{n + 1}") for n in range(frames - 1)]
    if stacked:
        nodes += [node("SequenceInsert", f"s{n or ''} f{n}", f"s{n + 1}") for n in range(frames)]
    else:
        nodes += [node("Unsqueeze", f"f{n} at", f"u{n}") for n in range(frames)]
        nodes += [node("Concat", " ".join(f"u{n}" for n in range(frames)), "joined", axis=axis),
                  node("SequenceInsert", "s joined", f"s{frames}")]  # fmt: skip
    nodes.append(node("Identity", "going", "goes"))
    inputs = [port("i", [], np.int64), port("going", [], bool), sequence("s")]
    body = helper.make_graph(nodes, "body", inputs, [port("goes", [], bool), sequence(f"s{frames}")])
    around = [
        helper.make_node("SequenceEmpty", [], ["empty"], name="empty"),
        node("Shape", "x", "sizes"),
        node("Gather", "sizes one", "t"),
        helper.make_node("Loop", ["t", "yes", "empty"], ["all"], name="loop", body=body),
        helper.make_node("ConcatFromSequence", ["all"], ["y"], name="join", axis=axis, new_axis=int(stacked)),
    ]
    given = {"one": np.array(1), "yes": np.array(True), "at": ints(axis)}
    return model(around, {"x": ["B", "T", 4]}, ["y"], {n: v for n, v in given.items() if n != "at" or not stacked})


def divided(ahead: int) -> onnx.ModelProto:
    """Whole numbers divided by frames inside a scan, which sees its first frame later than the stream does."""
    body = helper.make_graph(
        [node("Div", "hundred v", "a"), node("Mod", "seven v", "b"), node("Add", "a b", "d"), node("Add", "c d", "c2"),
         node("Identity", "c2", "made")],
        "body", [port("c", [2], np.int64), port("v", [2], np.int64)],
        [port("c2", None, np.int64), port("made", None, np.int64)],
    )  # fmt: skip
    nodes = [
        node("Add", "x more", "some"),
        node("Pad", "some pads", "cut"),
        node("Transpose", "cut", "turned", perm=[2, 0, 1]),
        node("Squeeze", "turned one", "rows"),
        helper.make_node("Scan", ["start", "rows"], ["end", "y"], name="scan", body=body, num_scan_inputs=1),
    ]
    given = {
        "pads": ints(0, 0, 0, 0, 0, -ahead), "one": ints(1), "start": np.zeros(2, np.int64), "hundred": np.array(100),
        "seven": np.array(7), "more": np.array(1),
    }  # fmt: skip
    return model(nodes, {"x": [1, 2, "T"]}, ["y", "end"], given, dtypes=dict.fromkeys(("x", "y", "end"), np.int64))


def started_alike(expanded: bool) -> onnx.ModelProto:
    """A GRU over features, whose state starts with the same numbers at all frames: [1, B*T, 4]."""
    value = onnx.numpy_helper.from_array(np.array([0.5], np.float32))
    start = node("Expand", "state shape", "h") if expanded else node("ConstantOfShape", "shape", "h", value=value)
    nodes = [
        node("Shape", "x", "sizes"),
        node("Reshape", "x rows", "f"),
        node("Transpose", "f", "ft", perm=[1, 0, 2]),
        node("Shape", "f", "flat"),
        node("Gather", "flat zero", "count"),
        node("Concat", "one count four", "shape", axis=0),
        start,
        node("GRU", "ft w r _ _ h", "g", hidden_size=4),
        node("Squeeze", "g one", "gs"),
        node("Transpose", "gs", "gt", perm=[1, 0, 2]),
        node("Slice", "sizes zero two", "outer"),
        node("Concat", "outer five four", "back", axis=0),
        node("Reshape", "gt back", "y"),
    ]
    given = {
        "rows": ints(-1, 5, 3), "zero": ints(0), "one": ints(1), "two": ints(2), "four": ints(4), "five": ints(5),
        "state": weights(1, 1, 4), "w": weights(1, 12, 3), "r": weights(1, 12, 4),
    }  # fmt: skip
    return model(
        nodes, {"x": ["B", "T", 5, 3]}, ["y"], given if expanded else {k: v for k, v in given.items() if k != "state"}
    )


def rounding() -> onnx.ModelProto:
    """The difference of two ways to compute the same: rounding alone."""
    w = weights(3, 2, 3)
    nodes = [
        node("Conv", "x w", "a", pads=[1, 1]),
        node("Mul", "x three", "x3"),
        node("Conv", "x3 v", "b", pads=[1, 1]),
        node("Sub", "a b", "y"),
    ]
    return model(nodes, {"x": [1, 2, "T"]}, ["y"], {"w": w, "v": w / 3, "three": np.array(3, np.float32)})

"""Writes into parts of a tensor, as both exporters have them: streams of them, and those that have none."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import pulsify
from tests.models import model, node, run_batch
from tests.zoo.harness import check

torch = pytest.importorskip("torch")
Write = Callable[[Any], Any]
FRAMES = [*range(3, 15), 29, 40]  # of the input: the convolution takes two


def zeroed(y: Any) -> Any:
    y[:, 0] = 0
    return y


def scaled(y: Any) -> Any:
    y[:, -1] *= 0.5
    return y


def from_others(y: Any) -> Any:
    y[:, :3] = 2 * y[:, 3:6]
    return y


def every_second(y: Any) -> Any:
    y[:, 1::2] = -1
    return y


def swapped(y: Any) -> Any:
    y[:, [0, 3]] = y[:, [1, 2]]
    return y


def irregular(y: Any) -> Any:
    y[:, [0, 1, 4]] = y[:, [2, 5, 3]]
    return y


def filled(y: Any) -> Any:
    return y.index_fill(1, torch.tensor([0, 2]), 1.5)


def added(y: Any) -> Any:
    return y.index_add(1, torch.tensor([0, 1]), y[:, 2:4])


def into_zeros(y: Any) -> Any:
    z = torch.zeros_like(y)
    z[:, :3] = y[:, 3:]
    return z


def shifted(y: Any) -> Any:
    """A temporal shift: some channels from the next frame, some from the one before."""
    out = torch.zeros_like(y)
    out[:, :2, :-1] = y[:, :2, 1:]
    out[:, 2:4, 1:] = y[:, 2:4, :-1]
    out[:, 4:] = y[:, 4:]
    return out


def every_second_frame(y: Any) -> Any:
    y[:, 1::2, ::2] = -1
    return y


def first_frame(y: Any) -> Any:
    y[..., 0] = 0
    return y


def gated(y: Any) -> Any:
    """The two best of a frame, as a mixture of experts weighs them."""
    x = y.transpose(1, 2)
    values, places = x.topk(2, -1)
    return torch.zeros_like(x).scatter(-1, places, values.softmax(-1)).transpose(1, 2)


def masked(y: Any) -> Any:
    y[y < 0] = 0
    return y


def masked_scaled(y: Any) -> Any:
    y[y < 0] *= 0.1
    return y


def masked_from_another(y: Any) -> Any:
    z, mask = 2 * y, y > 0.3
    y[mask] = z[mask]
    return y


def negated_above(y: Any) -> Any:
    """The mask is computed twice."""
    y[y > 0.5] = -y[y > 0.5]
    return y


def masked_scattered(y: Any) -> Any:
    mask, z = y < 0, 2 * y
    return y.masked_scatter(mask, z[mask])


def added_twice(y: Any) -> Any:
    return y.index_add(1, torch.tensor([0, 1, 0]), y[:, 2:5])


def from_both_ends(y: Any) -> Any:
    y[:, [-1, 0]] = y[:, [1, 2]]
    return y


def last_frames(y: Any) -> Any:
    y[..., -3:] = 0
    return y


def first_frames(y: Any) -> Any:
    y[..., :3] *= 2
    return y


def views(y: Any) -> Any:
    v = y[:, 2:4]
    v += 1
    for part in y.chunk(2, 1):
        part.mul_(2)
    return y


def one_context(y: Any) -> Any:
    """One tensor for what two layers look back at, written and read piece by piece."""
    context = torch.zeros(y.shape[0], 6, 4)
    for i in (0, 2):
        z = torch.cat([context[..., i : i + 2], y], -1)
        context[..., i : i + 2] = z[..., -2:]
        y = y + 0.5 * z[..., 2:] + z[..., :-2]
    return y


def context_of_some(y: Any) -> Any:
    """As `one_context`, of the first channels only: other axes are cut too."""
    context = torch.zeros(y.shape[0], 6, 4)
    for i in (0, 2):
        z = torch.cat([context[:, :4, i : i + 2], y[:, :4]], -1)
        context[:, :4, i : i + 2] = z[..., -2:]
        y = y + torch.nn.functional.pad(z[..., :-2], (0, 0, 0, 2))
    return y


def signs(y: Any) -> Any:
    """What is written and what it is written into are constants, whose size goes with the length."""
    sign = torch.ones_like(y)
    sign[..., 1::2, ::2] = -1
    return y * sign


WRITES: list[Write] = [
    zeroed, scaled, from_others, every_second, swapped, irregular, filled, added, into_zeros, shifted,
    every_second_frame, first_frame, gated, masked, masked_scaled, masked_from_another,
    negated_above, masked_scattered, added_twice, from_both_ends, last_frames, first_frames, one_context,
    context_of_some, signs,
]  # fmt: skip


LEAST = {last_frames: 5, first_frames: 5}  # three frames, or the write is of another size


@cache
def exported(write: Write, exporter: str, folder: Path) -> Path:
    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv1d(6, 6, 3)

        def forward(self, x: Any) -> Any:
            return write(self.conv(x))

    torch.manual_seed(0)
    path = folder / f"{write.__name__}-{exporter}.onnx"
    how: dict[str, Any] = {"dynamic_axes": {"x": {0: "B", 2: "T"}}, "dynamo": False}
    if exporter == "dynamo":
        how = {"dynamic_shapes": [{0: "B", 2: "T"}], "dynamo": True, "external_data": False, "verbose": False}
    torch.onnx.export(
        Module().eval().requires_grad_(False),
        (torch.randn(2, 6, 40),),
        path,
        input_names=["x"],
        output_names=["y"],
        **how,
    )
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("writes")


@pytest.mark.parametrize("exporter", ["legacy", "dynamo"])
@pytest.mark.parametrize("write", WRITES, ids=lambda w: w.__name__)
def test_a_write_is_streamed(write: Write, exporter: str, folder: Path) -> None:
    path, rng = exported(write, exporter, folder), np.random.default_rng(0)
    frames = [t for t in FRAMES if t >= LEAST.get(write, 3)]
    result = check(path, lambda t: {"x": rng.standard_normal((2, 6, t)).astype(np.float32)}, {"x": 2}, 4, frames)
    assert result.status == "exact", result.detail


@pytest.mark.parametrize("write", [one_context, context_of_some], ids=lambda w: w.__name__)
def test_a_context_in_a_module_is_streamed(write: Write) -> None:
    class Module(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return write(x)

    stream = pulsify.stream(Module(), example=torch.randn(1, 6, 20), time={"x": 2}, quiet=True)
    for frames in (1, 2, 3, 11):
        x = torch.randn(1, 6, frames)
        np.testing.assert_allclose(stream.run(x.numpy(), chunks=2), write(x).numpy(), atol=1e-6)


def test_writes_into_views_are_streamed(folder: Path) -> None:
    """The older exporter leaves them out of its file."""
    test_a_write_is_streamed(views, "dynamo", folder)


@pytest.mark.parametrize("exporter", ["legacy", "dynamo"])
def test_writes_wait_for_no_more_than_they_read(exporter: str, folder: Path) -> None:
    delays = {w: pulsify.stream(exported(w, exporter, folder), pulse=1, quiet=True).outputs[0].delay
              for w in (from_others, masked, gated, shifted)}  # fmt: skip
    assert delays == {from_others: 2, masked: 2, gated: 2, shifted: 3}


# ---- frames by a list, and masks of whole frames


def listed(y: Any) -> Any:
    y[[0, 2]] = 7
    return y


def listed_table(y: Any) -> Any:
    y[[4, 0, 1]] = torch.arange(9.0).reshape(3, 1, 3).expand(3, y.shape[1], 3)
    return y


def listed_frames(y: Any) -> Any:
    y[[0, 3]] = y[[2, 1]]
    return y


def listed_at_both_ends(y: Any) -> Any:
    y[[0, -1, 1]] = 0.5
    return y


def masked_frames(y: Any) -> Any:
    y[y[..., 0] > 0] = 0
    return y


def masked_frames_scaled(y: Any) -> Any:
    y[y.mean(-1) > 0] *= 0.5
    return y


def masked_frames_constant(y: Any) -> Any:
    y[y[..., 0] > 0] = torch.arange(3.0)
    return y


LISTED: list[Write] = [listed, listed_table, listed_frames, listed_at_both_ends]
WHOLE: list[Write] = [masked_frames, masked_frames_scaled, masked_frames_constant]  # the older exporter writes no mask
FRAMEWISE = [*((w, e) for w in LISTED for e in ("legacy", "dynamo")), *((w, "dynamo") for w in WHOLE)]


def time_first(write: Write, exporter: str, path: Path) -> Path:
    """A model of [T, B, 3], the number of streams open."""

    class Module(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return write(2 * x)

    how: dict[str, Any] = {"dynamic_axes": {"x": {0: "T", 1: "B"}}, "dynamo": False}
    if exporter == "dynamo":
        how = {"dynamic_shapes": [{0: "T", 1: "B"}], "dynamo": True, "external_data": False, "verbose": False}
    torch.onnx.export(Module().eval(), (torch.randn(20, 2, 3),), path, input_names=["x"], output_names=["y"], **how)
    return path


@pytest.mark.parametrize(("write", "exporter"), FRAMEWISE, ids=lambda w: getattr(w, "__name__", w))
def test_frames_are_written_in_every_stream(write: Write, exporter: str, tmp_path: Path) -> None:
    """Of several streams side by side, each at its own position."""
    path, rng = time_first(write, exporter, tmp_path / "m.onnx"), np.random.default_rng(0)
    result = check(
        path, lambda t: {"x": rng.standard_normal((t, 3, 3)).astype(np.float32)}, {"x": 0}, 2, range(5, 14), time="T"
    )
    assert result.status == "exact", result.detail


FIXED = {"one stream": ((1, 40, 6), {}), "two streams": ((2, 40, 4, 5), {}), "any": ((2, 40, 6), {0: "B"})}


@pytest.mark.parametrize(("shape", "free"), FIXED.values(), ids=list(FIXED))
def test_a_mask_of_frames_without_their_axes_is_named(
    shape: tuple[int, ...], free: dict[int, str], tmp_path: Path
) -> None:
    """The older exporter leaves the axes out. No length is searched for, and what the hint says works."""

    class Masked(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            mask = x.flatten(2).mean(-1) < 0
            if remedy:
                return torch.where(mask.reshape(*mask.shape, *[1] * (len(shape) - 2)), 0.0, 2 * x)
            y = 2 * x
            y[mask] = 0
            return y

    path = tmp_path / "m.onnx"
    for remedy in (False, True):
        torch.onnx.export(
            Masked().eval(), (torch.randn(shape),), path, input_names=["x"], output_names=["y"], dynamo=False,
            dynamic_axes={"x": {1: "T", **free}},
        )  # fmt: skip
        if remedy:
            assert pulsify.stream(path, pulse=2, quiet=True).outputs[0].delay == 0
        else:
            with pytest.raises(pulsify.NotStreamable, match=r"its mask \[\d, \d+\] has no axes for") as refused:
                pulsify.stream(path, pulse=2, quiet=True)
            assert "mask[..., None]" in refused.value.hint and "dynamo=True" in refused.value.hint


def test_sizes_that_never_fit_are_named_at_once() -> None:
    nodes = [node("Mul", "x x", "u"), node("Transpose", "u", "v", perm=[1, 0, 2]), node("Add", "u v", "y")]
    proto = model(nodes, {"x": [2, 3, "T"]}, ["y"], {})
    with pytest.raises(pulsify.NotStreamable, match="cannot run at any length: sizes 2 and 3 meet"):
        pulsify.stream(proto, pulse=2, quiet=True)


# ---- random writes, by ONNX's definition


def written(rng: np.random.Generator) -> onnx.ModelProto:
    """ScatterND into a range or a list of the channels of [1, 5, T], in any order."""
    first, last = sorted(rng.choice(6, 2, replace=False))
    channels = rng.permutation(5)[: rng.integers(1, 5)] if rng.random() < 0.5 else np.arange(first, last)
    kernel = rng.standard_normal((len(channels), 5, 1)).astype(np.float32)
    reduction = {"reduction": "add"} if rng.random() < 0.3 else {}
    nodes = [
        node("Conv", "x w", "u"),
        node("Transpose", "x", "xt", perm=[1, 0, 2]),
        node("Transpose", "u", "ut", perm=[1, 0, 2]),
        node("ScatterND", "xt c ut", "yt", **reduction),
        node("Transpose", "yt", "y", perm=[1, 0, 2]),
    ]
    return model(nodes, {"x": [1, 5, "T"]}, ["y"], {"c": channels[:, None].astype(np.int64), "w": kernel})


@pytest.mark.parametrize("seed", range(12))
def test_random_writes_into_channels(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    proto = written(rng)
    stream = pulsify.stream(proto, pulse=3, quiet=True)
    for frames in (1, 2, 7, 20):
        x = rng.standard_normal((1, 5, frames)).astype(np.float32)
        np.testing.assert_allclose(stream.run(x, chunks=2), run_batch(proto, x)["y"], atol=1e-6)


# ---- writes without a stream


def test_places_that_data_choose_are_rejected() -> None:
    """Any frame may be written from any other."""
    nodes = [
        node("ReduceSum", "x one", "s", keepdims=0),
        node("ArgMax", "s", "place", axis=1, keepdims=1),
        node("Unsqueeze", "place last", "at"),
        node("Transpose", "x", "xt", perm=[0, 2, 1]),
        node("ScatterND", "xt at row", "y"),
    ]
    constants = {"one": np.array([1]), "last": np.array([2]), "row": np.ones((1, 1, 2), np.float32)}
    proto = model(nodes[:3] + nodes[3:], {"x": [1, 2, "T"]}, ["y"], constants)
    with pytest.raises(pulsify.NotStreamable):
        pulsify.stream(proto, pulse=2, quiet=True)


def test_frames_in_reverse_are_rejected_at_the_write() -> None:
    nodes = [
        node("Shape", "x", "n", start=2),
        node("Squeeze", "n", "n0"),
        node("Sub", "n0 one", "last"),
        node("Range", "last below back", "r"),
        node("Unsqueeze", "r end", "places"),
        node("Transpose", "x", "xt", perm=[2, 0, 1]),
        node("ScatterND", "xt places xt", "yt"),
        node("Transpose", "yt", "y", perm=[1, 2, 0]),
    ]
    constants = {"one": np.array(1), "below": np.array(-1), "back": np.array(-1), "end": np.array([1])}
    proto = model(nodes, {"x": [1, 2, "T"]}, ["y"], constants)
    with pytest.raises(pulsify.NotStreamable) as rejected:
        pulsify.stream(proto, pulse=2, quiet=True)
    assert rejected.value.op == "ScatterND" and "any other frame" in rejected.value.reason


# ---- masks and places by ONNX's definition


def doubled_where(mask: list[onnx.NodeProto], constants: dict[str, Any] | None = None) -> onnx.ModelProto:
    """y[m] *= 2 for x [1, 3, T]; `mask` makes m."""
    nodes = [
        *mask,
        node("NonZero", "m", "listed"),
        node("Transpose", "listed", "places", perm=[1, 0]),
        node("GatherND", "x places", "there"),
        node("Mul", "there two", "new"),
        node("ScatterND", "x places new", "y"),
    ]
    given = {"two": np.array(2, np.float32), "zero": np.array(0, np.float32), **(constants or {})}
    return onnx.shape_inference.infer_shapes(model(nodes, {"x": [1, 3, "T"]}, ["y"], given))


FIRST = [node("Slice", "x at_0 at_1 at_1", "part"), node("Greater", "part zero", "m")]
LARGEST = [node("ReduceMax", "x", "part", axes=[1], keepdims=1), node("Greater", "part zero", "m")]


@pytest.mark.parametrize("mask", [FIRST, LARGEST], ids=["first channel", "over channels"])
def test_a_mask_of_one_channel_names_places_on_that_channel_alone(mask: list[onnx.NodeProto]) -> None:
    """A choice would spread it over all channels."""
    proto = doubled_where(mask, {"at_0": np.array([0]), "at_1": np.array([1])} if mask is FIRST else None)
    with pytest.raises(pulsify.NotStreamable) as rejected:
        pulsify.stream(proto, pulse=2, quiet=True, verify=False)
    assert rejected.value.op == "NonZero"


@pytest.mark.parametrize("mask", [node("Relu", "x", "m"), node("Cast", "x", "m", to=6)], ids=["floats", "integers"])
def test_numbers_are_a_mask_where_they_are_not_zero(mask: onnx.NodeProto) -> None:
    proto = doubled_where([mask])
    stream = pulsify.stream(proto, pulse=2, quiet=True, verify=False)
    x = np.random.default_rng(0).integers(-2, 3, (1, 3, 9)).astype(np.float32)
    np.testing.assert_array_equal(stream.run(x, chunks=3), run_batch(proto, x)["y"])


def written_from_others(new: list[onnx.NodeProto]) -> onnx.ModelProto:
    """y[y > 0] = something made of all that is there."""
    nodes = [
        node("Greater", "x zero", "m"),
        node("NonZero", "m", "listed"),
        node("Transpose", "listed", "places", perm=[1, 0]),
        node("GatherND", "x places", "there"),
        *new,
        node("ScatterND", "x places new", "y"),
    ]
    constants = {n: np.array([v]) for n, v in {"first": 0, "one": 1, "all": -1}.items()}
    return onnx.shape_inference.infer_shapes(
        model(nodes, {"x": [1, 3, "T"]}, ["y"], {**constants, "zero": np.array(0, np.float32)})
    )


OF_OTHERS = {
    "times the first": [node("Slice", "there first one", "cut"), node("Mul", "there cut", "new")],
    "the first for all": [
        node("Slice", "there first one", "cut"),
        node("Shape", "there", "size"),
        node("Expand", "cut size", "new"),
    ],
    "each with each": [
        node("Unsqueeze", "there first", "row"),
        node("Unsqueeze", "there one", "column"),
        node("Mul", "row column", "all_pairs"),
        node("Slice", "all_pairs first one", "cut"),
        node("Reshape", "cut all", "new"),
    ],
}


@pytest.mark.parametrize("how", OF_OTHERS)
def test_entries_written_from_other_entries_of_the_list_are_rejected(how: str) -> None:
    """y[m] *= y[m][:1]: a choice would take every entry from itself."""
    with pytest.raises(pulsify.NotStreamable) as rejected:
        pulsify.stream(written_from_others(OF_OTHERS[how]), pulse=2, quiet=True, verify=False)
    assert rejected.value.op == "NonZero"


def test_places_for_a_part_of_the_frames_are_rejected_at_the_write() -> None:
    """The last frame has no places, so it stays."""
    nodes = [
        node("ArgMax", "x", "best", axis=1),
        node("Slice", "best first last time", "places"),
        node("Slice", "x first last time", "new"),
        node("Slice", "new first one channels", "n"),
        node("ScatterElements", "x places n", "y", axis=1),
    ]
    constants = {n: np.array([v]) for n, v in {"first": 0, "last": -1, "time": 2, "one": 1, "channels": 1}.items()}
    proto = model(nodes, {"x": [1, 3, "T"]}, ["y"], constants)
    with pytest.raises(pulsify.NotStreamable) as rejected:
        pulsify.stream(proto, pulse=2, quiet=True, verify=False)
    assert rejected.value.op == "ScatterElements" and "a part of the frames" in rejected.value.reason


@pytest.mark.parametrize("tail", ["last frames", "constants"])
@pytest.mark.parametrize(("front", "behind"), [(2, 2), (1, 2), (2, 1)])
def test_constants_between_the_ends_of_a_stream(front: int, behind: int, tail: str) -> None:
    """y[..., front:-behind] = 7. The constants are known for any frame, but where they end only once the stream has."""
    nodes = [
        node("Slice", "x zero front time", "head"),
        node("Slice", "x front behind time", "middle"),
        node("Shape", "middle", "size"),
        node("Expand", "seven size", "constants"),
        node("Slice", "x behind last time", "end"),
        node("Concat", f"head constants {'end' if tail == 'last frames' else 'fixed'}", "y", axis=2),
    ]
    numbers = {"zero": 0, "front": front, "behind": -behind, "last": 1 << 60, "time": 2}
    constants: dict[str, Any] = {n: np.array([v]) for n, v in numbers.items()}
    constants |= {"seven": np.array([7], np.float32), "fixed": np.full((1, 2, behind), 3, np.float32)}
    proto = model(nodes, {"x": [1, 2, "T"]}, ["y"], constants)
    for pulse in (1, 3):
        stream = pulsify.stream(proto, pulse=pulse, quiet=True, verify=False)
        for frames in (front + behind, 5, 6, 7, 13):
            x = np.random.default_rng(frames).standard_normal((1, 2, frames)).astype(np.float32)
            np.testing.assert_array_equal(stream.run(x, chunks=1), run_batch(proto, x)["y"])


def test_a_frame_counted_from_the_end_has_to_be_there() -> None:
    """y[..., -2] = 0: ONNX Runtime runs this at no single frame."""
    nodes = [node("Transpose", "x", "xt", perm=[2, 0, 1]), node("ScatterND", "xt at row", "yt"),
             node("Transpose", "yt", "y", perm=[1, 2, 0])]  # fmt: skip
    constants = {"at": np.array([[-2]]), "row": np.zeros((1, 1, 2), np.float32)}
    proto = model(nodes, {"x": [1, 2, "T"]}, ["y"], constants)
    stream = pulsify.stream(proto, pulse=1, quiet=True, verify=False)
    x = np.ones((1, 2, 5), np.float32)
    np.testing.assert_array_equal(stream.run(x, chunks=1), run_batch(proto, x)["y"])
    with pytest.raises(pulsify.InvalidLength, match="at least 2"):
        stream.run(x[..., :1])

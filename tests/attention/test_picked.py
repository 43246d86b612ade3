"""Masks and positions picked by indices of streams, rows and columns: exact at the smallest delay, or refused."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import pulsify
from pulsify.core.chunks import chunkings
from tests.models import Array
from tests.selection import rotated
from tests.side import Batch, streamed

pytest.importorskip("onnxscript")

from tests.attention.picked import ALONE, MASKED, exported
from tests.attention.picked_masks import draw
from tests.attention.written import WIDTH

EXPORTERS = ("legacy", "dynamo")
LENGTHS = (*range(1, 14), 23, 41)
NOT_EXPORTED = {("pooled_mask", "dynamo")}  # torch.export wants a size that it cannot know
AHEAD = {"both_sides_packed": 2, "both_sides_mask": 2}
CASES = [
    f"{name}-{exporter}" for name in (*ALONE, *MASKED) for exporter in EXPORTERS if (name, exporter) not in NOT_EXPORTED
]


def feeds(proto: onnx.ModelProto, length: int, batch: int = 2) -> dict[str, Array]:
    x = np.random.default_rng(length).standard_normal((batch, length, WIDTH)).astype(np.float32)
    masks = [i.name for i in proto.graph.input if i.name != "x"]
    return {"x": x, **{name: np.ones((batch, length), bool) for name in masks}}


def only(outputs: dict[str, Array]) -> Array:
    (output,) = outputs.values()
    return output


def converted(proto: onnx.ModelProto) -> pulsify.Stream:
    masked = len(proto.graph.input) > 1
    return pulsify.stream(proto, verify=False, bind={"attention_mask": "ones"} if masked else None)


def look_ahead(proto: onnx.ModelProto) -> int:
    """How many frames later than a frame the first one lies that it still goes with."""
    whole, given, at = Batch(proto), feeds(proto, 41), 20
    moved = {**given, "x": np.concatenate([given["x"][:, :at], given["x"][:, at:] + 1], 1)}
    changed = np.abs(only(whole.run(given)) - only(whole.run(moved))).max((0, 2)) > 0
    return at - int(changed.argmax())


@pytest.mark.parametrize("case", rotated(CASES, 3))
def test_exact(case: str) -> None:
    name, exporter = case.split("-")
    proto = exported(exporter, name)
    stream, whole, rng = converted(proto), Batch(proto), np.random.default_rng(0)
    assert stream.proof.complete
    for length in LENGTHS:
        given = feeds(proto, length)
        wanted = only(whole.run(given))
        for cuts in chunkings(length, stream.pulse, rng):
            got = only(streamed(stream, given, cuts))
            np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5, err_msg=f"{length} {cuts}")
    if name == "blocks":  # each sees all of its own chunk
        assert (stream.pulse, stream.outputs[0].delay) == (4, 0)
    else:
        assert stream.outputs[0].delay == look_ahead(proto) == AHEAD.get(name, 0)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("all_packed", "looks ahead without bound"),
        ("halves", "at some lengths of the stream only"),
        ("xl_not_flipped", "relative positions depend on the length"),
    ],
)
def test_refused(name: str, reason: str) -> None:
    with pytest.raises(pulsify.NotStreamable, match=reason) as refused:
        pulsify.stream(exported("legacy", name), verify=False)
    assert refused.value.node and refused.value.hint


def test_positions_that_start_again_are_seen() -> None:
    """Sequences of seven frames in a row: the check finds where each of them begins."""
    import torch

    from tests.attention.picked import attended, packed, places, positions, window
    from tests.attention.written import Net, export

    net = Net(lambda m, x: attended(m, x, packed(places(x), positions(x) % 7, window)))
    proto = export("legacy", net, (torch.randn(2, 13, WIDTH),), ["x"])
    stream, whole = converted(proto), Batch(proto)
    assert stream.outputs[0].delay == 0
    for length in (1, 6, 7, 8, 15, 50):
        given = feeds(proto, length)
        got = only(streamed(stream, given, [3] * (length // 3) + [length % 3]))
        np.testing.assert_allclose(got, only(whole.run(given)), rtol=2e-5, atol=2e-5)


def drawn_is_exact(seed: int) -> bool:
    """False if it is refused, as some irregular ones are."""
    rng = np.random.default_rng(seed)
    drawn = draw(rng)
    try:
        stream = pulsify.stream(drawn.model, verify=False, bind={"mask": "ones"} if drawn.masked else None)
    except pulsify.NotStreamable:
        return False
    whole = Batch(drawn.model)
    for length in (1, 2, 3, *map(int, rng.integers(4, 60, 3))):
        x = rng.standard_normal((2, length, 4)).astype(np.float32)
        given = {"x": x, **({"mask": np.ones((2, length), bool)} if drawn.masked else {})}
        wanted = whole.attempt(given)
        for cuts in chunkings(length, stream.pulse, rng) if wanted is not None else ():
            got = streamed(stream, given, cuts)["y"]
            where = f"seed {seed} ({drawn.text}) at {length} {cuts}"
            np.testing.assert_allclose(got, only(wanted or {}), rtol=2e-5, atol=2e-5, err_msg=where)
    return True


def test_drawn() -> None:
    assert sum(map(drawn_is_exact, range(12))) >= 7


@pytest.mark.slow
def test_drawn_many() -> None:
    assert sum(map(drawn_is_exact, range(12, 300))) >= 180


@pytest.mark.parametrize("name", ["sliding_packed", "padded_mask"])
def test_any_number_of_streams(name: str) -> None:
    """What is picked by the number of a stream is there for as many as there are."""
    proto = exported("dynamo", name)
    stream, whole = converted(proto), Batch(proto)
    for batch in (1, 3, 5):
        given = feeds(proto, 12, batch)
        got = only(streamed(stream, given, [5, 7]))
        np.testing.assert_allclose(got, only(whole.run(given)), rtol=2e-5, atol=2e-5)

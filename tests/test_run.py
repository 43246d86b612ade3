"""`Stream.run`: a whole stream in one call, however it is cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pulsify
from pulsify.core.chunks import chunkings, sizes
from tests import models
from tests.models import close, frames, run_batch


@pytest.mark.parametrize("chunks", [None, 1, 4, 7, 100, [3, 0, 9], [33], np.array([1, 2])], ids=str)
def test_one_input_and_output(chunks: Any) -> None:
    proto, x = models.look_ahead(), frames(1, 2, 33)
    y = pulsify.stream(proto, pulse=4).run(x, chunks)
    assert isinstance(y, np.ndarray)
    close(y, run_batch(proto, x)["y"])


def test_several_inputs_and_rates() -> None:
    proto, feeds = models.two_rates(), {"slow": frames(1, 2, 9), "fast": frames(1, 2, 36)}
    got = pulsify.stream(proto, pulse=2).run(feeds, chunks=[2, 5])
    assert isinstance(got, dict)
    for name, want in run_batch(proto, feeds).items():
        close(got[name], want)


def test_static_inputs_and_a_batch() -> None:
    proto, feeds = models.conditioned("B"), {"x": frames(3, 2, 13), "scale": frames(3, 3, 1)}
    stream = pulsify.stream(proto, pulse=4)
    for portable in (False, True):
        close(np.asarray(stream.run(feeds, 5, portable=portable)), run_batch(proto, feeds)["y"])


def test_what_is_known_at_the_end() -> None:
    proto, x = models.with_length(), frames(1, 2, 11)
    got = pulsify.stream(proto, pulse=4).run(x)
    assert isinstance(got, dict)
    assert got["encoded_lengths"].tolist() == [6]


@pytest.mark.parametrize(
    ("inputs", "chunks", "says"),
    [
        ({"z": frames(1, 2, 9)}, None, r"\['x'\] missing, there is no \['z'\]"),
        (frames(2, 9), None, "has 3 axes"),
        (frames(1, 2, 9), 0, "at least 1"),
        (frames(1, 2, 9), True, "at least 1"),
        (frames(1, 2, 9), [3, -1], "at least 0"),
        (frames(1, 2, 9), [5, 5], "add up to 10 frames, the input has 9"),
    ],
    ids=str,
)
def test_wrong_arguments(inputs: Any, chunks: Any, says: str) -> None:
    stream = pulsify.stream(models.look_ahead(), pulse=4, verify=False)
    with pytest.raises(pulsify.InvalidArgument, match=says):
        stream.run(inputs, chunks)


def test_no_frames_at_all() -> None:
    assert np.asarray(pulsify.stream(models.look_ahead(), pulse=4).run(frames(1, 2, 0))).shape == (1, 3, 0)


def test_ways_to_cut() -> None:
    assert (sizes(4, 9), sizes(None, 9), sizes([2], 9), sizes(4, 8)) == ([4, 4, 1], [9], [2, 7], [4, 4])
    ways = list(chunkings(29, 4, np.random.default_rng(0)))
    assert [sum(way) for way in ways] == [29, 29, 29]
    assert ways[0] == [4] * 7 + [1]
    assert ways[2] == [29]


# ---- an input that comes in chunks


def test_chunks_of_an_iterator_or_a_list() -> None:
    proto, x = models.look_ahead("B"), frames(2, 2, 33)
    stream, want = pulsify.stream(proto, pulse=4), run_batch(proto, x)["y"]
    cut = [x[..., :5], x[..., 5:5], x[..., 5:20], x[..., 20:]]
    for pieces in (iter(cut), (c for c in cut), cut, tuple(cut), [{"x": c} for c in cut], map(np.copy, cut)):
        got = stream.run(pieces, padding=float("nan"))
        assert isinstance(got, np.ndarray)
        close(got, want)


def test_a_list_of_rows_is_one_array() -> None:
    proto, x = models.look_ahead(), frames(1, 2, 33)
    stream = pulsify.stream(proto, pulse=4, verify=False)
    for whole in (x.tolist(), [x[0]], [[x[0, 0], x[0, 1]]]):
        close(np.asarray(stream.run(np.asarray(whole, np.float32))), run_batch(proto, x)["y"])
    close(np.asarray(stream.run([x[0]])), run_batch(proto, x)["y"])


def test_chunks_with_static_inputs() -> None:
    proto, feeds = models.conditioned("B"), {"x": frames(3, 2, 13), "scale": frames(3, 3, 1)}
    stream, want = pulsify.stream(proto, pulse=4), run_batch(proto, feeds)["y"]
    got = stream.run(iter(np.split(feeds["x"], [4, 6], -1)), statics={"scale": feeds["scale"]})
    close(np.asarray(got), want)
    close(np.asarray(stream.run({"x": feeds["x"]}, statics={"scale": feeds["scale"]})), want)


def test_no_chunk_at_all_is_a_stream_without_frames() -> None:
    stream = pulsify.stream(models.causal(), pulse=4, verify=False)
    assert np.shape(stream.run(iter(()))) == np.shape(stream.session().flush())


def test_chunks_come_one_after_the_other() -> None:
    """Nothing is collected: each is pushed before the next is asked for."""
    stream, seen = pulsify.stream(models.causal(), pulse=4, verify=False), list[str]()
    session = stream.session()
    plain = session.push

    def pieces() -> Any:
        for n in range(3):
            seen.append(f"made {n}")
            yield frames(1, 2, 4)

    for _ in session.iterate(pieces()):
        seen.append("out")
    assert plain and seen == ["made 0", "out", "made 1", "out", "made 2", "out", "out"]


def test_chunks_that_are_not() -> None:
    stream = pulsify.stream(models.look_ahead(), pulse=4, verify=False)

    async def later() -> Any:
        yield frames(1, 2, 4)

    with pytest.raises(pulsify.InvalidArgument, match=r"async for y in stream\.session\(\)\.aiterate\(chunks\)"):
        stream.run(later())  # type: ignore[call-overload]
    with pytest.raises(pulsify.InvalidArgument, match="comes in chunks already"):
        stream.run(iter([frames(1, 2, 4)]), chunks=4)
    with pytest.raises(pulsify.InvalidChunk, match="shape"):
        stream.run(iter([frames(1, 3, 4)]))


# ---- results by name, or not


def test_results_by_name() -> None:
    proto, x = models.look_ahead(), frames(1, 2, 33)
    stream, want = pulsify.stream(proto, pulse=4), run_batch(proto, x)["y"]
    close(stream.run(x, 5, by_name=True)["y"], want)
    close(stream.run(x, 5, by_name=False), want)
    for backend in ("ort", "reference"):
        session = stream.session(by_name=True, backend=backend)
        fork = session.fork()
        for each in (session, fork):
            got = list(each.iterate(np.split(x, [4, 8, 12, 16, 17], -1)))
            assert all(set(one) == {"y"} for one in got)
            close(np.concatenate([one["y"] for one in got], -1), want)


def test_several_results_by_name() -> None:
    proto, feeds = models.two_rates(), {"slow": frames(1, 2, 9), "fast": frames(1, 2, 36)}
    stream = pulsify.stream(proto, pulse=2)
    for name, want in run_batch(proto, feeds).items():
        close(stream.run(feeds, by_name=True)[name], want)
    for call in (lambda: stream.run(feeds, by_name=False), lambda: stream.session(by_name=False)):
        with pytest.raises(pulsify.InvalidArgument, match=r"several outputs \(.*\); use by_name=True"):
            call()
    with pytest.raises(pulsify.InvalidArgument, match="expected True, False or None"):
        stream.session(by_name="y")  # type: ignore[call-overload]


def test_an_array_that_push_cannot_have() -> None:
    reduced = models.node("ReduceMean", "x axes", "y", keepdims=0)
    mean = models.model([reduced], {"x": [1, 2, "T"]}, ["y"], {"axes": np.array([2])}, opset=18)
    stream, x = pulsify.stream(mean, pulse=4), frames(1, 2, 9)
    with pytest.raises(pulsify.InvalidArgument, match="'y' is known at the end only"):
        stream.session(by_name=False)
    session = stream.session(by_name=True)
    assert [session.push(x[..., :4]), session.push(x[..., 4:])] == [{}, {}]
    close(session.flush()["y"], run_batch(mean, x)["y"])
    close(stream.run(x, by_name=False), run_batch(mean, x)["y"])


def test_independent_streams_give_lists() -> None:
    stream = pulsify.stream(models.look_ahead("B"), pulse=4, verify=False)
    with pytest.raises(pulsify.InvalidArgument, match="by_name goes with one stream"):
        stream.session(batch=2, independent=True, by_name=True)  # type: ignore[call-overload]

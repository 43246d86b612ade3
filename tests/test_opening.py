"""A stream that opens with a longer call: the batch model's frames all the same, wherever and however it runs."""

from __future__ import annotations

import json
import math
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from click.testing import CliRunner

import pulsify
from pulsify.cli.main import main
from tests import models
from tests.models import Array, Dims, close, frames, model, node, run_batch, weights
from tests.older import as_older
from tests.proof.net import Net, Wire
from tests.side import streamed
from tests.test_artefact import stream_with_onnx_runtime

loop: Any = stream_with_onnx_runtime
PULSE, LENGTHS = 2, range(5, 26)
LSTM = models.mirrored_lstm("B")


@pytest.fixture(scope="module")
def codec() -> pulsify.Stream:
    return pulsify.stream(LSTM, pulse=PULSE)


def inputs(length: int, batch: int = 1, seed: int = 0) -> Array:
    return frames(batch, 2, length, seed=seed)


def equal(got: dict[str, Array], wanted: dict[str, Array]) -> None:
    assert set(got) == set(wanted)
    for name, value in wanted.items():
        close(got[name], value)


def pushed(session: Any, x: Array, rng: np.random.Generator) -> dict[str, Array]:
    """In chunks of any size, then flushed."""
    parts, at = [], 0
    while at < x.shape[2]:
        size = int(rng.integers(0, 6))
        parts.append(session.push(x[..., at : at + size]))
        at += size
    parts.append(session.flush())
    return {"y": np.concatenate([p["y"] for p in parts], 1), "h": parts[-1]["h"]}


# ---- what it is


def test_the_delay_is_what_holds_after_the_opening(codec: pulsify.Stream) -> None:
    assert (codec.spec.opening, codec.outputs[0].delay, codec.latency) == (3, 0, PULSE)
    assert codec.outputs[0].delay_after_start is None
    assert codec.opening is not None and codec.opening.pulse == 3 * PULSE
    waits = pulsify.stream(LSTM, pulse=PULSE, opening=False)
    assert waits.opening is None and waits.spec.opening == 0
    assert (waits.outputs[0].delay, waits.outputs[0].delay_after_start) == (8, 0)


def test_frames_come_with_the_pulse_that_completes_them_once_it_has_opened(codec: pulsify.Stream) -> None:
    session, x = codec.session(), inputs(20)
    given = [session.push(x[..., i : i + PULSE])["y"].shape[1] for i in range(0, 20, PULSE)]
    assert given == [0, 0, 6, *[PULSE] * 7]


@pytest.mark.parametrize("build", [models.look_ahead, models.causal, models.strided, models.with_length])
def test_what_waits_for_nothing_has_none_and_is_the_same_file(build: Callable[[], Any], tmp_path: Path) -> None:
    for opening in (True, False):
        pulsify.stream(build(), pulse=4, opening=opening).save(tmp_path / f"{opening}.onnx")
    assert (tmp_path / "True.onnx").read_bytes() == (tmp_path / "False.onnx").read_bytes()
    assert len(os.listdir(tmp_path)) == 2


@pytest.mark.parametrize("pulse", [5, 8, 9])
def test_a_pulse_that_holds_what_the_start_shows_needs_none(pulse: int) -> None:
    stream = pulsify.stream(models.mirrored(), pulse=pulse)
    assert stream.spec.opening == 0 and stream.outputs[0].delay == 0


# ---- sessions


@pytest.mark.parametrize("backend", ["ort", "torch"])
@pytest.mark.parametrize("batch", [1, 3])
def test_every_length_is_batch(backend: str, batch: int, codec: pulsify.Stream) -> None:
    if backend == "torch":
        pytest.importorskip("torch")
    session = codec.session(batch=batch, padding=math.nan, backend=backend)
    for length in LENGTHS if backend == "ort" else range(5, 13):
        x = inputs(length, batch)
        equal(pushed(session, x, np.random.default_rng(length)), run_batch(LSTM, x))
        session.reset()


def test_the_reference_opens_too() -> None:
    proto = models.mirrored("B")
    stream = pulsify.stream(proto, pulse=PULSE)
    for length in range(5, 13):
        x = inputs(length, 2)
        equal(streamed(stream, x, [3], backend="reference"), run_batch(proto, x))


def test_lengths_that_batch_does_not_take_are_turned_down(codec: pulsify.Stream) -> None:
    session = codec.session()
    session.push(inputs(4))
    with pytest.raises(pulsify.InvalidLength, match="at least 5"):
        session.flush()
    session.push(inputs(5)[..., 4:])  # nothing was ended
    assert session.flush()["y"].shape[1] == 5


def test_a_state_in_the_middle_of_the_opening_is_its_frames(codec: pulsify.Stream) -> None:
    x = inputs(17)
    wanted = run_batch(LSTM, x)
    for cut in range(0, 17, 3):
        session = codec.session(padding=math.nan)
        before = session.push(x[..., :cut])["y"]
        other, blob = session.fork(), session.state()
        third = codec.session(padding=math.nan, portable=True)
        third.restore(blob)
        for s in (session, other, third):
            rest, last = s.push(x[..., cut:])["y"], s.flush()
            equal({"y": np.concatenate([before, rest, last["y"]], 1), "h": last["h"]}, wanted)


def test_a_state_of_the_stream_that_waits_is_refused(codec: pulsify.Stream) -> None:
    waits = pulsify.stream(LSTM, pulse=PULSE, opening=False).session()
    with pytest.raises(pulsify.InvalidState):
        codec.session().restore(waits.state())


def test_an_opening_that_fails_ends_the_stream_until_it_is_reset() -> None:
    nodes = [
        node("Gather", "table x", "e", axis=0),
        node("Transpose", "e", "t", perm=[0, 2, 1]),
        node("Pad", "t before", "p", mode="reflect"),
        node("Conv", "p w", "y"),
    ]
    given = {"table": weights(7, 2), "w": weights(3, 2, 5), "before": np.array([0, 0, 4, 0, 0, 0])}
    proto = model(nodes, {"x": ["B", "T"]}, ["y"], given, dtypes={"x": np.int64})
    stream, x = pulsify.stream(proto, pulse=1), np.arange(12)[None] % 7
    assert stream.spec.opening == 5
    session = stream.session()
    with pytest.raises(pulsify.InvalidChunk, match="failed on the first chunks"):
        session.push(x + 50)
    with pytest.raises(pulsify.SessionClosed, match="failed on the first chunks"):
        session.push(x)
    session.reset()
    close(np.concatenate([session.push(x), session.flush()], 2), run_batch(proto, x)["y"])
    together = stream.session(batch=2)
    with pytest.raises(pulsify.InvalidChunk, match="stream 1 of 2") as caught:
        together.push(np.concatenate([x, x + 50]))
    assert caught.value.lane == 1
    pool = pulsify.Pool(stream, most=2)
    good, bad = pool.open(), pool.open()
    good.push(x)
    bad.push(x + 50)
    good.flush()
    outcome = pool.step(rounds=None)
    assert set(outcome.failures) == {bad} and "first chunks" in str(outcome.failures[bad])
    close(outcome.results[good], run_batch(proto, x)["y"])


def test_several_inputs_at_their_own_rates_open_together() -> None:
    nodes = [
        node("Pad", "slow before", "p", mode="reflect"),
        node("Conv", "p w", "s"),
        node("Conv", "fast v", "f", strides=[4]),
        node("Add", "s f", "a"),
        node("Mul", "a scale", "sum"),
        node("Neg", "fast", "negative"),
    ]
    given = {"w": weights(3, 2, 5), "v": weights(3, 2, 4), "before": np.array([0, 0, 4, 0, 0, 0])}
    ports: dict[str, Dims] = {"slow": [1, 2, "T"], "fast": [1, 2, "4*T"], "scale": [1, 3, 1]}
    proto = model(nodes, ports, ["sum", "negative"], given)
    stream = pulsify.stream(proto, pulse=1)
    assert stream.spec.opening == 5 and [o.delay for o in stream.outputs] == [0, 0]
    for length in range(5, 14):
        feeds = {"slow": inputs(length), "fast": inputs(4 * length), "scale": weights(1, 3, 1)}
        for cuts in (None, 1, 3):
            equal(streamed(stream, feeds, cuts), run_batch(proto, feeds))  # type: ignore[arg-type]


def attending(seen: Callable[[Wire], Wire]) -> onnx.ModelProto:
    """A mirrored convolution and two layers of attention; seen: of the distances between frames, those looked back."""
    net = Net()
    padded = net.op("Pad", net.x, net.const(np.array([0, 0, 5, 0, 0, 0])), mode="reflect")
    y = net.op("Tanh", net.op("Conv", padded, net.const(weights(2, 2, 6))))
    place = net.range(0, net.op("Shape", y).take(2), 1)
    for _ in range(2):
        q = y.by(0, 2, 1)
        scores = net.where(seen(place), (q @ y) * 0.1, -1e9)
        y = y + (net.op("Softmax", scores, axis=-1) @ q).by(0, 2, 1)
    return net.model(y)


def chunks_of_four(place: Wire) -> Wire:
    behind = place.new(1) // 4 - place.new(0) // 4
    return (behind >= 0) & (behind <= 1)


def the_last_six(place: Wire) -> Wire:
    behind = place.new(1) - place.new(0)
    return (behind >= 0) & (behind <= 6)


def all_before(place: Wire) -> Wire:
    return place.new(1) - place.new(0) >= 0


@pytest.mark.parametrize(("seen", "pulse", "opening", "delay"), [
    (chunks_of_four, 1, 7, 6), (chunks_of_four, 2, 3, 4), (chunks_of_four, 4, 2, 0), (the_last_six, 1, 6, 0),
    (the_last_six, 2, 3, 0), (all_before, 1, 6, 0), (all_before, 2, 3, 0),
])  # fmt: skip
def test_caches_go_on_from_the_opening(seen: Callable[[Wire], Wire], pulse: int, opening: int, delay: int) -> None:
    """Six frames are out of step with chunks of four at pulse 1: seven are not."""
    proto = attending(seen)
    stream = pulsify.stream(proto, pulse, unbounded="grow" if seen is all_before else "refuse", verify=False)
    assert (stream.spec.opening, stream.outputs[0].delay) == (opening, delay)
    for length in (6, 7, 8, 11, 29, 30):
        x = inputs(length)
        close(streamed(stream, x, [3, 2])["y"], run_batch(proto, x)["y"])


def test_one_input_may_come_ahead_of_another() -> None:
    proto = model(
        [node("Pad", "a before", "p", mode="reflect"), node("Conv", "p w", "c"), node("Add", "c b", "y")],
        {"a": [1, 2, "T"], "b": [1, 3, "T"]}, ["y"], {"w": weights(3, 2, 3), "before": np.array([0, 0, 2, 0, 0, 0])},
    )  # fmt: skip
    stream = pulsify.stream(proto, pulse=1)
    a, b = frames(1, 2, 9), frames(1, 3, 9)
    session = stream.session()
    assert session.push(a=a).shape[2] == 0
    assert session.push(b=b[..., :2]).shape[2] == 0
    parts = [session.push(b=b[..., 2:4]), session.push(b=b[..., 4:]), session.flush()]
    assert parts[0].shape[2] == 4
    close(np.concatenate(parts, 2), run_batch(proto, {"a": a, "b": b})["y"])


def test_models_in_a_chain_open_together() -> None:
    first, then = models.mirrored(), models.mirrored()
    then.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 3
    then.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weights(2, 3, 5), "w1"))
    stream, x = pulsify.stream(pulsify.chain(first, then), pulse=2), inputs(24)
    assert stream.spec.opening == 3 and stream.outputs[0].delay == 0
    wanted = run_batch(then, run_batch(first, x)["y"])["y"]
    close(next(iter(streamed(stream, x, [5, 1, 7]).values())), wanted)


def test_a_pickled_stream_opens_as_it_did(codec: pulsify.Stream) -> None:
    x = inputs(11)
    equal(streamed(pickle.loads(pickle.dumps(codec)), x, [3, 4]), run_batch(LSTM, x))


# ---- many streams


@pytest.mark.parametrize("seed", range(3))
def test_lanes_open_each_by_itself(seed: int, codec: pulsify.Stream) -> None:
    rng = np.random.default_rng(seed)
    pool = pulsify.Pool(codec, most=5, padding=math.nan)
    data = [inputs(int(n), seed=i) for i, n in enumerate(rng.integers(5, 30, 4))]
    lanes: list[Any] = [pool.open() for _ in data]
    parts: list[list[Any]] = [[] for _ in data]
    at, ended = [0] * len(data), [False] * len(data)

    def run() -> None:
        results = pool.run() if rng.random() < 0.5 else pool.step().results
        for own, lane in zip(parts, lanes, strict=True):
            own.extend([results[lane]] if lane in results else [])

    while not all(ended):
        for i, x in enumerate(data):
            if ended[i]:
                continue
            if rng.random() < 0.2:  # it goes on in another place of the pool
                blob, moved = lanes[i].state(), pool.open()
                moved.restore(blob)
                lanes[i].close()
                lanes[i] = moved
            size = int(rng.integers(0, 7))
            lanes[i].push(x[..., at[i] : at[i] + size])
            at[i] += size
            if at[i] >= x.shape[2]:
                lanes[i].flush()
                ended[i] = True
        run()
    while len(pool):
        run()
    for x, own in zip(data, parts, strict=True):
        equal({"y": np.concatenate([p["y"] for p in own], 1), "h": own[-1]["h"]}, run_batch(LSTM, x))


def test_an_exchange_waits_for_the_opening(codec: pulsify.Stream) -> None:
    pool, x = pulsify.Pool(codec, most=2), inputs(12)
    lane = pool.open()
    with pytest.raises(pulsify.InvalidArgument, match="begins with 3 pulses in one call"):
        pool.exchange([lane], x[..., :2])
    lane.push(x[..., :6])
    parts = [pool.run()[lane]["y"]]
    for at in range(6, 12, 2):
        parts.append(pool.exchange([lane], x[..., at : at + 2]).of(0)["y"])
    lane.flush()
    parts.append(pool.run()[lane]["y"])
    close(np.concatenate(parts, 1), run_batch(LSTM, x)["y"])


def test_streams_side_by_side_open_when_each_has_enough(codec: pulsify.Stream) -> None:
    together, x = codec.session(batch=2, independent=True), inputs(8, 2)
    first = together.push(x[..., :6], active=[True, False])
    assert first[0]["y"].shape[1] == 6 and first[1] is None
    results = [together.push(x[..., :6], active=[False, True])[1], *together.flush([1])[1:]]
    equal({"y": np.concatenate([r["y"] for r in results], 1), "h": results[-1]["h"]}, run_batch(LSTM, x[1:, :, :6]))


# ---- the file


def test_a_saved_stream_opens_as_it_did(codec: pulsify.Stream, tmp_path: Path) -> None:
    codec.save(tmp_path / "codec.onnx")
    assert sorted(os.listdir(tmp_path)) == ["codec.onnx", "codec.opening.onnx"]
    for file in tmp_path.iterdir():
        onnx.checker.check_model(file, full_check=True)
        ort.InferenceSession(file)
    loaded = pulsify.load(tmp_path / "codec.onnx")
    assert loaded.spec == codec.spec and loaded.opening is not None and codec.opening is not None
    assert loaded.opening.spec == codec.opening.spec
    for length in (5, 6, 7, 20):
        x = inputs(length)
        for portable in (True, False):
            equal(streamed(loaded, x, [3, 1], portable=portable), run_batch(LSTM, x))
    loaded.export(tmp_path / "again.onnx")
    assert (tmp_path / "again.opening.onnx").is_file()
    assert pulsify.verify(LSTM, pulsify.load(tmp_path / "again.onnx")).ok


def test_an_opening_stands_by_itself(codec: pulsify.Stream, tmp_path: Path) -> None:
    """It is the model's stream at a longer pulse."""
    codec.save(tmp_path / "codec.onnx")
    assert pulsify.verify(LSTM, pulsify.load(tmp_path / "codec.opening.onnx")).ok


@pytest.mark.parametrize("pulse", [1, 2, 4])
def test_the_loop_without_pulsify_opens_too(pulse: int, tmp_path: Path) -> None:
    proto = models.mirrored()
    pulsify.stream(proto, pulse=pulse).save(tmp_path / "stream.onnx")
    assert (tmp_path / "stream.opening.onnx").is_file()
    for length in range(5, 20):
        x = inputs(length)
        close(loop(tmp_path / "stream.onnx", x), run_batch(proto, x)["y"])


def test_large_weights_are_written_once(tmp_path: Path) -> None:
    proto, x = models.mirrored(channels=40_000), inputs(20)
    stream = pulsify.stream(proto, pulse=2)
    stream.save(tmp_path / "stream.onnx")
    sizes = {f.name: f.stat().st_size for f in tmp_path.iterdir()}
    assert set(sizes) == {"stream.onnx", "stream.opening.onnx", "stream.onnx.data"}
    assert sum(sizes.values()) < 1.1 * sum(w.nbytes for w in map(onnx.numpy_helper.to_array, proto.graph.initializer))
    other = tmp_path / "elsewhere"
    other.mkdir()
    pulsify.load(tmp_path / "stream.onnx").save(other / "stream.onnx")
    for file in tmp_path.glob("stream*"):
        file.unlink()
    assert sum(f.stat().st_size for f in other.iterdir()) <= 1.01 * sum(sizes.values())
    close(streamed(pulsify.load(other / "stream.onnx"), x, [7, 7, 6])["y"], run_batch(proto, x)["y"])


def test_an_opening_that_is_gone_or_another_ones_is_said_to_be(codec: pulsify.Stream, tmp_path: Path) -> None:
    codec.save(tmp_path / "a.onnx")
    pulsify.stream(models.mirrored(), pulse=2).save(tmp_path / "b.onnx")
    (tmp_path / "b.opening.onnx").replace(tmp_path / "a.opening.onnx")
    with pytest.raises(pulsify.InvalidModel, match="is not the opening of"):
        pulsify.load(tmp_path / "a.onnx")
    with pytest.raises(pulsify.InvalidModel, match=r"put 'b\.opening\.onnx' back"):
        pulsify.load(tmp_path / "b.onnx")


def test_the_name_of_an_opening_leads_nowhere_else(codec: pulsify.Stream, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    codec.save(tmp_path / "a.onnx")
    codec.save(tmp_path / "inner" / "b.onnx")
    elsewhere = json.dumps({"pulses": 3, "file": "../a.opening.onnx"})
    as_older(tmp_path / "inner" / "b.onnx", "3", lambda props: {**props, "pulsify.opening": elsewhere})
    with pytest.raises(pulsify.InvalidModel, match=r"put 'a\.opening\.onnx' back"):
        pulsify.load(tmp_path / "inner" / "b.onnx")


def test_a_target_of_one_graph_is_not_given_two(codec: pulsify.Stream, tmp_path: Path) -> None:
    from pulsify.export import registry

    registry.register("one", "tests.test_opening", "nothing")
    try:
        with pytest.raises(pulsify.InvalidArgument, match="opening=False"):
            codec.export(tmp_path / "one", target="one")
        pulsify.stream(LSTM, pulse=PULSE, opening=False).export(tmp_path / "one", target="one")
    finally:
        del registry._ENTRIES["one"]
    assert (tmp_path / "one").read_text() == "2"


class One:
    def write(self, model: Any, spec: Any, path: Path) -> None:
        path.write_text(str(spec.pulse))


TARGET = One()


# ---- what is said of it


def test_the_command_line_says_and_leaves_it(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(models.mirrored(), path)
    runner = CliRunner(env={"COLUMNS": "160"})
    shown = runner.invoke(
        main, ["stream", str(path), "-p", "2", "-o", str(tmp_path / "s.onnx"), "--sample-rate", "100"]
    )
    assert "the first 6 frames = 60 ms are one call" in shown.output and shown.exit_code == 0
    assert "the first 6 frames" in runner.invoke(main, ["inspect", str(tmp_path / "s.onnx")]).output
    windows = runner.invoke(main, ["inspect", str(path), "-p", "2", "--stage", "windows", "--json"])
    assert {w["delay"] for w in json.loads(windows.output)["wires"] if w["kind"] == "stream"} == {0}
    plain = runner.invoke(main, ["stream", str(path), "-p", "2", "--no-opening", "--json"])
    facts = json.loads(plain.output)
    (out,) = facts["outputs"]
    assert (facts["opening_frames"], out["delay"], out["delay_after_start"]) == (0, 8, 0)
    ran = runner.invoke(main, ["verify", str(path), str(tmp_path / "s.onnx"), "--json"])
    assert ran.exit_code == 0, ran.output
    assert {5, 6, 7} <= set(json.loads(ran.output)["verified"]["lengths"])
    assert runner.invoke(main, ["inspect", str(tmp_path / "s.onnx"), "--no-opening"]).exit_code == 2

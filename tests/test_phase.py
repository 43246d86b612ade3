"""Pulses that begin before the stream: the smallest latency, and the batch model's frames all the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import pulsify
from pulsify.cli.main import main
from pulsify.core.spec import FORMAT, PHASED, VERSION
from tests.models import Array, blocks, close, frames, model, node, run_batch, weights, whole_blocks
from tests.test_artefact import stream_with_onnx_runtime

loop: Any = stream_with_onnx_runtime


def mel(centre: bool = True) -> onnx.ModelProto:
    """Windows of 400 samples every 160, centred by mirrored padding as Whisper has it."""
    window = np.hanning(401)[:400].astype(np.float32)[None, None] * weights(3, 1, 400)
    return model(
        [node("Pad", "x n", "p", mode="reflect"), node("Conv", "p w", "c", strides=[160]), node("Mul", "c c", "y")],
        {"x": [1, 1, "T"]},
        ["y"],
        {"n": np.array([0, 0, 200, 0, 0, 200]), "w": window},
    )


def recurrent() -> onnx.ModelProto:
    """A stride, a look-ahead and a recurrence, with a result about the whole stream beside it."""
    return model(
        [
            node("Conv", "x w", "c", strides=[4], pads=[2, 4]),
            node("Conv", "c v", "d", pads=[1, 1]),
            node("Transpose", "d", "s", perm=[2, 0, 1]),
            node("GRU", "s g r", "q h", hidden_size=2),
            node("Squeeze", "q one", "y"),
            node("ReduceMax", "d", "peak", axes=[2], keepdims=0),
        ],
        {"x": ["B", 2, "T"]},
        ["y", "h", "peak"],
        {
            "w": weights(2, 2, 7), "v": weights(2, 2, 3), "g": weights(1, 6, 2), "r": weights(1, 6, 2),
            "one": np.array([1]),
        },
    )  # fmt: skip


def spread() -> onnx.ModelProto:
    """Down by three, ahead by one, up by three: outputs at the input's rate, and at a third of it."""
    return model(
        [
            node("MaxPool", "x", "p", kernel_shape=[4], strides=[3]),
            node("Conv", "p w", "c", pads=[1, 1]),
            node("ConvTranspose", "c v", "y", strides=[3]),
            node("Relu", "c", "z"),
        ],
        {"x": ["B", 2, "T"]},
        ["y", "z"],
        {"w": weights(2, 2, 3), "v": weights(2, 2, 4)},
    )


MODELS = {"blocks": blocks(batch="B"), "recurrent": recurrent(), "spread": spread()}


@pytest.fixture(scope="module")
def stream() -> pulsify.Stream:
    return pulsify.stream(blocks(batch="B"))


def ragged(length: int, pulse: int, seed: int) -> Iterator[int]:
    rng, left = np.random.default_rng(seed), length
    while left:
        size = min(int(rng.integers(0, 2 * pulse)), left)
        yield size
        left -= size


def pushed(session: Any, x: Array, seed: int = 0) -> dict[str, Array]:
    """In chunks of any size, then flushed: by output."""
    spec, parts, at = session.spec, list[dict[str, Array]](), 0
    for size in ragged(x.shape[2], spec.pulse, seed):
        parts.append(session.push(x[..., at : at + size]))
        at += size
    parts.append(session.flush())
    axes = {o.name: o.axis for o in spec.outputs}
    return {n: parts[-1][n] if a is None else np.concatenate([p[n] for p in parts], a) for n, a in axes.items()}


# ---- what it is


def test_what_looks_ahead_in_front_of_blocks_does_not_wait_for_another_block(stream: pulsify.Stream) -> None:
    assert (stream.pulse, stream.latency, stream.spec.phase, stream.first_call) == (8, 9, 7, 1)
    session, x = stream.session(), frames(1, 2, 40)
    given = [session.push(x[..., i : i + 1]).shape[2] for i in range(40)]
    assert [i for i, n in enumerate(given) if n] == [8, 16, 24, 32] and set(given) == {0, 8}


def test_a_pulse_of_several_blocks_and_another_look_ahead() -> None:
    found = [(s.latency, s.first_call) for s in (pulsify.stream(blocks(n), pulse=24, verify=False) for n in (1, 3, 8))]
    assert found == [(25, 17), (27, 19), (32, 24)]


def test_a_centred_spectrogram_waits_for_half_a_window() -> None:
    made = pulsify.stream(mel())
    assert (made.pulse, made.latency) == (160, 200)
    assert pulsify.stream(mel(), phase=False).latency == 320


def test_pulses_stay_at_the_start_if_that_is_asked_for() -> None:
    made = pulsify.stream(blocks(batch="B"), phase=False)
    assert (made.latency, made.spec.phase, made.first_call) == (16, 0, 8)


def test_nothing_moves_where_nothing_is_won() -> None:
    plain = model([node("Conv", "x w", "y", pads=[1, 1])], {"x": [1, 2, "T"]}, ["y"], {"w": weights(2, 2, 3)})
    assert pulsify.stream(plain, pulse=8).spec.phase == 0
    early = model([node("Pad", "x n", "y")], {"x": [1, 2, "T"]}, ["y"], {"n": np.array([0, 0, 2, 0, 0, 0])})
    assert pulsify.stream(early, pulse=8).spec.phase == 0


# ---- exact


def lengths(made: pulsify.Stream, pulses: int) -> Iterator[int]:
    for length in range(made.spec.shortest, made.spec.shortest + pulses * made.pulse + 2):
        if all(c.met(length) for c in made.spec.conditions):
            yield length


def hold(got: dict[str, Array], wanted: dict[str, Array]) -> None:
    assert set(got) == set(wanted)
    for name, want in wanted.items():
        close(got[name], want)


@pytest.mark.parametrize("how", [{}, {"portable": True}, {"backend": "native"}, {"backend": "torch", "device": "cpu"}])
@pytest.mark.parametrize("name", MODELS)
def test_every_length_in_ragged_chunks(name: str, how: dict[str, Any]) -> None:
    proto = MODELS[name]
    made, compared = pulsify.stream(proto, verify=False), 0
    assert made.spec.phase
    for length in lengths(made, 4):
        x = frames(1, 2, length, seed=length)
        session = made.session(padding=np.nan, by_name=True, **how)
        hold(pushed(session, x, length), run_batch(proto, {"x": x}))
        compared += 1
    assert compared > 3


@pytest.mark.parametrize("name", MODELS)
def test_many_streams_at_different_places_of_one_pool(name: str) -> None:
    proto = MODELS[name]
    made = pulsify.stream(proto, verify=False)
    found = list(lengths(made, 5))
    pool = pulsify.Pool(made, most=len(found), padding=np.nan)
    lanes = {pool.open(): frames(1, 2, n, seed=n) for n in found}
    chunks = {lane: list(ragged(x.shape[2], made.pulse, x.shape[2])) for lane, x in lanes.items()}
    parts: dict[Any, list[dict[str, Array]]] = {lane: [] for lane in lanes}
    at = dict.fromkeys(lanes, 0)
    while chunks:
        for lane in list(chunks):
            if chunks[lane]:
                size = chunks[lane].pop(0)
                lane.push(lanes[lane][..., at[lane] : at[lane] + size])
                at[lane] += size
            else:
                lane.flush()
                del chunks[lane]
        for lane, result in pool.run().items():
            parts[lane].append(result if isinstance(result, dict) else {made.outputs[0].name: result})
    axes = {o.name: o.axis for o in made.outputs}
    for lane, x in lanes.items():
        each = parts[lane]
        got = {n: each[-1][n] if a is None else np.concatenate([p[n] for p in each], a) for n, a in axes.items()}
        hold(got, run_batch(proto, {"x": x}))


def test_an_exchange_takes_pulses_behind_the_first_call_or_from_the_start(stream: pulsify.Stream) -> None:
    x = frames(4, 2, 56)
    want = run_batch(MODELS["blocks"], {"x": x})["y"]
    for begun in (0, stream.first_call):
        pool = pulsify.Pool(stream, most=4)
        lanes = [pool.open() for _ in range(4)]
        for lane, one in zip(lanes, x, strict=True):
            lane.push(one[None, :, :begun])
        pool.run()
        parts = []
        for at in range(begun, begun + 48, 8):
            made = pool.exchange(lanes, x[..., at : at + 8])
            parts.append([made.of(row) for row in range(4)])
        got = np.concatenate([np.concatenate(rows) for rows in parts], 2)
        close(got, want[..., : got.shape[2]])
        assert got.shape[2] == (48 if begun else 40)


def test_whole_numbers_in_front_of_the_stream_are_no_zeros() -> None:
    """They may be divisors: what stands there is the first one."""
    proto = whole_blocks("B")
    made = pulsify.stream(proto, time={"x": 1}, verify=False)
    assert made.spec.phase == 3
    for backend in ("ort", "native"):
        x = np.random.default_rng(0).integers(1, 90, (1, 16))
        session = made.session(backend=backend)
        parts = [session.push(x[:, i : i + 3]) for i in range(0, 16, 3)]
        assert np.array_equal(np.concatenate([*parts, session.flush()], 1), run_batch(proto, {"x": x})["y"])


def test_a_mirrored_start_and_a_phase() -> None:
    proto = mel()
    made = pulsify.stream(mel(), verify=False)
    assert made.spec.opening and made.spec.phase
    for length in (201, 319, 320, 359, 360, 361, 640, 999):
        x = frames(1, 1, length, seed=length)
        for how in ({}, {"backend": "native"}):
            hold(pushed(made.session(padding=np.nan, by_name=True, **how), x, length), run_batch(proto, {"x": x}))


# ---- wherever it runs


def test_a_stream_goes_on_elsewhere_before_and_after_its_first_call(stream: pulsify.Stream) -> None:
    x = frames(1, 2, 32)
    want = run_batch(MODELS["blocks"], {"x": x})["y"]
    for at in (0, 1, 5, 9, 20):
        session = stream.session()
        first = session.push(x[..., :at])
        other, pool = stream.session(backend="native"), pulsify.Pool(stream, most=1)
        blob = session.state()
        other.restore(blob)
        lane = pool.open()
        lane.restore(blob)
        lane.push(x[..., at:])
        lane.flush()
        close(np.concatenate([first, other.push(x[..., at:]), other.flush()], 2), want)
        close(np.concatenate([first, pool.run()[lane]], 2), want)
        fork = session.fork()
        close(np.concatenate([first, fork.push(x[..., at:]), fork.flush()], 2), want)


def test_a_state_fits_no_stream_at_another_phase(stream: pulsify.Stream) -> None:
    with pytest.raises(pulsify.InvalidState):
        pulsify.stream(blocks(batch="B"), phase=False, verify=False).session().restore(stream.session().state())


def test_the_file_says_so_and_runs_without_pulsify(stream: pulsify.Stream, tmp_path: Path) -> None:
    path = tmp_path / "s.onnx"
    stream.save(path)
    made = {p.key: p.value for p in onnx.load(path).metadata_props}
    assert made[VERSION] == PHASED and json.loads(made["pulsify.time"])["phase"] == 7
    again = pulsify.load(path)
    assert (again.spec.phase, again.latency, again.first_call) == (7, 9, 1)
    x = frames(1, 2, 40)
    close(loop(path, x), run_batch(MODELS["blocks"], {"x": x})["y"])
    assert pulsify.stream(blocks(batch="B"), phase=False, verify=False).model.metadata_props[VERSION] == FORMAT


def test_a_transducer_of_sherpa_takes_pulses_from_the_start_only() -> None:
    from pulsify.export.sherpa import Sherpa

    spec = pulsify.stream(blocks(batch="B"), verify=False).spec
    with pytest.raises(pulsify.NotSupported, match="phase=False"):
        Sherpa(tokens="tokens.txt")._ports(spec, 4)


def test_the_command_line_takes_it_away(tmp_path: Path) -> None:
    source = tmp_path / "m.onnx"
    onnx.save(blocks(batch="B"), source)
    for flags, latency in (([], 9), (["--no-phase"], 16)):
        done = CliRunner().invoke(main, ["stream", str(source), "--json", "-o", str(tmp_path / "o.onnx"), *flags])
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["latency_frames"] == latency


def test_where_a_wire_departs_is_found(stream: pulsify.Stream) -> None:
    from pulsify.verify.divergence import departures

    found = list(departures(blocks(batch="B").SerializeToString(), stream, 40, np.random.default_rng(0)))
    assert found and all(s.error <= s.limit for s in found)


# ---- start-up


def unpadded(*sizes: int, stride: int = 1) -> onnx.ModelProto:
    names = ["x", *(f"h{i}" for i in range(len(sizes) - 1)), "y"]
    nodes = [node("Conv", f"{a} w{i}", b, strides=[stride]) for i, (a, b) in enumerate(pairwise(names))]
    return model(nodes, {"x": [1, 2, "T"]}, ["y"], {f"w{i}": weights(2, 2, n) for i, n in enumerate(sizes)})


def test_frames_that_are_missing_at_the_start_are_no_delay() -> None:
    made = pulsify.stream(unpadded(5, 9), pulse=4)
    assert (made.latency, made.start_up, made.spec.lateness(made.outputs[0])) == (4, 12, 0)
    assert "latency=4" in repr(made) and "delay 0" in repr(made) and "start-up 12" in repr(made)
    session, x = made.session(), frames(1, 2, 40)
    given = [session.push(x[..., i : i + 4]).shape[2] for i in range(0, 40, 4)]
    assert given == [0, 0, 0, *[4] * 7]  # the newest output of every pulse is made of its newest input


def test_a_hop_that_windows_do_not_fill_has_both() -> None:
    made = pulsify.stream(unpadded(7, stride=3))
    assert (made.pulse, made.latency, made.start_up, made.first_call) == (3, 3, 4, 1)


def test_frames_that_are_cut_at_the_end_are_waited_for() -> None:
    cut = {"a": np.array([0]), "b": np.array([-2]), "c": np.array([2])}
    made = pulsify.stream(model([node("Slice", "x a b c", "y")], {"x": [1, 2, "T"]}, ["y"], cut))
    assert (made.latency, made.start_up) == (3, 0)


def test_both_are_reported_by_their_names(tmp_path: Path) -> None:
    source = tmp_path / "m.onnx"
    onnx.save(unpadded(5, 9), source)
    done = CliRunner().invoke(main, ["stream", str(source), "-p", "4", "--json", "-o", str(tmp_path / "o.onnx")])
    facts = json.loads(done.stdout)
    assert (facts["latency_frames"], facts["start_up_frames"], facts["outputs"][0]["delay"]) == (4, 12, 0)
    text = CliRunner().invoke(main, ["inspect", str(tmp_path / "o.onnx")]).stdout
    assert "start-up" in text and "12 frames come before the first output can" in text
    assert "4 frames from in to out" in text
    assert pulsify.load(tmp_path / "o.onnx").start_up == 12

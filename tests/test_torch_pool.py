"""Many streams on the back end torch: each exactly what it would be alone, whatever lies beside it in its batch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pulsify
from tests import models
from tests.mixed import mixed_ages, pooled_zoo
from tests.models import Array, close, frames, run_batch, run_stream
from tests.test_pool import MODELS, come_and_go, looked_up, sound
from tests.zoo.manifest import Entry

torch = pytest.importorskip("torch")

PULSE = 4
CPU: dict[str, Any] = {"backend": "torch", "options": {"device": "cpu"}}
ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_streams_come_and_go(name: str, seed: int) -> None:
    """Starts, middles and ends in one batch, padding that is NaN, slots used anew."""
    build, shape, axis = MODELS[name]
    proto = build()
    pool = pulsify.Pool(pulsify.stream(proto, pulse=PULSE, verify=False), 3, padding=float("nan"), **CPU)
    driven = come_and_go(pool, shape, axis, seed)
    for d in driven:
        close(np.concatenate(d.out, axis), run_batch(proto, d.x)["y"])


def test_a_start_a_middle_and_an_end_are_one_call() -> None:
    proto = models.look_ahead("B")
    stream = pulsify.stream(proto, pulse=PULSE, verify=False)
    pool, xs = pulsify.Pool(stream, 3, **CPU), [frames(1, 2, n, seed=n) for n in (19, 6, 4)]
    lanes, out = [pool.open() for _ in xs], [list[Array]() for _ in xs]
    calls: list[int] = []
    run = pool._slots.run

    def counted(slots: Array, *where: Any) -> Any:
        calls.append(len(slots))
        return run(slots, *where)

    lanes[0].push(xs[0][..., :16])
    lanes[1].push(xs[1][..., :4])
    for lane, result in pool.run().items():
        out[lanes.index(lane)].append(result)
    pool._slots.run = counted  # type: ignore[method-assign]
    lanes[0].push(xs[0][..., 16:])
    lanes[1].push(xs[1][..., 4:])
    lanes[2].push(xs[2])
    for lane in lanes[:2]:
        lane.flush()
    for lane, result in pool.step(rounds=1).results.items():
        out[lanes.index(lane)].append(result)
    assert calls == [3]
    lanes[2].flush()
    for lane, result in pool.run().items():
        out[lanes.index(lane)].append(result)
    for x, parts in zip(xs, out, strict=True):
        close(np.concatenate(parts, 2), run_batch(proto, x)["y"])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_in_its_stream(value: float) -> None:
    proto = models.look_ahead("B")
    stream = pulsify.stream(proto, pulse=PULSE, verify=False)
    pool, x = pulsify.Pool(stream, 5, check=False, **CPU), frames(5, 2, 40)
    x[1], x[3, :, 7] = value, -value
    lanes = [pool.open() for _ in range(5)]
    made = [pool.exchange(lanes, x[..., n : n + 4]) for n in range(0, 40, 4)]
    for i in range(5):
        got = np.concatenate([m.of(i) for m in made], 2)
        alone = run_stream(stream.session(check=False), x[i : i + 1], [4] * 10)[..., : got.shape[2]]
        there = np.isfinite(alone)
        np.testing.assert_array_equal(np.isfinite(got), there)
        close(got[there], alone[there])
    assert np.isfinite(np.concatenate([m.of(2) for m in made], 2)).all()


def test_a_stream_that_fails_fails_alone() -> None:
    """An index outside its table, in a batch of eight."""
    pool = pulsify.Pool(pulsify.stream(looked_up(), pulse=PULSE, verify=False), 8, **CPU)
    lanes, x = [pool.open() for _ in range(8)], np.random.default_rng(0).integers(0, 4, (8, 6 * PULSE))
    bad, parts = x.copy(), [list[Array]() for _ in lanes]
    bad[3, 2 * PULSE] = 99
    for n in range(0, 6 * PULSE, PULSE):
        who = [i for i in range(8) if not lanes[i].closed]
        made = pool.exchange([lanes[i] for i in who], bad[who, n : n + PULSE])
        assert [who[row] for row in made.failures] == ([3] if n == 2 * PULSE else [])
        for row, i in enumerate(who):
            parts[i].append(made.of(row))
    for lane in lanes:
        if not lane.closed:
            lane.flush()
    for lane, result in pool.run().items():
        parts[lanes.index(lane)].append(result)
    for i, part in enumerate(parts):
        want = run_batch(looked_up(), x[i : i + 1])["y"]
        close(np.concatenate(part, 2), want[..., : 2 * PULSE - 1] if i == 3 else want)


@pytest.mark.parametrize("here", ["ort", "torch"])
@pytest.mark.parametrize("name", MODELS)
def test_a_lane_moves_to_another_back_end_in_mid_stream(name: str, here: str) -> None:
    build, shape, axis = MODELS[name]
    proto, x = build(), sound(shape, 39, 5)
    stream = pulsify.stream(proto, pulse=PULSE, verify=False)
    pools = {"ort": pulsify.Pool(stream, 2), "torch": pulsify.Pool(stream, 2, **CPU)}
    parts, state, cuts = [], b"", [0, 3, 16, 21, 39]
    for start, end in pairwise(cuts):
        pool = pools[here]
        other = pool.open()  # so that slots are not the same
        lane = pool.open()
        other.push(x[(slice(None),) * axis + (slice(0, 9),)])
        if state:
            lane.restore(state)
        lane.push(x[(slice(None),) * axis + (slice(start, end),)])
        parts += [r for who, r in pool.run().items() if who is lane]
        if end == 39:
            lane.flush()
            parts.append(pool.run()[lane])
        else:
            state = lane.state()
            lane.close()
        other.close()
        here = "torch" if here == "ort" else "ort"
    close(np.concatenate(parts, axis), run_batch(proto, x)["y"])


def test_islands_are_pooled_too() -> None:
    proto, x = models.look_ahead("B"), frames(3, 2, 24)
    options = {"device": "cpu", "force_cpu": ["Relu", "h"]}
    pool = pulsify.Pool(pulsify.stream(proto, pulse=PULSE, verify=False), 3, backend="torch", options=options)
    lanes = [pool.open() for _ in range(3)]
    made = [pool.exchange(lanes, x[..., n : n + 4]) for n in range(0, 24, 4)]
    for i in range(3):
        got = np.concatenate([m.of(i) for m in made], 2)
        close(got, run_batch(proto, x[i : i + 1])["y"][..., : got.shape[2]])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_lower_type_in_a_pool_is_the_session_in_it(dtype: str) -> None:
    stream, x = pulsify.stream(models.look_ahead("B"), pulse=PULSE, verify=False), frames(3, 2, 24)
    options = {"device": "cpu", "dtype": dtype}
    pool = pulsify.Pool(stream, 3, backend="torch", options=options)
    lanes, together = [pool.open() for _ in range(3)], stream.session(batch=3, backend="torch", options=options)
    made = [pool.exchange(lanes, x[..., n : n + 4]) for n in range(0, 24, 4)]
    want = together.push(x)
    for i in range(3):
        got = np.concatenate([m.of(i) for m in made], 2)
        np.testing.assert_allclose(got, want[i : i + 1], rtol=2e-2, atol=2e-2)


# ---- tensors


@pytest.mark.parametrize("backend", ["ort", "torch", "reference", "native"])
def test_exchanges_of_tensors_give_tensors(backend: str) -> None:
    own = {"device": "cpu"} if backend == "torch" else None
    stream = pulsify.stream(models.look_ahead("B"), pulse=PULSE, verify=False)
    pools = [pulsify.Pool(stream, 3, backend=backend, options=own) for _ in range(2)]
    lanes = [[p.open() for _ in range(3)] for p in pools]
    x = frames(3, 2, 20)
    for n in range(0, 20, 4):
        chunk = torch.from_numpy(np.ascontiguousarray(x[..., n : n + 4]))
        given, plain = pools[0].exchange(lanes[0], chunk), pools[1].exchange(lanes[1], x[..., n : n + 4])
        assert isinstance(given.frames, torch.Tensor) and not given.frames.is_inference()
        np.testing.assert_array_equal(given.frames.numpy(), plain.frames)
        np.testing.assert_array_equal(given.real, plain.real)
        given.frames.fill_(torch.nan)  # the caller's own
    bad = torch.zeros(3, 2, 4)
    bad[2] = torch.nan
    with pytest.raises(pulsify.InvalidChunk, match="not finite for the stream in slot 2; nothing was taken"):
        pools[0].exchange(lanes[0], bad)
    with pytest.raises(pulsify.InvalidChunk, match="got bfloat16"):
        pools[0].exchange(lanes[0], bad.bfloat16())


@pytest.mark.parametrize("backend", ["ort", "torch", "reference", "native"])
@pytest.mark.parametrize("cuts", [[4] * 6, [3, 9, 12], [24], [1] * 24])
def test_sessions_take_and_give_tensors(backend: str, cuts: list[int]) -> None:
    own = {"device": "cpu"} if backend == "torch" else {}
    stream, x = pulsify.stream(models.look_ahead("B"), pulse=PULSE, verify=False), frames(1, 2, 24)
    session = stream.session(backend=backend, **own)
    parts = [session.push(torch.from_numpy(c.copy())) for c in np.split(x, np.cumsum(cuts)[:-1], 2)]
    parts.append(session.flush())
    assert all(isinstance(p, torch.Tensor) and not p.is_inference() for p in parts)
    close(torch.cat(parts, 2).numpy(), run_batch(models.look_ahead("B"), x)["y"])


def test_a_chunk_may_be_either_at_any_time() -> None:
    stream, x = pulsify.stream(models.look_ahead("B"), pulse=PULSE, verify=False), frames(1, 2, 40)
    session = stream.session(backend="torch", device="cpu")
    parts = []
    for i, n in enumerate(range(0, 40, 4)):
        chunk = x[..., n : n + 4]
        out = session.push(torch.from_numpy(chunk.copy()).requires_grad_() if i % 2 else chunk)
        assert isinstance(out, torch.Tensor) == bool(i % 2)
        parts.append(np.asarray(out))
    with pytest.raises(pulsify.InvalidChunk, match=r"NaN at frame 41"):
        session.push(torch.tensor([[[0.0, torch.nan, 0, 0]] * 2]))
    with pytest.raises(pulsify.InvalidChunk, match="takes float32, got float64"):
        session.push(torch.zeros(1, 2, 4, dtype=torch.float64))
    session.push(x[..., :0])
    parts.append(session.flush())
    assert isinstance(parts[-1], np.ndarray), "as the last chunk was"
    close(np.concatenate(parts, 2), run_batch(models.look_ahead("B"), x)["y"])


def test_whole_pulses_as_tensors_never_see_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the delay is over."""
    stream, x = pulsify.stream(models.look_ahead("B"), pulse=PULSE, verify=False), torch.zeros(1, 2, 4)
    session = stream.session(backend="torch", device="cpu", check=False)
    for _ in range(4):
        session.push(x)
    pool = pulsify.Pool(stream, 2, check=False, **CPU)
    lanes = [pool.open(), pool.open()]
    for _ in range(4):
        pool.exchange(lanes, torch.zeros(2, 2, 4))

    def refuse(self: Any) -> Any:
        raise AssertionError("to the host")

    for name in ("cpu", "item", "__bool__", "tolist"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    assert session.push(x).shape == (1, 3, 4)
    assert pool.exchange(lanes, torch.zeros(2, 2, 4)).frames.shape == (2, 3, 4)


# ---- elsewhere

WRITER = """
import sys, numpy as np, torch, pulsify
from pathlib import Path
torch.set_num_threads(1)
folder = Path(sys.argv[1])
x = np.load(folder / "x.npy")
pool = pulsify.Pool(pulsify.load(folder / "stream.onnx"), len(x), backend="torch", options={"device": "cpu"})
lanes = [pool.open() for _ in x]
for i, lane in enumerate(lanes):            # every stream somewhere else, some in the middle of a pulse
    lane.push(x[i : i + 1, :, : i % 11])
made = pool.run()
first = [made[lane] if lane in made else np.zeros((1, 3, 0), np.float32) for lane in lanes]
sent = np.arange(len(x)) % 11
for _ in range(3):
    chunk = np.stack([x[i, :, n : n + 4] for i, n in enumerate(sent)])
    turn = pool.exchange(lanes, chunk)
    first = [np.concatenate([a, turn.of(i)], 2) for i, a in enumerate(first)]
    sent = sent + 4
for i, lane in enumerate(lanes):
    (folder / f"{i}.state").write_bytes(lane.state())
    np.save(folder / f"{i}.npy", first[i])
print("saved", flush=True)
while True:                                  # and on, until it is killed
    pool.exchange(lanes, np.zeros((len(x), 2, 4), np.float32))
"""


@pytest.mark.parametrize("backend", ["torch", pytest.param("ort", marks=pytest.mark.slow)])
def test_a_thousand_streams_outlive_their_process(backend: str, tmp_path: Path) -> None:
    """Killed in mid-stream; their snapshots go on here, where they were."""
    proto, x = models.look_ahead("B"), frames(1000, 2, 40)
    stream = pulsify.stream(proto, pulse=PULSE, verify=False)
    stream.save(tmp_path / "stream.onnx")
    np.save(tmp_path / "x.npy", x)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *sys.path])}
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, env=env)
    assert writer.stdout is not None
    try:
        assert writer.stdout.readline() == b"saved\n"
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
    assert writer.returncode == -signal.SIGKILL
    own = {"device": "cpu"} if backend == "torch" else None
    pool = pulsify.Pool(pulsify.load(tmp_path / "stream.onnx"), 1000, backend=backend, options=own)
    lanes = [pool.open() for _ in x][::-1]  # other slots than they had
    parts = [[np.load(tmp_path / f"{i}.npy")] for i in range(1000)]
    for i, lane in enumerate(lanes):
        lane.restore((tmp_path / f"{i}.state").read_bytes())
    sent = np.arange(1000) % 11 + 12
    for _ in range(2):
        turn = pool.exchange(lanes, np.stack([x[i, :, n : n + 4] for i, n in enumerate(sent)]))
        for i in range(1000):
            parts[i].append(turn.of(i))
        sent = sent + 4
    for i, lane in enumerate(lanes):
        lane.push(x[i : i + 1, :, sent[i] :])
        lane.flush()
    for lane, result in pool.run().items():
        parts[lanes.index(lane)].append(result)
    close(np.concatenate([np.concatenate(p, 2) for p in parts]), run_batch(proto, x)["y"])


# ---- the zoo, with an axis of streams


IN_STEP = ("fold_statistics",)  # how many frames came is worked out once for all: streams of one age go together


@pytest.mark.parametrize("entry", pooled_zoo())
def test_the_zoo_in_batches_of_mixed_ages(entry: Entry) -> None:
    pool = mixed_ages(entry, **CPU)
    assert pool._slots.mixed or entry.name in IN_STEP  # type: ignore[attr-defined]


def test_options_of_the_back_end_go_by_name_too() -> None:
    stream = pulsify.stream(models.look_ahead("B"), pulse=4, verify=False)
    pool = pulsify.Pool(stream, backend="torch", device="cpu", most=3)
    x = frames(1, 2, 11)
    lane = pool.open()
    lane.push(x)
    lane.flush()
    close(pool.run()[lane], run_batch(models.look_ahead("B"), x)["y"])
    with pytest.raises(pulsify.PulsifyError, match="unknown"):
        pulsify.Pool(stream, backend="torch", devise="cpu")


@pytest.mark.parametrize("backend", ["ort", "torch", "reference", "native"])
@pytest.mark.parametrize("as_tensors", [False, True])
def test_several_pulses_at_once_are_those_one_by_one(backend: str, as_tensors: bool) -> None:
    """Streams at other places, a delay, and a batch in which some have just begun."""
    own = {"device": "cpu"} if backend == "torch" else None
    stream = pulsify.stream(models.look_ahead("B"), pulse=PULSE, verify=False)
    pools = [pulsify.Pool(stream, 3, backend=backend, options=own) for _ in range(2)]
    lanes = [[p.open() for _ in range(3)] for p in pools]
    x, sent = frames(3, 2, 40), [0, 0, 0]
    for who, pulses in (([0], 1), ([1, 0], 3), ([0, 1, 2], 2), ([2, 1, 0], 4)):
        parts = [np.stack([x[i, :, sent[i] + 4 * k : sent[i] + 4 * k + 4] for i in who]) for k in range(pulses)]
        given = np.concatenate(parts, 2)
        made = pools[0].exchange([lanes[0][i] for i in who], torch.from_numpy(given) if as_tensors else given)
        each = [pools[1].exchange([lanes[1][i] for i in who], part) for part in parts]
        for row in range(len(who)):
            np.testing.assert_array_equal(made.of(row), np.concatenate([one.of(row) for one in each], 2))
        for i in who:
            sent[i] += 4 * pulses
    assert isinstance(made.frames, torch.Tensor) == as_tensors and made.whole

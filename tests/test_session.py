"""The session's contract: whatever the chunks, the frames that come out are the batch model's."""

from __future__ import annotations

import copy
import itertools
import pickle
import timeit
from typing import Any

import numpy as np
import pytest

import pulsify
from tests import models
from tests.models import close, frames, run_batch, run_stream

TOTAL = 37  # frames; no multiple of the pulse


@pytest.fixture(scope="module")
def stream() -> Any:
    return pulsify.stream(models.look_ahead(), pulse=8)


@pytest.fixture(scope="module")
def two_rates() -> Any:
    return pulsify.stream(models.two_rates(), pulse=4)


def batch_of(proto: Any, x: Any) -> Any:
    return run_batch(proto, x)["y"]


# ---- chunks


@pytest.mark.parametrize("cuts", [[8] * 4, [TOTAL], [], [1] * 36, [0, 3, 0, 0, 20, 0], [7, 9], [16, 16]], ids=str)
def test_any_chunking(stream: Any, cuts: list[int]) -> None:
    x = frames(1, 2, TOTAL)
    close(run_stream(stream.session(padding=float("nan")), x, cuts), batch_of(models.look_ahead(), x))


@pytest.mark.parametrize("total", [1, 2, 7, 8, 9, 15, 16, 17])
def test_any_length(stream: Any, total: int) -> None:
    x = frames(1, 2, total)
    close(run_stream(stream.session(), x, []), batch_of(models.look_ahead(), x))


def test_push_returns_only_what_is_ready(stream: Any) -> None:
    session, delay = stream.session(), stream.outputs[0].delay
    x = frames(1, 2, 16)
    assert session.push(x[..., :7]).shape == (1, 3, 0)
    assert session.push(x[..., 7:9]).shape == (1, 3, 8 - delay)
    assert session.push(x[..., 9:16]).shape == (1, 3, 8)
    assert session.flush().shape == (1, 3, delay)


def test_empty_results_have_the_right_shape_and_type(stream: Any) -> None:
    session = stream.session()
    for empty in (session.push(np.zeros((1, 2, 0), np.float32)), session.push(), session.flush()):
        assert empty.shape == (1, 3, 0)
        assert empty.dtype == np.float32


def test_by_name(stream: Any) -> None:
    x = frames(1, 2, 8)
    one, two, three = (stream.session() for _ in range(3))
    first = one.push(x)
    np.testing.assert_array_equal(two.push({"x": x}), first)
    np.testing.assert_array_equal(three.push(x=x), first)


def test_results_are_the_callers_own(stream: Any) -> None:
    """Neither results nor chunks share memory with the session."""
    x = frames(1, 2, 32)
    session = stream.session()
    chunk = x[..., :12].copy()
    first = session.push(chunk)
    kept = first.copy()
    chunk.fill(99)
    first_again = first.copy()
    first.fill(-1)
    rest = np.concatenate([session.push(x[..., 12:]), session.flush()], 2)
    close(np.concatenate([kept, rest], 2), batch_of(models.look_ahead(), x))
    np.testing.assert_array_equal(first_again, kept)


def test_sessions_do_not_disturb_each_other(stream: Any) -> None:
    x, z = frames(1, 2, 24), frames(1, 2, 24, seed=5)
    a, b = stream.session(), stream.session()
    out_a, out_b = [], []
    for at in range(0, 24, 6):
        out_a.append(a.push(x[..., at : at + 6]))
        out_b.append(b.push(z[..., at : at + 6]))
    close(np.concatenate([*out_a, a.flush()], 2), batch_of(models.look_ahead(), x))
    close(np.concatenate([*out_b, b.flush()], 2), batch_of(models.look_ahead(), z))


def test_strided_views_are_fine(stream: Any) -> None:
    x = frames(2, TOTAL, 1).transpose(2, 0, 1)[:, :, ::-1]
    close(run_stream(stream.session(), x, [5, 13]), batch_of(models.look_ahead(), np.ascontiguousarray(x)))


# ---- the end


def test_after_flush(stream: Any) -> None:
    session, x = stream.session(), frames(1, 2, 8)
    session.push(x)
    session.flush()
    for closed in (lambda: session.push(x), session.flush):
        with pytest.raises(pulsify.SessionClosed, match=r"reset\(\)"):
            closed()
    session.reset()
    close(run_stream(session, x, [3]), batch_of(models.look_ahead(), x))


def test_reset_midway(stream: Any) -> None:
    session, x = stream.session(), frames(1, 2, TOTAL)
    session.push(frames(1, 2, 21, seed=9))
    session.reset()
    close(run_stream(session, x, [10]), batch_of(models.look_ahead(), x))


def test_too_short_to_flush_can_go_on() -> None:
    proto = models.valid()
    session, x = pulsify.stream(proto, pulse=4).session(), frames(1, 2, 14)
    early = session.push(x[..., :3])
    with pytest.raises(pulsify.InvalidLength, match=r"at least 5.*[Pp]ush more"):
        session.flush()
    rest = [session.push(x[..., 3:]), session.flush()]
    close(np.concatenate([early, *rest], 2), batch_of(proto, x))


def test_declared_multiples() -> None:
    proto = models.look_ahead()
    session, x = pulsify.stream(proto, pulse=8, set={"T": "4*n"}).session(), frames(1, 2, 20)
    first = session.push(x[..., :18])
    with pytest.raises(pulsify.InvalidLength, match="multiple of 4"):
        session.flush()
    close(np.concatenate([first, session.push(x[..., 18:]), session.flush()], 2), batch_of(proto, x))


# ---- several inputs, static inputs, integers


@pytest.mark.parametrize("cuts", [[9], [4, 4], [1] * 8, [0, 2, 5]], ids=str)
def test_two_rates(two_rates: Any, cuts: list[int]) -> None:
    slow, fast = frames(1, 2, 9), frames(1, 2, 36, seed=2)
    want = run_batch(models.two_rates(), {"slow": slow, "fast": fast})
    session = two_rates.session(padding=float("nan"))
    at = np.cumsum(cuts)
    chunks = zip(np.split(slow, at, 2), np.split(fast, 4 * at, 2), strict=True)
    results = [session.push({"slow": s, "fast": f}) for s, f in chunks] + [session.flush()]
    for name, array in want.items():
        close(np.concatenate([r[name] for r in results], 2), array)


def test_inputs_may_come_apart(two_rates: Any) -> None:
    """One input first, the other later: what is ready waits for both."""
    slow, fast = frames(1, 2, 9), frames(1, 2, 36, seed=2)
    want = run_batch(models.two_rates(), {"slow": slow, "fast": fast})
    session = two_rates.session()
    results = [session.push(slow=slow), session.push({"fast": fast[..., :7]}), session.push(fast=fast[..., 7:])]
    assert results[0]["sum"].shape[2] == 0
    results.append(session.flush())
    for name, array in want.items():
        close(np.concatenate([r[name] for r in results], 2), array)


def test_unequal_lengths_can_be_completed(two_rates: Any) -> None:
    slow, fast = frames(1, 2, 9), frames(1, 2, 36, seed=2)
    session = two_rates.session()
    first = session.push({"slow": slow, "fast": fast[..., :30]})
    with pytest.raises(pulsify.InvalidLength, match="not the same length"):
        session.flush()
    results = [first, session.push(fast=fast[..., 30:]), session.flush()]
    want = run_batch(models.two_rates(), {"slow": slow, "fast": fast})
    close(np.concatenate([r["sum"] for r in results], 2), want["sum"])


def test_static_inputs() -> None:
    proto, x, scale = models.conditioned(), frames(1, 2, TOTAL), frames(1, 3, 1, seed=3)
    stream = pulsify.stream(proto, pulse=8)
    assert [s.name for s in stream.statics] == ["scale"]
    want = run_batch(proto, {"x": x, "scale": scale})["y"]
    close(run_stream(stream.session(scale=scale), x, [5, 8]), want)
    close(run_stream(stream.session(statics={"scale": scale}), x, [5, 8]), want)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "missing.*scale"),
        ({"scale": frames(1, 3, 1), "other": 1}, "no option or static input 'other'"),
        ({"scale": frames(1, 3, 2)}, r"\[1, 3, 1\]"),
        ({"scale": frames(1, 3, 1).astype(np.float64)}, "float32"),
    ],
)
def test_wrong_static_inputs(given: dict[str, Any], says: str) -> None:
    stream = pulsify.stream(models.conditioned(), pulse=8, verify=False)
    with pytest.raises(pulsify.InvalidArgument, match=says):
        stream.session(**given)


def test_static_inputs_are_copied() -> None:
    proto, x, scale = models.conditioned(), frames(1, 2, TOTAL), frames(1, 3, 1, seed=3)
    want = run_batch(proto, {"x": x, "scale": scale})["y"]
    session = pulsify.stream(proto, pulse=8, verify=False).session(scale=scale)
    scale.fill(0)
    close(run_stream(session, x, [5, 8]), want)


def test_integer_input() -> None:
    proto = models.tokens()
    stream = pulsify.stream(proto, pulse=8)
    x = np.random.default_rng(0).integers(0, 7, (1, TOTAL))
    session = stream.session(padding=float("nan"))
    parts = [session.push(c) for c in np.split(x, [3, 20], 1)] + [session.flush()]
    close(np.concatenate(parts, 2), batch_of(proto, x))
    with pytest.raises(pulsify.InvalidChunk, match=r"int64.*astype"):
        stream.session().push(x.astype(np.int32))


def test_sound_of_several_channels_is_told_its_scale_too() -> None:
    session = pulsify.stream(models.look_ahead(1), pulse=4, verify=False).session()
    with pytest.raises(pulsify.InvalidChunk, match=r"sound is scaled .*32768\); what is no sound: .*astype"):
        session.push(np.zeros((1, 2, 4), np.int16))


def test_a_tensor_of_bfloat16_is_told_what_tensors_have() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    session = pulsify.stream(models.look_ahead(1), pulse=4, verify=False).session()
    with pytest.raises(pulsify.InvalidChunk, match=r"got bfloat16: convert it with \.to\(torch\.float32\)"):
        session.push(torch.zeros(1, 2, 4, dtype=torch.bfloat16))


def test_a_chunk_the_model_fails_on() -> None:
    """An index outside the table: the stream ends with an error that says how to go on."""
    session, good = pulsify.stream(models.tokens(), pulse=8).session(), np.zeros((1, 8), np.int64)
    session.push(good)
    before = session.state()
    with pytest.raises(pulsify.InvalidChunk, match=r"failed on this chunk.*reset\(\)"):
        session.push(good + 99)
    for use in (lambda: session.push(good), session.flush, session.state):
        with pytest.raises(pulsify.SessionClosed, match=r"model failed on an earlier chunk.*reset\(\).*restore\(\)"):
            use()
    session.restore(before)
    session.push(good)


def test_frames_made_before_the_model_failed_are_there() -> None:
    proto = models.tokens()
    session, good = pulsify.stream(proto, pulse=8).session(), np.random.default_rng(0).integers(0, 7, (1, 32))
    spoilt = good.copy()
    spoilt[0, 25] = 99
    with pytest.raises(pulsify.InvalidChunk):
        session.push(spoilt)
    close(session.made(), batch_of(proto, good)[..., :23])


def test_output_that_follows_from_the_length() -> None:
    proto = models.with_length()
    stream = pulsify.stream(proto, pulse=4)
    assert {o.name: o.axis for o in stream.outputs} == {"y": 2, "encoded_lengths": None}
    for total in (1, 4, 5, 12, 13):
        x = frames(1, 2, total)
        want = run_batch(proto, {"x": x, "length": np.array([total])})
        session = stream.session()
        first, last = session.push(x), session.flush()
        assert set(first) == {"y"}
        close(np.concatenate([first["y"], last["y"]], 2), want["y"])
        np.testing.assert_array_equal(last["encoded_lengths"], want["encoded_lengths"])


# ---- parallel streams


@pytest.mark.parametrize("make", [models.look_ahead, models.causal])
def test_batch_is_separate_streams(make: Any) -> None:
    stream = pulsify.stream(make(batch="B"), pulse=8)
    x = frames(3, 2, TOTAL)
    together = run_stream(stream.session(batch=3), x, [5, 20])
    for i in range(3):
        close(together[i : i + 1], run_stream(stream.session(), x[i : i + 1], [11]))
        close(together[i : i + 1], batch_of(make(), x[i : i + 1]))


def test_batch_of_static_inputs_and_lengths() -> None:
    proto, x, scale = models.conditioned(batch="B"), frames(3, 2, TOTAL), frames(3, 3, 1)
    session = pulsify.stream(proto, pulse=8).session(batch=3, scale=scale)
    close(run_stream(session, x, [9]), run_batch(proto, {"x": x, "scale": scale})["y"])
    proto = models.with_length(batch="B")
    session = pulsify.stream(proto, pulse=8).session(batch=3)
    session.push(x)
    np.testing.assert_array_equal(session.flush()["encoded_lengths"], [19, 19, 19])


def test_wrong_batch() -> None:
    fixed = pulsify.stream(models.causal(), pulse=8, verify=False)
    with pytest.raises(pulsify.InvalidArgument, match="dynamic batch"):
        fixed.session(batch=2)
    fixed.session(batch=1)
    free = pulsify.stream(models.causal(batch="B"), pulse=8, verify=False)
    wrongs: list[Any] = [0, -1, 1.5, "2", True]
    for wrong in wrongs:
        with pytest.raises(pulsify.InvalidArgument, match="batch="):
            free.session(batch=wrong)
    with pytest.raises(pulsify.InvalidChunk, match=r"\[2, 2, time\]"):
        free.session(batch=2).push(frames(3, 2, 8))


def test_fixed_batch_of_two() -> None:
    """A batch that is part of the model itself."""
    proto, x = models.look_ahead(batch=2), frames(2, 2, TOTAL)
    close(run_stream(pulsify.stream(proto, pulse=8).session(), x, [9]), batch_of(proto, x))


# ---- snapshots


@pytest.mark.parametrize("at", [0, 3, 8, 21, 36])
def test_restore_in_another_session(stream: Any, at: int) -> None:
    x = frames(1, 2, TOTAL)
    one, two = stream.session(), stream.session()
    first = one.push(x[..., :at])
    blob = one.state()
    one.push(frames(1, 2, 11, seed=4))  # whatever happens to the first afterwards
    two.push(frames(1, 2, 13, seed=5))  # and happened to the second before
    two.restore(blob)
    rest = [two.push(x[..., at:]), two.flush()]
    close(np.concatenate([first, *rest], 2), batch_of(models.look_ahead(), x))


def test_restore_goes_with_the_file(stream: Any, tmp_path: Any) -> None:
    """A stream saved and loaded elsewhere takes the state."""
    stream.save(tmp_path / "s.onnx")
    x, session = frames(1, 2, TOTAL), stream.session()
    first, other = session.push(x[..., :19]), pulsify.load(tmp_path / "s.onnx").session()
    other.restore(session.state())
    close(np.concatenate([first, other.push(x[..., 19:]), other.flush()], 2), batch_of(models.look_ahead(), x))


def test_restore_remembers_the_end(stream: Any) -> None:
    session = stream.session()
    session.push(frames(1, 2, 9))
    session.flush()
    other = stream.session()
    other.restore(session.state())
    with pytest.raises(pulsify.SessionClosed):
        other.flush()


def test_state_of_several_inputs_and_streams(two_rates: Any) -> None:
    slow, fast = frames(1, 2, 9), frames(1, 2, 36, seed=2)
    one, two = two_rates.session(), two_rates.session()
    first = one.push({"slow": slow[..., :6], "fast": fast[..., :30]})
    two.restore(one.state())
    results = [first, two.push({"slow": slow[..., 6:], "fast": fast[..., 30:]}), two.flush()]
    want = run_batch(models.two_rates(), {"slow": slow, "fast": fast})
    close(np.concatenate([r["sum"] for r in results], 2), want["sum"])
    free = pulsify.stream(models.look_ahead(batch="B"), pulse=8)
    three = free.session(batch=3)
    three.push(frames(3, 2, 11))
    with pytest.raises(pulsify.InvalidState, match="batch=3"):
        free.session(batch=2).restore(three.state())


def test_foreign_and_broken_states(stream: Any) -> None:
    session = stream.session()
    session.push(frames(1, 2, 21))
    blob = session.state()
    for other in (pulsify.stream(models.causal(), pulse=8), pulsify.stream(models.look_ahead(), pulse=16)):
        with pytest.raises(pulsify.InvalidState, match="another model or another pulse"):
            other.session().restore(blob)
    broken = [blob[:-1], blob[: len(blob) // 2], blob[:5], b"", b"\0" * 64, blob + b"x", "text", None]
    for wrong in broken:
        with pytest.raises(pulsify.InvalidState):
            session.restore(wrong)


def test_a_refused_state_changes_nothing(stream: Any) -> None:
    x, session = frames(1, 2, TOTAL), stream.session()
    first = session.push(x[..., :21])
    with pytest.raises(pulsify.InvalidState):
        session.restore(session.state()[:-8])
    close(np.concatenate([first, session.push(x[..., 21:]), session.flush()], 2), batch_of(models.look_ahead(), x))


def test_damaged_states_are_never_taken(stream: Any) -> None:
    """One to four bytes changed, the end cut off, or something behind it: always InvalidState."""
    session, rng = stream.session(), np.random.default_rng(0)
    session.push(frames(1, 2, 21))
    blob = session.state()
    for i in range(3000):
        damaged = bytearray(blob)
        if i % 10 == 0:
            damaged = damaged[: int(rng.integers(0, len(blob)))]
        elif i % 10 == 1:
            damaged += rng.bytes(int(rng.integers(1, 9)))
        else:
            places = rng.choice(len(blob), int(rng.integers(1, 5)), replace=False)
            for at in places:
                damaged[at] ^= int(rng.integers(1, 256))
        with pytest.raises(pulsify.InvalidState):
            session.restore(bytes(damaged))
    session.restore(blob)


def test_a_whole_header_with_other_contents_is_refused(stream: Any) -> None:
    """What was written by hand, and a state without a checksum."""
    from safetensors.numpy import save

    from pulsify.runtime import snapshot

    session = stream.session()
    states, backlog, counts = snapshot.load(session.state(), stream.spec, 1)
    del states[next(iter(states))]
    for wrong in (snapshot.save(states, backlog, counts, stream.spec), save({}, {"pulsify": "x"}), save({})):
        with pytest.raises(pulsify.InvalidState):
            session.restore(wrong)


# ---- two of one, and other manners


def test_a_fork_goes_its_own_way(stream: Any) -> None:
    x, z = frames(1, 2, TOTAL), frames(1, 2, TOTAL, seed=8)
    z[..., :21] = x[..., :21]
    session = stream.session()
    first = session.push(x[..., :21])
    for other in (session.fork(), copy.copy(session), copy.deepcopy(session)):
        close(np.concatenate([first, other.push(z[..., 21:]), other.flush()], 2), batch_of(models.look_ahead(), z))
    close(np.concatenate([first, session.push(x[..., 21:]), session.flush()], 2), batch_of(models.look_ahead(), x))
    with pytest.raises(TypeError, match=r"session\.state\(\)"):
        pickle.dumps(session)


def test_a_fork_has_the_static_inputs() -> None:
    proto, x, scale = models.conditioned(), frames(1, 2, TOTAL), frames(1, 3, 1, seed=3)
    session = pulsify.stream(proto, pulse=8, verify=False).session(scale=scale)
    first, other = session.push(x[..., :13]), session.fork()
    want = run_batch(proto, {"x": x, "scale": scale})["y"]
    close(np.concatenate([first, other.push(x[..., 13:]), other.flush()], 2), want)


def test_a_stream_is_pickled_with_sessions_open() -> None:
    proto, x = models.look_ahead("B"), frames(1, 2, TOTAL)
    stream = pulsify.stream(proto, pulse=8)
    run_stream(stream.session(), x, [9])
    pulsify.Pool(stream, 2)
    other = pickle.loads(pickle.dumps(stream))
    close(run_stream(other.session(), x, [9]), batch_of(proto, x))


def test_chunks_one_by_one_and_the_end_of_a_block(stream: Any) -> None:
    x = frames(1, 2, TOTAL)
    with stream.session() as session:
        parts = list(session.iterate(np.split(x, [3, 20], 2)))
    assert len(parts) == 4
    close(np.concatenate(parts, 2), batch_of(models.look_ahead(), x))
    with stream.session() as session:
        session.push(x)
    with pytest.raises(pulsify.SessionClosed, match="with block has ended"):
        session.push(x)


def test_a_session_in_a_line(stream: Any) -> None:
    session = stream.session()
    session.push(frames(1, 2, 11))
    assert repr(session) == "<pulsify.Session pulse=8 [x: 11 frames in]>"
    session.flush()
    assert repr(session).endswith("flushed>")


def test_only_what_is_public_shows() -> None:
    public = {name for name in dir(pulsify.Session) if not name.startswith("_")}
    assert public == {
        "aiterate", "batch", "closed", "flush", "fork", "iterate", "made", "peek", "placement", "push", "reset",
        "restore", "spec", "state",
    }  # fmt: skip


def test_opening_is_cheap() -> None:
    """Against running a pulse, which is what it is compared with by whoever waits for it."""
    stream = pulsify.stream(models.look_ahead(), pulse=8, verify=False)
    session, x = stream.session(), frames(1, 2, 8)
    for _ in range(20):
        session.push(x)
    opening = min(timeit.repeat(stream.session, number=20, repeat=20))
    pulse = min(timeit.repeat(lambda: session.push(x), number=20, repeat=20))
    assert opening < 6 * pulse  # more than 20 times as much when all was bound at once


# ---- refused chunks


def test_nan_is_refused_before_anything_is_taken(stream: Any) -> None:
    x, session = frames(1, 2, TOTAL), stream.session()
    first = session.push(x[..., :10])
    dirty = x[..., 10:30].copy()
    dirty[0, 1, 7] = np.nan
    with pytest.raises(pulsify.InvalidChunk, match=r"NaN at frame 17.*check=False"):
        session.push(dirty)
    close(np.concatenate([first, session.push(x[..., 10:]), session.flush()], 2), batch_of(models.look_ahead(), x))


def test_nan_in_one_of_two_inputs_takes_neither(two_rates: Any) -> None:
    slow, fast = frames(1, 2, 9), frames(1, 2, 36, seed=2)
    session = two_rates.session()
    with pytest.raises(pulsify.InvalidChunk, match="'fast' has NaN"):
        session.push({"slow": slow, "fast": np.full_like(fast, np.nan)})
    results = [session.push({"slow": slow, "fast": fast}), session.flush()]
    want = run_batch(models.two_rates(), {"slow": slow, "fast": fast})
    close(np.concatenate([r["sum"] for r in results], 2), want["sum"])


@pytest.mark.parametrize("value", [np.inf, -np.inf])
@pytest.mark.parametrize("count", [8, 13, 9000])
def test_infinity_is_refused_like_nan(stream: Any, value: float, count: int) -> None:
    """Whole pulses, ragged chunks, and long ones; large numbers are no infinite ones."""
    x = frames(1, 2, 8)
    dirty, session = np.full((1, 2, count), 3e38, np.float32), stream.session()
    dirty[0, 0, count - 2] = value
    session.push(x)
    with pytest.raises(pulsify.InvalidChunk, match=rf"infinite number at frame {8 + count - 2} .*check=False"):
        session.push(dirty)
    stream.session(check=False).push(dirty)
    session.push(np.full((1, 2, count), 3e38, np.float32))


def test_nan_let_through(stream: Any) -> None:
    x = frames(1, 2, TOTAL)
    x[0, 1, 17] = np.nan
    got, want = run_stream(stream.session(check=False), x, [9]), batch_of(models.look_ahead(), x)
    assert np.isnan(want).any()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    close(np.nan_to_num(got), np.nan_to_num(want))


WRONG_CHUNKS = {
    "dtype": (np.zeros((1, 2, 8)), r"float32, got float64.*astype"),
    "integers": (np.zeros((1, 2, 8), np.int64), "float32"),
    "channels": (np.zeros((1, 3, 8), np.float32), r"\[1, 2, time\].*axis 2.*\[1, 3, 8\]"),
    "rank": (np.zeros((2, 8), np.float32), r"\[1, 2, time\]"),
    "scalar": (np.float32(1), r"\[1, 2, time\]"),
    "time first": (np.zeros((8, 2, 1), np.float32), r"\[1, 2, time\]"),
    "no array": (object(), "float32"),
    "text": ("abc", "float32"),
    "ragged": ([[1.0], [1.0, 2.0]], "array"),
    "name": ({"z": np.zeros((1, 2, 8), np.float32)}, r"'z'.*'x'"),
}


@pytest.mark.parametrize("case", WRONG_CHUNKS)
def test_wrong_chunks_take_nothing(stream: Any, case: str) -> None:
    chunk, says = WRONG_CHUNKS[case]
    x, session = frames(1, 2, TOTAL), stream.session()
    first = session.push(x[..., :10])
    with pytest.raises(pulsify.InvalidChunk, match=says):
        session.push(chunk)
    close(np.concatenate([first, session.push(x[..., 10:]), session.flush()], 2), batch_of(models.look_ahead(), x))


def test_several_inputs_need_names(two_rates: Any) -> None:
    with pytest.raises(pulsify.InvalidChunk, match=r"'slow', 'fast'"):
        two_rates.session().push(frames(1, 2, 4))


# ---- long streams


def test_counters_are_set_back(stream: Any) -> None:
    """A stream that runs for weeks: the 32-bit counter is set back in time, and nothing shows."""
    x = frames(1, 2, 200)
    session = stream.session()
    limit = stream.spec.unknown_length
    first = session.push(x[..., :40])
    ahead = limit // 2 // stream.spec.rebase * stream.spec.rebase - 40  # as if so many frames had passed
    ahead -= ahead % stream.pulse
    session._stepper.rebase(-ahead)
    session._framer.pulses += ahead // stream.pulse
    session._framer.received["x"] += ahead
    parts = [session.push(c) for c in np.split(x[..., 40:], range(8, 160, 8), 2)]
    assert session._framer.rebased > 0
    close(np.concatenate([first, *parts, session.flush()], 2), batch_of(models.look_ahead(), x))


def test_granularity_and_figures() -> None:
    stream = pulsify.stream(models.strided())
    assert (stream.pulse, stream.granularity) == (4, 4)
    (x,), (y,) = stream.inputs, stream.outputs
    assert (x.name, x.axis, x.frames, str(x.rate)) == ("x", 2, 4, "1")
    assert (y.name, y.axis, y.frames) == ("y", 2, 1)
    assert str(y.rate) == "1/4"
    assert stream.state_bytes == sum(s.nbytes for s in stream.states) > 0
    assert all(s.node for s in stream.states)
    assert "pulse=4" in repr(stream)


@pytest.mark.parametrize(("pulse", "total"), list(itertools.product([4, 8, 20], [4, 7, 29])))
def test_strides(pulse: int, total: int) -> None:
    proto, x = models.strided(), frames(1, 2, total)
    close(run_stream(pulsify.stream(proto, pulse=pulse).session(), x, [3]), batch_of(proto, x))

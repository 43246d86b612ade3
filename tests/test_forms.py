"""What sessions run is not what is saved: rings, steady steps and fused attention, and they never show."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx_ir.passes import PassResult

import pulsify
from benchmarks.caches import attention
from benchmarks.encoder import chunk_encoder
from pulsify.backends.ort import forms, ring
from pulsify.backends.ort.attention import FuseAttention
from tests import models
from tests.attention.check import Batch
from tests.attention.graphs import Case, build
from tests.attention.masks import Mask

Array = np.ndarray[Any, Any]
CASES = {
    "joined_bias": Case(Mask("chunk", 4, 2), applied="add_inf"),
    "relative": Case(Mask("chunk", 4, 2), scheme="xl_nemo_slice"),
    "alibi_ahead": Case(Mask("token", 1, 5, 3), scheme="alibi", rank=4),
    "time_first": Case(Mask("token", 1, 7), product="time_first"),
    "einsum": Case(Mask("token", 1, 7), product="einsum"),
    "batched": Case(Mask("chunk", 4, 2), batch="B"),
}


def pieces(session: pulsify.Session, x: Array, cuts: list[int]) -> list[Array]:
    return [session.push(c) for c in np.split(x, np.cumsum(cuts), 1)]


@pytest.fixture(scope="module")
def encoder() -> pulsify.Stream:
    return pulsify.stream(chunk_encoder(2, width=32, heads=2, chunk=4, left=3), pulse=4)


def frames(count: int, width: int = 32, batch: int = 1) -> Array:
    return np.random.default_rng(3).standard_normal((batch, count, width)).astype(np.float32)


def ops(model: Any) -> set[str]:
    return {n.op_type for n in model.graph}


def test_sessions_run_rings_and_a_steady_step(encoder: pulsify.Stream) -> None:
    made = forms.forms(encoder.model, encoder.spec)
    assert [len(ring.caches) for ring in made.rings] == [4]  # keys and values of two layers
    assert made.steady is not None
    assert made.since == 3  # three chunks back
    assert {"ScatterND"} <= ops(made.general)
    assert {"ScatterND", "MultiHeadAttention"} <= ops(made.steady)
    assert ops(made.steady).isdisjoint({"Where", "Less", "GreaterOrEqual", "Concat"})


def test_the_saved_file_is_plain(encoder: pulsify.Stream, tmp_path: Any) -> None:
    encoder.save(tmp_path / "stream.onnx")
    proto = onnx.load(tmp_path / "stream.onnx")
    assert {n.op_type for n in proto.graph.node}.isdisjoint({"ScatterND", "TensorScatter", "MultiHeadAttention"})
    assert {o.domain for o in proto.opset_import} == {""}
    loaded = pulsify.load(tmp_path / "stream.onnx")
    assert loaded.warm == encoder.warm > 0
    x = frames(37)
    for portable in (False, True):
        session = loaded.session(portable=portable)
        y = np.concatenate([*pieces(session, x, [5, 9]), session.flush()], 1)
        wanted = next(iter(Batch(chunk_encoder(2, width=32, heads=2, chunk=4, left=3)).run({"x": x}).values()))
        np.testing.assert_allclose(y, wanted, rtol=0, atol=2e-6)


@pytest.mark.parametrize("at", [0, 3, 8, 21, 33])
@pytest.mark.parametrize("first", [True, False])
def test_a_stream_moves_between_forms(encoder: pulsify.Stream, at: int, first: bool) -> None:
    """A state taken from one form goes on in the other, cold or warm."""
    x = frames(54)
    one, other = encoder.session(portable=first), encoder.session(portable=not first)
    before = pieces(one, x[:, :at], [at // 2])
    other.push(frames(17))  # something to forget
    other.restore(one.state())
    after = [*pieces(other, x[:, at:], [1, 7]), other.flush()]
    plain = encoder.session(portable=True)
    np.testing.assert_allclose(
        np.concatenate([*before, *after], 1), np.concatenate([plain.push(x), plain.flush()], 1), rtol=0, atol=2e-6
    )


def test_a_warm_session_starts_again(encoder: pulsify.Stream) -> None:
    x = frames(41)
    session = encoder.session()
    first = np.concatenate([session.push(x), session.flush()], 1)
    session.reset()
    np.testing.assert_array_equal(np.concatenate([session.push(x), session.flush()], 1), first)


@pytest.mark.parametrize("name", CASES)
def test_rings_of_many_kinds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Portable and fast side by side, long enough for the ring to go round several times."""
    monkeypatch.setattr(ring, "_cost", lambda *args: 0)  # heads are so small here that turning costs more than it wins
    built = build(CASES[name])
    stream = pulsify.stream(built.model, pulse=4)
    feeds = built.feeds(90)
    batch = len(feeds["x"]) if stream.spec.batch else None
    results = []
    for portable in (True, False):
        session = stream.session(portable=portable, batch=batch, padding=float("nan"))
        results.append(np.concatenate([session.push(feeds["x"]), session.flush()], 1))
    np.testing.assert_allclose(results[1], results[0], rtol=0, atol=2e-6)
    if name not in ("einsum", "time_first"):  # an Einsum's columns are not followed; rings have the batch in front
        assert stream._program("batch").rings


def test_fused_attention_is_the_same_to_the_last_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    model = attention(4, 16, 4, 6)
    x = {n: frames(80, 64) * (i + 1) for i, n in enumerate("qkv")}
    results = []
    for fuse in (FuseAttention.call, lambda _, m: PassResult(m, False)):
        monkeypatch.setattr(FuseAttention, "call", fuse)
        stream = pulsify.stream(model, pulse=4, verify=False)
        results.append(stream.session().push(x))
    np.testing.assert_array_equal(results[0], results[1])


def test_a_long_cache_that_is_cheap_to_copy_stays_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring, "SMALLEST", 1 << 14)
    assert not pulsify.stream(chunk_encoder(1, width=32, heads=2, chunk=4, left=3), pulse=4)._program("batch").rings


def test_causal_convolutions_have_one_form() -> None:
    stream = pulsify.stream(models.causal(), pulse=4)
    assert stream.warm == 0
    general: Any = [stream._opened(kind) for kind in ("batch", "portable")]
    assert general[0].runner is general[1].runner

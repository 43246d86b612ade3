"""Caches of attention as rings in a pool: each stream is what it would be alone, whatever its age.

On a card the kernel is Triton's. Elsewhere torch's own operators stand in for it, with the very same rings.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pulsify
from tests.attention.build import Builder
from tests.attention.graphs import WIDTH, Case, build
from tests.attention.masks import Mask
from tests.models import Array, close, frames, run_batch
from tests.test_pool import PULSE, come_and_go
from tests.unit.backends.torch.test_slots import recording

torch = pytest.importorskip("torch")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BY = "pulsify.backends.torch.backend.attention_by"
MODES = ["eager", "graph"] if DEVICE == "cuda" else ["eager"]
HERE: dict[str, Any] = {"backend": "torch", "options": {"device": DEVICE}}
CASES: dict[str, Case] = {
    "chunks": Case(Mask("chunk", 4, left=2), batch="B"),
    "tokens": Case(Mask("token", left=7), batch="B", applied="add_inf"),
    "window within a pulse": Case(Mask("token", left=2), batch="B"),  # fewer frames are kept than are new
    "shift": Case(Mask("chunk", 4, left=2), batch="B", scheme="xl_nemo_slice", scale="after"),
    "two layers": Case((Mask("chunk", 4, left=1), Mask("chunk", 4, left=3)), batch="B"),
    "one head": Case(Mask("chunk", 4, left=2), batch="B", layout="single"),
}


@pytest.fixture
def rings(monkeypatch: pytest.MonkeyPatch) -> Callable[[pulsify.Pool], int]:
    """How many caches of a pool are rings, with somebody who keeps them so."""
    monkeypatch.setattr(BY, lambda device, low: "triton")
    return lambda pool: len(pool._slots._rings)  # type: ignore[attr-defined]


def test_which_caches_are_rings(rings: Callable[[pulsify.Pool], int]) -> None:
    found = {}
    for name, case in CASES.items():
        pool = pulsify.Pool(pulsify.stream(build(case).model, pulse=PULSE, verify=False), 3, **HERE)
        pool.open()
        found[name] = rings(pool)
    assert found == {name: 4 if name == "two layers" else 2 for name in CASES}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_streams_come_and_go(name: str, mode: str, seed: int) -> None:
    """Starts, middles and ends in one batch, padding that is NaN, slots used anew."""
    proto = build(CASES[name]).model
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BY, lambda device, low: "triton")
        stream = pulsify.stream(proto, pulse=PULSE, verify=False)
        options = {"device": DEVICE, "mode": mode}
        pool = pulsify.Pool(stream, 3, padding=float("nan"), backend="torch", options=options)
        driven = come_and_go(pool, (1, -1, WIDTH), 1, seed)
    for d in driven:
        close(np.concatenate(d.out, 1), run_batch(proto, d.x)["y"])


@pytest.mark.usefixtures("rings")
@pytest.mark.parametrize("name", CASES)
def test_a_stream_moves_between_a_ring_and_what_has_none(name: str) -> None:
    proto, x = build(CASES[name]).model, frames(1, 61, WIDTH)
    stream = pulsify.stream(proto, pulse=PULSE, verify=False)
    pools = [pulsify.Pool(stream, 2, **HERE), pulsify.Pool(stream, 2), pulsify.Pool(stream, 3, **HERE)]
    parts, state, cuts = list[Array](), b"", [0, 21, 27, 48, 61]
    for turn, (start, end) in enumerate(pairwise(cuts)):
        pool = pools[turn % 3]
        other, lane = pool.open(), pool.open()
        other.push(frames(1, 4 * turn + 9, WIDTH, seed=turn))
        if state:
            lane.restore(state)
        lane.push(x[:, start:end])
        parts.append(pool.run()[lane])
        state = lane.state()
        if end < 61:
            lane.close()
            other.close()
    lane.flush()
    parts.append(pool.run()[lane])
    close(np.concatenate(parts, 1), run_batch(proto, x)["y"])


@pytest.mark.usefixtures("rings")
def test_nan_in_one_stream_stays_there_and_leaves_with_it() -> None:
    proto = build(CASES["chunks"]).model
    pool = pulsify.Pool(pulsify.stream(proto, pulse=PULSE, verify=False), 3, check=False, **HERE)
    lanes, x = [pool.open() for _ in range(3)], frames(3, 40, WIDTH)
    x[1, 17:] = np.nan
    for n in range(0, 40, PULSE):
        made = pool.exchange(lanes, x[:, n : n + PULSE])
        assert all(np.isfinite(made.of(i)).all() for i in (0, 2))
    assert np.isnan(made.of(1)).all()
    slot = lanes[1].slot
    lanes[1].close()
    again = pool.open()
    assert again.slot == slot
    again.push(x[0][None])
    again.flush()
    close(pool.run()[again], run_batch(proto, x[:1])["y"])


@pytest.mark.skipif(DEVICE == "cuda", reason="there it is recorded by the card: tests/gpu")
@pytest.mark.usefixtures("rings")
@pytest.mark.parametrize("name", CASES)
def test_a_recorded_session_keeps_rings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recording runs a step several times: nothing of that stays in a ring."""
    recording(monkeypatch)
    proto = build(CASES[name]).model
    stream = pulsify.stream(proto, pulse=PULSE, verify=False)
    session, plain = stream.session(batch=3, backend="torch", device="cpu"), stream.session(batch=3)
    assert len(session._stepper._rings) == (4 if name == "two layers" else 2)  # type: ignore[attr-defined]
    for length in (1, 4, 19, 61):
        x, parts = frames(3, length, WIDTH, seed=length), list[Array]()
        for n in range(0, length, 7):
            if n == 28:  # over to another back end and back again
                plain.restore(session.state())
                parts.append(plain.push(x[:, n : n + 7]))
                session.restore(plain.state())
            else:
                parts.append(session.push(x[:, n : n + 7]))
        parts.append(session.flush())
        close(np.concatenate(parts, 1), run_batch(proto, x)["y"])
        session.reset()


@pytest.mark.usefixtures("rings")
def test_keys_of_one_head_for_all_queries_are_joined() -> None:
    """They are spread over heads for the kernel, which a ring in memory is not."""
    b, width = Builder(3), 8

    def heads(count: int) -> str:
        product = b.op("MatMul", "x", b.weight(width, 4 * count, scale=0.5))
        return b.transpose(b.reshape(product, 0, 0, count, 4), 0, 2, 1, 3)

    q, k, v = heads(2), heads(1), heads(1)
    chunk = b.op("Div", b.range(b.size("x", 1)), b.scalar(4))
    apart = b.op("Sub", b.unsqueeze(chunk, 1), b.unsqueeze(chunk, 0))
    near = b.op("And", b.op("GreaterOrEqual", apart, b.scalar(0)), b.op("LessOrEqual", apart, b.scalar(2)))
    scores = b.op("Where", near, b.op("MatMul", q, b.transpose(k, 0, 1, 3, 2)), b.const(-np.inf))
    made = b.op("MatMul", b.op("Softmax", scores, axis=-1), v)
    b.op("Identity", b.reshape(b.transpose(made, 0, 2, 1, 3), 0, 0, -1), called="y")
    proto = b.model({"x": (["B", "T", width], np.float32)}, {"y": (3, np.float32)})
    pool = pulsify.Pool(pulsify.stream(proto, pulse=PULSE, verify=False), 3, **HERE)
    lane, x = pool.open(), frames(1, 30, width)
    lane.push(x)
    lane.flush()
    close(pool.run()[lane], run_batch(proto, x)["y"])
    assert len(pool._slots._rings) == 0  # type: ignore[attr-defined]


@pytest.mark.usefixtures("rings")
def test_an_input_may_be_called_as_a_ring_is() -> None:
    built = build(CASES["chunks"])
    proto = type(built.model).FromString(built.model.SerializeToString())
    for node in proto.graph.node:
        node.input[:] = ["ring_start_8_4" if name == "x" else name for name in node.input]
    proto.graph.input[0].name = "ring_start_8_4"
    pool = pulsify.Pool(pulsify.stream(proto, pulse=PULSE, verify=False), 2, **HERE)
    lane, x = pool.open(), frames(1, 30, WIDTH)
    lane.push(x)
    lane.flush()
    close(pool.run()[lane], run_batch(built.model, x)["y"])

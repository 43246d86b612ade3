"""Random models of running sums and what rounds the same wherever it is computed: their streams have batch's bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pulsify
from pulsify.core.chunks import chunking
from tests.models import Array, model, node, run_batch
from tests.recurrence.test_long_sums import offset, same_bits, streamed

KINDS = ("sum", "exclusive", "later", "earlier", "largest", "scaled", "less", "every_other")
Step = tuple[str, int]


def program(steps: Sequence[Step], batch: int | str) -> onnx.ModelProto:
    """Steps one after the other, and what came before the last beside it."""
    nodes: list[onnx.NodeProto] = []
    values: dict[str, Any] = {
        "axis": np.array(2), "two": np.array([2]), "zero": np.array([0]), "far": np.array([2**62]),
        "third": np.float32(1 / 3), "by2": np.array([2]),
    }  # fmt: skip

    def op(kind: str, inputs: str, **attributes: Any) -> str:
        nodes.append(node(kind, inputs, f"v{len(nodes)}", **attributes))
        return str(nodes[-1].output[0])

    def cut(x: str, start: str, end: str) -> str:
        return op("Slice", f"{x} {start} {end} two")

    def shifted(x: str, k: int) -> str:
        """k frames later, or earlier, filled with zeros."""
        name = f"pads{len(nodes)}"
        values[name] = np.array([0, 0, max(k, 0), 0, 0, max(-k, 0)])
        values[f"{name}_at"] = np.array([-k])
        padded = op("Pad", f"{x} {name}")
        return cut(padded, "zero", f"{name}_at") if k > 0 else cut(padded, f"{name}_at", "far")

    x = "x"
    for kind, k in steps:
        if kind in ("sum", "exclusive"):
            x = op("CumSum", f"{x} axis", exclusive=int(kind == "exclusive"))
        elif kind in ("later", "earlier"):
            x = shifted(x, k if kind == "later" else -k)
        elif kind == "largest":
            x = op("MaxPool", x, kernel_shape=[2 * k + 1], pads=[k, k])
        elif kind == "scaled":
            x = op("Mul", f"{x} third")
        elif kind == "less":
            x = op("Sub", f"{x} {shifted(x, k)}")
        else:
            name = f"start{len(nodes)}"
            values[name] = np.array([k % 2])
            x = op("Slice", f"{x} {name} far two by2")
    nodes.append(node("Identity", x, "y"))
    read = {name for n in nodes for name in n.input}
    return model(nodes, {"x": [batch, 2, "T"]}, ["y"], {k: v for k, v in values.items() if k in read})


STEPS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 9)), max_size=4)


def with_sums(before: Sequence[Step], after: Sequence[Step], exclusive: bool) -> list[Step]:
    return [*before, ("exclusive" if exclusive else "sum", 1), *after]


PROGRAMS = st.builds(with_sums, STEPS, STEPS, st.booleans())


@pytest.mark.parametrize("backend", ["ort", "native", "torch"])
@settings(max_examples=8, deadline=None)
@given(steps=PROGRAMS, factor=st.integers(1, 9), batch=st.sampled_from([1, 3]), length=st.integers(40, 900))
def test_any_program_at_any_pulse(backend: str, steps: list[Step], factor: int, batch: int, length: int) -> None:
    proto, x = program(steps, "B"), offset(batch, 2, length, seed=length)
    x[..., : length % 7] = -0.0
    stream = pulsify.stream(proto, verify=False)
    stream = pulsify.stream(proto, stream.granularity * factor, verify=False)
    want = run_batch(proto, x)["y"]
    for size in (1, 50):
        same_bits(streamed(stream, x, size * stream.granularity, backend, batch=batch), want)


@pytest.mark.parametrize("backend", ["ort", "native"])
@settings(max_examples=6, deadline=None)
@given(steps=PROGRAMS, factor=st.integers(1, 9), seed=st.integers(0, 99))
def test_streams_of_a_pool_that_come_and_go(backend: str, steps: list[Step], factor: int, seed: int) -> None:
    proto, rng = program(steps, "B"), np.random.default_rng(seed)
    stream = pulsify.stream(proto, verify=False)
    stream = pulsify.stream(proto, stream.granularity * factor, verify=False)
    pool = pulsify.Pool(stream, 3, backend=backend)
    waiting = [offset(1, 2, int(n), seed=int(n)) for n in rng.integers(40, 400, 6)]
    live: list[tuple[Any, Array, list[int], int]] = []
    parts: dict[Any, list[Array]] = {}
    ended: list[tuple[Any, Array]] = []
    while waiting or live:
        while waiting and len(live) < 3:
            x, lane = waiting.pop(), pool.open()
            live.append((lane, x, chunking("random", x.shape[-1], 3 * stream.pulse, rng), 0))
            parts[lane] = []
        going = []
        for lane, x, sizes, at in live:
            lane.push(x[..., at : at + sizes[0]])
            if sizes[1:]:
                going.append((lane, x, sizes[1:], at + sizes[0]))
            else:
                lane.flush()
                ended.append((lane, x))
        live = going
        for lane, result in pool.run().items():
            parts[lane].append(result)
    for lane, x in ended:
        same_bits(np.concatenate(parts[lane], -1), run_batch(proto, x)["y"])


@pytest.mark.parametrize("backend", ["ort", "native"])
def test_beyond_where_the_position_is_set_back(backend: str) -> None:
    """A look-ahead needs the position, which is set back half-way to where the stream's length is unknown."""
    proto, x = program([("earlier", 5), ("sum", 1), ("less", 9)], 1), offset(1, 2, 20_000)
    stream = pulsify.stream(proto, 100, verify=False)
    session = stream.session(backend=backend, padding=float("nan"))
    first = session.push(x[..., :10_000])
    ahead = stream.spec.unknown_length // 2 // stream.spec.rebase * stream.spec.rebase - 12_000
    ahead -= ahead % stream.pulse
    session._stepper.rebase(-ahead)  # as if so many frames had passed
    session._framer.pulses += ahead // stream.pulse
    session._framer.received["x"] += ahead
    parts = [session.push(chunk) for chunk in np.split(x[..., 10_000:], range(700, 10_000, 700), -1)]
    assert session._framer.rebased > 0
    same_bits(np.concatenate([first, *parts, session.flush()], -1), run_batch(proto, x)["y"])

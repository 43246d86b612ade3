"""Relative positions behind strides and poolings, drawn at random: exact, or refused with what changes.

PULSIFY_EXAMPLES=300 pytest -m slow tests/attention/test_relative.py: many.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

import pulsify
from pulsify.core.chunks import chunkings
from tests.attention.check import difference, run_stream
from tests.attention.relative import (
    CHANGES,
    FORMS,
    FRONTS,
    PRODUCTS,
    ROWS,
    SHIFTS,
    STEPS,
    BuiltRelative,
    Relative,
    build,
)
from tests.side import Batch

FEW, MANY = 5, int(os.environ.get("PULSIFY_EXAMPLES", "300"))


def drawn(seed: int) -> Relative:
    rng = np.random.default_rng(seed)

    def one(of: tuple[str, ...]) -> str:
        return str(rng.choice(of))

    steps = tuple(s for s in STEPS if rng.random() < 0.3)
    return Relative(
        front=tuple((one(FRONTS), int(rng.integers(2, 5))) for _ in range(rng.integers(0, 3))),
        rows=one(ROWS),
        form=one(FORMS),
        steps=tuple(np.array(steps)[rng.permutation(len(steps))].tolist()),
        product=one(PRODUCTS),
        shift=one(SHIFTS),
        chunk=int(rng.integers(1, 4)),
        back=int(rng.integers(0, 4)),
        batch="B" if rng.random() < 0.4 else 1,
    )


def check(case: Relative, seed: int) -> None:
    built, rng = build(case), np.random.default_rng(seed)
    stream = pulsify.stream(built.model, verify=False)
    batch, by = Batch(built.model), case.stride
    compared = 0
    for length in (1, by, *(int(n) for n in rng.integers(1, 18 * by, 4)), 13 * by + 1, 19 * by, 23 * by + 1):
        feeds = built.feeds(length)
        wanted = batch.attempt(feeds)
        if wanted is None or not wanted["y"].shape[1]:
            continue  # too short
        try:
            for cuts in chunkings(length, stream.pulse, rng):
                problem = difference(run_stream(stream, built, feeds, cuts)["y"], wanted["y"])
                assert not problem, f"seed {seed} length {length} cuts {cuts[:5]}: {problem}"
        except pulsify.PulsifyError:
            assert length <= 64 * by
            continue
        compared += 1
    assert compared > 2


@pytest.mark.parametrize("seed", range(FEW))
def test_drawn(seed: int) -> None:
    check(drawn(seed), seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(FEW, MANY))
def test_drawn_many(seed: int) -> None:
    check(drawn(seed), seed)


def rows_differ(built: BuiltRelative, by: int) -> bool:
    """Does an output frame that is far from both ends change with what comes far behind it? By brute force."""
    batch = Batch(built.model)
    seen = []
    for frames in (40, 41, 42, 57):
        x = built.feeds(60 * by)["x"][:, : frames * by]
        seen.append(batch.run({"x": x})["y"][:, :16])
    return any(np.abs(s - seen[0]).max() > 1e-4 for s in seen)


@pytest.mark.parametrize("front", [(), (("pool", 3),)], ids=["plain", "pooled"])
@pytest.mark.parametrize("change", CHANGES)
def test_tables_that_change_with_the_length_are_refused(change: str, front: tuple[tuple[str, int], ...]) -> None:
    case = Relative(front=front, change=change, chunk=2, back=1)
    built = build(case)
    assert rows_differ(built, case.stride)
    with pytest.raises(pulsify.NotStreamable, match="depend on the length of the stream") as caught:
        pulsify.stream(built.model, verify=False)
    assert caught.value.node in {n.name for n in built.model.graph.node}
    assert "j - i" in (caught.value.hint or "")

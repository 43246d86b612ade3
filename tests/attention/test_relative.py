"""Relative positions behind strides and poolings, drawn at random: exact, or refused with what changes.

PULSIFY_EXAMPLES=300 pytest -m slow tests/attention/test_relative.py --hypothesis-show-statistics: many.
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

import pulsify
from pulsify.core.chunks import chunkings
from tests.attention.check import difference, run_stream
from tests.attention.relative import (
    CHANGES,
    FORMS,
    FRONTS,
    LONGEST,
    PRODUCTS,
    ROWS,
    SHIFTS,
    STEPS,
    BuiltRelative,
    Relative,
    build,
)
from tests.side import Batch

QUIET = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much]}
FEW = settings(max_examples=5, derandomize=True, database=None, **QUIET)
MANY = settings(max_examples=int(os.environ.get("PULSIFY_EXAMPLES", "300")), print_blob=True, **QUIET)


@st.composite
def cases(draw: st.DrawFn) -> Relative:
    """One in four has a table that depends on the length."""
    change = draw(st.sampled_from(sorted(CHANGES))) if draw(st.integers(0, 3)) == 3 else ""
    forms = [f for f in FORMS if not change or f != "learned_clamped"]  # clamped, few changes show
    if change == "scaled":
        forms = ["sin", "interleaved"]  # learned tables would end early
    return Relative(
        front=tuple(draw(st.lists(st.tuples(st.sampled_from(FRONTS), st.integers(2, 4)), max_size=2))),
        rows=draw(st.sampled_from(ROWS)),
        form=draw(st.sampled_from(forms)),
        steps=tuple(draw(st.lists(st.sampled_from(STEPS), max_size=4, unique=True))),
        product=draw(st.sampled_from(PRODUCTS)),
        shift=draw(st.sampled_from(SHIFTS)),
        chunk=draw(st.integers(1, 3)),
        back=draw(st.integers(1 if change else 0, 3)),  # of a single frame the weight is one, whatever its score
        batch=draw(st.sampled_from((1, 1, "B"))),
        change=change,
    )


def check(case: Relative, seed: int) -> None:
    built, refusal = build(case), None
    try:
        stream = pulsify.stream(built.model, verify=False)
    except pulsify.NotStreamable as problem:
        refusal = str(problem)
    if refusal is None:
        event("streamed")
        compare(case, built, stream, np.random.default_rng(seed))
    else:
        event(f"refused: {case.change}")
        assert "depend on the length of the stream" in refusal
        assert rows_differ(built, case.stride), f"nothing changes: {refusal}"


def compare(case: Relative, built: BuiltRelative, stream: pulsify.Stream, rng: np.random.Generator) -> None:
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
                assert not problem, f"length {length} cuts {cuts[:5]}: {problem}"
        except pulsify.PulsifyError:
            assert length <= 64 * by
            continue
        compared += 1
    assert compared > 2


@FEW
@given(cases(), st.integers(0, 999))
def test_drawn(case: Relative, seed: int) -> None:
    check(case, seed)


@pytest.mark.slow
@MANY
@given(cases(), st.integers(0, 999))
def test_drawn_many(case: Relative, seed: int) -> None:
    check(case, seed)


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


@pytest.mark.parametrize("front", [(), (("pool", 3),)], ids=["plain", "pooled"])
@pytest.mark.parametrize("rows", [24, 28, 32])
def test_a_table_may_end_before_all_of_a_mask_was_seen(rows: int, front: tuple[tuple[str, int], ...]) -> None:
    """How far attention looks follows from the mask: its lengths are no matter of what scores are made of."""
    case = Relative(front=front, form="learned_slice", chunk=4, back=2, longest=rows)
    built, longer = build(case), build(replace(case, longest=LONGEST))
    stream = pulsify.stream(built.model, verify=False)
    last = (rows + 1) * case.stride - 1
    assert stream.proof.horizon > last
    batch, other = Batch(built.model), Batch(longer.model)
    lengths = [case.stride, last - 5, *range(last, last + 3 * case.stride), 90 * case.stride + 1]
    ended = False
    for n in lengths:
        feeds, cuts = built.feeds(n), [n // 2, n - n // 2]
        if n > last and batch.attempt(feeds) is not None:  # on a slice that is cut short
            with pytest.raises(pulsify.InvalidLength):
                run_stream(stream, built, feeds, cuts)
            continue
        ended |= n > last
        assert not difference(run_stream(stream, built, feeds, cuts)["y"], other.run(feeds)["y"]), n
    assert ended

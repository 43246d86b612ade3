"""Attention drawn at random: mask, writing, application, scheme, heads, layout, rates, pulse and lengths.

PULSIFY_EXAMPLES=2000 pytest -m slow tests/attention/test_property.py: many, from a random seed.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st

from tests.attention.check import check
from tests.attention.graphs import APPLIED, KEYS, LAYOUTS, PADDINGS, PRODUCTS, RANKS, SCALES, Case, build
from tests.attention.known import FINITE, failure
from tests.attention.masks import LOGICS, POSITIONS, TRIL, Mask, Writing
from tests.attention.positions import SCHEMES

BATCHES: st.SearchStrategy[int | str] = st.sampled_from((1, "B"))
BOUNDED = ("chunk", "token", "chunk_causal", "chunk_token", "block", "dilated", "strided", "columns")
QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
FEW = settings(max_examples=6, derandomize=True, database=None, deadline=None, suppress_health_check=QUIET)
MANY = settings(
    max_examples=int(os.environ.get("PULSIFY_EXAMPLES", "500")),
    derandomize=False,
    print_blob=True,
    deadline=None,
    suppress_health_check=QUIET,
)


@st.composite
def masks(draw: st.DrawFn) -> Mask:
    kind = draw(st.sampled_from(BOUNDED))
    chunk = draw(st.integers(1, 6))
    left = draw(st.integers(0, 3 if kind in ("chunk", "chunk_causal") else 12))
    right = draw(st.integers(0, 2)) if kind in ("chunk", "token", "dilated") else 0
    return Mask(kind, chunk, left, right)


@st.composite
def writings(draw: st.DrawFn, kinds: tuple[str, ...]) -> Writing:
    allowed = [p for p in POSITIONS if p != "tril" or all(k in TRIL for k in kinds)]
    return Writing(draw(st.sampled_from(allowed)), draw(st.sampled_from(LOGICS)))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any combination that is a model at all, less what is known not to work yet."""
    mask = tuple(draw(st.lists(masks(), min_size=1, max_size=2)))
    layout, product = draw(st.sampled_from(LAYOUTS)), draw(st.sampled_from(PRODUCTS))
    assume(layout == "heads" or product not in ("einsum_time", "time_first"))
    keys = draw(st.sampled_from(("same", "same", *KEYS)))
    scheme = draw(st.sampled_from(SCHEMES))
    padding = draw(st.sampled_from(("", "", *PADDINGS)))
    applied = draw(st.sampled_from(APPLIED))
    case = Case(
        mask=mask,
        writing=draw(writings(tuple(m.kind for m in mask))),
        applied=applied,
        scheme=scheme,
        product=product,
        layout=layout,
        heads=draw(st.sampled_from((1, 2, 4))),
        rank=draw(st.sampled_from(RANKS[layout])),
        scale=draw(st.sampled_from(SCALES)),
        padding=padding,
        keys=keys,
        subsample=draw(st.booleans()),
        cross=draw(st.booleans()),
        batch=draw(BATCHES),
    )
    assume(valid(case))
    assume(not failure(case))
    return case


def valid(case: Case) -> bool:
    """Is it a model whose batch answer a stream can give?"""
    form = case.scheme.split("_")[1] if case.scheme.startswith("xl_") else ""
    finite = case.applied in FINITE
    wrong = (
        bool(form or case.scheme == "relative_key" or case.padding) and case.keys != "same",
        form == "hf" and case.product != "time_first",
        form in ("legacy", "hf") and any(m.right or m.aligned != 1 for m in case.masks),  # the table has no j > i
        bool(form) and case.layout == "folded" and case.batch != 1,
        bool(case.padding) and case.layout == "folded",
        case.padding not in ("", "length") and (case.subsample or finite),
        case.scale == "after" and case.applied in ("where_1e4", "where_not_1e4"),  # no longer low enough
        case.keys == "slow_queries" and len(case.masks) > 1 and case.cross,
        case.writing.positions == "tril" and case.keys != "same",  # a diagonal at another rate
        # a row without keys is NaN, and so is everything that looks at it with -inf added
        case.padding in ("bool", "float", "keys")
        and (case.applied.endswith("inf") or case.applied == "narrow")
        and len(case.masks) > 1,
        finite and not all(_sees(m, case.keys) for m in case.masks),
    )
    return not any(wrong)


def _sees(mask: Mask, keys: str) -> bool:
    """Has every row a key, whatever the length? If not, and masked scores are finite, it looks at all keys alike."""
    i, j = np.arange(60)[:, None], np.arange(0, 60, 1 if keys in ("same", "slow_queries") else 2)[None]
    shown = mask.allows(i, j)
    return all((shown[:n] & (j < n)).any(1).all() for n in range(1, 61))


def run(case: Case, data: st.DataObject) -> None:
    pulse: Any = data.draw(st.integers(1, 9), label="pulse")
    if case.subsample:
        pulse *= 2
    if case.keys != "same":
        pulse *= 2 ** (len(case.masks) if case.keys == "slow_queries" else 1)
    lengths = data.draw(st.lists(st.integers(1, 60), min_size=3, max_size=3), label="lengths")
    note(f"check(build({case!r}), {pulse}, {lengths})")
    check(build(case), pulse, lengths)


@FEW
@given(cases(), st.data())
def test_drawn(case: Case, data: st.DataObject) -> None:
    run(case, data)


@pytest.mark.slow
@MANY
@given(cases(), st.data())
def test_drawn_many(case: Case, data: st.DataObject) -> None:
    run(case, data)

"""Recurrences drawn at random: kind, layout, sizes, states, delays before and behind, pulse, lengths.

PULSIFY_EXAMPLES=2000 pytest -m slow tests/recurrence/test_property.py: many, from a random seed.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from tests.recurrence.build import GATES, INITIAL, LENGTHS, Built, Cell, Window
from tests.recurrence.check import check
from tests.recurrence.graphs import (
    ACTIVATIONS,
    DIRECTIONS,
    Case,
    activations,
    cumulative_layer_norm,
    dual_path,
    graph,
    linear_attention,
    product,
    running_mean,
    stacked,
    summed,
)

QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
MANY = settings(
    max_examples=int(os.environ.get("PULSIFY_EXAMPLES", "500")),
    derandomize=False,
    print_blob=True,
    deadline=None,
    suppress_health_check=QUIET,
)
BATCHES: st.SearchStrategy[int | str] = st.sampled_from((1, "B", 2))
SMOOTH = [a for a in ACTIVATIONS if a != "ThresholdedRelu"]  # a jump would tell apart what rounding may not


def few(count: int) -> settings:
    """Always the same ones; a failure is made small, the rest is left to the long run."""
    return settings(
        max_examples=count, derandomize=True, database=None, deadline=None, suppress_health_check=QUIET,
        phases=(Phase.explicit, Phase.generate, Phase.shrink), report_multiple_bugs=False,
    )  # fmt: skip


# ---- models


@st.composite
def windows(draw: st.DrawFn, strides: int = 1) -> Window:
    kernel = draw(st.integers(1, 6))
    before, ahead = draw(st.integers(0, kernel - 1)), draw(st.integers(0, kernel - 1))
    return Window(kernel, before, ahead, draw(st.integers(1, strides)))


@st.composite
def same_windows(draw: st.DrawFn) -> Window:
    """As many frames as before."""
    kernel = draw(st.integers(1, 6))
    ahead = draw(st.integers(0, kernel - 1))
    return Window(kernel, kernel - 1 - ahead, ahead)


@st.composite
def attributes(draw: st.DrawFn, op: str) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if draw(st.booleans()):
        out["clip"] = draw(st.sampled_from((0.3, 1.0, 3.0)))
    if op == "GRU":
        out["linear_before_reset"] = draw(st.integers(0, 1))
    if op == "LSTM" and draw(st.integers(0, 3)) == 0:
        out["input_forget"] = 1
    if draw(st.integers(0, 2)) == 0:
        gate = [] if op == "RNN" else [draw(st.sampled_from(("Sigmoid", "HardSigmoid")))]
        names = [*gate, draw(st.sampled_from((*SMOOTH, "Tanh"))), *(["Tanh"] if op == "LSTM" else [])]
        out |= activations(*names)
    return out


@st.composite
def cells(draw: st.DrawFn, batch: int | str, layouts: tuple[int, ...], whole: bool) -> Cell:
    """whole: there are as many frames as the stream has."""
    op = draw(st.sampled_from(sorted(GATES)))
    no_constant = ("zero", "constant") if isinstance(batch, str) else ()
    initial = [i for i in INITIAL if i not in no_constant and (op == "LSTM" or i != "hidden")]
    return Cell(
        op,
        hidden=draw(st.integers(1, 4)),
        layout=draw(st.sampled_from(layouts)),
        initial=draw(st.sampled_from(initial)),
        lengths=draw(st.sampled_from([n for n in LENGTHS if whole or n != "input"])),
        bias=draw(st.booleans()),
        peepholes=op == "LSTM" and draw(st.booleans()),
        attributes=draw(attributes(op)),
    )


@st.composite
def cases(draw: st.DrawFn, layouts: tuple[int, ...] = (0,)) -> Case:
    batch = draw(BATCHES)
    front = draw(st.one_of(st.none(), same_windows(), windows(strides=3)))
    whole = front is None or (front.stride == 1 and front.before + front.ahead == front.kernel - 1)
    stack = draw(st.lists(cells(batch, layouts, whole), min_size=1, max_size=3))
    raw = len(stack) == 1 and front is None and draw(st.booleans())
    back = None if raw else draw(st.one_of(st.none(), windows(strides=2)))
    finals = draw(st.booleans())
    return Case(
        tuple(stack), front, back, raw, finals, alone=finals and draw(st.integers(0, 4)) == 0,
        residual=not raw and draw(st.booleans()), batch=batch,
    )  # fmt: skip


@st.composite
def dual_paths(draw: st.DrawFn) -> Built:
    batch, front = draw(BATCHES), draw(st.one_of(st.none(), windows()))
    first = Cell(draw(st.sampled_from(sorted(GATES))), draw(st.integers(1, 3)), draw(st.sampled_from(DIRECTIONS)))
    initial, lengths = draw(st.sampled_from(("", "computed"))), draw(st.sampled_from(("", "shape")))
    then = Cell(draw(st.sampled_from(sorted(GATES))), draw(st.integers(1, 3)), initial=initial, lengths=lengths)
    blocks = draw(st.integers(1, 2))
    note(f"dual_path({first}, {then}, {blocks}, {front}), batch={batch!r}")
    write = dual_path(first, then, blocks, front)
    return graph(write, batch=batch, shortest=front.shortest if front else 1)()


@st.composite
def prefixes(draw: st.DrawFn) -> Built:
    batch, front = draw(BATCHES), draw(st.one_of(st.none(), windows()))
    exclusive = draw(st.integers(0, 1))
    axes = draw(st.lists(st.sampled_from((2, -1, 1)), min_size=1, max_size=3))
    kind, write = draw(
        st.sampled_from(
            [
                (f"summed{axes}", summed(*axes, front=front, exclusive=exclusive)),
                ("product", product(exclusive, front)),
                ("linear_attention", linear_attention(front, exclusive)),
                ("cumulative_layer_norm", cumulative_layer_norm(front)),
                ("running_mean", running_mean("range", front)),
            ]
        )
    )
    note(f"{kind}, {front}, exclusive={exclusive}, batch={batch!r}")
    return graph(write, batch=batch, shortest=front.shortest if front else 1, opset=26)()


# ---- tests


def run(built: Built, data: st.DataObject) -> None:
    factor = data.draw(st.integers(1, 9), label="granules a pulse")
    extra = data.draw(st.lists(st.integers(0, 40), min_size=3, max_size=3), label="frames beyond the shortest")
    check(built, factor, [built.shortest + n for n in extra])


@few(30)
@given(cases(), st.data())
def test_stacks(case: Case, data: st.DataObject) -> None:
    note(repr(case))
    run(stacked(case), data)


@few(12)
@given(cases(layouts=(1, 0)), st.data())
def test_either_layout(case: Case, data: st.DataObject) -> None:
    note(repr(case))
    run(stacked(case), data)


@few(12)
@given(dual_paths(), st.data())
def test_dual_paths(built: Built, data: st.DataObject) -> None:
    run(built, data)


@few(15)
@given(prefixes(), st.data())
def test_prefixes(built: Built, data: st.DataObject) -> None:
    run(built, data)


@pytest.mark.slow
@MANY
@given(cases(layouts=(0, 0, 1)), st.data())
def test_many_stacks(case: Case, data: st.DataObject) -> None:
    note(repr(case))
    run(stacked(case), data)


@pytest.mark.slow
@MANY
@given(st.one_of(dual_paths(), prefixes()), st.data())
def test_many_others(built: Built, data: st.DataObject) -> None:
    run(built, data)

"""Attention: what a row looks at becomes the windows of rows and columns; relative shifts; what is refused."""

from __future__ import annotations

import pytest

from pulsify.analysis.facts import ALL, Field, Window
from pulsify.analysis.options import Options
from pulsify.convert.analyse import analyse
from pulsify.convert.emit import emit
from pulsify.plan.context import Context
from tests.attention.graphs import Case, build
from tests.attention.masks import Mask
from tests.attention.positions import SHIFTS
from tests.attention.test_found import attention
from tests.unit.build import converting, traced
from tests.unit.convert.contexts import refused


def fields(ctx: Context) -> list[Field]:
    return [f for f in ctx.ask.facts.values() if isinstance(f, Field)]


def look(ctx: Context) -> tuple[Window, list[Window]]:
    """The window of the rows that are summed up, and the windows into the past that anyone asks for."""
    summed = next(n.outputs[0] for n in reversed(ctx.ask.model.nodes) if n.op == "MatMul")
    return ctx.windows[summed], [w for windows in ctx.demands.values() for w in windows]


@pytest.mark.parametrize(
    ("low", "high", "rows", "cols"),
    [
        (-5, 0, Window(4, 0, 4), (-5, 4)),  # nothing ahead: no delay, five frames back
        (-5, 2, Window(4, -2, 2), (-7, 4)),  # two ahead: two late
        (-3, -1, Window(4, 0, 4), (-3, 3)),
        (-1, 6, Window(4, -6, -2), (-7, 4)),
    ],
)
def test_a_band_is_a_window_of_columns_and_a_delay(low: int, high: int, rows: Window, cols: tuple[int, int]) -> None:
    ctx = converting(attention(low, high), 4)
    window, wishes = look(ctx)
    assert window == rows
    assert Window(4, *cols) in wishes


def test_nothing_of_a_field_is_kept() -> None:
    ctx = converting(attention(-5, 0), 4)
    names = {f.name for f in fields(ctx)}
    assert names and not names & set(ctx.stored)


def test_scores_are_bounded_where_a_softmax_has_been() -> None:
    ctx = converting(attention(-5, 0), 4)
    ops = {f.name: f for f in fields(ctx)}
    softmax = next(n.outputs[0] for n in ctx.ask.model.nodes if n.op == "Softmax")
    assert ops[softmax].bounded == {3}
    assert not any(f.bounded for n, f in ops.items() if n != softmax)


def test_look_ahead_without_bound_is_refused() -> None:
    problem = refused(attention(-5, 1 << 40))
    assert problem.op == "MatMul" and "looks ahead without bound" in problem.reason


def test_look_back_without_bound_is_refused_kept_or_cut() -> None:
    proto = build(Case(mask=Mask("causal"))).model
    problem = refused(proto)
    assert "unbounded look-back" in problem.reason and 'unbounded="grow"' in problem.hint
    growing, _ = analyse(traced(proto), 4, Options("grow"))
    assert any(w.start == ALL for w in look(growing)[1])
    cut, _ = analyse(traced(proto), 4, Options(8))
    assert Window(4, -8, 4) in look(cut)[1]
    assert cut.ask.ledger.kept == 12, "exact until the first key falls out of the window"


def test_rows_that_see_nothing_at_all_are_refused() -> None:
    problem = refused(attention(5, 2))
    assert "everything is masked" in problem.reason


def test_a_mask_made_of_data_bounds_nothing() -> None:
    problem = refused(build(Case(mask=Mask("none"), padding="keys")).model)
    assert problem.op == "Where" and "depends on the data" in problem.reason


@pytest.mark.parametrize("scheme", SHIFTS[:3])
def test_the_table_of_a_relative_shift_is_cut_to_the_offsets_of_the_window(scheme: str) -> None:
    built = build(Case(mask=Mask("token", left=5), scheme=scheme))
    ctx = converting(built.model, 4)
    window, wishes = look(ctx)
    cols = Window(4, -5, 4)
    assert window == Window(4, 0, 4) and cols in wishes
    tables = [v.shape for v in emit(ctx).builder.constants.values() if v.shape is not None and len(v.shape) >= 2]
    assert any(window.frames + cols.frames - 1 in s for s in tables)
    assert ctx.ask.shifts, "one shift was followed"


def test_chunks_wait_for_their_last_frame() -> None:
    built = build(Case(mask=Mask("chunk", 4, left=1)))
    ctx = converting(built.model, 4)
    window, wishes = look(ctx)
    assert window == Window(4, 0, 4), "a pulse is a chunk"
    assert Window(4, -4, 4) in wishes
    late = converting(built.model, 2)
    assert look(late)[0].end == -2 + 2, "of a pulse of half a chunk the first half waits for the second"

"""Views: windows of rows and columns from the cells that take part."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pulsify.analysis.facts import ALL, Window
from pulsify.analysis.options import Options
from pulsify.core.errors import NotStreamable
from pulsify.core.length import Length
from pulsify.plan.attention_view import View, choose_view
from pulsify.plan.context import Context
from pulsify.plan.spans import Spans, spans
from pulsify.trace.evaluate import Trace
from tests.models import Array
from tests.unit.convert.contexts import made_by, opened, wire_model

P = 4
Cells = Callable[[Array, Array], Array]


def view(ctx: Context, seen: Cells, p: tuple[int, int] = (P, P), ends: tuple[int, int] = (P, P)) -> View:
    def looked(run: Trace) -> Spans:
        i, j = np.arange(run.length * p[0] // P)[:, None], np.arange(run.length * p[1] // P)[None]
        return spans(seen(i, j))

    return choose_view(ctx, made_by(ctx, "y"), looked, p, ends, Length())


@pytest.mark.parametrize(
    ("seen", "rows", "cols", "offsets"),
    [
        (lambda i, j: (j <= i) & (i - j <= 5), (0, 4), (-5, 4), (-5, 0)),
        (lambda i, j: abs(i - j) <= 2, (-2, 2), (-4, 4), (-2, 2)),
        (lambda i, j: j // 4 == i // 4, (0, 4), (0, 4), (-3, 3)),  # chunks of a pulse
        (lambda i, j: j // 8 == i // 8, (-4, 0), (-8, 4), (-7, 7)),  # of two pulses: the first half waits
        (lambda i, j: i - j == 3, (0, 4), (-3, 1), (-3, -3)),
    ],
)
def test_rows_wait_for_the_last_column_they_look_at(
    seen: Cells, rows: tuple[int, int], cols: tuple[int, int], offsets: tuple[int, int]
) -> None:
    found = view(opened(wire_model(), P), seen)
    assert found == View(Window(P, *rows), Window(P, *cols), offsets)


def test_keys_that_come_late_make_rows_late() -> None:
    found = view(opened(wire_model(), P), lambda i, j: j == i, ends=(4, 2))
    assert found.rows == Window(P, -2, 2)


def test_the_first_row_alone_makes_all_of_them_wait() -> None:
    found = view(opened(wire_model(), P), lambda i, j: (j == i) | ((i == 0) & (j < 6)))
    assert found.rows == Window(P, -4, 0) and found.offsets == (0, 5)


def test_no_cell_at_all_is_refused() -> None:
    with pytest.raises(NotStreamable, match="everything is masked"):
        view(opened(wire_model(), P), lambda i, j: (i < 0) & (j < 0))


def test_without_bound_ahead_is_refused_and_back_is_kept_if_wished() -> None:
    ctx = opened(wire_model(), P)
    with pytest.raises(NotStreamable, match="looks ahead without bound"):
        view(ctx, lambda i, j: j >= i)
    with pytest.raises(NotStreamable, match="unbounded look-back"):
        view(ctx, lambda i, j: j <= i)
    ctx.ask.options = Options("grow")
    assert view(ctx, lambda i, j: j <= i).cols == Window(P, ALL, 4)


def test_the_last_columns_alone_are_exact_for_as_long_as_none_falls_out() -> None:
    ctx = opened(wire_model(), P)
    ctx.ask.options = Options(6)
    found = view(ctx, lambda i, j: j <= i)
    assert found.cols == Window(P, -6, 4) and not found.whole
    assert ctx.ask.ledger.kept == 8

"""Comparisons, logic and choices, entry by entry."""

from __future__ import annotations

from pulsify.analysis.mask_cells import CELLS, CellLaw
from pulsify.analysis.rows import laws
from pulsify.analysis.rows.laws import ROW_LAWS

# ---- rows of known tables

ROW_LAWS.add(
    {
        "Where": laws.chosen,
        **dict.fromkeys(("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"), laws.compared),
    }
)


# ---- cells of a mask

CELLS.add(
    {
        "Where": CellLaw("chooses"),
        "Not": CellLaw("entries", inverts=True),
        **dict.fromkeys(("Less", "LessOrEqual", "Greater", "GreaterOrEqual"), CellLaw("entries", levels=True)),
    }
)

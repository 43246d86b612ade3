"""Comparisons, logic and choices, entry by entry."""

from __future__ import annotations

from pulsify.analysis.rows import laws
from pulsify.analysis.rows.laws import ROW_LAWS

# ---- rows of known tables

ROW_LAWS.add(
    {
        "Where": laws.chosen,
        **dict.fromkeys(("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"), laws.compared),
    }
)

"""Sums, products, extremes and other arithmetic, entry by entry."""

from __future__ import annotations

import numpy as np

from pulsify.analysis.rows import laws
from pulsify.analysis.rows.laws import ROW_LAWS

# ---- rows of known tables

ROW_LAWS.add(
    {
        **dict.fromkeys(("Add", "Sum"), laws.added),
        "Sub": laws.difference,
        "Neg": laws.negated,
        "Mul": laws.product,
        "Min": laws.extreme(np.minimum),
        "Max": laws.extreme(np.maximum),
    }
)

"""Sums, products, extremes and other arithmetic, entry by entry."""

from __future__ import annotations

import numpy as np

from pulsify.analysis.mask_cells import CELLS, CellLaw
from pulsify.analysis.rows import laws
from pulsify.analysis.rows.laws import ROW_LAWS
from pulsify.ops import late
from pulsify.ops.late import LATE

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


# ---- cells of a mask

CELLS.add(
    {
        **dict.fromkeys(("Sub", "Min"), CellLaw("entries", keeps_offset=True)),
        **dict.fromkeys(("Add", "Sum"), CellLaw("entries", keeps_offset=True, sums=True)),
        "Neg": CellLaw("entries", keeps_offset=True, negates=True),
        "Mul": CellLaw("entries", keeps_offset=True, scales=True),
        "Div": CellLaw("entries", keeps_offset=True, divides=True),
        "Max": CellLaw("entries", keeps_offset=True, levels=True),
    }
)


# ---- frames joined with a value of the whole stream

LATE.add({"Mul": late.multiplied, "Div": late.divided, "Pow": late.raised})

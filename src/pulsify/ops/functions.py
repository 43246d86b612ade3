"""Functions of one value, entry by entry: casts, roundings, activations."""

from __future__ import annotations

from pulsify.analysis.mask_cells import CELLS, CellLaw
from pulsify.analysis.rows import laws
from pulsify.analysis.rows.laws import ROW_LAWS
from pulsify.analysis.rows.reaches import ROW_READS
from pulsify.analysis.rows.wanted import RowRead, Wanted

# ---- rows of known tables

ROW_LAWS.add({"Clip": laws.clipped, **dict.fromkeys(("Identity", "Cast", "CastLike"), laws.alike)})


@ROW_READS("CastLike")
def _cast(w: Wanted) -> list[RowRead]:
    return [w.read(0, w.axis)]


# ---- cells of a mask

LEVEL = ("Relu", "Exp", "Sigmoid", "HardSigmoid", "Softplus", "Clip", "Tanh", "Erf", "ThresholdedRelu")
CELLS.add(
    {
        **dict.fromkeys(("Identity", "Cast", "Dropout"), CellLaw("entries", same=True, keeps_offset=True)),
        **dict.fromkeys(LEVEL, CellLaw("entries", levels=True)),
    }
)

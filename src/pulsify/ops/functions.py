"""Functions of one value, entry by entry: casts, roundings, activations."""

from __future__ import annotations

from pulsify.analysis.mask_cells import CELLS, CellLaw
from pulsify.analysis.questions import Questions
from pulsify.analysis.rows import laws
from pulsify.analysis.rows.laws import ROW_LAWS
from pulsify.analysis.rows.reaches import ROW_READS
from pulsify.analysis.rows.wanted import RowRead, Wanted
from pulsify.core.refusal import Kind
from pulsify.frontend.model import Node
from pulsify.ops.late import LATE, exponential
from pulsify.ops.registry import REQUIRED

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


# ---- as a stream


@REQUIRED("Dropout")
def _drops_nothing(ask: Questions, node: Node) -> None:
    """A Dropout that trains draws numbers: a check by running it would see that only by chance."""
    if len(node.inputs) < 3 or not node.inputs[2]:
        return
    trains = [run[node.inputs[2]] for run in ask.traces.runs]
    if not all(value.known and not value.array.any() for value in trains):
        ask.refuse(
            node,
            "it is told to train: it drops entries at random",
            "export the model in inference mode (module.eval())",
            kind=Kind.EXPORT,
        )


# ---- frames joined with a value of the whole stream

LATE.add({"Exp": exponential})

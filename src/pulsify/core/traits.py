"""What operators are, whatever they compute: one line an operator, for everyone who treats kinds of operators alike.

A new operator gets its line here. Rules, proofs and passes ask `traits(op)` and never keep lists of names of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Axes = Literal[
    "", "broadcast", "same", "transpose", "matmul", "einsum", "join", "regroup", "repeat", "reduce", "top", "cut",
    "pick", "points", "elements",
]  # fmt: skip
Law = Literal["", "zero", "one", "low"]
Comparison = Literal["", "<", "<=", ">", ">=", "=="]


@dataclass(frozen=True)
class Traits:
    """All of it is false of an operator that is not in the table."""

    elementwise: bool = False  # entry by entry, operands broadcast against each other
    axes: Axes = ""  # where each axis of an input goes, see `analysis/axes.py`
    law: Law = ""  # which constant decides the result whatever the other operand is (of cells: masks)
    either: bool = True  # whichever operand it is; if not, only the first
    keeps_cells: bool = False  # cell (i, j) of the output is made of cell (i, j) of the first input
    keeps_size: bool = False  # the output is as large as the first input
    regroups: bool = False  # entries keep their order, axes are split or merged
    stacks: bool = False  # neighbours are put together on another axis
    shapes: bool = False  # a target shape is among the inputs, and is worked out anew in a stream
    moves: bool = False  # entries are cut, joined or repeated along an axis
    bends: bool = False  # a line becomes two, where it is zero
    straight: bool = False  # of lines it makes a line, at the most bent where it is zero
    compares: Comparison = ""  # how it compares its two inputs
    random: bool = False  # draws numbers
    windowed: bool = False  # reads several frames at once, and fails if there are fewer
    recurrent: bool = False  # carries a state from frame to frame
    quantizes: Literal["", "to", "from"] = ""  # to whole numbers by a scale, or from them
    range: tuple[float, float] | None = None  # its output is between these, however it is rounded
    single: bool = False  # ONNX Runtime computes it in float32 only, and says so late or under another name
    needs_sizes: bool = False  # shape inference fails unless the sizes of its inputs are numbers
    same_numbers: bool = False  # whole numbers stay what they are, in whatever type
    copies: bool = False  # every entry is one of the first input, and all of those are there
    finite: bool = False  # of finite numbers it makes finite ones
    along: int | None = None  # it works along a single axis, the attribute `axis`: this one, if there is none

    @property
    def multiplies(self) -> bool:
        """Is it a product of matrices, summed up over axes that both have?"""
        return self.axes in ("matmul", "einsum")


NONE = Traits()
ENTRY = Traits(elementwise=True, axes="broadcast")
UNARY = replace(ENTRY, keeps_size=True)


def _all(names: str, traits: Traits) -> dict[str, Traits]:
    return dict.fromkeys(names.split(), traits)


TRAITS: dict[str, Traits] = {
    # ---- entry by entry
    **_all(
        "Acos Acosh Asin Asinh Atan Atanh BitwiseNot Ceil Cosh Elu Exp Floor IsInf IsNaN LeakyRelu Log Not Reciprocal "
        "Round Selu Shrink Sign Sinh Softplus Sqrt Swish Tan ThresholdedRelu BitCast",
        UNARY,
    ),
    **_all("HardSigmoid Sigmoid", replace(UNARY, range=(0.0, 1.0))),
    **_all("Cos Erf Sin Softsign Tanh", replace(UNARY, range=(-1.0, 1.0))),
    **_all("Celu Gelu HardSwish Mish", replace(UNARY, single=True)),
    "Abs": replace(UNARY, bends=True, straight=True, finite=True),
    "Clip": replace(UNARY, finite=True),
    "Dropout": replace(UNARY, copies=True),
    "Relu": replace(UNARY, bends=True, straight=True),
    "Cast": replace(UNARY, straight=True, finite=True, same_numbers=True),
    "Neg": replace(UNARY, straight=True, finite=True),
    "Identity": replace(UNARY, straight=True, finite=True, copies=True, same_numbers=True),
    **_all("BitShift BitwiseAnd BitwiseOr BitwiseXor Mean Mod Pow Sum Xor", ENTRY),
    "Less": replace(ENTRY, compares="<"),
    "LessOrEqual": replace(ENTRY, compares="<="),
    "Greater": replace(ENTRY, compares=">"),
    "GreaterOrEqual": replace(ENTRY, compares=">="),
    "Equal": replace(ENTRY, compares="=="),
    "CastLike": replace(ENTRY, keeps_size=True, same_numbers=True),
    "PRelu": replace(ENTRY, keeps_size=True),
    "Add": replace(ENTRY, law="low", straight=True, finite=True),
    "Max": replace(ENTRY, finite=True),
    "Min": replace(ENTRY, law="low", finite=True),
    "Sub": replace(ENTRY, law="low", either=False, straight=True, finite=True),
    "Mul": replace(ENTRY, law="zero", straight=True, finite=True),
    "Div": replace(ENTRY, law="zero", either=False, straight=True),
    "And": replace(ENTRY, law="zero"),
    "Or": replace(ENTRY, law="one"),
    "Where": replace(ENTRY, straight=True),
    # ---- axes
    **dict.fromkeys(
        ("Reshape", "Squeeze", "Unsqueeze"),
        Traits(axes="regroup", keeps_cells=True, regroups=True, shapes=True, straight=True, copies=True),
    ),
    "Flatten": Traits(axes="regroup", keeps_cells=True, shapes=True, copies=True),
    "Transpose": Traits(axes="transpose", keeps_cells=True, straight=True, copies=True),
    "Expand": Traits(axes="broadcast", keeps_cells=True, shapes=True, moves=True, straight=True, copies=True),
    "Tile": Traits(axes="repeat", keeps_cells=True, shapes=True, moves=True, copies=True),
    "Concat": Traits(axes="join", moves=True),
    "Split": Traits(axes="same", keeps_cells=True, moves=True),
    "Pad": Traits(moves=True, windowed=True),
    "Slice": Traits(axes="cut", keeps_cells=True, moves=True),
    "Gather": Traits(axes="pick", keeps_cells=True, moves=True),
    "GatherND": Traits(axes="points", keeps_cells=True),
    "GatherElements": Traits(axes="elements"),
    # ---- along an axis
    "Softmax": Traits(axes="same", keeps_cells=True, keeps_size=True, along=-1, range=(0.0, 1.0)),
    "LogSoftmax": Traits(axes="same", keeps_cells=True, keeps_size=True, along=-1),
    **_all(
        "BatchNormalization CumProd CumSum GroupNormalization Hardmax InstanceNormalization LRN LayerNormalization "
        "LpNormalization MeanVarianceNormalization RMSNormalization ReverseSequence",
        Traits(keeps_size=True),
    ),
    **_all(
        "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
        "ReduceSumSquare",
        Traits(axes="reduce"),
    ),
    **dict.fromkeys(("ArgMax", "ArgMin"), Traits(axes="reduce", along=0)),
    "TopK": Traits(axes="top", along=-1),
    "MatMul": Traits(axes="matmul"),
    "Einsum": Traits(axes="einsum"),
    **_all("Conv MaxPool AveragePool LpPool STFT", Traits(windowed=True)),
    **_all("LSTM GRU RNN", Traits(recurrent=True, single=True)),
    # ---- others
    **_all("Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike", Traits(random=True)),
    "QuantizeLinear": Traits(quantizes="to", keeps_size=True),
    "DynamicQuantizeLinear": Traits(quantizes="to"),
    "DequantizeLinear": Traits(quantizes="from", keeps_size=True),
    "SpaceToDepth": Traits(stacks=True),
    **_all("Resize Upsample", Traits(needs_sizes=True)),
}
ELEMENTWISE = frozenset(op for op, t in TRAITS.items() if t.elementwise)


def traits(op: str, domain: str = "") -> Traits:
    """Operators of other domains have the traits they were registered with, under `domain::op`."""
    return TRAITS.get(f"{domain}::{op}" if domain else op, NONE)

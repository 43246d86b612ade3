"""Functions of one value, entry by entry: casts, roundings, activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from pulsify.analysis.mask_cells import CELLS, CellLaw
from pulsify.analysis.questions import Questions
from pulsify.analysis.rows import laws
from pulsify.analysis.rows.laws import ROW_LAWS
from pulsify.analysis.rows.reaches import ROW_READS
from pulsify.analysis.rows.wanted import RowRead, Wanted
from pulsify.analysis.values.choices import TERMS, Sum, Terms
from pulsify.analysis.values.elementwise import Array, Function, as_whole, compared_with_zero, each, extreme, function
from pulsify.analysis.values.follow import VALUES, Few, Fixed, Follower, Value
from pulsify.analysis.values.sides import SIDES, of_sides
from pulsify.core.refusal import Kind
from pulsify.frontend.model import Node
from pulsify.lengths import affine_array as many
from pulsify.lengths import beyond
from pulsify.lengths import rounding as whole
from pulsify.lengths import series as one
from pulsify.lengths.affine_array import Spread
from pulsify.lengths.beyond import Side
from pulsify.lengths.curves import Curve, Number
from pulsify.lengths.float_limits import Drift, digits_of
from pulsify.lengths.series import Unsure
from pulsify.ops.late import LATE, exponential
from pulsify.ops.registry import REQUIRED
from pulsify.trace.evaluate import DIGITS, exact, rounds
from pulsify.trace.sides import NUMBERS, of_known
from pulsify.trace.usage import ROLE, SIGNS, Walk

# ---- roles of inputs
NUMBERS.add(
    {
        "Cast": of_known(lambda x: x),
        "CastLike": lambda x, _: x,
        "Ceil": of_known(np.ceil),
        "Clip": of_known(lambda x, low=-math.inf, high=math.inf: min(max(x, low), high)),
        "Exp": of_known(np.exp),
        "Floor": of_known(np.floor),
        "Identity": of_known(lambda x: x),
        "Log": of_known(lambda x: math.log(x) if x > 0 else -math.inf),
        "Relu": of_known(lambda x: max(x, 0.0)),
        "Round": of_known(np.round),
        "Sqrt": of_known(np.sqrt),
    }
)


SIGNS.add({"Cast": (1,), "Identity": (1,)})


ROLE.add({"Identity": Walk.moved})


# ---- at one length

# What NumPy and ONNX Runtime, or two places of an array, may round differently.
ROUNDED = "Exp Log Sin Cos Tan Sinh Cosh Atan Softplus Sigmoid Tanh Erf HardSigmoid Gelu"


DIGITS.add(dict.fromkeys(ROUNDED.split(), rounds))


DIGITS.add(dict.fromkeys(("Floor", "Ceil", "Round"), exact))


@DIGITS("Cast")
def _to_whole_numbers(node: Node) -> bool | None:
    return None if ir.DataType(node.attr("to")).is_floating_point() else False


# ---- values by length
ROUNDINGS: dict[str, Callable[[Array], Array]] = {"Floor": np.floor, "Ceil": np.ceil, "Round": np.round}


FUNCTIONS = {
    "Sqrt": Function(0, rises=True, exact=True),
    "Relu": Function(0, rises=True, exact=True),
    "Reciprocal": Function(exact=True),
    "Exp": Function(0, rises=True, rate=1.0),
    "Log": Function(rises=True),
    "Atan": Function(rises=True),
    "Tanh": Function(-1, 1, rises=True, level=True),
    "Sigmoid": Function(0, 1, rises=True, level=True),
    **dict.fromkeys(("Sin", "Cos"), Function(-1, 1)),
    "Erf": Function(-1, 1, level=True, on_numbers=False),
    **dict.fromkeys(("Softplus", "Tan", "Sinh", "Cosh"), Function(on_numbers=False)),
}


VALUES.add({name: function(kind) for name, kind in FUNCTIONS.items()})


@VALUES("Clip")
def clip_values(f: Follower, node: Node, ins: list[Value]) -> Value:
    bounds = [ins[1] if len(ins) > 1 else node.attr("min"), ins[2] if len(ins) > 2 else node.attr("max")]
    out = ins[0]
    for bound, least in zip(bounds, (False, True), strict=True):
        if bound is not None:
            other = bound if isinstance(bound, (Fixed, Few, Spread)) else _constant(bound)
            out = extreme(f, [out, other], least)
    return out


def _constant(value: float) -> Fixed:
    array = np.array(value)
    return Fixed("", (), lambda: array)


@SIDES("Clip")
def clip_sides(node: Node, sides: list[Side], _: int) -> Side:
    low, high = len(node.inputs) > 1 and bool(node.inputs[1]), len(node.inputs) > 2 and bool(node.inputs[2])
    bounds = [(s, bool(n)) for n, s in zip([n for n, there in enumerate((low, high)) if there], sides[1:], strict=True)]
    attributes = [(beyond.number(float(x)), n == "max") for n in ("min", "max") if (x := node.attr(n)) is not None]
    out = sides[0]
    for bound, least in [*bounds, *attributes]:
        out = beyond.extreme([out, bound], least)
    return out


@SIDES("Cast", "CastLike")
def cast_sides(node: Node, sides: list[Side], _: int) -> Side:
    x = sides[:1]
    if x[0].number in (0.0, 1.0):
        return x[0]
    whole = node.op == "Cast" and not ir.DataType(node.attr("to")).is_floating_point()
    return beyond.any_function(x) if whole else beyond.as_number(x)


SIDES.add(
    {
        "Exp": lambda _, sides, digits: beyond.exponential(sides, 1.0, beyond.LAST[digits]),
        "Identity": of_sides(lambda sides: sides[0]),
    }
)


@VALUES(*ROUNDINGS)
def rounded_values(f: Follower, node: Node, ins: list[Value]) -> Value:
    if isinstance(ins[0], Spread):
        return whole.cut(ins[0])
    how = ROUNDINGS[node.op]
    return each([f.few(ins[0])], lambda a: a.then(how) if isinstance(a, Curve) else one.whole(a, how))


@VALUES("Cast", "CastLike")
def cast_values(f: Follower, node: Node, ins: list[Value]) -> Value:
    to = ir.DataType(node.attr("to")) if node.op == "Cast" else f.first(node.outputs[0]).dtype
    kind = "f" if to.is_floating_point() else to.numpy().kind
    v = ins[0]
    if isinstance(v, Spread):
        if kind == "b":
            zero = compared_with_zero(v, np.equal)
            return replace(zero, lo=1.0 - zero.hi, hi=1.0 - zero.lo)
        if kind == "f":
            return _as_float(v, digits_of(to))
        return replace(whole.cut(v, towards_zero=True), floating=False, drift=Drift(), grain=None)
    digits = digits_of(to) if kind == "f" else None

    def few(a: Number) -> Number:
        if isinstance(a, Curve):
            if kind == "b":
                raise Unsure("whether two numbers are equal depends on the length in no linear way")
            return a.cast(digits)
        if digits == 8:
            raise Unsure("it is counted in bfloat16")
        plainly = as_whole(a) if a.values.dtype.kind == "b" and kind != "b" else a
        return one.cast(plainly, kind, to.numpy().itemsize * 8)

    return each([f.few(v)], few)


def _as_float(v: Spread, digits: int) -> Spread:
    """As a float of so many digits: it may have had more."""
    if v.floating and digits >= v.drift.digits:
        return replace(v, drift=replace(v.drift, digits=digits))
    drift = replace(v.drift, digits=digits) if v.floating else Drift(digits)
    return many.rounded(replace(v, floating=True, drift=drift, grain=v.step))


@VALUES("Identity")
def same_values(f: Follower, node: Node, ins: list[Value]) -> Value:
    return ins[0]


@VALUES("Dropout")
def dropout_values(f: Follower, node: Node, ins: list[Value]) -> list[Value]:
    """All of it is kept; the mask says so everywhere."""
    if len(ins) > 2 and ins[2] is not None and f.fixed(ins[2]).any():
        raise Unsure("it is dropped at random")
    everywhere = Spread(f.spread(ins[0]).sizes, lo=1.0, hi=1.0)
    return [ins[0], everywhere][: len(node.outputs)]


@TERMS("Cast", "CastLike", "Identity")
def same_terms(terms: Terms, node: Node) -> Sum:
    return terms(node.inputs[0])


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

"""Functions of one value, entry by entry: casts, roundings, activations."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from pulsify.frontend.model import Node
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

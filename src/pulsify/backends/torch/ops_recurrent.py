"""LSTM, GRU and RNN, in float32 at least: in one call where torch has the same (`layers.py`), or frame by frame
(`cells.py`), which covers all of them."""

from __future__ import annotations

import numpy as np

from pulsify.backends.seam import Array
from pulsify.backends.site import Uncovered
from pulsify.backends.torch.cells import FUNCTIONS
from pulsify.backends.torch.site import Site
from pulsify.backends.torch.table import Written, op

DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
# What the runtime takes where none is written: for three of them zero, not what the operators of that name have.
WITH_ALPHA = {
    "Affine": 0.0,
    "LeakyRelu": 0.01,
    "ThresholdedRelu": 0.0,
    "ScaledTanh": 0.0,
    "HardSigmoid": 0.2,
    "Elu": 1.0,
}
WITH_BETA = {"Affine": 0.0, "ScaledTanh": 0.0, "HardSigmoid": 0.5}


GATES = {"GRU": (1, 0, 2), "LSTM": (0, 2, 3, 1)}  # torch's order: r z n, of ONNX's z r h; i f g o, of i o f c


@op("LSTM", "GRU", "RNN")
def recurrent(n: Site) -> Written:
    if _is_torchs(n):
        return [_in_one_call(n)]
    named = {"hidden": str(int(n.attr("hidden_size") or n.sizes(2)[-1])), "functions": _functions(n)}
    if (direction := n.attr("direction", "forward")) != "forward":
        named["direction"] = repr(direction)
    if n.attr("clip") is not None:
        named["clip"] = repr(float(n.attr("clip")))
    if n.attr("layout", 0):
        named["batch_first"] = "True"
    for i, name in ((3, "bias"), (4, "lengths"), (5, "h")):
        if n.has(i) and not (name == "lengths" and _whole(n)):
            named[name] = n.x(i)
    if n.op == "GRU" and n.attr("linear_before_reset", 0):
        named["linear_before_reset"] = "True"
    if n.op == "LSTM":
        named |= {name: n.x(i) for i, name in ((6, "c"), (7, "peepholes")) if n.has(i)}
        if n.attr("input_forget", 0):
            named["coupled"] = "True"
    outs = ", ".join(n.out(i) for i in range(3 if n.op == "LSTM" else 2))
    settings = ", ".join(f"{k}={v}" for k, v in named.items() if v)
    return [f"{outs} = op.{n.op.lower()}({n.x(0)}, {n.x(1)}, {n.x(2)}, {settings})"]


def _is_torchs(n: Site) -> bool:
    """Usual activations, weights that are known, frames of one length, and the reset gate behind the product."""
    if n.op == "RNN" or n.attr("direction", "forward") == "reverse" or _functions(n) or n.attr("clip") is not None:
        return False
    if (n.op == "GRU") != bool(n.attr("linear_before_reset", 0)) or n.attr("input_forget", 0) or n.has(7):
        return False
    weights = [n.const(i) for i in (1, 2, 3) if n.has(i)]
    return n.kind() != "float64" and all(w is not None for w in weights) and (not n.has(4) or _whole(n))


def _in_one_call(n: Site) -> str:
    both, first = n.attr("direction", "forward") == "bidirectional", bool(n.attr("layout", 0))
    weights = [w for d in range(1 + both) for w in _of_direction(n, d)]
    states = [n.maybe(i) for i in ((5, 6) if n.op == "LSTM" else (5,))]
    settings = ", both_ways=True" * both + ", batch_first=True" * first
    outs = ", ".join(n.out(i) for i in range(3 if n.op == "LSTM" else 2))
    return f"{outs} = op.{n.op.lower()}_layer({n.x(0)}, [{', '.join(weights)}], {', '.join(states)}{settings})"


def _of_direction(n: Site, d: int) -> list[str]:
    """W, R and both biases as torch has them."""
    parts = [("w", 1, n.known(1, "w")[d]), ("r", 2, n.known(2, "r")[d])]
    if n.has(3):
        wb, rb = np.split(n.known(3, "bias")[d], 2)
        parts += [("wb", 3, wb), ("rb", 3, rb)]
    return [n.put(f"{name}_{d}", _in_order(n, array), "float32", of=i) for name, i, array in parts]


def _in_order(n: Site, array: Array) -> Array:
    """Gates, which are stacked along the first axis."""
    gates = np.split(array, len(GATES[n.op]))
    return np.concatenate([gates[i] for i in GATES[n.op]])


def _whole(n: Site) -> bool:
    """Are all streams as long as there are frames?"""
    lengths = n.const(4)
    return lengths is not None and bool((lengths == n.sizes()[1 if n.attr("layout", 0) else 0]).all())


def _functions(n: Site) -> str:
    """The activations as (name, alpha, beta), if they are not the usual ones."""
    names = n.attr("activations")
    usual = DEFAULTS[n.op]
    if not names or tuple(names) == usual * (len(names) // len(usual)):
        return ""
    alphas, betas = (list(n.attr(f"activation_{k}", ())) for k in ("alpha", "beta"))
    found = []
    for name in names:
        if name not in FUNCTIONS:
            raise Uncovered(f"activation {name}")
        alpha = (float(alphas.pop(0)) if alphas else WITH_ALPHA[name]) if name in WITH_ALPHA else 0.0
        beta = (float(betas.pop(0)) if betas else WITH_BETA[name]) if name in WITH_BETA else 0.0
        found.append((name, alpha, beta))
    return repr(tuple(found))

"""LSTM, GRU and RNN. What they compute is in `cells.py`, frame by frame and in float32 at least."""

from __future__ import annotations

from pulsify.backends.torch.cells import FUNCTIONS
from pulsify.backends.torch.site import Site, Uncovered
from pulsify.backends.torch.table import Written, op

DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
WITH_ALPHA = {
    "Affine": 1.0,
    "LeakyRelu": 0.01,
    "ThresholdedRelu": 1.0,
    "ScaledTanh": 1.0,
    "HardSigmoid": 0.2,
    "Elu": 1.0,
}
WITH_BETA = {"Affine": 0.0, "ScaledTanh": 1.0, "HardSigmoid": 0.5}


@op("LSTM", "GRU", "RNN")
def recurrent(n: Site) -> Written:
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

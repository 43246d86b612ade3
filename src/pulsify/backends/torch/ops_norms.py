"""Norms. All of one is in float32 where the type is lower, up to its end; torch's own functions do that too."""

from __future__ import annotations

import numpy as np

from pulsify.backends.site import Uncovered
from pulsify.backends.torch.ops_reductions import wide
from pulsify.backends.torch.site import Site, literal
from pulsify.backends.torch.table import Written, op

EPSILON = float(np.float32(1e-5))  # an attribute that is left out is float32 as well


@op("LayerNormalization")
def layer_norm(n: Site) -> Written:
    n.only(0)
    axis, eps = n.axis(default=-1), literal(n.attr("epsilon", EPSILON))
    sizes = n.sizes(1)
    if len(sizes) == n.rank() - axis and _tail(n, axis) == sizes and (not n.has(2) or n.sizes(2) == sizes):
        return f"F.layer_norm({n.x()}, {sizes}, {n.x(1)}, {n.maybe(2)}, {eps})"
    x, back = wide(n, n.x())
    shift = f" + {n.x(2)}" if n.has(2) else ""
    return _ended(f"op.normal({x}, {tuple(range(axis, n.rank()))}, {eps}) * {n.x(1)}{shift}", back)


def _ended(text: str, back: str) -> str:
    """Rounded once, at the end: a gain of the lower type is taken wide beside what is."""
    return f"({text}){back}" if back else text


def _tail(n: Site, axis: int) -> tuple[int | str, ...]:
    value = n.value(0)
    assert value is not None and value.shape is not None
    return tuple(d if isinstance(d, int) else str(d) for d in value.shape[axis:])


@op("RMSNormalization")
def rms_norm(n: Site) -> Written:
    axis, eps = n.axis(default=-1), literal(n.attr("epsilon", EPSILON))
    x, back = wide(n, n.x())
    return _ended(f"op.by_power({x}, {tuple(range(axis, n.rank()))}, {eps}) * {n.x(1)}", back)


@op("InstanceNormalization")
def instance_norm(n: Site) -> Written:
    eps, (x, back) = literal(n.attr("epsilon", EPSILON)), wide(n, n.x())
    ones = ", ".join(["-1"] + ["1"] * (n.rank() - 2))
    gain, shift = (f"{n.x(i)}.reshape({ones})" for i in (1, 2))
    return _ended(f"op.normal({x}, {tuple(range(2, n.rank()))}, {eps}) * {gain} + {shift}", back)


@op("GroupNormalization")
def group_norm(n: Site) -> Written:
    groups, eps = int(n.attr("num_groups")), literal(n.attr("epsilon", EPSILON))
    gain, shift = n.x(1), n.x(2)
    if n.opset < 21:
        each = n.sizes()[1] // groups
        gain, shift = (f"{v}.repeat_interleave({each})" for v in (gain, shift))
    return f"F.group_norm({n.x()}, {groups}, {gain}, {shift}, {eps})"


@op("BatchNormalization")
def batch_norm(n: Site) -> Written:
    n.only(0)
    if n.attr("training_mode", 0):
        raise Uncovered("it is in training mode")
    x, back = wide(n, n.x())
    gain, shift, mean, variance = (wide(n, n.x(i))[0] if back else n.x(i) for i in range(1, 5))
    eps = literal(n.attr("epsilon", EPSILON))
    return f"F.batch_norm({x}, {mean}, {variance}, {gain}, {shift}, False, 0.0, {eps}){back}"


@op("LpNormalization")
def by_length(n: Site) -> Written:
    p, axis = int(n.attr("p", 2)), n.axis(default=-1)
    x, back = wide(n, n.x())
    length = f"torch.linalg.vector_norm({x}, {p}, {axis}, True)"
    return f"({x} / {length}.masked_fill({length} == 0, 1)){back}"  # of silence the runtime makes silence

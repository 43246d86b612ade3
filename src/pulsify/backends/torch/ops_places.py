"""Operators that take or put elements at places: gathers, scatters, sorted ones."""

from __future__ import annotations

import numpy as np

from pulsify.backends.seam import Array
from pulsify.backends.site import Uncovered
from pulsify.backends.torch.site import Site
from pulsify.backends.torch.table import Written, op

REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@op("Gather")
def gather(n: Site) -> Written:
    axis, places = n.axis(), n.const(1)
    if places is not None and places.ndim == 0:
        return f"{n.x()}.select({axis}, {int(places)})"
    if places is not None:
        return _known(n, axis, places)
    size = _size(n, axis)
    flat = f"op.places({n.x(1)}, {size}).reshape(-1)"
    taken = f"{n.x()}.index_select({axis}, {flat})"
    if n.rank(1) == 1:
        return f"{n.x()}.index_select({axis}, op.places({n.x(1)}, {size}))"
    return f"{taken}.unflatten({axis}, {n.x(1)}.shape)" if n.rank(1) else f"{taken}.squeeze({axis})"


def _size(n: Site, axis: int) -> str:
    """How many places there are."""
    value = n.value(0)
    dim = None if value is None or value.shape is None else value.shape[axis]
    return str(dim) if isinstance(dim, int) else f"{n.x()}.shape[{axis}]"


def _known(n: Site, axis: int, places: Array) -> str:
    flat = places.reshape(-1)
    if (flat < 0).any():
        flat = np.where(flat < 0, flat + n.sizes()[axis], flat)
    first, count = int(flat[0]) if flat.size else 0, flat.size
    if np.array_equal(flat, np.arange(first, first + count)):
        text = f"{n.x()}.narrow({axis}, {first}, {count})"
    else:
        text = f"{n.x()}.index_select({axis}, {n.put('places', flat.astype(np.int64))})"
    return text if places.ndim == 1 else f"{text}.unflatten({axis}, {places.shape})"


@op("GatherElements")
def gather_elements(n: Site) -> Written:
    axis = n.axis()
    return f"torch.gather({n.x()}, {axis}, op.places({n.x(1)}, {_size(n, axis)}).long())"


@op("GatherND")
def gather_nd(n: Site) -> Written:
    shared = n.attr("batch_dims", 0)
    return f"op.gather_nd({n.x()}, {n.x(1)}, {shared})" if shared else f"op.gather_nd({n.x()}, {n.x(1)})"


@op("ScatterElements", "Scatter")
def scatter_elements(n: Site) -> Written:
    axis, how = n.axis(), n.attr("reduction", "none")
    places = f"op.places({n.x(1)}, {_size(n, axis)}).long()"
    if how == "none":
        return f"torch.scatter({n.x()}, {axis}, {places}, {n.x(2)})"
    return f"torch.scatter_reduce({n.x()}, {axis}, {places}, {n.x(2)}, '{REDUCTIONS[how]}')"


@op("ScatterND")
def scatter_nd(n: Site) -> Written:
    how = n.attr("reduction", "none")
    if how not in ("none", "add"):
        raise Uncovered(f"reduction {how}")
    return f"op.scatter_nd({n.x()}, {n.x(1)}, {n.x(2)}, {how == 'add'})"


@op("TopK")
def top(n: Site) -> Written:
    """In the order of the runtime: of equal ones the earlier first."""
    (k,), axis = n.ints(1, "count"), n.axis(default=-1)
    return [f"{n.out(0)}, {n.out(1)} = op.top({n.x()}, {k}, {axis}, {bool(n.attr('largest', 1))})"]


@op("ArgMax", "ArgMin")
def extreme(n: Site) -> Written:
    if n.attr("select_last_index", 0):
        raise Uncovered("the last of equal ones")
    return f"torch.{n.op.lower()}({n.x()}, {n.axis()}, {bool(n.attr('keepdims', 1))})"


@op("OneHot")
def one_hot(n: Site) -> Written:
    (depth,), axis = n.ints(1, "depth"), int(n.attr("axis", -1))
    axis = axis + n.rank() + 1 if axis < 0 else axis
    return f"op.one_hot({n.x()}, {depth}, {n.x(2)}, {axis})"

"""Streams in front: the same step, whatever axis they had, and a row of one stream is the same numbers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from pulsify.backends.seam import parted
from pulsify.core.spec import Dims, concrete
from pulsify.export.front import row, streams_in_front
from tests.models import frames, run_batch
from tests.unit.graphs import graph

PORTS: dict[str, Dims] = {
    "x": (5, "B", 2), "s": ("3*B", 2), "l": (2, "4*B"), "n": ("B",), "p": ("B", 2),
    "x_": (5, "B", 2), "s_": ("3*B", 2), "l_": (2, "4*B"), "n_": ("B",), "p_": ("B", 2),
}  # fmt: skip


@pytest.mark.parametrize(
    ("dims", "wanted"),
    [(("B", 2, 4), (2, 4)), ((1, "B", 8), (1, 8)), (("4*B", 8), (4, 8)), ((2, "4*B"), (2, 4)), (("B",), (1,))],
)
def test_a_row_is_what_one_stream_has(dims: Dims, wanted: tuple[int, ...]) -> None:
    assert row(dims) == wanted


def test_the_step_is_the_same_row_by_row() -> None:
    kinds = ["x", "s", "l", "n", "p"]
    model = graph(
        "; ".join(f"Mul {n} {n} > {n}/sq; Identity {n}/sq > {n}_" for n in kinds),
        {n: list(PORTS[n]) for n in kinds},
        " ".join(f"{n}_" for n in kinds),
        {},
    )
    before = [v.name for v in (*model.graph.inputs, *model.graph.outputs)]
    made = streams_in_front(model, PORTS)
    assert [v.name for v in (*model.graph.inputs, *model.graph.outputs)] == before
    assert [v.name for v in (*made.graph.inputs, *made.graph.outputs)] == before
    given = {n: frames(*concrete(PORTS[n], 3), seed=i) for i, n in enumerate(kinds)}
    wanted = run_batch(ir.to_proto(model), given)
    rows = {n: np.ascontiguousarray(parted(v, PORTS[n], 3)).reshape(3, *row(PORTS[n])) for n, v in given.items()}
    got = run_batch(ir.to_proto(made), rows)
    for name in wanted:
        assert np.array_equal(got[name], parted(wanted[name], PORTS[name], 3).reshape(3, *row(PORTS[name])))

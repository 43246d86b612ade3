"""States: the batch first, two axes at least, and back again."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from pulsify.emit.state import State, batch_axis, from_state, state_shape, to_state
from tests.unit.convert.contexts import Steps, emitting, wire_model

SHAPES = [  # sizes, the state's shape with a free batch B, a value of those sizes for 2 streams
    ((-1, 3, 4), ("B", 3, 4), (2, 3, 4)),
    ((3, -1, 4), ("B", 3, 4), (3, 2, 4)),
    ((3, 4, -1), ("B", 3, 4), (3, 4, 2)),
    ((3, -8), ("B", 8, 3), (3, 16)),  # eight heads of every stream on one axis
    ((-8, 3), ("B", 8, 3), (16, 3)),
    ((1, 5), (1, 5), (1, 5)),  # an axis of one in front serves as the batch
    ((5, 2), (1, 5, 2), (5, 2)),
    ((5,), (1, 5), (5,)),
]


@pytest.mark.parametrize(("sizes", "shape", "dims"), SHAPES)
def test_a_state_has_the_batch_first(sizes: tuple[int, ...], shape: tuple[int | str, ...], dims: tuple[int]) -> None:
    assert state_shape(sizes, "B") == shape


@pytest.mark.parametrize(("sizes", "shape", "dims"), SHAPES)
def test_what_goes_into_a_state_comes_out_again(
    sizes: tuple[int, ...], shape: tuple[int | str, ...], dims: tuple[int, ...]
) -> None:
    ctx = emitting(wire_model())
    b = ctx.builder
    value = np.arange(np.prod(dims), dtype=np.float32).reshape(dims)
    kept = to_state(b, b.constant(value), sizes)
    made = Steps(ctx, {"kept": kept, "back": from_state(b, kept, sizes)}).step({})
    assert made["kept"].shape == tuple(2 if d == "B" else d for d in shape)
    np.testing.assert_array_equal(made["back"], value)


def test_a_time_axis_in_front_is_no_batch_of_one() -> None:
    assert state_shape((1, 5), None, fixed_first=False) == (1, 1, 5)


def test_a_fixed_batch_is_one_stream() -> None:
    assert state_shape((-1, 5), None) == (1, 5)


def test_the_batch_is_the_axis_that_grows_with_it() -> None:
    assert batch_axis((3, -1, 4)) == 1
    assert batch_axis((3, 4)) is None


def test_a_state_is_described_by_the_names_it_has_in_the_graph() -> None:
    before, after = (ir.val(n, ir.DataType.FLOAT, ir.Shape([1, 2])) for n in ("state_000", "new_state_000"))
    told = State("conv", "buffer", ir.DataType.FLOAT, (1, 2), before, after, False, 1, 2).described
    assert (told.name, told.after, told.node) == ("state_000", "new_state_000", "conv")
    assert (told.zero, told.axis, told.frames, told.nbytes) == (False, 1, 2, 8)

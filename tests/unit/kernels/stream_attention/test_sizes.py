"""What does not fit is refused, and the size that is at fault is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pulsify.core.errors import InvalidArgument
from pulsify.kernels.stream_attention.cases import Shape, inputs
from pulsify.kernels.stream_attention.sizes import Sizes, sizes


def array(*shape: int, dtype: Any = float) -> Any:
    return np.zeros(shape, dtype)


def fitting(**changed: Any) -> Sizes:
    return sizes(**inputs(Shape(new=3, ring=True, relative=True, biased=True)) | changed)


def test_the_sizes_of_a_call() -> None:
    assert fitting() == Sizes(2, 2, 4, 16, 16, 2, 12, 3)
    assert fitting().columns == 15


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (Shape(width=0), r"no columns: the window W"),
        (Shape(queries=0), r"no queries: axis 2 of q"),
        (Shape(depth=1, value_depth=1), None),
        (Shape(heads=0), r"no heads: axis 1 of q"),
        (Shape(batch=0), r"no streams: the batch"),
        (Shape(width=0, new=2), None),
    ],
)
def test_empty_sizes_are_refused_by_name(shape: Shape, said: str | None) -> None:
    if said is None:
        assert sizes(**inputs(shape)).columns
    else:
        with pytest.raises(InvalidArgument, match=said):
            sizes(**inputs(shape))


def test_no_depth_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="no depth D: axis 3 of q"):
        sizes(array(1, 1, 2, 0), array(1, 1, 3, 0), array(1, 1, 3, 4))
    with pytest.raises(InvalidArgument, match="no depth Dv: axis 3 of values"):
        sizes(array(1, 1, 2, 4), array(1, 1, 3, 4), array(1, 1, 3, 0))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"q": array(2, 2, 4)}, "q has rank 3"),
        ({"keys": array(2, 2, 11, 16)}, r"keys is \[2, 2, 11, 16\]"),
        ({"new_keys": array(2, 2, 3, 15)}, r"new_keys is .*\[2, 2, 3, 16\] fits"),
        ({"new_values": None}, "new_values is missing"),
        ({"read": array(2, dtype=np.int64)}, "write is missing"),
        ({"q": array(3, 2, 4, 16), "start": None}, r"new_keys is"),
        ({"start": array(3, dtype=np.int64)}, r"start is \[3\].*\[2\]"),
        ({"start": array(2, dtype=np.int32)}, "start is int32, not int64"),
        ({"bias": array(2, 2, 4, 14)}, r"bias is \[2, 2, 4, 14\].*\[2, 2, 4, 15\]"),
        ({"bias": array(15)}, "bias has rank 1, not 4"),
        ({"mask": array(1, 1, 1, 15)}, "mask is float64, not bool"),
        ({"fill": float("nan")}, "fill=nan"),
        ({"hollow": "one"}, "hollow='one'"),
        ({"u": array(2, 16, dtype=np.float32)}, "u is float32 and q is float64"),
        ({"table": array(2, 30, 8)}, r"table is \[2, 30, 8\]; it is \[2, offsets, 16\]"),
        ({"shift": 2}, "rows -1 to 16 are read"),
        ({"shift": 7}, "table has 21 offsets, and rows 4 to 21 are read"),
        ({"table": None}, "give the table, too"),
    ],
)
def test_what_does_not_fit_is_refused(changed: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        fitting(**changed)


def test_more_rows_than_streams_need_to_be_told_whose_they_are() -> None:
    with pytest.raises(InvalidArgument, match="keys have 5 rows and q 2"):
        sizes(array(2, 1, 3, 4), array(5, 1, 6, 4), array(5, 1, 6, 4))

"""Which dimension is time: found where there is one answer, asked for otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pulsify.core.errors import InvalidArgument
from pulsify.frontend.load import load
from pulsify.frontend.model import Model
from pulsify.frontend.time import TimeSpec, find_time, split_product
from tests.models import model, node


def of(inputs: dict[str, Any], ints: tuple[str, ...] = ()) -> Model:
    """A model with these inputs; what it does is not looked at."""
    nodes = [node("Identity", name, f"{name}_out") for name in inputs]
    dtypes = {n: np.int64 for name in ints for n in (name, f"{name}_out")}
    return load(model(nodes, inputs, [f"{n}_out" for n in inputs], dtypes=dtypes))


@pytest.mark.parametrize(
    ("dims", "symbol", "axis", "batch"),
    [
        ([1, 2, "T"], "T", 2, None),
        (["B", "frames", 80], "frames", 1, "B"),
        (["batch_size", 80, "n"], "n", 2, "batch_size"),
        ([None, None, 80], "x.dim1", 1, "x.dim0"),
        (["dim_0", "dim_1", 80], "dim_1", 1, "dim_0"),
        (["T", "B", 4], "T", 0, "B"),
    ],
)
def test_time_and_batch_are_found(dims: Any, symbol: str, axis: int, batch: str | None) -> None:
    time = find_time(of({"x": dims}))
    assert (time.symbol, time.streams, time.batch) == (symbol, {"x": (axis, 1)}, batch)


@pytest.mark.parametrize(("dims", "says"), [([1, 2, 3], "no input has"), (["B", 2, 3], "looks like the batch")])
def test_no_time_is_said(dims: Any, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        find_time(of({"x": dims}))


def test_two_candidates_are_both_named() -> None:
    with pytest.raises(InvalidArgument, match=r"'height' \(axis 1 of x\), 'width' \(axis 2 of x\)"):
        find_time(of({"x": [1, "height", "width"]}))
    with pytest.raises(InvalidArgument, match="besides time"):
        find_time(of({"x": [1, "height", "width"]}), time="width")
    found = find_time(of({"x": [1, "height", "width"]}), time="width", set={"height": 5})
    assert found.dims(of({"x": [1, "height", "width"]}).inputs[0], 7, 3) == (1, 5, 7)


@pytest.mark.parametrize(
    ("dim", "want"),
    [("T", (1, "T")), ("256*T", (256, "T")), ("T * 4", (4, "T")), ("a.b", (1, "a.b")), ("T + 1", (1, "T + 1"))],
)
def test_factors_are_read_off_the_name(dim: str, want: tuple[int, str]) -> None:
    assert split_product(dim) == want


def test_inputs_of_several_rates_are_one_stream() -> None:
    ported = of({"slow": ["B", "T"], "fast": ["B", "4*T"], "scale": ["B", 3]})
    time = find_time(ported)
    assert time.streams == {"slow": (1, 1), "fast": (1, 4)}
    assert [time.dims(p, 5, 2) for p in ported.inputs] == [(2, 5), (2, 20), (2, 3)]


def test_an_axis_can_be_named_from_the_end_even_where_it_is_fixed() -> None:
    time = find_time(of({"x": [1, 2, 100]}), time={"x": -1})
    assert time.streams == {"x": (2, 1)} and time.symbol == "T"
    assert time.dims(of({"x": [1, 2, 100]}).inputs[0], 7, 1) == (1, 2, 7)


@pytest.mark.parametrize("time", [{"x": 3}, {"x": True}, {"z": 0}, {}, "S", 5])
def test_an_axis_that_is_none_is_turned_down(time: Any) -> None:
    with pytest.raises(InvalidArgument):
        find_time(of({"x": [1, 2, "T"]}), time=time)


@pytest.mark.parametrize("name", ["length", "x_lens", "seqlen", "input_lengths", "len0"])
def test_whole_numbers_called_length_hold_it(name: str) -> None:
    ported = of({"x": ["B", "T"], name: ["B"]}, (name,))
    time = find_time(ported)
    assert time.bound == (name,)
    assert time.dims(ported.inputs[1], 9, 2) == (2,)


@pytest.mark.parametrize("name", ["silence", "lens_flare_x2y", "n"])
def test_other_names_hold_no_length(name: str) -> None:
    found = find_time(of({"x": ["B", "T"], name: ["B"]}, (name,))).bound
    assert found == ((name,) if name.startswith("lens_") else ())


def test_a_length_has_an_entry_a_stream_whatever_its_dimension_is_called() -> None:
    ported = of({"x": ["B", "T"], "length": ["other"]}, ("length",))
    time = find_time(ported)
    assert time.dims(ported.inputs[1], 9, 3) == (3,)
    alone = of({"x": [1, "T"], "length": ["other"]}, ("length",))
    assert find_time(alone).dims(alone.inputs[1], 9, 3) == (1,)


def test_bind_takes_and_frees() -> None:
    ported = of({"x": ["B", "T"], "count": ["B"], "length": ["B"]}, ("count", "length"))
    assert find_time(ported, bind={"count": "T"}).bound == ("count", "length")
    assert find_time(ported, bind={"length": None}).bound == ()
    for wrong in ({"nothing": "T"}, {"x": "T"}, {"count": "B"}):
        with pytest.raises(InvalidArgument):
            find_time(ported, bind=wrong)


@pytest.mark.parametrize(
    ("given", "step", "longest"),
    [("8*n", 8, None), ("<=3000", 1, 3000), ("8*n <=3000", 8, 3000), ("n<=5", 1, 5)],
)
def test_lengths_are_declared(given: str, step: int, longest: int | None) -> None:
    time = find_time(of({"x": [1, "T"]}), set={"T": given})
    assert (time.step, time.longest) == (step, longest)


@pytest.mark.parametrize("given", [0, -1, True, "n", "eight", "<=0", "<=x", "8*n <=", ""])
def test_what_declares_nothing_is_turned_down(given: Any) -> None:
    with pytest.raises(InvalidArgument):
        find_time(of({"x": [1, "T"]}), set={"T": given})


def test_a_dimension_nobody_has_is_turned_down() -> None:
    with pytest.raises(InvalidArgument, match="no input has a dimension 'Z'"):
        find_time(of({"x": [1, "T"]}), set={"Z": 3})


def test_a_fixed_batch_is_no_batch() -> None:
    ported = of({"x": ["B", "T"]})
    time = find_time(ported, set={"B": 4})
    assert time.batch is None and time.dims(ported.inputs[0], 6, 3) == (4, 6)
    assert TimeSpec("T", {"x": (1, 1)}, batch="B").dims(ported.inputs[0], 6, 3) == (3, 6)

"""Which axis of a module's inputs is time, found by running it; nothing is exported here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pulsify.core.errors import InvalidArgument  # noqa: E402
from pulsify.frontend.torch import export  # noqa: E402
from pulsify.frontend.torch_call import Units, batch_symbol, called  # noqa: E402
from pulsify.frontend.torch_manners import evaluating, short  # noqa: E402
from pulsify.frontend.torch_time import (  # noqa: E402
    _candidates,
    batched,
    found_axes,
    given_axes,
    other_lengths,
    resized,
    units_of,
)


class Calling(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self, how: Callable[..., Any]) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Any, y: Any = None) -> Any:
        return self.how(x) if y is None else self.how(x, y)


def conv(channels: int = 3) -> Any:
    torch.manual_seed(0)
    return torch.nn.Conv1d(channels, 2, 3, padding=1)


# ---- the example


def test_tensors_are_named_after_the_arguments_of_forward() -> None:
    x, y = torch.zeros(1, 3, 8), torch.ones(1)
    module = Calling(lambda *a: a[0])
    assert list(called(module, x).tensors) == ["x"]
    assert list(called(module, (x, y)).tensors) == ["x", "y"]
    by_name = called(module, {"y": y, "x": x})
    assert list(by_name.tensors) == ["x", "y"] and not by_name.layout[0], "in the order of the arguments"


@pytest.mark.parametrize(
    ("example", "says"),
    [
        (None, "needs example inputs"),
        ((), "example is empty"),
        (1.5, "is float, expected a tensor"),
        ((torch.zeros(1),) * 3, "example has 3 values, forward takes 2"),
        ({"z": torch.zeros(1)}, r"forward has no argument \['z'\]"),
    ],
)
def test_an_example_that_is_none_is_told(example: Any, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        called(Calling(lambda x: x), example)


@pytest.mark.parametrize("time", [3, "not a word", ["x"]])
def test_a_time_that_is_neither_a_word_nor_an_axis_is_told(time: Any) -> None:
    with pytest.raises(InvalidArgument, match="expected an axis by argument"):
        export(conv(), torch.zeros(1, 3, 8), time)


# ---- which axis


def test_the_one_axis_a_module_takes_in_other_sizes_is_time() -> None:
    units = found_axes(called(conv(), torch.randn(1, 3, 20)))
    assert (units.axes, units.unit) == ({"input": 2}, 20)
    units = found_axes(called(conv(), torch.randn(4, 3, 20)))
    assert units.axes == {"input": 2}, "an axis along which nothing mixes is the batch"


def test_several_axes_that_could_be_time_are_asked_about() -> None:
    with pytest.raises(InvalidArgument, match=r"several axes could be time: .*'x': 1.*'x': 2.*; say which"):
        found_axes(called(Calling(torch.relu), torch.randn(1, 6, 8)))


def test_a_module_of_one_length_has_no_time_axis() -> None:
    with pytest.raises(InvalidArgument, match="there is no time axis in it"):
        found_axes(called(torch.nn.Linear(8, 2), torch.randn(8)))


def test_axes_that_belong_together_are_found_together_with_their_rates() -> None:
    def both(x: Any, y: Any) -> Any:
        return x.repeat_interleave(4, 1) + y

    call = called(Calling(both), (torch.randn(1, 6), torch.randn(1, 24)))
    units = given_axes(call, {"x": 1, "y": 1})
    assert units.per == {"x": 1, "y": 4} and units.unit == 6
    assert units.names("T") == {"x": {1: "T"}, "y": {1: "4*T"}}
    assert {"x": 1, "y": 1} in _candidates(call)


@pytest.mark.parametrize(
    ("time", "says"),
    [
        ({}, "names no input"),
        ({"z": 1}, "forward has no argument 'z'"),
        ({"input": 3}, "has 3 axes, there is no axis 3"),
        ({"input": True}, "there is no axis True"),
        ({"input": 1}, "runs at no other length of axis 1 of input"),
    ],
)
def test_an_axis_that_is_none_is_told(time: dict[str, int], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        given_axes(called(conv(), torch.randn(1, 3, 20)), time)


def test_the_example_at_another_length_goes_back_and_forth_and_lengths_are_its_own() -> None:
    class WithLength(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any, x_lens: Any) -> Any:
            return x * x_lens

    call = called(WithLength(), (torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([3])))
    made = resized(call, units_of(call, {"x": 1}), 7)
    assert made["x"].tolist() == [[1, 2, 3, 3, 2, 1, 1]] and made["x_lens"].tolist() == [7]
    assert resized(call, units_of(call, {"x": 1}), 2)["x"].tolist() == [[1, 2]]


def test_a_module_that_takes_nothing_longer_is_looked_at_shorter() -> None:
    def at_most(x: Any) -> Any:
        if x.shape[1] > 20:
            raise ValueError("too long")
        return x

    call = called(Calling(at_most), torch.randn(1, 20))
    assert other_lengths(call, units_of(call, {"x": 1})) == [10]


# ---- the batch


def test_streams_that_do_not_mix_leave_the_batch_free() -> None:
    call = called(conv(), torch.randn(1, 3, 20))
    found = batched(call, units_of(call, {"input": 2}))
    assert found is not None and found[1].batch == {"input": 0} and found[0].tensors["input"].shape == (3, 3, 20)
    assert found[1].names("T") == {"input": {0: "B", 2: "T"}}
    mixing = called(Calling(lambda x: x - x.mean(0, keepdim=True)), torch.randn(1, 3, 20))
    assert batched(mixing, units_of(mixing, {"x": 2})) is None
    several = called(conv(), torch.randn(2, 3, 20))
    assert batched(several, units_of(several, {"input": 2})) is None


@pytest.mark.parametrize("layers", [1, 2])
def test_the_state_of_a_recurrence_has_its_batch_behind_its_layers(layers: int) -> None:
    gru = torch.nn.GRU(4, 3, layers, batch_first=True).eval()
    call = called(Calling(lambda x, h: gru(x, h)[0]), (torch.randn(1, 9, 4), torch.randn(layers, 1, 3)))
    found = batched(call, units_of(call, {"x": 1}))
    assert found is not None and found[1].batch == {"x": 0, "y": 1}
    assert {n: list(t.shape) for n, t in found[0].tensors.items()} == {"x": [3, 9, 4], "y": [layers, 3, 3]}


def test_the_batch_is_not_called_what_time_is_called() -> None:
    assert batch_symbol("T") == "B" and batch_symbol("B") == "N"
    assert Units({"x": 1}, {"x": 1}, 9, {"x": 0}).names("B") == {"x": {0: "N", 1: "B"}}


# ---- manners


def test_every_submodule_is_left_in_the_mode_it_was_in() -> None:
    module = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(2, 2))
    module.train()
    module[0].eval()
    with evaluating(module):
        assert not any(m.training for m in module.modules())
    assert [m.training for m in module.modules()] == [True, False, True]


def test_an_error_is_its_first_line_without_paths() -> None:
    outer = RuntimeError("outer")
    outer.__cause__ = ValueError("no such thing in /a/long/path/file.py\nand more")
    assert short(outer) == "ValueError: no such thing in ..."
    assert short(KeyError()) == "KeyError"

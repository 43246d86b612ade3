"""The source: a line per node that names it, names that Python takes, constants once, types as asked for."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pulsify.backends.torch import table
from pulsify.backends.torch.site import Names, literal
from pulsify.backends.torch.source import function, source
from pulsify.backends.torch.table import op
from pulsify.backends.torch.tensors import Weights, to_array, to_wire
from tests.models import weights
from tests.unit.backends.torch.both import by_torch, fed, same, small, written
from tests.unit.graphs import run
from tests.unit.specs import a_state, a_stream, remembers


def test_a_line_per_node_with_its_name() -> None:
    model = small("Conv x w > h pads=[1,1]; Relu h > y", {"x": [1, 2, 8]}, {"w": weights(3, 2, 3)})
    made = source(model, a_stream(), 1, "cpu", said="The step.")
    assert made.text.splitlines() == [
        "def step(x):",
        '    """The step."""',
        "    h = F.conv1d(x, w, None, padding=[1])  # Conv h",
        "    y = torch.relu(h); del h  # Relu y",
        "    return y,",
    ]
    assert made.takes == ("x",) and made.gives == ("y",)


def test_names_are_pythons_and_used_once() -> None:
    names = Names()
    made = [names.fresh(w) for w in ("/conv/Conv.2", "conv/Conv_2", "7", "class", "torch", "max", "", "x/out")]
    assert made[:3] == ["conv_Conv_2", "conv_Conv_2_2", "v_7"]
    assert len(set(made)) == len(made) and all(n.isidentifier() for n in made)
    assert not {"class", "torch", "max"} & set(made)


@pytest.mark.parametrize("number", [1, -3, True, 0.1, 1e-30, np.float32(0.1), np.inf, -np.inf, np.nan])
def test_numbers_are_read_back_to_the_last_bit(number: Any) -> None:
    assert np.array_equal(eval(literal(number)), number, equal_nan=True)


def test_an_island_says_why_it_is_one() -> None:
    model = small("NonZero x > h; Cast h > y to=1", {"x": [3, 4]})
    lines = written(model).text.splitlines()
    assert lines[1:3] == ["    # on the CPU: h (no expression for NonZero)", "    h, = island_0(x)"]


def test_errors_show_the_line() -> None:
    model = small("MatMul x w > y", {"x": [3, 4]}, {"w": weights(4, 4)})
    step = function(written(model), Weights("cpu"))
    with pytest.raises(RuntimeError) as error:
        step(to_wire(np.zeros((3, 5), np.float32), "float32", "cpu"))
    assert "y = torch.matmul(x, w)" in "".join(traceback.format_exception(error.value))


def test_constants_are_shared_by_forms_and_numbers_of_streams() -> None:
    model, spec = remembers("B")
    kept = Weights("cpu")
    steps = [function(source(model, spec, batch, "cpu"), kept) for batch in (1, 3)]
    one, other = (step.__globals__["w"] for step in steps)
    assert one is other


def test_a_constant_has_one_name_however_many_read_it() -> None:
    made = written(small("MatMul x w > h; MatMul h w > y", {"x": [4, 4]}, {"w": weights(4, 4)}))
    assert list(made.needs) == ["w"] and made.text.count(", w)") == 2


def test_sizes_follow_the_number_of_streams() -> None:
    model = small("Reshape x s > y", {"x": ["B", 2, 4]}, {"s": np.array([-1, 8])})
    for batch in (1, 3):
        assert f"reshape({batch}, 8)" in source(model, a_stream(), batch, "cpu").text


@pytest.mark.parametrize("low", ["float16", "bfloat16"])
def test_a_lower_type_stands_for_float32(low: str) -> None:
    model = small("MatMul x w > h; Softmax h > p; LayerNormalization p g > y", {"x": [3, 4]},
                  {"w": weights(4, 4), "g": weights(4)})  # fmt: skip
    feeds = fed(model)
    made = written(model, low=low)
    assert f".to(torch.{low})" in made.text and "float()" in made.text
    assert {need.dtype for need in made.needs.values()} == {low}
    got = by_torch(model, feeds, low=low)["y"]
    same(got, run(model, feeds)["y"], 5e-2)
    assert (got != run(model, feeds)["y"]).any()


def test_what_counts_frames_stays_exact_in_a_lower_type() -> None:
    """Frame 300 is no number of bfloat16's; a table of positions is looked up in float32, and joins the data after."""
    text = "Cast n > f to=1; Mul f c > g; Cos g > h; Add x h > y; Add n m > new_n"
    kinds = {"n": np.int32, "new_n": np.int32}
    model = small(text, {"x": [1, 1], "n": [1, 1]}, {"c": np.array(0.5, np.float32), "m": np.array(4, np.int32)},
                  "y new_n", dtypes=kinds)  # fmt: skip
    spec = a_stream(position="n", states=(a_state("n", (1, 1)),))
    made = source(model, spec, 1, "cpu", "bfloat16")
    assert "y = x + h.to(torch.bfloat16)" in made.text
    step = function(made, Weights("cpu"))
    given = {"x": np.zeros((1, 1), np.float32), "n": np.array([[301]], np.int32)}
    y, position = step(*(to_wire(given[k], made.kinds[k], "cpu") for k in made.takes))
    assert abs(float(y) - np.cos(150.5)) < 4e-3 and int(position) == 305


def test_bfloat16_of_numpy_and_back() -> None:
    import ml_dtypes

    array = np.array([1.5, -2.25], ml_dtypes.bfloat16)
    wire = to_wire(array, "bfloat16", "cpu")
    np.testing.assert_array_equal(to_array(wire, array.dtype), array)
    assert to_array(to_wire(np.array(3.0), "float64", "cpu"), None).shape == ()


def test_every_family_is_in_the_table() -> None:
    assert len(op.table()) > 130 and op.table() is op.entered
    families = {p.stem for p in Path(table.__file__).parent.glob("ops_*.py")}
    assert len(families) >= 10 and families == {f.__module__.rpartition(".")[2] for f in op.entered.values()}

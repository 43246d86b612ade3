"""Stream and batch model side by side: what counts as equal, at which lengths, and what is said if they are not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from pulsify.api import Stream
from pulsify.core.errors import InvalidArgument, InvalidModel, Mismatch
from pulsify.core.length import Length
from pulsify.core.spec import Condition, Proof
from pulsify.verify.check import (
    AS_WRITTEN,
    error,
    limit,
    quick,
    run_stream,
    valid_length,
    verify,
)
from tests.models import Array, causal, conditioned, frames, look_ahead
from tests.unit.specs import a_stream, remembered, remembers

NAN, INF = np.nan, np.inf


def stream(factor: float = 1.0, **fields: Any) -> Stream:
    """The stream of `causal`, its weights times a factor."""
    model, spec = remembers("B")
    weights = model.graph.initializers["w"]
    assert weights.const_value is not None
    weights.const_value = ir.tensor(weights.const_value.numpy() * np.float32(factor), name="w")
    return Stream(model, replace(spec, **fields))


def only(**fields: Any) -> Stream:
    """Of which only the spec is looked at."""
    return Stream(remembers()[0], a_stream(**fields))


# ---- how far apart


@pytest.mark.parametrize(
    ("got", "want", "off"),
    [
        ([1.0, 2.0], [1.0, 2.0], [0, 0]),
        ([1.0, 3.0], [1.0, 2.0], [0, 0.5]),  # of the largest there should be
        ([NAN, 1.0], [NAN, 1.0], [0, 0]),
        ([NAN, 1.0], [2.0, 1.0], [INF, 0]),
        ([2.0, 1.0], [NAN, 1.0], [INF, 0]),
        ([INF, 1.0], [INF, 1.0], [0, 0]),
        ([-INF, 1.0], [INF, 1.0], [INF, 0]),
        ([0.25, 0.0], [0.0, 0.0], [0.25, 0]),  # nothing to compare with: as it is
        ([], [], []),
    ],
)
def test_an_error_is_relative_to_the_scale_and_nothing_where_both_are_alike(
    got: list[float], want: list[float], off: list[float]
) -> None:
    np.testing.assert_array_equal(error(np.array(got, np.float32), np.array(want, np.float32)), off)


def test_an_error_of_a_single_number() -> None:
    assert error(np.float32(1.5), np.float32(1.0)) == 0.5 and error(np.float32(2.0), np.float32(2.0)) == 0
    assert error(np.array(NAN, np.float32), np.array(1.0, np.float32)) == INF


@pytest.mark.parametrize(("dtype", "allowed"), [("float32", 1e-4), ("float64", 1e-9), ("float16", 2e-2), ("int64", 0)])
def test_every_type_has_its_own_limit_and_whole_numbers_are_equal(dtype: str, allowed: float) -> None:
    assert limit(np.zeros(1, dtype), None) == allowed
    assert limit(np.zeros(1, dtype), 0.5) == 0.5
    whole = np.array([1, 2])
    np.testing.assert_array_equal(error(np.array([1, 3]), whole), [0, 1])


# ---- which lengths


def test_a_length_is_lengthened_until_the_model_takes_it() -> None:
    assert valid_length(only(), 7) == 7
    assert valid_length(only(shortest=9), 7) == 9
    assert valid_length(only(step=4), 7) == 8
    odd = Condition("node", Length().then(add=1), multiple=6)
    assert valid_length(only(conditions=(odd,)), 7) == 11
    assert valid_length(only(conditions=(Condition("table", Length(), at_most=6),)), 7) is None


def test_the_lengths_the_proof_names_as_critical_are_run() -> None:
    seen = verify(causal("B"), stream(proof=Proof(critical=(37, 1 << 20)))).lengths
    assert {36, 37, 38} <= set(seen) and max(seen) < 1000, "those far out are not"
    assert {1, 2, 3, 4, 5} <= set(seen), "the shortest, and those around a pulse, are in any case"


def test_a_stream_that_forgets_is_compared_no_further() -> None:
    report = verify(causal("B"), stream(exact_up_to=9))
    assert max(report.lengths) == 9 and report.exact_up_to == 9
    assert any("exact up to 9 frames" in note for note in report.notes)
    with pytest.raises(Mismatch, match="at no length, so nothing was checked: take a larger N"):
        verify(causal("B"), stream(exact_up_to=9, shortest=10))


# ---- the comparison


def test_a_right_stream_is_right_however_it_is_cut() -> None:
    report = verify(causal("B"), stream(), lengths=[1, 6, 13])
    assert report.ok and report.runs == 10 and report.lengths == (1, 6, 13) and report.error < 1e-5
    assert quick(causal("B"), stream()).ok


def test_a_wrong_stream_is_told_with_its_report() -> None:
    with pytest.raises(Mismatch, match="the stream is not the batch model") as caught:
        verify(causal("B"), stream(1.5), lengths=[6])
    report = caught.value.report
    assert report is not None and not report.ok
    worst = report.outputs["y"]
    assert worst.frame == 0 and worst.length == 6 and worst.error == pytest.approx(0.5, abs=1e-4)


def test_a_tolerance_of_ones_own_is_kept_to() -> None:
    assert verify(causal("B"), stream(1.001), lengths=[6], tolerance=0.01).ok
    with pytest.raises(Mismatch):
        verify(causal("B"), stream(1.001), lengths=[6])
    with pytest.raises(Mismatch):
        verify(causal("B"), stream(), lengths=[6], tolerance=0.0 - 1e-9)


def test_the_same_seed_is_the_same_comparison() -> None:
    one, other = (verify(causal("B"), stream(1.00001), lengths=[30], seed=3) for _ in range(2))
    assert one == other and AS_WRITTEN not in one.notes


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"lengths": [0]}, "expected numbers of frames, at least 1"),
        ({"lengths": [1.5]}, "expected numbers of frames"),
        ({"chunkings": ["halves"]}, r"there is no \['halves'\]; there are"),
        ({"backend": "cuda"}, "there are ort, reference"),
    ],
)
def test_arguments_that_mean_nothing_are_turned_down(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        verify(causal("B"), stream(), **arguments)


def test_another_model_is_not_compared() -> None:
    with pytest.raises(InvalidArgument, match="pass the model the stream was made from"):
        verify(conditioned("B"), stream())
    with pytest.raises(InvalidModel, match=r"no such model file: 'none\.onnx'"):
        verify("none.onnx", stream())
    with pytest.raises(Mismatch):
        verify(look_ahead("B"), stream())  # the same ports, something else inside


@pytest.mark.parametrize("portable", [True, False])
def test_a_stream_is_run_in_the_pieces_told(portable: bool) -> None:
    x: Array = frames(1, 2, 11)
    got = run_stream(stream(), {"x": x}, [0, 3, 7, 1], portable)
    np.testing.assert_allclose(got["y"], remembered(x), atol=1e-5)

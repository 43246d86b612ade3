"""What must hold of `stream_attention`, whatever computes it: `On` says what, and each function here is one claim."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from pulsify.kernels import checking, registry
from pulsify.kernels.registry import Inputs
from pulsify.kernels.stream_attention import cases
from pulsify.kernels.stream_attention.cases import Made, Shape

KERNEL = registry.kernel("stream_attention")
Draw = st.DataObject


@dataclass(frozen=True)
class On:
    """An implementation and a type."""

    target: str
    dtype: str = "float32"
    device: str = "cpu"

    def __call__(self, inputs: Inputs) -> Any:
        return checking.run(KERNEL, self.target, checking.rounded(inputs, self.dtype), self.device, self.dtype)[0]

    def off(self, inputs: Inputs) -> tuple[float, float]:
        """How far it is from the specification, and how far it may be. Infinite: NaN elsewhere, or wrongly appended."""
        case = registry.Case("drawn", "", lambda: inputs)
        return checking.deviation(KERNEL, case, self.target, self.device, self.dtype)

    def holds(self, inputs: Inputs) -> None:
        off, allowed = self.off(inputs)
        assert off <= allowed


def drawn(data: Draw, most: int = 24, **fixed: Any) -> Made:
    """Any of the optional parts together, small."""
    size, coin = lambda top, low=1: data.draw(st.integers(low, top)), st.booleans()
    new = size(6, 0)
    shape = Shape(
        size(2), size(2), size(6), size(9), size(most, 0 if new else 1), new, size(9), data.draw(coin), data.draw(coin),
        data.draw(coin), size(1000),
    )  # fmt: skip
    made = cases.inputs(replace(shape, **fixed))
    if data.draw(coin):
        made = cases.bias(made, data.draw(st.sampled_from(["bhtc", "htc", "tc", "c", "b"])))
    return made


def masked(data: Draw, made: Made) -> Made:
    """Hidden and invalid cells, anywhere: some rows may see nothing."""
    b, _, _, columns = cases.whole(made)
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    made = made | {"mask": rng.random(cases.whole(made)) < data.draw(st.sampled_from([0.2, 0.7]))}
    made["hollow"] = data.draw(st.sampled_from(["nan", "zero"]))
    first = rng.integers(0, columns, b)
    return made | {"first": first, "last": first + rng.integers(0, columns + 1, b)}


def taking_part(made: Made) -> Any:
    """[B, H, Tq, columns]: which cells do."""
    j = np.arange(cases.whole(made)[3])
    valid = (made["first"][:, None] <= j) & (j < made["last"][:, None])
    return made["mask"] & valid[:, None, None]


def logical(made: Made, name: str) -> list[tuple[str, Any]]:
    """Where column j of keys (or values) lies: an array and an index into its frames, for each stream."""
    w = made[name].shape[2]
    start = made.get("start", np.zeros(len(made["q"]), int))
    found: list[tuple[str, Any]] = [(name, [(s + j) % w for s in start]) for j in range(w)]
    return found + [(f"new_{name}", [j - w] * len(start)) for j in range(w, cases.whole(made)[3])]


def agrees(on: On, data: Draw) -> None:
    on.holds(drawn(data))


def agrees_where_cells_are_hidden(on: On, data: Draw) -> None:
    made = masked(data, drawn(data))
    on.holds(made | {"fill": data.draw(st.sampled_from([-math.inf, -5.0, cases.LOWEST]))})


def agrees_block_by_block(on: On, data: Draw) -> None:
    on.holds(masked(data, drawn(data, batch=1, heads=1, width=data.draw(st.integers(130, 200)))))


def where_the_ring_begins_is_not_seen(on: On, data: Draw) -> None:
    made = drawn(data, width=data.draw(st.integers(1, 24)), ring=True)
    turned = dict(made)
    by = data.draw(st.integers(1, 30))
    turned["start"] = (made["start"] + by) % made["keys"].shape[2]
    turned |= {name: np.roll(made[name], by, 2) for name in ("keys", "values")}
    np.testing.assert_array_equal(on(made), on(turned))


def the_batch_is_not_seen(on: On, data: Draw) -> None:
    """Beyond the bound of roundings."""
    made = drawn(data, batch=3)
    which = data.draw(st.integers(0, 2))
    alone = {
        name: value[which : which + 1]
        if isinstance(value, np.ndarray) and name not in ("table", "u", "v") and len(value) == 3 else value
        for name, value in made.items()
    }  # fmt: skip
    assert checking.distance(on(made)[which : which + 1], on(alone)) <= KERNEL.bound(made, on.dtype)


def what_takes_no_part_reaches_nothing(on: On, data: Draw) -> None:
    """NaN in all columns that no row sees: not a bit of the result changes."""
    made = masked(data, drawn(data))
    before = on(made)
    unseen = ~taking_part(made).any((1, 2))
    for name in ("keys", "values"):
        for j, (array, places) in enumerate(logical(made, name)):
            for b in np.flatnonzero(unseen[:, j]):
                made[array][b, :, places[b]] = math.nan
    np.testing.assert_array_equal(on(made), before)


def nan_reaches_those_that_read_it(on: On, data: Draw) -> None:
    """NaN in one column of a head: the rows that see it, no others."""
    made = masked(data, drawn(data))
    b, h, _, columns = cases.whole(made)
    stream, head, j = (data.draw(st.integers(0, n - 1)) for n in (b, h, columns))
    name = data.draw(st.sampled_from(["keys", "values"]))
    array, places = logical(made, name)[j]
    before = on(made)
    made[array][stream, head, places[stream]] = math.nan
    after, reads = on(made), np.zeros(before.shape[:3], bool)
    reads[stream, head] = taking_part(made)[stream, head, :, j]
    assert np.isnan(after[reads]).all()
    np.testing.assert_array_equal(after[~reads], before[~reads])


def nan_in_a_query_reaches_its_row(on: On, data: Draw) -> None:
    made = drawn(data)
    before, at = on(made), tuple(data.draw(st.integers(0, n - 1)) for n in made["q"].shape)
    made["q"][at] = math.nan
    after, row = on(made), np.zeros(before.shape[:3], bool)
    row[at[:3]] = True
    assert np.isnan(after[row]).all()
    np.testing.assert_array_equal(after[~row], before[~row])


def large_scores_stay_finite(on: On, data: Draw) -> None:
    made = drawn(data)
    made |= {"bias": data.draw(st.sampled_from([-1e4, 0.0, 1e4])) * np.ones((1, 1, 1, 1)), "q": made["q"] * 1e4}
    assert np.isfinite(on(made)).all()


def a_row_that_sees_nothing_is_what_was_asked_for(on: On, data: Draw) -> None:
    made = masked(data, drawn(data))
    hollow = ~taking_part(made).any(-1)
    got = on(made)
    assert (np.isnan(got[hollow]) if made["hollow"] == "nan" else got[hollow] == 0).all()
    assert np.isfinite(got[~hollow]).all()


def minus_infinity_in_the_bias_is_a_weight_of_zero(on: On, data: Draw) -> None:
    made = drawn(data)
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    made["bias"] = np.where(rng.random(cases.whole(made)) < 0.5, -math.inf, 0.0)
    on.holds(made)
    gone = np.isinf(made["bias"]).all(-1)
    got = on(made)
    assert np.isnan(got[gone]).all() and np.isfinite(got[~gone]).all()


CLAIMS: list[Callable[[On, Draw], None]] = [
    agrees, agrees_where_cells_are_hidden, agrees_block_by_block, where_the_ring_begins_is_not_seen,
    the_batch_is_not_seen, what_takes_no_part_reaches_nothing, nan_reaches_those_that_read_it,
    nan_in_a_query_reaches_its_row, large_scores_stay_finite, a_row_that_sees_nothing_is_what_was_asked_for,
    minus_infinity_in_the_bias_is_a_weight_of_zero,
]  # fmt: skip

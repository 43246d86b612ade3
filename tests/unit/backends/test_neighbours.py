"""Streams beside each other: what gets from one into another is seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from pulsify.backends.neighbours import COUNT, kept_apart, mixed_places, same_place, warm_places
from pulsify.core.length import Length
from pulsify.core.spec import Condition, Spec, State
from tests.models import Array
from tests.unit.specs import FAR, a_stream, an_input, an_output

OWN = ("B", 2, 4)
CLOCK = State("position", ("B", 1), np.dtype(np.int32), "clock", after="new_position")


def spec(**fields: Any) -> Spec:
    about = {"batch": "B", "inputs": (an_input(dims=OWN),), "outputs": (an_output(dims=OWN),), "states": (CLOCK,)}
    return a_stream(**{**about, "position": "position", "length": "length", **fields})  # type: ignore[arg-type]


def late(feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Frames before the second pulse and behind the end are none."""
    at = feeds["position"] + np.arange(4)
    real = (at >= 4) & (at < feeds["length"])
    return {"y": np.where(real[:, None], feeds["x"], 0)}


def of_the_first(feeds: Mapping[str, Array]) -> dict[str, Array]:
    return late({**feeds, "position": np.repeat(feeds["position"][:1], COUNT, 0)})


def of_the_longest(feeds: Mapping[str, Array]) -> dict[str, Array]:
    return late({**feeds, "length": np.full((COUNT, 1), feeds["length"].max())})


def of_the_oldest(feeds: Mapping[str, Array]) -> dict[str, Array]:
    return late({**feeds, "position": np.full((COUNT, 1), feeds["position"].max())})


def of_the_youngest(feeds: Mapping[str, Array]) -> dict[str, Array]:
    return late({**feeds, "position": np.full((COUNT, 1), feeds["position"].min())})


def of_the_shortest(feeds: Mapping[str, Array]) -> dict[str, Array]:
    return late({**feeds, "length": np.full((COUNT, 1), feeds["length"].min())})


def of_the_last(feeds: Mapping[str, Array]) -> dict[str, Array]:
    return late({**feeds, "length": np.repeat(feeds["length"][-1:], COUNT, 0)})


def leaking(feeds: Mapping[str, Array]) -> dict[str, Array]:
    with np.errstate(invalid="ignore"):
        return {"y": feeds["x"] + 0 * np.roll(feeds["x"], 1, 0)}


@pytest.mark.parametrize(
    ("run", "same", "anywhere"),
    [
        (late, True, True),
        (leaking, False, False),
        *(
            (run, True, False)
            for run in (of_the_first, of_the_last, of_the_longest, of_the_shortest, of_the_oldest, of_the_youngest)
        ),
    ],
)
def test_what_one_stream_has_of_another(run: Any, same: bool, anywhere: bool) -> None:
    assert kept_apart(run, spec(), [same_place(8, FAR)]) is same
    assert kept_apart(run, spec(), mixed_places(spec(), 8)) is anywhere


def test_how_many_streams_there_are_is_what_one_has_of_others() -> None:
    def counted(feeds: Mapping[str, Array]) -> dict[str, Array]:
        return {"y": late(feeds)["y"] + len(feeds["x"])}

    def rounded(feeds: Mapping[str, Array]) -> dict[str, Array]:
        return {"y": late(feeds)["y"] * np.float32(1 + 1e-6 * len(feeds["x"]))}

    scenes = [same_place(8, FAR)]
    assert kept_apart(counted, spec(), scenes) and not kept_apart(counted, spec(), scenes, fewer=counted)
    assert kept_apart(rounded, spec(), scenes, fewer=rounded) and kept_apart(late, spec(), scenes, fewer=late)


def test_what_comes_at_the_end_only_is_looked_at_if_asked_for() -> None:
    both = spec(outputs=(an_output(dims=OWN), an_output("last", ("B", 4))))
    one = spec(outputs=(both.outputs[0], type(both.outputs[1])(**{**vars(both.outputs[1]), "axis": None})))

    def run(feeds: Mapping[str, Array]) -> dict[str, Array]:
        return {**late(feeds), "last": np.repeat(feeds["x"][0].max(0)[None], COUNT, 0)}  # of the first for all

    assert kept_apart(run, one, [same_place(8, FAR)])
    assert not kept_apart(run, one, [same_place(8, FAR)], last=True)


def test_a_trial_that_fails_says_nothing() -> None:
    def fails(feeds: Mapping[str, Array]) -> dict[str, Array]:
        raise RuntimeError

    assert not kept_apart(fails, spec(), [same_place(0, FAR)])


def test_scenes_have_starts_middles_and_ends() -> None:
    scenes = mixed_places(spec(), 12)
    own, beside = [s.own for s in scenes], [place for s in scenes for place in s.beside[1:]]
    for places in (own, beside):
        assert {at for at, _ in places} >= {0, 4, 12}
        assert any(n == FAR for _, n in places) and any(n < at + 4 for at, n in places)
    assert all(s.beside[0] == s.own and s.own not in s.beside[1:] for s in scenes), "among its like, then not"
    assert all(at >= 12 and n == FAR for s in warm_places(spec(), 12) for at, n in (s.own, *s.beside))


def test_scenes_end_where_a_table_does() -> None:
    short = spec(conditions=(Condition("table", Length(), at_most=16),))
    assert max(scene.own[0] for scene in mixed_places(short, 12)) == 12

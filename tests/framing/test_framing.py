"""Whatever counts frames counts them alike: call by call what the reference says, in Python, C and JavaScript."""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from pulsify.export import portable
from tests.framing import runners
from tests.framing.vectors import CASES, ERROR, Call, chunks, expected, uneven

ALONE = sorted(name for name, case in CASES.items() if case.first == 1)
EACH = pytest.mark.parametrize("name", CASES)


def streams(name: str) -> list[runners.Pushes]:
    case = CASES[name]
    return [*chunks(case, 1), *chunks(case, 2), *uneven(case, 3)]


def wanted(name: str, listed: list[runners.Pushes]) -> list[list[Call]]:
    spec = CASES[name].stream.spec
    return [expected(spec, pushes) for pushes in listed]


def test_the_reference_gives_every_frame_once_and_refuses_some() -> None:
    """What all others are held to."""
    refused = 0
    for name, case in CASES.items():
        spec, listed = case.stream.spec, streams(name)
        for pushes, calls in zip(listed, wanted(name, listed), strict=True):
            refused += calls.count(ERROR)
            if calls[-1] is not ERROR:
                taken = [push for push, call in zip(pushes, calls) if call is not ERROR]
                total = sum(push[0] for push in taken) // int(spec.inputs[0].rate)
                for o in (o for o in spec.outputs if o.axis is not None):
                    found = [x for call in calls if call is not None for x in call[o.name]]
                    count = max(o.length.at(total), 0) if total else 0
                    assert found == list(range(count)), (name, o.name, total)
    assert refused > 20


@EACH
def test_a_session(name: str) -> None:
    stream, listed = CASES[name].stream, streams(name)
    for pushes, calls in zip(listed, wanted(name, listed), strict=True):
        assert runners.in_session(stream, pushes) == calls, pushes


def gave(calls: list[Call]) -> list[Call]:
    """Where nothing came out nothing is said."""
    return [call if call is None else {n: x for n, x in call.items() if x} for call in calls]


@EACH
def test_lanes_of_a_pool(name: str) -> None:
    listed = streams(name)
    for found, calls in zip(runners.in_lanes(CASES[name].stream, listed), wanted(name, listed), strict=True):
        assert gave(found) == gave(calls)


@EACH
def test_a_stage_of_the_server(name: str) -> None:
    listed = streams(name)
    for found, calls in zip(runners.in_stage(CASES[name].stream, listed), wanted(name, listed), strict=True):
        end = calls.index(ERROR) + 1 if ERROR in calls else len(calls)
        assert gave(found) == gave(calls)[:end]


@EACH
def test_exchanges_of_streams_at_different_places(name: str) -> None:
    case, rng = CASES[name], np.random.default_rng(4)
    ahead = case.pulse * (case.first if case.first > 1 else 0)  # an exchange begins with no opening
    turns = [1, 1] if "table" in name else rng.integers(1, 3, 5).tolist()
    listed = [
        (ahead + int(rng.integers(0, 2 * case.pulse)), turns[: rng.integers(1, len(turns) + 1)]) for _ in range(9)
    ]
    for found, (before, own) in zip(runners.in_exchanges(case.stream, listed), listed, strict=True):
        received = [int(i.rate) * (before + case.pulse * sum(own)) for i in case.stream.spec.inputs]
        (calls, _) = expected(case.stream.spec, [received])
        assert calls is not None and found == [x for each in calls.values() for x in [*each, np.inf]]


@pytest.mark.parametrize("name", ALONE)
def test_exported_python(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "frames.py").write_text(portable.client("openvino")["frames.py"])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "frames", raising=False)
    frames, listed = importlib.import_module("frames"), streams(name)
    monkeypatch.delitem(sys.modules, "frames")
    for pushes, calls in zip(listed, wanted(name, listed), strict=True):
        assert runners.in_client(frames, CASES[name].stream.spec, pushes) == calls, pushes


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_javascript(tmp_path: Path) -> None:
    listed = [(name, pushes) for name in ALONE for pushes in streams(name)]
    specs = {name: CASES[name].stream.spec for name in ALONE}
    found = runners.in_javascript(tmp_path, [(specs[name], pushes) for name, pushes in listed])
    for (name, pushes), calls in zip(listed, found, strict=True):
        assert calls == expected(specs[name], pushes), (name, pushes)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
@EACH
def test_c(name: str, tmp_path: Path) -> None:
    case, listed = CASES[name], list[runners.Pushes]()
    for pushes in [*chunks(case, 1), *chunks(case, 2)]:
        units = [push[0] // case.rates[0] for push in pushes]
        pieces = [n for size in units for n in (min(size, case.pulse), size - case.pulse) if n >= 0]
        listed.append([[n * rate for rate in case.rates] for n in pieces])
    for pushes, calls, want in zip(
        listed, runners.in_c(tmp_path, case.stream, listed), wanted(name, listed), strict=True
    ):
        assert calls == want, pushes

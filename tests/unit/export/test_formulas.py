"""Rules and lengths in other languages: what they are in Python."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from pulsify.backends.native.render import HEAD, prelude
from pulsify.core.count import expression
from pulsify.core.length import Length, Table
from pulsify.export import portable
from pulsify.export.clients.frames import evaluated
from pulsify.export.formulas import RULES, c_function, c_rules, formula, js_rules
from tests.unit.export.test_c import STRICT
from tests.unit.export.test_portable import CONDITIONS

LENGTHS = [
    Length(), Length(((3, -5, 4),)), Length(((1, -9, 1), (2, 1, 3)), floors=frozenset({0})), Length(cap=7),
    Length(((2, 1, 1),), Table(3, 2, (0, 1, 5)), short=(4, 0, 9), cap=30),
]  # fmt: skip
NUMBERS = (0, 1, 2, 3, 7, 12, 1 << 33)


def called(rule: Callable[..., int]) -> list[tuple[int, ...]]:
    """Numbers to try; what is divided by is above zero."""
    names = formula(rule).variables
    return list(product(*(NUMBERS[1:5] if name in ("frames", "multiple") else NUMBERS for name in names)))


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_rules_in_javascript(tmp_path: Path) -> None:
    lines = [js_rules([rule.__name__ for rule in RULES])]
    for rule in RULES:
        calls = ", ".join(f"{rule.__name__}({', '.join(map(str, numbers))})" for numbers in called(rule))
        lines.append(f"console.log(JSON.stringify([{calls}]));")
    (tmp_path / "rules.js").write_text("\n".join(lines))
    done = subprocess.run(["node", tmp_path / "rules.js"], capture_output=True, text=True, timeout=60, check=True)
    for rule, line in zip(RULES, done.stdout.splitlines(), strict=True):
        assert json.loads(line) == [rule(*numbers) for numbers in called(rule)], rule.__name__


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_rules_lengths_and_conditions_in_c(tmp_path: Path) -> None:
    names = [rule.__name__ for rule in RULES]
    lines = [HEAD, prelude(), "#include <stdio.h>", *c_rules("".join(f"frames_{name}(" for name in names))]
    values = [expression(length) for length in LENGTHS] + [portable.met(c) for c in CONDITIONS]
    for i, value in enumerate(values):
        lines += c_function(f"f{i}", ["S"], value)
    lines += ["int main(void) {"]
    wanted = list[int]()
    for rule in RULES:
        for numbers in called(rule):
            lines.append(f'    printf("%lld\\n", (long long)frames_{rule.__name__}({", ".join(map(str, numbers))}));')
            wanted.append(rule(*numbers))
    for i, value in enumerate(values):
        lines.append(f'    for (int n = 0; n < 100; n++) printf("%lld\\n", (long long)f{i}(n));')
        wanted += [int(evaluated(value, n)) for n in range(100)]
    (tmp_path / "rules.c").write_text("\n".join([*lines, "}", ""]))
    subprocess.run(
        ["gcc", *STRICT, "-Wno-psabi", "rules.c", "-lm", "-o", "rules"], cwd=tmp_path, timeout=120, check=True
    )
    done = subprocess.run([tmp_path / "rules"], capture_output=True, text=True, timeout=60, check=True)
    assert list(map(int, done.stdout.split())) == wanted


@pytest.mark.parametrize("length", LENGTHS)
def test_an_expression_is_the_length(length: Length) -> None:
    assert [evaluated(expression(length), n) for n in range(60)] == [max(length.at(n), 0) for n in range(60)]


def two(a: int) -> int:
    """One more."""
    b = a + 1
    return b


def test_a_rule_is_one_expression() -> None:
    with pytest.raises(AssertionError, match="more than one expression"):
        formula(two)


def test_only_rules_that_are_called_are_written() -> None:
    assert "frames_place(" in "".join(c_rules("x = frames_place(1)")) and "frames_until(" not in "".join(c_rules(""))

"""The registry of rules: one for each operator, found by its name."""

from __future__ import annotations

import pytest

from pulsify.core.errors import InvalidArgument
from pulsify.ops.registry import RULES, rule


def test_an_operator_has_one_rule_and_a_line_that_says_what_it_streams() -> None:
    assert {"Conv", "Pad", "GRU", "Softmax"} <= set(RULES)
    assert RULES["Conv"].family == "conv" and RULES["Conv"].rule is RULES["QLinearConv"].rule
    assert all(entry.says and entry.op == op for op, entry in RULES.items())


def test_a_second_rule_for_an_operator_is_turned_down_and_names_the_first() -> None:
    with pytest.raises(InvalidArgument, match=r"Conv has an answer already for 'stream': in pulsify\.ops\.conv"):
        rule("Conv")(RULES["Conv"].rule)

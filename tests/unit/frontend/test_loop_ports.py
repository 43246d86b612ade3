"""Scans and Loops read alike: carried, scanned, collected; and the loops that are none of that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import onnx_ir as ir
import pytest

from pulsify.core.errors import NotStreamable
from pulsify.frontend.loop_ports import Along, Carried, looped
from pulsify.frontend.model import Body, Node, make_node


def loop(op: str, inputs: list[str], outputs: tuple[str, ...], body: Body, **attrs: Any) -> Node:
    return replace(make_node(op, inputs, outputs[0], 17), name="loop", outputs=outputs, attrs=attrs, body=body)


STEP = make_node("Add", ["s", "f"], "s2", 17)
SCAN = Body(("s", "f"), ("s2", "o"), (STEP,), ())
LOOP = Body(("n", "go", "s"), ("go", "s2", "o"), (STEP,), ("f",))


def test_a_scan_counts_from_its_axes_and_turns_forwards_unless_said() -> None:
    found = looped(loop("Scan", ["start", "x"], ("end", "y"), SCAN, num_scan_inputs=1))
    assert found.carried == (Carried("start", "s", "s2", "end"),)
    assert found.scanned == (Along("x", "f", 0, False),) and found.collected == (Along("y", "o", 0, False),)
    assert found.count == found.number == found.going == ""
    turned = looped(
        loop("Scan", ["start", "x"], ("end", "y"), SCAN, num_scan_inputs=1, scan_input_axes=[2],
             scan_output_axes=[-1], scan_input_directions=[1], scan_output_directions=[1])
    )  # fmt: skip
    assert turned.scanned == (Along("x", "f", 2, True),) and turned.collected == (Along("y", "o", -1, True),)


def test_outputs_that_nobody_takes_have_no_name() -> None:
    found = looped(loop("Scan", ["start", "x"], ("end",), SCAN, num_scan_inputs=1))
    assert found.carried[0].final == "end" and found.collected[0].outer == ""


def test_a_loop_has_a_number_of_turns_and_counts_them() -> None:
    found = looped(loop("Loop", ["count", "", "start"], ("end", "y"), LOOP))
    assert (found.count, found.number, found.going) == ("count", "n", "go")
    assert found.carried == (Carried("start", "s", "s2", "end"),)
    assert found.collected == (Along("y", "o", 0),) and found.scanned == ()


@pytest.mark.parametrize(
    ("inputs", "body", "says"),
    [
        (["", "", "start"], LOOP, "it may end early"),  # as long as it likes
        (["count", "condition", "start"], LOOP, "it may end early"),
        (["count", "", "start"], replace(LOOP, outputs=("other", "s2", "o")), "it may end early"),
        (
            ["count", "", "start"],
            replace(LOOP, nodes=(replace(STEP, attrs={"body": ir.Graph([], [], nodes=[])}),)),
            "loops or branches inside",
        ),
        (
            ["count", "", "start"],
            replace(LOOP, nodes=(make_node("SequenceInsert", ["s", "f"], "s2", 17),)),
            "carries a list that is not merely appended",
        ),
    ],
)
def test_a_loop_that_is_no_pass_over_frames_is_refused_by_name(inputs: list[str], body: Body, says: str) -> None:
    with pytest.raises(NotStreamable, match=says) as refused:
        looped(loop("Loop", inputs, ("end", "y"), body))
    assert (refused.value.node, refused.value.op) == ("loop", "Loop") and refused.value.hint

"""What every pass promises: order, ports, and whether anything was done."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
import pytest
from onnx_ir.passes import InvariantError, PostconditionError, PreconditionError

from pulsify.core.spec import PAST
from pulsify.optimize.builder import Builder
from pulsify.optimize.rewriting import NodeChange, has_ports, in_order, one_stream, wiring
from tests.models import node
from tests.unit.graphs import becomes, graph, stays


class Rewriting(NodeChange):
    """Does what it is told with every Relu."""

    def __init__(self, how: Callable[[Builder, ir.Node], None]) -> None:
        self.how = how

    def rewrite(self, b: Builder, node: ir.Node) -> None:
        if node.op_type == "Relu":
            self.how(b, node)


def abs_instead(b: Builder, node: ir.Node) -> None:
    b.replace(node.outputs[0], b.op("Abs", node.inputs, node.outputs[0].shape, node.outputs[0].dtype))


def small(batch: int | str = 2) -> ir.Model:
    nodes = [node("Neg", "x", "n"), node("Relu", "n", "r"), node("Exp", "r", "e"), node("Identity", "e", "y")]
    return graph(nodes, {"x": [batch, 3]}, "y", {})


def test_what_nobody_reads_any_more_is_dropped() -> None:
    def nothing(b: Builder, node: ir.Node) -> None:
        node.outputs[0].replace_all_uses_with(b.graph.inputs[0])

    result = Rewriting(nothing)(small())
    assert result.modified
    assert [n.op_type for n in result.model.graph] == ["Exp", "Identity"]


def test_a_pass_that_does_nothing_says_so() -> None:
    stays(Rewriting(lambda b, node: None), small())
    done = Rewriting(abs_instead)(small())
    assert done.modified
    stays(Rewriting(abs_instead), done.model)


def test_other_inputs_of_the_same_nodes_count_as_a_change() -> None:
    model = small()
    before = wiring(model)
    model.graph[2].replace_input_with(0, model.graph[0].outputs[0])
    assert wiring(model) != before


def test_an_equal_operator_in_the_place_of_another_is_the_same_model() -> None:
    def again(b: Builder, node: ir.Node) -> None:
        b.replace(node.outputs[0], b.op("Relu", node.inputs, node.outputs[0].shape, node.outputs[0].dtype))

    becomes(Rewriting(again), small(), "Neg", "Relu", "Exp", "Identity")


def test_a_port_that_changes_is_a_fault_of_the_pass() -> None:
    def rename(b: Builder, node: ir.Node) -> None:
        b.graph.outputs[0].name = "z"

    with pytest.raises(PostconditionError, match="Rewriting changed a port"):
        Rewriting(rename)(small())


def test_a_node_in_front_of_what_it_reads_is_a_fault_of_the_pass() -> None:
    def too_early(b: Builder, node: ir.Node) -> None:
        made = b.before(b.graph[0]).op("Abs", node.inputs, (2, 3), ir.DataType.FLOAT)
        node.outputs[0].replace_all_uses_with(made)

    with pytest.raises(PostconditionError) as refused:
        Rewriting(too_early)(small())
    assert "reads n, which is not made yet" in str(refused.value.__cause__)


def test_an_output_that_no_node_makes_is_a_fault() -> None:
    model = small()
    in_order(model)
    last = model.graph[3]
    model.graph.remove(last)
    with pytest.raises(InvariantError, match="no node makes y"):
        in_order(model)


def test_a_free_size_is_turned_down_before_anything_is_done_but_a_growing_cache_is_not() -> None:
    model = small(batch="B")
    before = wiring(model)
    with pytest.raises(PreconditionError) as refused:
        Rewriting(abs_instead)(model)
    assert "x has a free size: [B,3]" in str(refused.value.__cause__)
    assert wiring(model) == before
    one_stream(small(batch=PAST))
    model.graph.inputs[0].shape = None
    with pytest.raises(InvariantError, match="x has a free size"):
        one_stream(model)


def test_ports_that_are_missing_are_named() -> None:
    model = small()
    has_ports(model, ["x"], ["y"])
    with pytest.raises(InvariantError, match=r"no port position, e$"):
        has_ports(model, ["x", "position"], ["e", "y"])

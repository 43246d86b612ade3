"""What every pass here is: an onnx_ir pass, in place or not, that checks what it requires and what it ensures."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Generic, TypeVar, cast

import onnx_ir as ir
from onnx_ir.passes import FunctionalPass, InPlacePass, InvariantError, PassResult, PostconditionError

from pulsify.core.boundary import processing
from pulsify.core.spec import PAST
from pulsify.optimize.builder import Builder

Result = TypeVar("Result", bound=PassResult)


class Change(InPlacePass, Generic[Result]):
    """Changes a model in place. Ensures that nodes still stand behind what they read."""

    def __call__(self, model: ir.Model | PassResult, /) -> Result:
        return cast(Result, super().__call__(model))

    def ensures(self, model: ir.Model) -> None:
        in_order(model)


class Copy(FunctionalPass, Generic[Result]):
    """Leaves a model as it is and gives another. Ensures that nodes still stand behind what they read."""

    def __call__(self, model: ir.Model | PassResult, /) -> Result:
        return cast(Result, super().__call__(model))

    def ensures(self, model: ir.Model) -> None:
        in_order(model)


class NodeChange(Change[PassResult]):
    """Rewrites a model node by node, in place, and drops what nobody reads then.

    Requires: a model for one stream (no free batch, sizes inferred).
    Ensures: ports are as before, nodes stand behind what they read.
    """

    @abstractmethod
    def rewrite(self, b: Builder, node: ir.Node) -> None:
        """Puts something else in a node's place, or does nothing. b: in front of that node."""

    def call(self, model: ir.Model) -> PassResult:
        from onnx_ir.passes.common import RemoveUnusedNodesPass

        ports, before = _ports(model), wiring(model)
        b = Builder(model.graph)
        for node in list(model.graph):
            if node.inputs:  # what reads nothing is a constant
                with processing(node):
                    self.rewrite(b.before(node), node)
        changed = wiring(model) != before
        if changed:
            RemoveUnusedNodesPass()(model)
        if _ports(model) != ports:
            raise PostconditionError(f"{type(self).__name__} changed a port")
        return PassResult(model, changed)

    def requires(self, model: ir.Model) -> None:
        one_stream(model)


def wiring(model: ir.Model) -> list[tuple[ir.Node, tuple[ir.Value | None, ...]]]:
    """Which nodes there are and what they read: unequal if a pass has done anything."""
    return [(node, tuple(node.inputs)) for node in model.graph]


def _ports(model: ir.Model) -> list[tuple[str | None, str, str]]:
    return [(v.name, str(v.shape), str(v.type)) for v in (*model.graph.inputs, *model.graph.outputs)]


# ---- what passes require and ensure


def in_order(model: ir.Model) -> None:
    """Every node stands behind what it reads, and every output is made."""
    graph = model.graph
    made = {*graph.inputs, *graph.initializers.values()}
    for node in graph:
        for value in node.inputs:
            if value is not None and value not in made:
                raise InvariantError(f"{node.name} ({node.op_type}) reads {value.name}, which is not made yet")
        made.update(node.outputs)
    if missing := [v.name for v in graph.outputs if v not in made]:
        raise InvariantError(f"no node makes {', '.join(map(str, missing))}")


def one_stream(model: ir.Model) -> None:
    """No size of an input is free, but for caches that grow."""
    for value in model.graph.inputs:
        if value.shape is None or any(not isinstance(d, int) and str(d) != PAST for d in value.shape):
            raise InvariantError(f"{value.name} has a free size: {value.shape}")


def has_ports(model: ir.Model, inputs: Iterable[str], outputs: Iterable[str]) -> None:
    """Inputs and outputs of these names are there."""
    there = {v.name for v in model.graph.inputs}, {v.name for v in model.graph.outputs}
    if missing := [n for n in inputs if n not in there[0]] + [n for n in outputs if n not in there[1]]:
        raise InvariantError(f"the graph has no port {', '.join(missing)}")

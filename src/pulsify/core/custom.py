"""Operators of other domains, made known from outside: the shapes they give, and what they are made of.

    define("acme::Boost", shapes=lambda attributes, inputs: [inputs[0]], body=BOOST)

shapes: from the attributes and the shapes of the inputs to those of the outputs, at one length; without, the body says.
body: an ONNX function; a model that brings one of that name is taken at its word. An operator that has a rule stays
whole while time is followed. What runs is its body, written out, so that a saved stream is plain ONNX. One without a
rule is its body from the start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from pulsify.core.boundary import public
from pulsify.core.errors import InvalidArgument

Name = tuple[str, str]  # domain, operator
Bodies = Mapping[Name, onnx.FunctionProto]


@dataclass(frozen=True)
class Shaped:
    """Type and sizes of a value at one length."""

    dtype: ir.DataType
    dims: tuple[int, ...]


Shapes = Callable[[Mapping[str, Any], Sequence[Shaped | None]], Sequence[Shaped]]


@dataclass(frozen=True)
class Custom:
    """An operator that ONNX does not know."""

    shapes: Shapes | None = None
    body: onnx.FunctionProto | None = None


CUSTOM: dict[Name, Custom] = {}
WHOLE: set[Name] = set()  # those that have a rule


def split(name: str) -> Name:
    domain, separator, op = name.partition("::")
    if not separator or not domain or not op:
        raise InvalidArgument(f"{name!r}: operators of other domains are named 'domain::Operator'")
    return domain, op


@public
def define(name: str, *, shapes: Shapes | None = None, body: onnx.FunctionProto | None = None) -> None:
    """Make an operator of another domain known; with a rule (`rule(name)`) it is then streamed as a whole."""
    own = split(name)
    if body is not None and (body.domain, body.name) != own:
        raise InvalidArgument(f"{name}: its body is the function {body.domain}::{body.name}; give it the same name")
    CUSTOM[own] = Custom(shapes, body)


def bodies(model: ir.Model) -> dict[Name, onnx.FunctionProto]:
    """Of the operators in this model that were made known, or have a rule: its own functions, else those registered."""
    own = {(f.domain, f.name): f for f in model.functions.values()}
    used = {(n.domain, n.op_type) for graph in model.graphs() for n in graph}
    out = {}
    for name in sorted((CUSTOM.keys() | WHOLE) & used):
        registered = CUSTOM.get(name, Custom()).body
        if name in own:
            out[name] = ir.to_proto(own[name])
        elif registered is not None:
            out[name] = registered
    return out


def add_bodies(model: ir.Model, functions: Bodies) -> None:
    """The functions as part of the model, for whoever runs it."""
    for name, body in functions.items():
        function = ir.from_proto(body)
        model.functions[function.identifier()] = function
        model.opset_imports.setdefault(name[0], 1)
        for domain, version in function.opset_imports.items():
            model.opset_imports.setdefault(domain, version)


def write_out(model: ir.Model, functions: Bodies) -> None:
    """Operators that were kept whole while time was followed, as the plain nodes they stand for."""
    used = {(n.domain, n.op_type) for n in model.graph}
    wanted = {name: body for name, body in functions.items() if name in used}
    if not wanted:
        return
    add_bodies(model, wanted)
    common.InlinePass()(model)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    for domain, _ in wanted:
        model.graph.opset_imports.pop(domain, None)

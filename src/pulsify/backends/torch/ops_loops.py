"""Scan and Loop with a known count: the body is a function of its own inside the step, and the loop is Python's."""

from __future__ import annotations

import onnx_ir as ir

from pulsify.backends.site import Uncovered
from pulsify.backends.torch.site import Site
from pulsify.backends.torch.table import Code, Written, op, written


def body(n: Site, graph: ir.Graph) -> tuple[str, list[str]]:
    """The name of a function, and the lines that define it."""
    names = n.scope.names
    name = names.fresh(f"{n.node.name or n.op}_body")
    lines = [f"def {name}({', '.join(names.name(v) for v in graph.inputs)}):"]
    for node in graph:
        if node.op_type == "Constant":
            continue
        made = written(node, n.scope)
        if not isinstance(made, Code):
            raise Uncovered(f"in its body, {made.text}")
        lines += [f"    {line}" for line in made.lines]
        n.needs.update(made.needs)
    results = [n.constant(v) if v in n.scope.constants else names.name(v) for v in graph.outputs]
    lines.append(f"    return {', '.join(results)}{',' * (len(results) == 1)}")
    return name, lines


def _outs(n: Site) -> str:
    outs = [n.out(i) for i in range(len(n.node.outputs))]
    return f"{', '.join(outs)}{',' * (len(outs) == 1)}"


@op("Scan")
def scan(n: Site) -> Written:
    if n.opset < 9:
        raise Uncovered("as it was before opset 9")
    graph, rows = n.attr("body"), int(n.attr("num_scan_inputs"))
    states = n.count() - rows
    outs = len(n.node.outputs) - states
    n.sizes(states)  # the count is known
    axes = [int(a) % n.rank(states + i) for i, a in enumerate(n.attr("scan_input_axes", [0] * rows))]
    ways = [bool(d) for d in n.attr("scan_input_directions", [0] * rows)]
    out_ways = [bool(d) for d in n.attr("scan_output_directions", [0] * outs)]
    out_axes = [int(a) for a in n.attr("scan_output_axes", [0] * outs)]
    name, lines = body(n, graph)
    given = [n.x(i) for i in range(n.count())]
    settings = f"{axes}, {ways}, {out_axes}, {out_ways}"
    call = f"op.scan({name}, [{', '.join(given[:states])}], [{', '.join(given[states:])}], {settings})"
    return [*lines, f"{_outs(n)} = {call}"]


@op("Loop")
def loop(n: Site) -> Written:
    (count,) = n.ints(0, "count")
    if n.has(1) and not n.known(1, "condition").all():
        raise Uncovered("its condition is false from the start")
    graph = n.attr("body")
    going = graph.outputs[0]
    while (maker := going.producer()) is not None and maker.op_type == "Identity":
        going = maker.inputs[0]
    known = n.scope.array(going)
    if going is not graph.inputs[1] and (known is None or not known.all()):
        raise Uncovered("its count follows from data")
    if count < 1:
        raise Uncovered("it runs not once")
    name, lines = body(n, graph)
    given = ", ".join(n.x(i) for i in range(2, n.count()))
    return [*lines, f"{_outs(n)} = op.loop({name}, {count}, [{given}], device)"]

"""Are the step graphs of the zoo the same as in another checkout?

    python -m tests.graphs_unchanged save FOLDER [part of a name]     # in either checkout
    python -m tests.graphs_unchanged compare BEFORE AFTER

A graph is saved as a canonical text: nodes in the order in which outputs need them, values numbered, constants as
digests. So names, unused nodes and the order of independent nodes make no difference. A model that is not streamable is
saved as the text of the error. The steady form of a step follows the step.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

import pulsify
from pulsify.optimize.steady import steady_form
from tests.zoo.manifest import Entry, Exporter, load, runnable

MOST_LINES = 20  # of a difference


def canonical(model: ir.Model) -> str:
    """The graph of a model as text."""
    graph = model.graph
    numbers: dict[ir.Value, str] = {v: str(v.name) for v in graph.inputs}
    lines = [f"input {v.name}: {v.dtype} {v.shape}" for v in graph.inputs]

    def name(value: ir.Value | None) -> str:
        if value is None:
            return "_"
        if value not in numbers and value.const_value is not None:
            numbers[value] = _constant(value.const_value)
        return numbers[value]

    for node in _needed(graph, numbers):
        inputs = ", ".join(name(v) for v in node.inputs)
        for value in node.outputs:
            numbers[value] = f"%{len(numbers)}"
        attributes = ", ".join(f"{key}={_attribute(node.attributes[key])}" for key in sorted(node.attributes))
        roles = "".join(f" [{key}={value}]" for key, value in sorted(node.metadata_props.items()))
        outputs = ", ".join(numbers[v] for v in node.outputs)
        operator = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        lines.append(f"{outputs} = {operator}({inputs}) {attributes}{roles}".rstrip())
    lines += [f"output {v.name} = {name(v)}" for v in graph.outputs]
    return "\n".join(lines)


def _needed(graph: ir.Graph, numbers: dict[ir.Value, str]) -> list[ir.Node]:
    """Nodes that outputs depend on, each behind what it reads."""
    order: dict[ir.Node, None] = {}
    todo: list[tuple[ir.Value | None, bool]] = [(v, False) for v in reversed(graph.outputs)]
    while todo:
        value, expanded = todo.pop()
        node = None if value is None or value in numbers else value.producer()
        if node is None or node in order:
            continue
        if expanded:
            order[node] = None
        else:
            todo += [(value, True), *((v, False) for v in reversed(node.inputs))]
    return list(order)


def _constant(tensor: Any) -> str:
    array = np.ascontiguousarray(tensor.numpy())
    if array.size <= 4:
        return f"{array.dtype}{list(array.shape)}{array.reshape(-1).tolist()}"
    return f"{array.dtype}{list(array.shape)}#{hashlib.sha256(array.tobytes()).hexdigest()[:12]}"


def _attribute(attribute: ir.Attr) -> str:
    if attribute.type == ir.AttributeType.TENSOR:
        return _constant(attribute.as_tensor())
    if attribute.type == ir.AttributeType.GRAPH:
        return f"<{hashlib.sha256(str(ir.to_proto(attribute.as_graph())).encode()).hexdigest()[:12]}>"
    return str(attribute.value)


def text_of(entry: Entry, exporter: Exporter) -> str:
    """The step graph of a fixture with its ports, or the error."""
    try:
        stream = _converted(entry, exporter)
    except pulsify.PulsifyError as error:
        return f"{type(error).__name__}: {error}\n"
    parts = ["\n".join(f"{k}: {v}" for k, v in sorted(stream.spec.to_properties().items())), canonical(stream.model)]
    if stream.opening is not None:
        parts.append("opening\n" + canonical(stream.opening.model))
    steady = steady_form(stream.model, stream.spec)
    if steady is not None:
        parts.append(f"steady from {steady.since}\n" + canonical(steady.model))
    return "\n\n".join(parts) + "\n"


def _converted(entry: Entry, exporter: Exporter) -> pulsify.Stream:
    options: dict[str, Any] = {"time": entry.time, "verify": False, **({"bind": entry.bind} if entry.bind else {})}
    path, pulse = str(entry.fixture(exporter)), entry.pulse
    try:
        return pulsify.stream(path, pulse=pulse, **options)
    except pulsify.InvalidPulse as error:
        multiple = int(error.granularity)
        return pulsify.stream(path, pulse=-(-pulse // multiple) * multiple, **options)
    except pulsify.NotStreamable as error:
        if "unbounded" not in str(error):
            raise
        return pulsify.stream(path, pulse=pulse, unbounded="grow", **options)


def save(folder: Path, part: str) -> None:
    """A file for every fixture."""
    folder.mkdir(parents=True, exist_ok=True)
    start = time.process_time()
    for entry, exporter in runnable(load(), masks=True):
        if part in entry.name and not entry.exports[exporter].large:
            (folder / f"{entry.name}.{exporter}.txt").write_text(text_of(entry, exporter), "utf-8")
    print(f"{len(list(folder.glob('*.txt')))} fixtures in {folder}; {time.process_time() - start:.0f} s of CPU")


def _text(path: Path) -> str:
    return path.read_text("utf-8") if path.exists() else ""


def compare(before: Path, after: Path) -> bool:
    """Prints what differs; whether nothing does."""
    names = sorted({p.name for folder in (before, after) for p in folder.glob("*.txt")})
    different = 0
    for name in names:
        one, two = (_text(folder / name) for folder in (before, after))
        if one != two:
            different += 1
            lines = list(difflib.unified_diff(one.splitlines(), two.splitlines(), "before", "after", "", "", 1, ""))
            print(f"{name}\n    " + "\n    ".join(line[:200] for line in lines[:MOST_LINES]))
    print(f"{len(names)} fixtures, {different} differ")
    return bool(names) and not different


def main() -> int:
    parser = argparse.ArgumentParser(description="Compares the step graphs of the zoo between two checkouts.")
    commands = parser.add_subparsers(dest="command", required=True)
    saving = commands.add_parser("save")
    saving.add_argument("folder", type=Path)
    saving.add_argument("part", nargs="?", default="")
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "save":
        save(arguments.folder, arguments.part)
        return 0
    return 0 if compare(arguments.before, arguments.after) else 1


if __name__ == "__main__":
    sys.exit(main())

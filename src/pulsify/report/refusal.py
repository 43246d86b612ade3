"""A refused model: the way from its input to the node that refuses, and what was tried to get around it. Plain data."""

from __future__ import annotations

import shlex
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pulsify.core.errors import NotStreamable, PulsifyError
from pulsify.frontend.model import Model, Node
from pulsify.report.figures import Figures, finite, plain
from pulsify.report.stages import window_figures
from pulsify.report.ways import Way, ways_out

if TYPE_CHECKING:
    import onnx

    from pulsify.api import Stream
    from pulsify.trace.lengths import Tracer

MOST_BYTES = 512 << 20  # a larger model is not cut to try what is left of it
Try = Callable[[Any, Mapping[str, Any]], "Stream"]  # a model and options -> its stream, checked


def refusal_figures(
    error: NotStreamable, source: str, tracer: Tracer | None, convert: Try, *, seconds: float = 20.0,
    progress: Callable[[str], None] = lambda text: None,
) -> Figures:  # fmt: skip
    """Where it stops, why, and each way out with what came of it. No way is begun after so many seconds.

    tracer: None if it was refused before time was followed through it.
    """
    place = Place() if tracer is None else _place(error, tracer)
    end = time.monotonic() + seconds
    ways = []
    for way in ways_out(error, place.before, place.others):
        if way.can_be_tried:
            progress(f"trying: {way.title.lower()}")
        ways.append(_tried(way, source, place.inputs, convert, time.monotonic() < end))
    return {
        "node": error.node,
        "op": error.op,
        "kind": str(error.kind),
        "reason": error.reason,
        "hint": error.hint,
        "path": place.path,
        "reads": place.reads,
        "ways": ways,
    }


@dataclass(frozen=True)
class Place:
    """Around the node that refuses: the way to it, what it reads, streams among that, outputs that do without it."""

    path: list[Figures] = field(default_factory=list)
    reads: list[Figures] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)  # of the model


def _place(error: NotStreamable, tracer: Tracer) -> Place:
    model = tracer.model
    inputs = [p.name for p in model.inputs]
    node = next((n for n in model.nodes if n.name == error.node), None)
    if node is None:
        return Place(inputs=inputs)
    wires = {w["wire"]: w for w in _wires(tracer)}
    reads = [_read(wires, n) for n in node.inputs if n in wires]
    return Place(
        [_step(model, wires, n) for n in path_to(model, node, set(tracer.time.streams), _whole(reads))],
        reads,
        [r["wire"] for r in reads if r["kind"] == "stream" and r["wire"] in model.producers],
        [o for o in model.outputs if not _needs(model, o, node)],
        inputs,
    )


def _wires(tracer: Tracer) -> list[Figures]:
    """Of the part in front of the refusal, as far as that can be told."""
    try:
        found: list[Figures] = window_figures(tracer, None)["wires"]
        return found
    except PulsifyError:
        return []


def _whole(reads: list[Figures]) -> set[str]:
    """Those that are about the whole stream: it is they that a node must wait for."""
    return {r["wire"] for r in reads if r["kind"] in ("fold", "late")}


def path_to(model: Model, node: Node, inputs: set[str], through: set[str] | None = None) -> list[str]:
    """Wires from an input of the stream to what a node makes, the fewest there are; the last but one of `through`."""
    last = [i for i in node.reads if i in (through or ())] or [i for i in node.reads if i]
    todo: deque[tuple[str, ...]] = deque((i, node.outputs[0]) for i in last)
    seen = set[str]()
    while todo:
        path = todo.popleft()
        if path[0] in inputs:
            return list(path)
        made = model.producers.get(path[0])
        if made is None or made.name in seen:
            continue
        seen.add(made.name)
        todo.extend((i, *path) for i in made.reads if i)
    return [node.outputs[0]]


def _needs(model: Model, output: str, node: Node) -> bool:
    todo, seen = [output], set[str]()
    while todo:
        made = model.producers.get(todo.pop())
        if made is None or made.name in seen:
            continue
        if made.name == node.name:
            return True
        seen.add(made.name)
        todo.extend(i for i in made.reads if i)
    return False


def _step(model: Model, wires: Mapping[str, Figures], wire: str) -> Figures:
    made, found = model.producers.get(wire), wires.get(wire, {})
    node, op = (wire, "input") if made is None else (made.name, made.op)
    return {"wire": wire, "node": node, "op": op, "kind": found.get("kind")} | _window(found)


def _read(wires: Mapping[str, Figures], wire: str) -> Figures:
    return {"wire": wire, "kind": wires[wire]["kind"]} | _window(wires[wire])


def _window(found: Figures) -> Figures:
    return {"rate": found.get("rate"), "delay": found.get("delay")}


# ---- trying


def _tried(way: Way, source: str, inputs: list[str], convert: Try, in_time: bool) -> Figures:
    facts: Figures = {
        "title": way.title,
        "says": way.says,
        "exact": way.exact,
        "code": "\n".join(_code(way, source, inputs)) or way.code,
        "command": _command(way, source),
        "tried": False,
        "ok": None,
        "result": "",
    }
    if not way.can_be_tried:
        return facts
    if not in_time:
        return facts | {"result": "not tried: out of time"}
    try:
        given: Any = source
        if way.outputs:
            given = cut(source, way.outputs)
            facts["code"] = "\n".join(_code(way, source, [i.name for i in given.graph.input]))
        made = convert(given, way.options)
    except PulsifyError as error:
        return facts | {"tried": True, "ok": False, "result": str(error).splitlines()[0]}
    except (ValueError, OSError) as error:  # onnx does not cut it
        return facts | {"result": f"not tried: {str(error).splitlines()[0]}"}
    return facts | {"tried": True, "ok": True, "result": "", "stream": _stream(made)}


def _stream(made: Stream) -> Figures:
    report = made.verification
    return {
        "pulse": made.pulse,
        "latency_frames": made.latency,
        "delays": [
            {
                "output": o.name,
                "delay": None if o.axis is None else plain(made.spec.lateness(o) / o.rate * made.inputs[0].rate),
            }
            for o in made.outputs
        ],
        "state_bytes": made.state_bytes,
        "grows": any(s.grows for s in made.states),
        "exact_up_to": made.spec.exact_up_to,
        "error": None if report is None or not report.runs else finite(report.error),
    }


def cut(source: str, outputs: tuple[str, ...]) -> onnx.ModelProto:
    """The part of a model that these values need. ValueError if they are no values of the file."""
    import onnx
    from onnx.utils import Extractor

    if Path(source).stat().st_size > MOST_BYTES:
        raise ValueError("the model is too large to cut it and try")
    proto = onnx.shape_inference.infer_shapes(onnx.load(source))
    known = {o for n in proto.graph.node for o in n.output}
    if missing := [o for o in outputs if o not in known]:
        raise ValueError(f"'{missing[0]}' is no value of the file itself")
    kept = Extractor(proto)
    given = [i.name for i in proto.graph.input]
    have = set(kept.vimap) if hasattr(kept, "vimap") else set()
    if missing := [o for o in outputs if have and o not in have]:
        raise ValueError(f"onnx does not know the shape of '{missing[0]}'")
    made: onnx.ModelProto = kept.extract_model(given, list(outputs))
    needed = {i for n in made.graph.node for i in n.input}
    for port in [i for i in made.graph.input if i.name not in needed]:
        made.graph.input.remove(port)
    return made


def _command(way: Way, source: str) -> str:
    if not way.can_be_tried:
        return ""
    model = "cut.onnx" if way.outputs else shlex.quote(Path(source).name)
    words = ["pulsify stream", model]
    for name, value in way.options.items():
        if isinstance(value, Mapping):
            words += [f"--{name} {shlex.quote(f'{k}={v}')}" for k, v in value.items()]
        else:
            words.append(f"--{name} {value}")
    return " ".join([*words, "-o stream.onnx"])


def _code(way: Way, source: str, inputs: list[str]) -> Iterator[str]:
    if not way.outputs:
        return
    yield "import onnx.utils"
    yield f"onnx.utils.extract_model({Path(source).name!r}, 'cut.onnx', {inputs}, {list(way.outputs)})"

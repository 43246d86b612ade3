"""The handful of concrete lengths at which a model is looked at, chosen large enough by itself."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import onnx_ir as ir

from pulsify.errors import NotStreamable
from pulsify.frontend.load import plain_node
from pulsify.frontend.model import Model, Node, Port
from pulsify.frontend.time import TimeSpec
from pulsify.trace.evaluate import CannotRun, Evaluator, Trace, Traced, known

SCALES = (64, 256, 1024, 8192, 65536)
RESIDUES = 1024  # how many neighbouring lengths are tried where a model takes only some
BATCHES = (3, 2)  # two sizes, so that a batch axis shows; 3 is unlikely to be another dimension's factor by chance


@dataclass(eq=False)
class Tracer:
    """Traces one model at any length; traces are kept."""

    model: Model
    time: TimeSpec
    evaluator: Evaluator = field(init=False)
    _kept: dict[tuple[int, int], Trace] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.evaluator = Evaluator(self.model)

    def at(self, length: int, batch: int = BATCHES[0]) -> Trace:
        batch = batch if self.time.batch else 1
        key = (length, batch)
        if key not in self._kept:
            self._kept[key] = self.evaluator.trace(self._inputs(length, batch), length, batch)
        return self._kept[key]

    def works(self, length: int) -> bool:
        try:
            self.at(length)
        except CannotRun:
            return False
        return True

    def _inputs(self, length: int, batch: int) -> dict[str, Traced]:
        out = {}
        for port in self.model.inputs:
            dims = self.time.dims(port, length, batch)
            if port.name in self.time.bound:
                out[port.name] = known(np.full(dims, length, port.dtype.numpy()))
            else:
                out[port.name] = Traced(port.dtype, dims, False)
        return out


@dataclass(frozen=True, eq=False)
class Traces:
    """The traces all claims are read off and checked against, shortest first, and one of another batch size."""

    tracer: Tracer
    lengths: tuple[int, ...]
    step: int
    runs: tuple[Trace, ...]
    other_batch: Trace | None

    @property
    def longest(self) -> Trace:
        return self.runs[-1]


def choose(tracer: Tracer, at_least: int = 0) -> Traces:
    """Find lengths at which the model runs: near each other (residues), and far apart (growth).

        S0  S0+step                      S2 > 2 S0
        |   |                            |

    step is 1 unless the model takes only some lengths (multiples of a number, say).
    """
    given = tracer.time.step
    scales = [s for s in SCALES if s > at_least]
    scales = [max(at_least, SCALES[0]), *scales] if at_least > SCALES[0] or not scales else scales
    for scale in scales:
        start = -(-(scale + 3) // given) * given
        if tracer.works(start) and tracer.works(start + given):
            return _traces(tracer, start, given)
    for scale in scales[:3]:
        start = -(-(scale + 3) // given) * given
        tried = range(start, start + RESIDUES * given, given)
        works = list(islice((s for s in tried if tracer.works(s)), 2))
        if len(works) == 2:
            return _traces(tracer, works[0], works[1] - works[0])
    raise _no_length(tracer, scales[0])


def _traces(tracer: Tracer, base: int, step: int) -> Traces:
    lengths = (base, base + step, base + (base // step + 3) * step)
    other = tracer.at(base, BATCHES[1]) if tracer.time.batch else None
    return Traces(tracer, lengths, step, tuple(tracer.at(s) for s in lengths), other)


def _no_length(tracer: Tracer, scale: int) -> NotStreamable:
    try:
        tracer.at(scale)
    except CannotRun as problem:
        return NotStreamable(
            f"the model runs at no length tried up to {SCALES[-1]}: {problem.reason}",
            node=problem.node.name,
            op=problem.node.op,
            hint="check that the model runs in ONNX Runtime with a dynamic time axis; "
            'if it takes only multiples of some number, say so: set={"T": "8*n"}',
        )
    return NotStreamable("the model runs at single lengths only", hint="export it with a dynamic time axis")


def resolve_branches(model: Model, time: TimeSpec) -> Model:
    """Replace every `If` whose condition folds by the branch it takes (the same one at every length tried)."""
    while (found := next((n for n in model.nodes if n.op == "If"), None)) is not None:
        model = _splice(model, found, _condition(model, time, found))
    return model


def _condition(model: Model, time: TimeSpec, node: Node) -> bool:
    upto = model.nodes[: model.nodes.index(node)]
    tracer = Tracer(dataclasses.replace(model, nodes=upto, producers={}), time)
    runs = choose(tracer).runs
    conditions = [run[node.inputs[0]] for run in runs]
    if not all(c.known for c in conditions):
        raise NotStreamable(
            "the condition depends on the data",
            node=node.name,
            op="If",
            hint="export the model so that the branch is decided (trace instead of script)",
        )
    taken = {bool(c.array.reshape(-1)[0]) for c in conditions}
    if len(taken) > 1:
        raise NotStreamable(
            "the condition depends on the length of the stream",
            node=node.name,
            op="If",
            hint="export the model with the branch for long inputs only",
        )
    return taken.pop()


def _splice(model: Model, node: Node, condition: bool) -> Model:
    branch: ir.Graph = node.attrs["then_branch" if condition else "else_branch"]
    rename: dict[str, str] = {}
    for inner in branch:
        for value in inner.outputs:
            if value.name:
                rename[value.name] = f"{node.name}/{value.name}"
    for value, outer in zip(branch.outputs, node.outputs, strict=True):
        if value.name in rename:
            rename[str(value.name)] = outer
    version = model.opset_imports.get("", 0)
    inlined = [plain_node(n, model.opset_imports.get(n.domain, version), rename) for n in branch]
    passed = [  # a branch may hand out an outer value as it is
        (str(v.name), outer) for v, outer in zip(branch.outputs, node.outputs, strict=True) if v.name not in rename
    ]
    inlined += [_identity(a, b, version) for a, b in passed]
    at = model.nodes.index(node)
    constants = {**model.constants}
    for value in branch.initializers.values():
        if value.const_value is not None:
            constants[str(value.name)] = value.const_value
    return dataclasses.replace(
        model, nodes=(*model.nodes[:at], *inlined, *model.nodes[at + 1 :]), constants=constants, producers={}
    )


def _identity(source: str, target: str, version: int) -> Node:
    import onnx

    proto = onnx.helper.make_node("Identity", [source], [target], name=f"{target}/identity")
    return Node(proto.name, "Identity", "", version, (source,), (target,), {}, proto)


def port_of(model: Model, name: str) -> Port:
    return next(p for p in model.inputs if p.name == name)

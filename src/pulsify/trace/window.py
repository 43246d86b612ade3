"""Models whose input has a fixed length, and that were not exported for any other.

input [N, 901, 161], time={"x": 1}  -->  [N, T, 161]   if the rest of the graph takes other lengths as well
Reshape to [-1, 900, 160]           -->  refused here: the size is written into this node
"""

from __future__ import annotations

from pulsify.core.errors import NotStreamable
from pulsify.core.refusal import Kind, Remedy
from pulsify.frontend.model import Model
from pulsify.frontend.time import TimeSpec
from pulsify.trace.tied import Run, problem_at, sizes_read
from pulsify.trace.traced import CannotRun, Traced

AWAY = sorted(
    {*range(1, 9), *(factor << e for factor in (1, 3, 5) for e in range(12))}
)  # frames off the declared length


def windowed(run: Run, model: Model, time: TimeSpec) -> NotStreamable | None:
    """The refusal of a model that takes the length its input declares, and no other near it.

    A multiple of it says nothing: a size that is left open for the batch takes the frames of several windows. For the
    same reason one stream is looked at: of three any third of a window more would do.
    """
    window, batch = time.window, 1
    if window is None or problem_at(run, window, batch) is not None:
        return None
    first = problem_at(run, window + 1, batch)
    if first is None:
        return None
    sizes = {n for n in sizes_read(first) if 0 < n < window}
    for away in sorted({*(n for n in AWAY if n < window), *sizes}):
        if any(n > 0 and problem_at(run, n, batch) is None for n in (window + away, window - away)):
            return None
    return NotStreamable(
        f"the model was exported for one length, the {window} frames that its input declares: that size is written "
        f"into this node, which {_reading(first)}",
        node=first.node.name,
        op=first.node.op,
        hint=(_others(model, time), export_again(model, time)),
        kind=Kind.EXPORT,
    )


def _reading(problem: CannotRun) -> str:
    """What a node was given, a frame too many among it."""
    read = [_shown(v) for v in problem.read]
    return f"cannot take another: {' and '.join(map(str, read))} do not fit" if len(read) > 1 else "takes no other"


def _shown(value: Traced) -> list[int]:
    """A shape that is an input, or the shape of an input."""
    shape = value.known and len(value.dims) == 1 and value.dtype.is_integer() and value.dims[0] <= 8
    return [int(n) for n in value.array] if shape else list(value.dims)


def _others(model: Model, time: TimeSpec) -> Remedy | str:
    """Other inputs with an axis of as many entries may have to be named as well."""
    axes = {name: axis for name, (axis, _) in time.streams.items()}
    beside = {p.name: p.dims.index(time.window) for p in model.inputs if p.name not in axes and time.window in p.dims}
    if not beside:
        return ""
    named = axes | beside
    text = ", ".join(f'"{name}": {axis}' for name, axis in named.items())
    return Remedy(f"name the time axis of every input: time={{{text}}}", {"time": named})


def export_again(model: Model, time: TimeSpec) -> str:
    """How the axis becomes dynamic, by what wrote the file."""
    name, (axis, _) = next(iter(time.streams.items()))
    how = {
        "torch.jit": f' (torch.onnx.export: dynamic_axes={{"{name}": {{{axis}: "time"}}}})',
        "torch.export": f' (torch.onnx.export: dynamic_shapes={{"{name}": {{{axis}: torch.export.Dim("time")}}}})',
    }.get(model.exporter, "")
    return f"export it again with axis {axis} of '{name}' dynamic{how}"

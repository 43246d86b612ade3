"""The memory of a pool, and one call of the model for any of its streams.

slot       0     1     2     3          a row of every input and state for each stream
ready            x           x
batch      [1  3] -> model -> [1  3]    rows are taken out, and put back
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pulsify.backends.ort.step import attach
from pulsify.backends.seam import Array, stream_axis
from pulsify.core.runner import quick_call
from pulsify.core.spec import Dims, Spec, concrete

if TYPE_CHECKING:
    import onnxruntime as ort

    from pulsify.backends.ort.backend import Executable


class Engine:
    """Rows for up to `most` streams. Nothing here knows which of them are open."""

    def __init__(self, on: Executable, most: int) -> None:
        spec = on.spec
        self._on, self._spec, self._most = on, spec, most
        self._kept = [s.name for s in spec.states if s.name != spec.position]
        ports: list[Any] = [*spec.inputs, *(s for s in spec.states if s.name != spec.position)]
        dims: dict[str, Dims] = {p.name: getattr(p, "dims", None) or p.shape for p in ports}
        self._dims = dims | {o.name: o.dims for o in spec.outputs}
        self._types = {p.name: p.dtype for p in (*ports, *spec.outputs)}
        self.together = _computed_apart(on)  # False: every stream is a call of its own
        rows = {n: np.zeros((most, *concrete(d, 1)), self._types[n]) for n, d in dims.items()}
        self._states = {n: rows[n] for n in self._kept}
        self.rows = {i.name: rows[i.name] for i in spec.inputs}
        self._rows = rows
        self._memory: dict[str, Array] = {}
        self._calls: dict[tuple[bool, int], _Call] = {}
        self._since: float = on.program.since * spec.pulse if on.steady is not None else math.inf
        self.intact = True

    def group(self, position: int, length: int | None) -> Hashable:
        """Streams of which this is equal can be computed together."""
        if not self.together:
            return object()  # equal to nothing else
        if length is None and position >= self._since:
            return "steady", position if self._on.program.counts else None
        return position if self._spec.position else None, length

    def run(self, slots: Sequence[int], positions: Sequence[int], length: int | None) -> list[dict[str, Array]]:
        """One pulse of these streams. Their outputs, valid until the next call."""
        self.intact = True
        key = length is None and positions[0] >= self._since, len(slots)
        if key not in self._calls:
            self._calls[key] = self._call(*key)
        call, chosen = self._calls[key], list(slots)
        for name, view in call.taken.items():
            _take(self._rows[name], chosen, view)
        for array in call.position:
            array[:, 0] = positions
        call.length[...] = self._spec.unknown_length if length is None else length
        call.run()
        made = [{name: view[i] for name, view in call.outputs.items()} for i in range(len(chosen))]
        self.intact = False
        for name, view in call.kept.items():
            self._rows[name][chosen] = view
        self.intact = True
        return made

    def reset(self, slot: int) -> None:
        for rows in self._states.values():
            rows[slot] = 0

    def states(self, slot: int, position: int) -> dict[str, Array]:
        """Copies, as the portable model has them."""
        out = {name: rows[slot].copy() for name, rows in self._states.items()}
        counter = self._spec.position
        return out | ({counter: np.full((1, 1), position, np.int32)} if counter else {})

    def restore(self, slot: int, states: Mapping[str, Array], position: int) -> None:
        for name, rows in self._states.items():
            rows[slot] = states[name]

    def _call(self, steady: bool, count: int) -> _Call:
        """A model bound to the pool's memory, for a number of streams."""
        spec, runner = self._spec, self._on.steady if steady else self._on.runner
        assert runner is not None
        takes, gives = self._on.ports[runner].takes, self._on.ports[runner].gives
        binding = runner.io_binding()
        call = _Call(quick_call(runner, binding), binding, np.zeros((count, 1), np.int32))
        for name in self._rows:
            array = self._array(name, name, count)
            attach(call.binding.bind_input, name, array)
            call.taken[name] = self._by_stream(name, array, count)
        for name in self._kept:
            array = self._array(spec.after(name), name, count)
            attach(call.binding.bind_output, spec.after(name), array)
            call.kept[name] = self._by_stream(name, array, count)
        for output in (o for o in spec.outputs if o.name in gives):
            array = self._array(output.name, output.name, count)
            attach(call.binding.bind_output, output.name, array)
            call.outputs[output.name] = self._by_stream(output.name, array, count)
        if spec.length is not None and spec.length in takes:
            attach(call.binding.bind_input, spec.length, call.length)
        position = spec.position or ""
        for port, bind in ((position, binding.bind_input), (spec.after(position), binding.bind_output)):
            if port in takes | gives:
                call.position.append(np.zeros((count, 1), np.int32))
                attach(bind, port, call.position[-1])
        return call

    def _array(self, memory: str, name: str, count: int) -> Array:
        """The first part of a port's memory, in the shape it has for so many streams."""
        dims = self._dims[name]
        if memory not in self._memory:
            self._memory[memory] = np.zeros(int(np.prod(concrete(dims, self._most))), self._types[name])
        shape = concrete(dims, count)
        return self._memory[memory][: int(np.prod(shape))].reshape(shape)

    def _by_stream(self, name: str, array: Array, count: int) -> Array:
        """The same memory with the streams in front: [count, *the shape for one]."""
        dims = self._dims[name]
        axis = stream_axis(dims)
        if axis is None:  # the same for all
            return array[None] if count == 1 else np.broadcast_to(array, (count, *array.shape))
        each = array.shape[axis] // count
        return np.moveaxis(array.reshape(*array.shape[:axis], count, each, *array.shape[axis + 1 :]), axis, 0)


@dataclass(eq=False)
class _Call:
    """A binding, and its memory by stream."""

    run: Callable[[], None]
    binding: ort.IOBinding
    length: Array
    taken: dict[str, Array] = field(default_factory=dict)
    kept: dict[str, Array] = field(default_factory=dict)
    outputs: dict[str, Array] = field(default_factory=dict)
    position: list[Array] = field(default_factory=list)


def _take(rows: Array, slots: list[int], into: Array) -> None:
    if into.flags.c_contiguous:
        np.take(rows, slots, axis=0, out=into, mode="clip")
    else:
        into[...] = rows[slots]


def _computed_apart(on: Executable) -> bool:
    """Is each stream of a batch what it would be alone? Tried: it must not matter what lies beside it.

    A model may fold its streams inside another axis ([B, 2, T] -> [2, B, T] -> [2B, T]), and the runtime may read one
    row with weight zero for another (a linear Resize of rank 3), so that what is not finite gets across.
    """
    spec, program = on.spec, on.program
    warm = program.since * spec.pulse if on.steady is not None else 0  # where all that is remembered matters
    return all(_tried_apart(runner, spec, warm) for runner in (on.runner, on.steady) if runner is not None)


def _tried_apart(runner: ort.InferenceSession, spec: Spec, at: int) -> bool:
    """The second and the fourth of five streams while the others are noise, NaN, infinite."""
    rng = np.random.default_rng(0)
    kept = [s for s in spec.states if s.name != spec.position]
    ports: dict[str, tuple[Dims, np.dtype[Any]]] = {i.name: (i.dims, i.dtype) for i in spec.inputs}
    ports |= {s.name: (s.shape, s.dtype) for s in kept}
    made = {s.after: s.shape for s in kept} | {o.name: o.dims for o in spec.outputs if o.axis is not None}
    shapes = made | {name: dims for name, (dims, _) in ports.items()}
    axes = {name: axis for name, dims in shapes.items() if (axis := stream_axis(dims)) is not None}
    if len(axes) < len(shapes):
        return False
    own = {n: [_numbers(concrete(d, 1), t, rng, low) for low in (-1.0, 0.1)] for n, (d, t) in ports.items()}
    runs: list[list[Array]] = []
    for value in (None, np.nan, np.inf):
        feeds = {}
        for name, (dims, dtype) in ports.items():
            beside = [_numbers(concrete(dims, 1), dtype, rng, -1.0, value) for _ in range(3)]
            five = [beside[0], own[name][0], beside[1], own[name][1], beside[2]]
            feeds[name] = np.concatenate(five, axes[name])
        try:
            out = _outcome(runner, spec, feeds, at)
        except Exception:  # ONNX Runtime has no common class for them
            if value is None:
                return False  # nothing is known
            continue  # a batch that fails is computed stream by stream
        rows = {name: np.split(out[name], 5, axes[name]) for name in made if name in out}
        runs.append([part for parts in rows.values() for part in (parts[1], parts[3])])
    seen = all(_finite(x) or _finite(y) for x, y in zip(runs[0][::2], runs[0][1::2], strict=True))
    return seen and all(_same(x, y) for other in runs[1:] for x, y in zip(runs[0], other, strict=True))


def _outcome(runner: ort.InferenceSession, spec: Spec, feeds: dict[str, Array], at: int) -> dict[str, Array]:
    """One pulse of the five streams, their end not in sight."""
    count = {spec.position or "": at, spec.length or "": spec.unknown_length}
    takes = {i.name for i in (*runner.get_inputs(), *runner.get_overridable_initializers())}
    counters = {name: np.full((5, 1), value, np.int32) for name, value in count.items() if name in takes}
    names = [o.name for o in runner.get_outputs()]
    return dict(zip(names, runner.run(None, {**feeds, **counters}), strict=True))


def _numbers(
    dims: tuple[int, ...], dtype: np.dtype[Any], rng: np.random.Generator, low: float, value: float | None = None
) -> Array:
    """From `low` to one (most of what is computed of small positive numbers is finite), or all this value."""
    if dtype.kind != "f":
        return rng.integers(0, 2, dims).astype(dtype)  # an index, perhaps
    if value is None:
        return rng.uniform(low, 0.9, dims).astype(dtype)
    return (rng.choice([-1.0, 1.0], dims) * value).astype(dtype)


def _finite(x: Array) -> bool:
    """Has it a number that would change if another stream's got here?"""
    return x.dtype.kind != "f" or not x.size or bool(np.isfinite(x).any())


def _same(x: Array, y: Array) -> bool:
    return np.array_equal(x, y, equal_nan=x.dtype.kind == "f")

"""A whole stream at once: pushed in pieces, flushed, and put together."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any, Protocol

import numpy as np

from pulsify.core.arrays import Array, ArrayLike, Arrays, Given, Pieces, Result, as_input
from pulsify.core.errors import InvalidArgument
from pulsify.core.progress import tell
from pulsify.core.spec import Spec
from pulsify.runtime.tensors import as_arrays


class Pushed(Protocol):
    """What a session does."""

    def push(self, chunk: Any, /) -> Result | None: ...

    def flush(self) -> Result | None: ...


def pieces(spec: Spec, inputs: Given | Pieces) -> Iterator[Given] | None:
    """The chunks, if the input comes in chunks: an iterator, or a list of arrays (with all axes) or of dicts."""
    if isinstance(inputs, AsyncIterable):
        raise InvalidArgument("run takes no asynchronous chunks: async for y in stream.session().aiterate(chunks)")
    if isinstance(inputs, Iterator):
        return inputs
    axes = {len(i.dims) for i in spec.inputs}
    if not isinstance(inputs, (list, tuple, deque)) or not inputs:
        return None
    chunks = all(isinstance(one, Mapping) or getattr(one, "ndim", None) in axes for one in inputs)
    return iter(inputs) if chunks else None


def run_pieces(open_session: Callable[[int], Pushed], spec: Spec, chunks: Iterator[Given]) -> Arrays:
    """All outputs of a stream that comes in chunks, by name. open_session: for so many streams in step."""
    parts: dict[str, list[Array]] = {o.name: [] for o in spec.outputs}
    session: Pushed | None = None
    for number, chunk in enumerate(map(as_arrays, chunks), 1):
        if session is None:
            given = chunk if isinstance(chunk, Mapping) else {spec.inputs[0].name: chunk}
            session = open_session(batch_of(spec, {str(name): np.asarray(value) for name, value in given.items()}))
        _keep(parts, session.push(chunk))
        tell(f"{number} chunks")
    return _ended(spec, session or open_session(1), parts)


def named(spec: Spec, inputs: Given, statics: Mapping[str, ArrayLike] | None = None) -> Arrays:
    """Inputs by name, static ones among them."""
    if statics:
        own = inputs if isinstance(inputs, Mapping) else {spec.inputs[0].name: inputs}
        inputs = {**own, **statics}
    if isinstance(inputs, Mapping):
        given = {str(name): as_input(str(name), value) for name, value in inputs.items()}
    else:
        given = {spec.inputs[0].name: as_input(spec.inputs[0].name, inputs)}
    wanted = [*(i.name for i in spec.inputs), *(s.name for s in spec.statics)]
    if set(given) != set(wanted):
        missing, unknown = sorted(set(wanted) - set(given)), sorted(set(given) - set(wanted))
        parts = [f"{missing} missing"] * bool(missing) + [f"there is no {unknown}"] * bool(unknown)
        raise InvalidArgument(f"inputs are {wanted}: {', '.join(parts)}; pass a dict by name")
    return given


def whole_length(spec: Spec, given: Mapping[str, Array]) -> int:
    """Units of the stream's length in these inputs; a last unit may lack frames, which `flush` will say."""
    frames = {i: np.shape(given[i.name]) for i in spec.inputs}
    for i, shape in frames.items():
        if len(shape) != len(i.dims):
            raise InvalidArgument(f"input '{i.name}' has {len(i.dims)} axes (time is axis {i.axis}), got {len(shape)}")
    return max(-(-shape[i.axis] // int(i.rate)) for i, shape in frames.items())


def batch_of(spec: Spec, given: Mapping[str, Array]) -> int:
    """How many streams lie side by side in these inputs."""
    for port in (i for i in spec.inputs if i.name in given):
        for dim, size in zip(port.dims, given[port.name].shape, strict=False):
            if isinstance(dim, str):
                factor, _, rest = dim.partition("*")
                return max(size // int(factor), 1) if rest else max(size, 1)
    return 1


def run_whole(
    session: Pushed,
    spec: Spec,
    given: Mapping[str, Array],
    sizes: Iterable[int],
    each: Callable[[int], None] = lambda at: None,
) -> Arrays:
    """All outputs of one stream, by name. each: told after every push how far it is."""
    parts: dict[str, list[Array]] = {o.name: [] for o in spec.outputs}
    at = 0
    for n in sizes:
        _keep(parts, session.push({i.name: frames(given[i.name], i.axis, i.rate, at, at + n) for i in spec.inputs}))
        at += n
        each(at)
    return _ended(spec, session, parts)


def _ended(spec: Spec, session: Pushed, parts: dict[str, list[Array]]) -> Arrays:
    """What came out, and what comes out of flush, put together."""
    _keep(parts, session.flush())
    axes = {o.name: o.axis for o in spec.outputs}
    joined = {n: (p, axes[n]) for n, p in parts.items() if p}
    return {n: p[-1] if axis is None else np.concatenate(p, axis) for n, (p, axis) in joined.items()}


def frames(array: Array, axis: int, rate: Fraction, start: int, end: int) -> Array:
    """The frames of so many units of the stream's length."""
    return array[(slice(None),) * axis + (slice(int(start * rate), int(end * rate)),)]


def alone(spec: Spec, outputs: Arrays) -> Result:
    """As `push` gives them: the one output as it is, several by name."""
    return outputs[spec.outputs[0].name] if len(spec.outputs) == 1 and outputs else outputs


def _keep(parts: dict[str, list[Array]], result: Result | None) -> None:
    if isinstance(result, dict):
        for name, array in result.items():
            parts[name].append(array)
    elif result is not None:
        next(iter(parts.values())).append(result)

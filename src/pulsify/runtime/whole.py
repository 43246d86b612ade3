"""A whole stream at once: pushed in pieces, flushed, and put together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Protocol

import numpy as np

from pulsify.core.arrays import Array, Arrays, Given, Result
from pulsify.core.errors import InvalidArgument
from pulsify.core.spec import Spec


class Pushed(Protocol):
    """What a session does."""

    def push(self, chunk: Mapping[str, Array], /) -> Result | None: ...

    def flush(self) -> Result | None: ...


def named(spec: Spec, inputs: Given) -> Arrays:
    """Inputs by name, static ones among them."""
    if isinstance(inputs, Mapping):
        given = {str(name): np.asarray(value) for name, value in inputs.items()}
    else:
        given = {spec.inputs[0].name: np.asarray(inputs)}
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
    for port in spec.inputs:
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

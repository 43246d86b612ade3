"""Which axis of a torch module's inputs is time: one of which it takes other sizes too, and that is no batch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from pulsify.core.errors import InvalidArgument
from pulsify.frontend.time import FILLS, MASK_NAMES, is_length_like
from pulsify.frontend.torch_call import Axes, Call, Units, as_array, close

SHORTER = (256, 64, 32, 16, 8, 4, 2)  # parts of the example that are tried in its place
SHORT = 8  # frames that are tried at least
MOST_CHOICES = 256  # ways to choose one axis per input that are tried before asking


def given_axes(call: Call, time: Mapping[str, int]) -> Units:
    """The axes the user named."""
    if not time:
        raise InvalidArgument('time={} names no input; pass for example time={"x": 2}')
    axes: Axes = {}
    for name, axis in time.items():
        if name not in call.tensors:
            raise InvalidArgument(
                f"time: forward has no argument '{name}' in the example; there is {list(call.tensors)}"
            )
        rank = call.tensors[name].dim()
        if isinstance(axis, bool) or not isinstance(axis, int) or not -rank <= axis < rank:
            raise InvalidArgument(f"time: input '{name}' has {rank} axes, there is no axis {axis!r}")
        axes[name] = axis % rank
    wider = {**_of_masks(call, axes, [n for n in _masks(call) if n not in axes]), **axes}
    if wider != axes and _takes_another(call, units_of(call, wider)):
        return units_of(call, wider)
    units = units_of(call, axes)
    if not _takes_another(call, units):
        raise InvalidArgument(
            f"the module runs at no other length of {shown(call, axes)}; name another axis with time="
        )
    return units


def found_axes(call: Call) -> Units:
    """The one set of axes that can be time, or a question."""
    found = _candidates(call)
    later = [axes for axes in found if any(axes.values())]
    first = [axes for axes in found if not any(axes.values())]
    if not found:
        shapes = {n: list(t.shape) for n, t in call.tensors.items()}
        raise InvalidArgument(
            f"the module runs at no other size of any axis of the example {shapes}: there is no time axis in it, or "
            f'the example is too short; pass a longer example, or name the axis with time={{"{next(iter(shapes))}": 2}}'
        )
    if not later and len(first) == 1:
        return units_of(call, first[0])
    # An axis 0 along which nothing mixes is the batch; where it does mix, it may well be time.
    if len(later) == 1 and all(_separate(call, units_of(call, axes)) for axes in first):
        return units_of(call, later[0])
    listed = "; ".join(f"time={axes} ({shown(call, axes)})" for axes in [*later, *first])
    raise InvalidArgument(f"several axes could be time: {listed}; say which")


def _candidates(call: Call) -> list[Axes]:
    """The smallest sets of axes, at most one of each input, that the module takes at another length."""
    masks = _masks(call)
    own = {n: t for n, t in call.tensors.items() if n not in masks}
    choices: list[list[int | None]] = [
        [None, *(a for a in range(t.dim()) if t.shape[a] > 1 and not _is_length(n, call))] for n, t in own.items()
    ]
    if math.prod(map(len, choices)) > MOST_CHOICES:
        raise InvalidArgument(
            f"{len(choices)} inputs are too many to find the time axis by trying; name it with time={{...}}, "
            f"for example time={{'{next(iter(call.tensors))}': 1}}"
        )
    sets = [{n: a for n, a in zip(own, chosen, strict=True) if a is not None} for chosen in itertools.product(*choices)]
    sets = [axes | _of_masks(call, axes, masks) for axes in sets if axes]
    return _smallest(call, sets, _takes_half) or _smallest(call, sets, _takes_another)


def _smallest(call: Call, sets: list[Axes], takes: Callable[[Call, Units], bool]) -> list[Axes]:
    found: list[Axes] = []
    for axes in sorted(filter(None, sets), key=len):
        contained = any(smaller.items() <= axes.items() for smaller in found)
        if not contained and takes(call, units_of(call, axes)):
            found.append(axes)
    return found


def _is_length(name: str, call: Call) -> bool:
    """An integer input that holds the length, one a stream: as the user says, or by the ONNX frontend's rule."""
    tensor = call.tensors[name]
    said = call.bind[name] is not None if name in call.bind else is_length_like(name)
    if tensor.dim() > 1 or tensor.is_floating_point() or not said:
        return False
    return tensor.dim() == 0 or tensor.shape[0] in {1, *(t.shape[0] for t in call.tensors.values() if t.dim() > 1)}


def _masks(call: Call) -> list[str]:
    """Masks [B, T] of the frames of other inputs: as the user says, or by the ONNX frontend's rule."""

    def is_mask(name: str, tensor: Any) -> bool:
        if name in call.bind:
            return call.bind[name] in FILLS and tensor.dim() == 2
        return MASK_NAMES.fullmatch(name) is not None and tensor.dim() == 2 and not tensor.is_floating_point()

    masks = [n for n, t in call.tensors.items() if is_mask(n, t)]
    return masks if len(masks) < len(call.tensors) else []


def _of_masks(call: Call, axes: Axes, masks: list[str]) -> Axes:
    """Masks are as long as what they mask, and have a row a stream."""
    along = 1 if any(axes.values()) else 0
    return {n: along for n in masks if call.tensors[n].shape[along] > 1}


def units_of(call: Call, axes: Axes) -> Units:
    sizes = {n: int(call.tensors[n].shape[a]) for n, a in axes.items()}
    unit = math.gcd(*sizes.values())
    if unit == 0:
        raise InvalidArgument(f"the example is empty along {shown(call, axes)}; pass one with some frames")
    return Units(axes, {n: size // unit for n, size in sizes.items()}, unit)


def other_lengths(call: Call, units: Units) -> list[int]:
    """Other lengths the module takes: longer ones, or a shorter one if there is no longer one."""
    u = units.unit
    longer = [n for n in (u + 1, u + 3, 2 * u) if _runs(call, units, n)]
    return longer or [n for n in (u // 2,) if n > 1 and _runs(call, units, n)]  # a size of 1 may be repeated


def shortened(call: Call, units: Units) -> tuple[Call, Units]:
    """A shorter example, if the module takes one: everything from here on takes as long as the example is.

    The shortest that calls torch in the same lines as the example does: a very short one may take another branch.
    """
    from pulsify.frontend.complex_tensors.repeats import calls

    lengths = (n for cut in SHORTER if (n := units.unit // cut) >= SHORT and _runs(call, units, n))
    if (shortest := next(lengths, None)) is None:
        return call, units
    own = calls(partial(call, call.tensors))
    same = (n for n in itertools.chain([shortest], lengths) if calls(partial(call, resized(call, units, n))) == own)
    length = min(2 * next(same, shortest), units.unit)
    return replace(call, tensors=resized(call, units, length)), replace(units, unit=length)


def shortest_length(call: Call, units: Units) -> int:
    """The length below which the module rejects everything; 1 if lengths in between are rejected as well."""
    least, most = 0, units.unit
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (least, middle) if _runs(call, units, middle) else (middle, most)
    return most if all(_runs(call, units, most + n) for n in (1, 2, 3)) else 1


def _takes_half(call: Call, units: Units) -> bool:
    """Half or twice of it: a frame more may be cut off by a stride, and show nothing."""
    return any(_runs(call, units, n) for n in (units.unit // 2, 2 * units.unit) if n > 1)


def _takes_another(call: Call, units: Units) -> bool:
    """Any other length, the shorter one first: it takes less time."""
    u = units.unit
    return any(_runs(call, units, n) for n in (u // 2, u + 1, u + 3, 2 * u) if n > 1)  # a size of 1 may be repeated


def _runs(call: Call, units: Units, length: int) -> bool:
    try:
        call(resized(call, units, length))
    except Exception:  # a module may raise anything at a size it does not take
        return False
    return True


def resized(call: Call, units: Units, length: int) -> dict[str, Any]:
    """The example at another length: its frames, and again from the last to the first as far as needed."""
    import torch

    out = {}
    for name, tensor in call.tensors.items():
        if name in units.axes:
            axis, frames = units.axes[name], units.per[name] * length
            while tensor.shape[axis] < frames:
                tensor = torch.cat([tensor, tensor.flip(axis)], axis)
            out[name] = tensor.narrow(axis, 0, frames)
        elif _is_length(name, call):
            out[name] = torch.full_like(tensor, length)
        else:
            out[name] = tensor
    return out


def _separate(call: Call, units: Units) -> bool:
    """Are two halves computed as if each were alone? Then the axis is a batch (or time does not matter at all)."""
    import torch

    mirrored = {n: t.flip(units.axes[n]) if n in units.axes else t for n, t in call.tensors.items()}
    if not _runs(call, units, 2 * units.unit):
        return False
    both = call(resized(call, units, 2 * units.unit))
    for whole, one, two in zip(both, call(call.tensors), call(mirrored), strict=True):
        axis = next((a for a in range(whole.dim()) if whole.shape[a] != one.shape[a]), None)
        if axis is None:
            return False
        pair = torch.cat([one, two], axis)
        if pair.shape != whole.shape or not close(as_array(whole), as_array(pair)):
            return False
    return True


def batched(call: Call, units: Units) -> tuple[Call, Units] | None:
    """Three streams for the example's one, if the module computes each as if it were alone."""
    first = _batch_axes(call, units)
    states = {n: 1 for n, t in call.tensors.items() if n not in units.axes and t.dim() > 2}  # [layers, batch, size]
    choices = (first, first | states) if states else (first,)
    return next((wide for axes in choices if (wide := _batched(call, units, axes)) is not None), None)


def _batch_axes(call: Call, units: Units) -> Axes:
    return {n: 1 if units.axes.get(n) == 0 else 0 for n, t in call.tensors.items() if t.dim()}


def _batched(call: Call, units: Units, axes: Axes) -> tuple[Call, Units] | None:
    import torch

    if not axes or any(call.tensors[n].dim() <= a or call.tensors[n].shape[a] != 1 for n, a in axes.items()):
        return None
    rows = [call.tensors, *(dict(call.tensors) for _ in range(2))]
    for name, axis in units.axes.items():
        tensor = call.tensors[name]
        rows[1] = {**rows[1], name: tensor.flip(axis)}
        rows[2] = {**rows[2], name: -0.7 * tensor if tensor.is_floating_point() else tensor}  # another size too
    wide = {n: torch.cat([r[n] for r in rows], axes[n]) if n in axes else t for n, t in call.tensors.items()}
    try:
        whole, alone = call(wide), [call(r) for r in rows]
    except Exception:  # a module may raise anything at a size it does not take
        return None
    for out, *parts in zip(whole, *alone, strict=True):
        if len({tuple(p.shape) for p in parts}) > 1:  # the data decides a size
            return None
        along = next((a for a in range(out.dim()) if out.shape[a] != parts[0].shape[a]), None)
        joined = None if along is None else torch.cat(parts, along)
        if joined is None or joined.shape != out.shape or not close(as_array(out), as_array(joined)):
            return None
    return replace(call, tensors=wide), replace(units, batch=axes)


def mixed(call: Call, units: Units) -> str:
    """Why `batched` has nothing."""
    axes = _batch_axes(call, units)
    single = [n for n, a in axes.items() if call.tensors[n].dim() <= a]
    if single:
        return f"{', '.join(single)} has no batch axis"
    several = [n for n, a in axes.items() if call.tensors[n].shape[a] != 1]
    if several:
        return (
            f"axis {axes[several[0]]} of {several[0]} has size {call.tensors[several[0]].shape[axes[several[0]]]}; "
            "if it is the batch, an example of one stream leaves their number free"
        )
    return "the module does not compute several streams as it does each of them alone"


def shown(call: Call, axes: Axes) -> str:
    return ", ".join(f"axis {a} of {n}, size {call.tensors[n].shape[a]}" for n, a in axes.items())

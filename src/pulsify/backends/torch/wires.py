"""The wires of a step as the device has them, for whoever compares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pulsify.backends.seam import Array, Placement, Wired
from pulsify.backends.torch.placement import Part
from pulsify.backends.torch.source import Function, Source, inner
from pulsify.backends.torch.step import full_precision
from pulsify.backends.torch.tensors import to_array, to_wire


def look_into(made: Source, call: Function, device: Any, placed: Sequence[Placement]) -> Wired:
    """A step that gives all wires (`source(..., wires=True)`). placed: its nodes, in the order they run."""
    nodes = [n for item in made.plan.order for n in (item.nodes if isinstance(item, Part) else (item,))]
    where = dict(zip(nodes, placed, strict=True))
    wires = [*made.model.graph.outputs, *inner(made.plan)]
    types = {str(v.name): None if v.dtype is None else v.dtype.numpy() for v in wires}

    def run(feeds: Mapping[str, Array]) -> dict[str, Array]:
        with torch.inference_mode(), full_precision():
            given = [to_wire(feeds[name], made.kinds[name], device) for name in made.takes]
            results = call(*given)
        return {name: to_array(wire, types[name]) for name, wire in zip(made.gives, results, strict=True)}

    makers = ((v, v.producer()) for v in wires)
    return Wired(made.model, {str(v.name): where[maker] for v, maker in makers if maker in where}, run)

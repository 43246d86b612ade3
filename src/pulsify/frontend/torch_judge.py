"""The module itself as what an export, and a stream, are compared with."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from pulsify.core.arrays import Array
from pulsify.core.errors import InvalidModel
from pulsify.frontend.torch_call import Call, Units, as_array, close
from pulsify.frontend.torch_manners import evaluating, quiet
from pulsify.frontend.torch_time import resized

TYPES = {
    "FLOAT": "float", "FLOAT16": "float16", "DOUBLE": "double", "INT64": "int64", "INT32": "int32", "INT16": "int16",
    "INT8": "int8", "UINT8": "uint8", "BOOL": "bool",
}  # fmt: skip


class WrongLength(InvalidModel):
    """The export differs from the module at another length."""


class Untested(WrongLength):
    """The module takes no other length, so there is nothing to compare with."""


class WrongBatch(InvalidModel):
    """The export differs from the module at another number of streams."""


@dataclass(frozen=True)
class Port:
    """An input or output, as ONNX Runtime describes it."""

    name: str
    type: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True, eq=False)
class Judge:
    """Runs as a session of ONNX Runtime does, and is the module.

    model: its export. shortest: units of the length below which the module rejects every input.
    """

    call: Call
    units: Units
    model: ir.Model
    shortest: int = 1

    def get_inputs(self) -> list[Port]:
        return [_port(v) for v in self.model.graph.inputs]

    def get_outputs(self) -> list[Port]:
        return [_port(v) for v in self.model.graph.outputs]

    def run(self, names: Any, feeds: Mapping[str, Array]) -> list[Array]:
        """The module's outputs. Whatever it raises is raised."""
        import torch

        tensors = {**self._others(feeds), **{n: torch.from_numpy(a.copy()) for n, a in feeds.items()}}
        with evaluating(self.call.module), quiet():
            return [as_array(t) for t in self.call({n: tensors[n] for n in self.call.tensors})]

    def in_double(self, feeds: Mapping[str, Array]) -> list[Array]:
        """The outputs of a copy of the module in float64; none if there is no such copy, or it fails."""
        try:
            module = copy.deepcopy(self.call.module).double()
            double = {n: a.astype(np.float64) if a.dtype == np.float32 else a for n, a in feeds.items()}
            return replace(self, call=replace(self.call, module=module)).run(None, double)
        except Exception:  # whatever the module holds or does
            return []

    def _others(self, feeds: Mapping[str, Array]) -> dict[str, Any]:
        """Inputs that no output depends on, of the same length and number of streams."""
        name = next((n for n in self.units.axes if n in feeds), None)
        if name is None:
            return dict(self.call.tensors)
        length = feeds[name].shape[self.units.axes[name]] // self.units.per[name]
        tensors = resized(self.call, self.units, length)
        streams = {feeds[n].shape[a] for n, a in self.units.batch.items() if n in feeds}
        rows = [i % 3 for i in range(max(streams, default=1))]
        return {
            n: t[(slice(None),) * self.units.batch[n] + (rows,)] if n in self.units.batch else t
            for n, t in tensors.items()
        }


def _port(value: ir.Value) -> Port:
    kind = "float" if value.dtype is None else TYPES.get(value.dtype.name, value.dtype.name.lower())
    shape = () if value.shape is None else tuple(d if isinstance(d, int) else str(d.value) for d in value.shape)
    return Port(str(value.name), f"tensor({kind})", shape)


def check_dims(model: ir.Model, units: Units, symbol: str) -> None:
    """Every axis that was to stay free did."""
    shapes = {str(v.name): v.shape for v in model.graph.inputs}
    for name, dims in units.names(symbol).items():
        for axis, dim in dims.items():
            shape = shapes.get(name)
            if name in shapes and (shape is None or str(shape[axis]) != dim):
                raise WrongLength(f"the length of input '{name}', or its batch, is fixed in the export")
    if not shapes.keys() & units.axes.keys():
        raise WrongLength("no output depends on an input with a time axis")


def check_equal(model: ir.Model, call: Call, units: Units, own: int) -> None:
    """The export must be the module: on other data, at other lengths and numbers of streams than it was exported with.

    own: the length of the user's example.
    """
    from pulsify.core.runner import open_model

    session = open_model(model)
    names = [i.name for i in session.get_inputs()]
    u, checked = units.unit, 0
    streams = {u + 3: 2, own: 1}
    for length in (u + 1, u + 3, *(n for n in (own,) if n > u), *(n for n in (2 * u,) if own <= u), u // 2):
        if length < 2 or (length == u // 2 and checked):
            continue
        feeds = resized(call, units, length)
        if length not in (u + 3, own):
            feeds = {k: -0.7 * t if t.is_floating_point() else t for k, t in feeds.items()}
        wrong: type[InvalidModel] = WrongLength
        if length in streams and units.batch:
            count, wrong = streams[length], WrongBatch
            feeds = {k: t.narrow(units.batch[k], 0, count) if k in units.batch else t for k, t in feeds.items()}
        try:
            wanted = [as_array(t) for t in call(feeds)]
        except Exception:  # a length that the module does not take
            continue
        checked += 1
        try:
            got = session.run(None, {k: as_array(feeds[k]) for k in names})
        except Exception as error:  # sizes that were fixed no longer fit
            raise wrong(f"the export fails at length {length}, where the module runs") from error
        for name, ours, theirs in zip([v.name for v in model.graph.outputs], got, wanted, strict=True):
            if ours.shape != theirs.shape or not close(ours, theirs):
                raise wrong(f"output '{name}' of the export is not the module's at length {length}")
    if not checked:
        raise Untested("the module takes no other length, so the export could not be compared with it")

"""The seam for back ends: what one gets, a step program, and what it gives, something that runs pulses.

model, spec --lower--> StepProgram --compile--> Executable --stepper--> Stepper      one session
                                                           --slots----> SlotStepper  many streams at their own pace

A back end is one folder with an object that has `lower` and `compile`, and a line in `registry.py`.

What it may offer beyond that is a protocol each, at the end of this file: an object that has the members offers it, and
one that has not gets what stands there. It is asked once, when a session or a pool is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeGuard, runtime_checkable

import numpy as np
import onnx_ir as ir

from pulsify.core.spec import Dims, Spec

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]
Rows = Mapping[str, Any]  # arrays or tensors by port, streams in front: [count, *the shape for one]
Which = slice | Array  # places in a row of streams
Own = str | Sequence[str] | None  # an option that a back end has for itself


@dataclass(frozen=True)
class Cache:
    """A state kept as a ring. `axis`: time in the portable state; swapped: the ring has the last two axes swapped.

    `shape`: of the ring; `index`: the input that says where the new frames go.
    """

    state: str
    axis: int
    swapped: bool
    shape: Dims
    index: str

    @property
    def lead(self) -> Dims:
        """The axes in front of time."""
        return self.shape[: self.axis - self.swapped]


@dataclass(frozen=True)
class Ring:
    """Caches of `size` frames, `pulse` of them new. `start`, `stop`: inputs, where the turned window lies."""

    size: int
    pulse: int
    start: str
    stop: str
    caches: tuple[Cache, ...]


@dataclass(frozen=True)
class Tail:
    """A state that is the last frames, along `axis`, of an output `full`."""

    full: str
    shape: tuple[int, ...]
    axis: int


@dataclass(frozen=True)
class Place:
    """Where a port lives if not as the portable file has it: [frames, channels], a ring, an output's end, growing."""

    rows: bool = False
    ring: Ring | None = None
    tail: Tail | None = None
    grows: bool = False


AS_IT_IS = Place()


@dataclass(frozen=True)
class StepProgram:
    """general: for every pulse. steady: from pulse `since` on, while the end is unknown. Both keep states alike.

    counts: the steady step advances the position too. places: of the ports that are not as the file has them.
    """

    general: ir.Model
    steady: ir.Model | None = None
    since: int = 0
    counts: bool = True
    places: Mapping[str, Place] = field(default_factory=dict)

    def place(self, port: str) -> Place:
        return self.places.get(port, AS_IT_IS)

    @property
    def rings(self) -> tuple[Ring, ...]:
        return tuple(dict.fromkeys(p.ring for p in self.places.values() if p.ring is not None))


@dataclass(frozen=True, eq=False)
class Opening:
    """What runs the first pulses of a stream as one: a graph of its own, with the stream's states."""

    model: ir.Model
    spec: Spec


def stream_axis(dims: Dims) -> int | None:
    """The axis along which streams lie one after the other."""
    return next((i for i, d in enumerate(dims) if isinstance(d, str)), None)


def joined(rows: Any, dims: Dims, count: int) -> Any:
    """[count, *the shape for one], an array or a tensor, as a step has it for so many streams."""
    axis, shape = stream_axis(dims), list(rows.shape[1:])
    if axis is None:
        return rows[0]
    shape[axis] *= count
    return _moved(rows, 0, axis).reshape(shape)


def parted(value: Any, dims: Dims, count: int) -> Any:
    """The way back: the same memory with the streams in front. What has no axis of streams is the same for all."""
    axis, shape = stream_axis(dims), tuple(value.shape)
    if axis is None and count == 1:
        return value[None]  # one stream's own: it may be written to
    if axis is None:
        spread = (count, *shape)
        return np.broadcast_to(value, spread) if isinstance(value, np.ndarray) else value.expand(spread)
    each = shape[axis] // count
    return _moved(value.reshape((*shape[:axis], count, each, *shape[axis + 1 :])), axis, 0)


def _moved(value: Any, source: int, target: int) -> Any:
    if source == target:
        return value
    return np.moveaxis(value, source, target) if isinstance(value, np.ndarray) else value.movedim(source, target)


def plain(model: ir.Model, spec: Spec) -> StepProgram:
    """The program that is just the file: what `portable=True` runs, on any back end."""
    return StepProgram(model, places={s.name: Place(grows=True) for s in spec.states if s.grows})


@dataclass(frozen=True)
class Options:
    """threads: for one call. fuse=False: every operator as it is written. path: where `general` lies as a file.

    own: what only this back end knows (see `own_options`), by name.
    """

    threads: int = 1
    fuse: bool = True
    path: str | None = None
    own: Mapping[str, Own] = field(default_factory=dict)


@dataclass(frozen=True)
class Placement:
    """Where a node of a step runs. reason: why it is not on the device. nbytes: what crosses there and back, a pulse.

    step: "general" (every pulse) or "steady" (away from both ends). note: of an attention, who computes it.
    """

    node: str
    op: str
    device: str
    reason: str = ""
    nbytes: int = 0
    step: str = "general"
    note: str = ""


class Stepper(Protocol):
    """Pulses of one session. Arrays stay where they are: fill `inputs`, run, read `outputs` before the next run."""

    @property
    def inputs(self) -> Arrays: ...
    @property
    def outputs(self) -> Arrays: ...

    def run(self, length: int | None = None) -> Arrays:
        """One pulse. length: of the whole stream, once it is known."""
        ...

    def reset(self) -> None: ...

    def states(self) -> dict[str, Array]:
        """Copies, as the portable file has them, whatever runs here."""
        ...

    def restore(self, states: Arrays, position: int) -> None:
        """Go on from such states. position: frames that have passed, as the counter has it."""
        ...

    def rebase(self, by: int) -> None:
        """Counters are set back."""
        ...


class SlotStepper(Protocol):
    """Many streams, each in a slot, at its own pace. Nothing here knows which slots are in use.

    rows: the inputs, by slot: [most, *the shape for one stream]. Positions are kept by whoever calls.
    intact: False if a run was interrupted while states were written, so that those of its slots are worth nothing.
    """

    @property
    def rows(self) -> Arrays: ...
    @property
    def intact(self) -> bool: ...

    def groups(self, positions: Array, lengths: Array | None) -> list[Which]:
        """Which of these streams may run together, group by group, each stream once.

        lengths: of whole streams as the counters have them, `unknown_length` where the end is out of sight; None: of
        all of them.
        """
        ...

    def run(self, slots: Array, positions: Array, lengths: Array | None, fed: Rows | None = None) -> Rows:
        """One pulse of a group: its outputs with the streams in front, valid until the next run.

        fed: the inputs in the same form, instead of `rows`. They are tensors only if this is `OnDevice`, and then
        the outputs are. If it fails, states are as before.
        """
        ...

    def reset(self, slot: int) -> None: ...
    def states(self, slot: int, position: int) -> dict[str, Array]: ...
    def restore(self, slot: int, states: Arrays, position: int) -> None: ...


class Executable(Protocol):
    """A program opened on a machine, shared by all sessions that run it."""

    def stepper(self, batch: int, statics: Arrays) -> Stepper: ...

    def slots(self, most: int) -> SlotStepper | None:
        """None: it has no such thing, and every stream of a pool is a stepper of its own."""
        ...


class Backend(Protocol):
    """A machine, or a library that runs graphs."""

    def lower(self, model: ir.Model, spec: Spec, batch: int | None) -> StepProgram:
        """The passes this machine wants. batch 1: one stream; 2: any number in step; None: each at its own pace."""
        ...

    def compile(self, program: StepProgram, spec: Spec, options: Options) -> Executable: ...


# ---- what may be offered beyond that: by a back end


class TakesOptions(Protocol):
    """A back end with options of its own. One without: `Options.own` is empty."""

    @property
    def options(self) -> Sequence[str]:
        """Their names: of keyword arguments, and on the command line."""
        ...


@runtime_checkable
class LowersType(Protocol):
    """A back end that computes in another type than float32 if it is told so. One that does not: results are equal."""

    def lower_type(self, own: Mapping[str, Own]) -> str | None:
        """The type that these options ask for: results are then near, and not equal. None: float32."""
        ...


# ---- by an executable


@runtime_checkable
class Writing(Protocol):
    """An executable that is made of source, which people can read. Others: `Stream.sources` refuses."""

    def texts(self, batch: int) -> dict[str, str]:
        """By the name of the step."""
        ...


@dataclass(frozen=True, eq=False)
class Wired:
    """A step whose wires can be looked at. model: the very graph that runs, for so many streams.

    places: where what makes a wire runs, by wire. run: from what the step takes to the wires of `places`, by name; what
    an island keeps to itself is not among them.
    """

    model: ir.Model
    places: Mapping[str, Placement]
    run: Callable[[Arrays], dict[str, Array]]


@runtime_checkable
class Wiring(Protocol):
    """An executable that shows what is inside of its steps. Others: nodes are not compared."""

    @property
    def program(self) -> StepProgram: ...

    def wired(self, batch: int) -> dict[str, Wired]:
        """By the name of the step: general, and steady if there is one."""
        ...


# ---- by a stepper, or by slots


@runtime_checkable
class OnDevice(Protocol):
    """Takes tensors on a device of its own, and gives them there. What is not takes arrays only."""

    @property
    def device(self) -> Any: ...


class TakesTensors(OnDevice, Stepper, Protocol):
    """A stepper on a device."""

    def run(self, length: int | None = None, fed: Rows | None = None) -> Rows:
        """fed: tensors there, by input, instead of `inputs`. Results are the caller's own then."""
        ...


class Careful(Protocol):
    """A stepper that looks at its inputs quicker than numpy does. For others numpy does it."""

    def run_if_finite(self) -> bool:
        """One pulse, unless a number in the inputs is not finite. False: nothing has happened."""
        ...


@runtime_checkable
class Placing(Protocol):
    """A stepper, or slots, with more than one place for nodes. Others: nothing is said of it."""

    @property
    def placement(self) -> Sequence[Placement]:
        """Where the nodes of the step run."""
        ...


@runtime_checkable
class Settling(Protocol):
    """Slots with a form of the step for streams that are warm. Others run one form all the time."""

    @property
    def since(self) -> float:
        """The position from which it runs; infinite: never."""
        ...


def takes_options(machine: Backend) -> TypeGuard[TakesOptions]:
    """By one member, as the next two: sessions are opened often, and `isinstance` takes as long as all else of it."""
    return hasattr(machine, "options")


def takes_tensors(stepper: Stepper) -> TypeGuard[TakesTensors]:
    return hasattr(stepper, "device")


def is_careful(stepper: Stepper) -> TypeGuard[Careful]:
    return hasattr(stepper, "run_if_finite")


def own_options(machine: Backend) -> tuple[str, ...]:
    """What a back end takes beside what all of them do."""
    return tuple(machine.options) if takes_options(machine) else ()


def lower_type(machine: Backend, own: Mapping[str, Own]) -> str | None:
    """The type that stands for float32 there, if these options ask for one."""
    return machine.lower_type(own) if isinstance(machine, LowersType) else None


def placement_of(stepper: Stepper | SlotStepper) -> tuple[Placement, ...]:
    """Where the nodes of a step run, if its back end has more than one place for them."""
    return tuple(stepper.placement) if isinstance(stepper, Placing) else ()

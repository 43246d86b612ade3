"""What a streaming file says about itself, under `pulsify.*` in its metadata: enough to run and to flush it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from pulsify.core.count import expression
from pulsify.core.errors import InvalidModel
from pulsify.core.framing import NEVER, Framing, Out
from pulsify.core.length import Length, Table

FORMAT = "4"  # the file has a checksum
PHASED = "5"  # pulses begin at a phase, which others would not see
UNSEALED = ("1", "2", "3")  # without one. 2: tables of lengths are under pulsify.tables. 3: there may be an opening
VERSION = "pulsify.version"
OPENING = "pulsify.opening"  # how many pulses come first, as one; in a file also where their graph lies
PAST = "past"  # the axis of a cache that grows with the stream
Dims = tuple[int | str, ...]
Kind = Literal["buffer", "cache", "carry", "clock", "latch", "fold"]
# frames of the past; all of them; a running value; the position; the first frames; a result about all so far


@dataclass(frozen=True)
class Input:
    """A streamed input: `frames` along `axis` come with every pulse; `rate` frames make one unit of time."""

    name: str
    axis: int
    rate: Fraction
    dtype: np.dtype[Any]
    dims: Dims

    @property
    def frames(self) -> int:
        size = self.dims[self.axis]
        assert isinstance(size, int)
        return size


@dataclass(frozen=True)
class Static:
    """An input without a time axis, given when a session is opened."""

    name: str
    dtype: np.dtype[Any]
    dims: Dims


@dataclass(frozen=True)
class Filled:
    """An input of the batch model that the stream does not have: `value` throughout, `rate` frames a unit of time."""

    name: str
    axis: int
    rate: Fraction
    value: int
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Binding:
    """An input of the batch model that the stream does not have, because it is always the same: the length, or a mask.

    value: the time symbol (it is the number of frames), "ones" or "zeros". source: "given" by `bind`, or "guessed" from
    its name and use. reason: what shows that it is.
    """

    name: str
    value: str
    source: Literal["given", "guessed"] = "given"
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.name}={self.value}" + (" (guessed)" if self.source == "guessed" else "")

    @property
    def assumption(self) -> str:
        """What is taken for granted of the batch model's input."""
        what = f"all {self.value}" if self.value in ("ones", "zeros") else f"the number of frames {self.value}"
        return f"'{self.name}' is {what} ({self.source})"


@dataclass(frozen=True)
class Output:
    """An output: `rate` frames per unit of time. axis None: comes out of flush only.

    delay: so many of the first frames that pulses make are not the stream's. By how much it is late is `Spec.lateness`:
    less, where pulses begin at a phase, or where frames are missing at the start. Both hold once the stream has opened
    (`Spec.opening`). start_up: so many units of the stream come before its first frame can; nothing waits for them
    again, so that they are no delay.
    delay_after_start: if that is less, there is no opening, and the rest is waited for because of the stream's first
    frames alone, which show later ones (a mirrored pad).
    """

    name: str
    axis: int | None
    rate: Fraction
    delay: int
    frames: int
    dtype: np.dtype[Any]
    dims: Dims
    length: Length
    batch_axis: int | None = None
    delay_after_start: int | None = None
    start_up: int = 0

    @property
    def framing(self) -> Out:
        """How its frames are counted."""
        return Out(self.frames, self.delay, NEVER if self.length.cap is None else self.length.cap)


@dataclass(frozen=True)
class State:
    """A state tensor: what it is for, and what it costs (for a batch of one)."""

    name: str
    shape: Dims
    dtype: np.dtype[Any]
    node: str
    zero: bool = True  # False: the start does not matter, a boundary covers it
    kind: Kind = "buffer"
    axis: int | None = None  # where time stands
    frames: int = 0  # of the past, along that axis
    after: str = ""  # the output that replaces it

    @property
    def nbytes(self) -> int:
        return math.prod(concrete(self.shape, 1)) * self.dtype.itemsize

    @property
    def grows(self) -> bool:
        """It starts empty and grows by a fixed number of frames per pulse; `nbytes` is its size at the start."""
        return PAST in self.shape


@dataclass(frozen=True)
class Condition:
    """A condition on the stream's length, and the node that sets it."""

    node: str
    length: Length
    at_least: int = 0
    multiple: int = 1
    at_most: int | None = None
    equals: Length | None = None
    scaled: float | None = None  # it is times this, in float32 as the runtime counts, that is equal
    outside: tuple[int, int] | None = None  # not from so many to so many

    def met(self, s: int) -> bool:
        n = self.length.at(s)
        if self.scaled is not None:
            n = int(np.float32(n) * np.float32(self.scaled))
        if self.equals is not None and n != self.equals.at(s):
            return False
        if self.outside is not None and self.outside[0] <= n <= self.outside[1]:
            return False
        return n >= self.at_least and n % self.multiple == 0 and (self.at_most is None or n <= self.at_most)


@dataclass(frozen=True)
class Proof:
    """How certain it is that the stream is the batch model at every length.

    Beyond `horizon` frames what follows from the length repeats with `period`, and all of that was looked at;
    `critical` are lengths around which something changes. limit: longer streams are rejected at flush, because the
    batch model counts in floats that are no longer exact there. sampled: what is only taken as a few lengths show it.
    assumed: what is taken of the data, because it cannot be known.
    """

    horizon: int = 1
    period: int = 1
    limit: int | None = None
    critical: tuple[int, ...] = ()
    sampled: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Nothing was only sampled."""
        return not self.sampled


@dataclass(frozen=True)
class Spec:
    """Everything about a stream but the graph."""

    pulse: int
    granularity: int
    time: str
    batch: str | None
    step: int
    shortest: int
    inputs: tuple[Input, ...]
    statics: tuple[Static, ...]
    outputs: tuple[Output, ...]
    states: tuple[State, ...]
    conditions: tuple[Condition, ...]
    length: str | None  # the input that takes the stream's length, if its end matters
    unknown_length: int
    position: str | None
    rebase: int  # the counter may be set back by multiples of this; 0: it must not
    source: str
    proof: Proof = Proof()
    natural_pulse: int | None = None  # the one of smallest latency, where it was looked for
    natural_latency: int | None = None  # pulse + delay then, in frames of the stream
    exact_up_to: int | None = None  # longer streams are not the batch model's result (asked for by unbounded=N)
    phase: int = 0  # the first pulse begins so many frames before the stream: it takes fewer
    opening: int = 0  # so many pulses come first and are one call, of a graph of their own; 0: every call is a pulse
    filled: tuple[Filled, ...] = ()  # masks of the batch model that are bound to ones
    bindings: tuple[Binding, ...] = ()  # all inputs that are bound: to the length, or to ones
    sample_rate: float | None = None  # frames of the first input a second, where somebody said so

    @cached_property
    def framing(self) -> Framing:
        """How its frames are counted."""
        outputs = tuple(o.framing for o in self.outputs)
        return Framing(tuple(i.frames for i in self.inputs), outputs, self.opening or 1, self.ahead)

    @property
    def ahead(self) -> tuple[int, ...]:
        """Frames of each input that stand in front of the stream, in its first pulse."""
        return tuple(int(self.phase * i.rate) for i in self.inputs)

    @property
    def first_call(self) -> int:
        """Frames of the stream that the first call takes."""
        return (self.opening or 1) * self.pulse - self.phase

    @property
    def latency(self) -> int:
        """Frames of the stream from one that goes in to the output it belongs to, at the most: pulse and delay."""
        return math.ceil(latency(self.pulse, self.outputs, self.phase))

    @property
    def start_up(self) -> int:
        """Frames of the stream before its first output can come: nothing waits for them again."""
        return max((o.start_up for o in self.outputs if o.axis is not None), default=0)

    def lateness(self, output: Output) -> Fraction:
        """How many of its own frames an output comes later than its input, at the end of a pulse: its delay."""
        return lateness(output, self.phase)

    def opens(self, then: Spec) -> bool:
        """Are its pulses the first ones of that stream, taken as one, and its states the same?"""
        states = [[(s.name, s.shape, s.dtype) for s in each.states] for each in (self, then)]
        pulses = self.pulse == then.opening * then.pulse and not self.opening
        same = (self.source, self.length, self.position, self.phase) == (
            then.source, then.length, then.position, then.phase
        )  # fmt: skip
        return pulses and same and states[0] == states[1]

    def after(self, state: str | None) -> str:
        """The output that replaces a state."""
        return next((s.after for s in self.states if s.name == state), "")

    def to_properties(self) -> dict[str, str]:
        tables: list[Table] = []
        _plain = partial(plain, tables=tables)
        flat: dict[str, Any] = {
            "version": PHASED if self.phase else FORMAT,
            "pulse": str(self.pulse),
            "granularity": str(self.granularity),
            "source": self.source,
            "inputs": [_plain(i) for i in self.inputs],
            "statics": [_plain(i) for i in self.statics],
            # what is written beside the facts is for whoever runs the file without pulsify
            "outputs": [{**_without_zero(_plain(o)), "count": _count(o)} for o in self.outputs],
            "states": [
                {**_plain(s), "nbytes": s.nbytes, "start": list(concrete(s.shape, 1)), "numpy": str(s.dtype)}
                for s in self.states
            ],
            "proof": _plain(self.proof),
            "time": {
                "symbol": self.time,
                "batch": self.batch,
                "step": self.step,
                "shortest": self.shortest,
                "length": self.length,
                "unknown_length": self.unknown_length,
                "position": self.position,
                "rebase": self.rebase,
                "exact_up_to": self.exact_up_to,
                "natural_pulse": self.natural_pulse,
                "natural_latency": self.natural_latency,
                "sample_rate": self.sample_rate,
                "conditions": [_plain(c) for c in self.conditions],
            },
        }
        if self.filled:
            flat["filled"] = [_plain(f) for f in self.filled]
        if self.bindings:
            flat["bindings"] = [_plain(b) for b in self.bindings]
        if tables:
            flat["tables"] = [t.to_json() for t in tables]
        if self.phase:
            flat["time"]["phase"] = self.phase
        if self.opening:
            flat["opening"] = {"pulses": self.opening}
        return {f"pulsify.{k}": v if isinstance(v, str) else json.dumps(v, sort_keys=True) for k, v in flat.items()}

    @staticmethod
    def from_properties(props: Mapping[str, str]) -> Spec:
        own = {k.removeprefix("pulsify."): v for k, v in props.items() if k.startswith("pulsify.")}
        if "version" not in own:
            raise InvalidModel("this is not a streaming model made by pulsify; make one with `pulsify stream MODEL`")
        if own["version"] not in (*UNSEALED, FORMAT, PHASED):
            raise InvalidModel(
                f"this stream has format {own['version']}, this pulsify reads formats {', '.join(UNSEALED)}, {FORMAT} "
                f"and {PHASED}; convert the model again"
            )
        try:
            return _parse(own)
        except (LookupError, ValueError, TypeError) as error:
            raise InvalidModel(f"the stream's metadata is damaged ({error!r}); convert the model again") from error


def is_streaming(props: Mapping[str, str]) -> bool:
    """Is this the metadata of a stream's file, even of a damaged one?"""
    return any(key.startswith("pulsify.") for key in props)


def _parse(own: Mapping[str, str]) -> Spec:
    data = {k: json.loads(own[k]) for k in ("inputs", "statics", "outputs", "states", "time")}
    time = data["time"]
    tables = [Table.from_json(t) for t in json.loads(own.get("tables", "[]"))]
    _typed = partial(typed, tables=tables)
    return Spec(
        pulse=int(own["pulse"]),
        granularity=int(own["granularity"]),
        time=time["symbol"],
        batch=time["batch"],
        step=time["step"],
        shortest=time["shortest"],
        inputs=tuple(Input(**_typed(Input, i)) for i in data["inputs"]),
        statics=tuple(Static(**_typed(Static, i)) for i in data["statics"]),
        outputs=tuple(Output(**_typed(Output, o)) for o in data["outputs"]),
        states=tuple(_state(s) for s in data["states"]),
        conditions=tuple(Condition(**_typed(Condition, c)) for c in time["conditions"]),
        length=time["length"],
        unknown_length=time["unknown_length"],
        position=time["position"],
        rebase=time["rebase"],
        source=own["source"],
        proof=_proof(own),
        natural_pulse=time.get("natural_pulse"),
        natural_latency=time.get("natural_latency"),
        sample_rate=time.get("sample_rate"),
        exact_up_to=time.get("exact_up_to"),
        phase=time.get("phase", 0),
        opening=int(json.loads(own.get("opening", "{}")).get("pulses", 0)),
        filled=tuple(Filled(**_typed(Filled, f)) for f in json.loads(own.get("filled", "[]"))),
        bindings=tuple(Binding(**_typed(Binding, b)) for b in json.loads(own.get("bindings", "[]"))),
    )


def _state(data: dict[str, Any]) -> State:
    """Files made before states described themselves name what replaces a state after it."""
    return State(**{"after": f"new_{data['name']}", **typed(State, data)})


def _proof(own: Mapping[str, str]) -> Proof:
    if "proof" not in own:
        return Proof(sampled=("made by a version of pulsify that looked at a few lengths only",))
    found: dict[str, Any] = typed(Proof, json.loads(own["proof"]))
    lists: dict[str, Any] = {k: tuple(found[k]) for k in ("critical", "sampled")}
    return Proof(**{**found, **lists, "assumed": tuple(found.get("assumed", ()))})


def plain(fact: Any, tables: list[Table] | None = None) -> dict[str, Any]:
    """A dataclass as JSON takes it; tables of lengths are put with the others."""
    out: dict[str, Any] = {}
    for key, value in vars(fact).items():
        if isinstance(value, Length):
            out[key] = value.to_json(tables)
        elif isinstance(value, Fraction):
            out[key] = str(value)
        elif isinstance(value, np.dtype):
            out[key] = ir.DataType.from_numpy(value).name
        else:
            out[key] = list(value) if isinstance(value, tuple) else value
    return out


def _count(o: Output) -> object:
    return expression(o.length) if o.frames else 0


def _without_zero(output: dict[str, Any]) -> dict[str, Any]:
    """Most have no start-up."""
    return {key: value for key, value in output.items() if key != "start_up" or value}


def typed(kind: type, data: dict[str, Any], tables: Sequence[Table] = ()) -> dict[str, Any]:
    """The fields of such a fact, out of JSON."""
    out = {f.name: data[f.name] for f in fields(kind) if f.name in data}
    for key, value in out.items():
        if key in ("length", "equals") and isinstance(value, dict):
            out[key] = Length.from_json(value, tables)
        elif key == "rate":
            out[key] = Fraction(value)
        elif key == "dtype":
            out[key] = ir.DataType[value].numpy()
        elif key in ("dims", "shape") or (key == "outside" and value is not None):
            out[key] = tuple(value)
    return out


def latency(pulse: int, outputs: Iterable[Output], phase: int = 0) -> Fraction:
    """Units of the stream's length from a frame to the output it belongs to, at the most: the pulse, and the delay."""
    late = (lateness(o, phase) / o.rate for o in outputs if o.axis is not None and o.rate)
    return pulse + max(late, default=Fraction(0))


def lateness(output: Output, phase: int) -> Fraction:
    """How many of its own frames it comes later than its input, with pulses at this phase."""
    return max(output.delay - (phase + output.start_up) * output.rate, Fraction(0))


def concrete(dims: Dims, batch: int) -> tuple[int, ...]:
    """Sizes with the batch filled in: 'B', '4*B' and plain numbers."""
    out = []
    for d in dims:
        if isinstance(d, int):
            out.append(d)
        elif d == PAST:
            out.append(0)  # nothing has passed yet
        else:
            factor, _, rest = d.partition("*")
            out.append(int(factor) * batch if rest else batch)
    return tuple(out)

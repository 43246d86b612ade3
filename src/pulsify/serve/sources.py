"""What is served: a batch model, a stream file, a recogniser, or what comes with pulsify; each under a name."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pulsify.api import Stream, load
from pulsify.api import stream as convert
from pulsify.asr.recogniser import Recogniser
from pulsify.core.errors import InvalidArgument, InvalidChunk, InvalidModel
from pulsify.core.spec import Input, Output, Spec, is_streaming

if TYPE_CHECKING:
    from collections.abc import Sequence

BUILT_IN = Path(__file__).parent.parent / "demo" / "recogniser" / "model.toml"
FEW_WORDS = 200
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
SHARED_BYTES = 256 << 20  # of a model file, up to which its stream is left for other processes
GIVEN = re.compile(r"(?:(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)=)?(?P<path>.+?)(?:@(?P<rate>\d+(\.\d+)?))?")


@dataclass(frozen=True)
class Served:
    """A model under its name. sample_rate: units of its time a second (of sound: a whole number); None: not known."""

    name: str
    streams: tuple[Stream, ...]  # one after the other
    sample_rate: float | None
    recogniser: Recogniser | None = None

    @property
    def kind(self) -> str:
        return "frames" if self.recogniser is None else "text"

    @property
    def hears(self) -> bool:
        """Is its input one channel of sound?"""
        inputs = self.streams[0].inputs
        return len(inputs) == 1 and isinstance(self.sample_rate, int) and _is_sound(inputs[0])

    @property
    def sounds(self) -> bool:
        """Is its output sound, as many samples as go in?"""
        outputs = self.streams[-1].outputs
        return (
            self.kind == "frames"
            and len(outputs) == 1
            and self.hears
            and outputs[0].rate == 1
            and _is_sound(outputs[0])
        )

    @cached_property
    def pulses_seconds(self) -> tuple[float, ...] | None:
        """How long a pulse of each of its stages lasts."""
        if self.sample_rate is None:
            return None
        rate, out = float(self.sample_rate), []
        for each in self.streams:
            out.append(each.pulse / rate)
            timed = next((o for o in each.outputs if o.axis is not None), None)
            rate *= float(timed.rate) if timed is not None else 1.0
        return tuple(out)

    @cached_property
    def latency(self) -> int:
        """Units of time from what goes in to what belongs to it, at the most."""
        if self.recogniser is not None:  # nothing comes out but at the end of a pulse
            return math.ceil(self.recogniser.delay(self.streams[0].pulse) * self.recogniser.sample_rate)
        return self.streams[0].latency

    @property
    def start_up(self) -> int:
        """Units of time before the first output can come."""
        return 0 if self.recogniser is not None else self.streams[0].start_up

    @cached_property
    def facts(self) -> dict[str, Any]:
        """As `ready` and /v1/models say it."""
        rate, first, last = self.sample_rate, self.streams[0], self.streams[-1]
        outputs = [{"name": "text"}] if self.kind == "text" else [output_facts(last.spec, o) for o in last.outputs]
        return {
            "model": self.name,
            "kind": self.kind,
            "inputs": [port_facts(i) for i in first.inputs],
            "outputs": outputs,
            "sample_rate": rate,
            "pulse": first.pulse,
            "pulse_seconds": max(self.pulses_seconds) if self.pulses_seconds else None,
            "latency": self.latency,
            "start_up": self.start_up,
            "latency_seconds": self.latency / rate if rate else None,
            "sound": {"input": self.hears, "output": self.sounds},
            **({"vocabulary": self.vocabulary} if self.vocabulary else {}),
        }

    @property
    def vocabulary(self) -> list[str]:
        """All words that a recogniser of whole words knows, if they are few."""
        if self.recogniser is None or not self.recogniser.vocabulary.words:
            return []
        units = self.recogniser.vocabulary.units
        words = [unit for index, unit in enumerate(units) if unit and index != self.recogniser.vocabulary.blank]
        return words if len(words) <= FEW_WORDS else []


@dataclass(frozen=True)
class ModelSource:
    """A model that is not open yet."""

    name: str
    open: Callable[[], Served]


@dataclass(frozen=True)
class Given:
    """A SOURCE of the command line: [NAME=]PATH[@RATE]."""

    path: str
    name: str | None = None
    rate: float | None = None


def parse_source(text: str) -> Given:
    if Path(text).exists():
        return Given(text)
    match = GIVEN.fullmatch(text)
    assert match is not None
    rate = match["rate"]
    return Given(match["path"], match["name"], whole(float(rate)) if rate else None)


def whole(rate: float) -> float:
    """As an int, if it is one."""
    if not rate > 0:
        raise InvalidArgument(f"{rate:g} frames a second: expected more")
    return int(rate) if rate == int(rate) else rate


@dataclass(frozen=True)
class Meaning:
    """How batch models are converted: arguments of `pulsify.stream`. folder: keeps them for other processes."""

    pulse: int | None = None
    verify: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None


def model_sources(given: Sequence[Given], meaning: Meaning, sample_rate: float | None) -> list[ModelSource]:
    """All of them, or what comes with pulsify if there is none. Nothing is opened yet."""
    sources = [_source(each, meaning, sample_rate) for each in given] if given else built_in_sources(meaning.verify)
    names = [source.name for source in sources]
    if twice := next((n for n in names if names.count(n) > 1), None):
        raise InvalidArgument(f"two models are called {twice!r}; give them names: NAME=PATH")
    return sources


def aliases(texts: Sequence[str], models: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """NAME=MODEL, each; a name may be a pattern."""
    out = []
    for text in texts:
        name, equals, model = text.partition("=")
        if not (name and equals):
            raise InvalidArgument(f"--alias {text!r}: expected NAME=MODEL")
        if model not in models:
            raise InvalidArgument(f"--alias {text!r}: no model {model!r}; there are {', '.join(models)}")
        out.append((name, model))
    return tuple(out)


def open_sources(given: Sequence[Given], meaning: Meaning, sample_rate: float | None) -> list[Served]:
    """The same, opened."""
    return [source.open() for source in model_sources(given, meaning, sample_rate)]


def _source(given: Given, meaning: Meaning, sample_rate: float | None) -> ModelSource:
    return ModelSource(model_name(given), partial(open_source, given, meaning, sample_rate))


def model_name(given: Given) -> str:
    """The one that was given, or that of the file."""
    path = Path(given.path)
    name = given.name or re.sub(r"[^A-Za-z0-9._-]", "-", path.parent.name if path.name == "model.toml" else path.stem)
    if not NAME.fullmatch(name):
        raise InvalidArgument(f"{name!r} is no name of a model: letters, digits, '.', '_' and '-'; give one: NAME=PATH")
    return name


def open_source(given: Given, meaning: Meaning, sample_rate: float | None) -> Served:
    path, name = Path(given.path), model_name(given)
    if path.suffix == ".toml":
        return of_recogniser(name, Recogniser.open(path, pulse=meaning.pulse, verify=meaning.verify))
    from pulsify.frontend.load import read

    rate = given.rate or sample_rate
    if is_streaming(read(path).metadata_props):
        if meaning.pulse is not None or meaning.options:
            raise InvalidArgument(f"{path.name} is a stream already: --pulse, --time and the like are for batch models")
        made = load(path)
    else:
        made = _converted(path, meaning, name)
    return of_stream(name, made, rate)


def _converted(path: Path, meaning: Meaning, name: str) -> Stream:
    """As another process has left it, or converted now, and left for others."""
    place = None if meaning.folder is None else meaning.folder / f"{name}.onnx"
    if place is not None and place.exists():
        return load(place, check="full")
    made = convert(path, meaning.pulse, **dict(meaning.options), verify=meaning.verify)
    if place is not None and path.stat().st_size < SHARED_BYTES:
        made.save(place, share=False)
    return made


def of_stream(name: str, made: Stream, rate: float | None) -> Served:
    if made.statics:
        names = [s.name for s in made.statics]
        raise InvalidModel(f"{name}: inputs without a time axis ({names}) cannot be served; fix them in the model")
    return Served(name, (made,), rate)


def of_recogniser(name: str, recogniser: Recogniser) -> Served:
    return Served(name, tuple(s.stream for s in recogniser.stages), recogniser.sample_rate, recogniser)


def built_in(verify: bool = False) -> list[Served]:
    """The recogniser and the enhancer that come with pulsify."""
    return [source.open() for source in built_in_sources(verify)]


def built_in_sources(verify: bool = False) -> list[ModelSource]:
    recogniser, enhancer = partial(_built_in_recogniser, verify), partial(_built_in_enhancer, verify)
    return [ModelSource("recogniser", recogniser), ModelSource("enhancer", enhancer)]


def _built_in_recogniser(verify: bool) -> Served:
    return of_recogniser("recogniser", Recogniser.open(BUILT_IN, verify=verify))


def _built_in_enhancer(verify: bool) -> Served:
    from pulsify.demo.model import HOP, SAMPLE_RATE, enhancer

    return of_stream("enhancer", convert(enhancer(), HOP, verify=verify), SAMPLE_RATE)


def port_facts(port: Input | Output) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "name": port.name,
        "dtype": port.dtype.name,
        "dims": list(port.dims),
        "axis": port.axis,
        "frames": port.frames,
        "rate": str(port.rate),
    }
    return facts


def output_facts(spec: Spec, output: Output) -> dict[str, Any]:
    late = spec.lateness(output)
    return {**port_facts(output), "delay": int(late) if late.denominator == 1 else float(late)}


def _is_sound(port: Input | Output) -> bool:
    import numpy as np

    from pulsify.asr.sound import shape_sound

    if port.axis is None or port.dtype.kind != "f":
        return False
    try:
        shape_sound(np.zeros(0, np.float32), port)  # type: ignore[arg-type]
    except InvalidChunk:
        return False
    return True

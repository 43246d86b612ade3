"""A model that is being served: its thread, and the chains its streams go through."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pulsify.api import Stream
from pulsify.backends.registry import DEFAULT
from pulsify.backends.seam import Own
from pulsify.serve.admission import Capacity, calibrated, quicker
from pulsify.serve.engine import open_engine
from pulsify.serve.flow import Chain, Link
from pulsify.serve.protocol import Refused, Sound
from pulsify.serve.scheduler import Deliver, Scheduler
from pulsify.serve.sinks import Frames, Source, Text, shaped
from pulsify.serve.sound import check, memory, resampling, usual
from pulsify.serve.sources import Served
from pulsify.serve.stage import Stage
from pulsify.serve.workers.counts import OWN_THREAD

MOST = 1024
RATES = 64  # resamplers that are kept
RATES_BYTES = 96 << 20  # that those of unusual rates may take
CHAINS = 1024  # likewise; they are made of the same stages
STRETCH = 0.04  # seconds that a batch waits for company at the most, under load: half a pulse, and no more than this
BEFORE, AFTER = -1, 1000  # stages of a resampler among those of the model


@dataclass(frozen=True)
class Machine:
    """What computes, and for how many streams at the most. wait: seconds a batch waits for company.

    Under load it waits for up to half a pulse: see `Scheduler`. backend: None is ONNX Runtime or C, whichever is
    measured to be quicker for each stage.
    """

    most: int = MOST
    backend: str | None = None
    options: Mapping[str, Own] | None = None
    wait: float = 0.002
    calibrate: bool = True  # measure how many streams there is time for


class Hosted:
    """The stages are made once, chains as they are asked for."""

    def __init__(self, served: Served, machine: Machine, deliver: Deliver) -> None:
        self.served, self.machine = served, machine
        lasts = served.pulses_seconds
        stretch = min(max(lasts) / 2, STRETCH) if lasts is not None and machine.wait else 0.0
        self.scheduler = Scheduler(served.name, machine.wait, deliver, stretch)
        self._lock = threading.Lock()
        self._chains: dict[tuple[Sound, Sound], Chain] = {}
        self._resamplers: dict[tuple[int, int, int], Stage] = {}
        self._stages = [self._stage(s) for s in served.streams]
        self.chain(Sound(), Sound())
        self.capacity = self._calibrated() if machine.calibrate else Capacity(machine.most)

    def _calibrated(self) -> Capacity:
        lasts = self.served.pulses_seconds
        if lasts is None:
            return Capacity(self.machine.most)
        longest = max(lasts)
        stages = [(stage, longest / each) for stage, each in zip(self._stages, lasts, strict=True)]
        if self.own_thread:
            return calibrated(stages, longest, self.machine.most)
        return calibrated(stages, longest, self.machine.most, time.perf_counter, step=2)

    @property
    def own_thread(self) -> bool:
        """Does it compute in the thread that calls it, on one core?"""
        return all(stage.engine.backend in OWN_THREAD for stage in self._stages)

    @property
    def share(self) -> float:
        """Of the machine's time, that one more stream takes, by what was measured at the start and since."""
        return self.capacity.share(self.scheduler.meter.pace.slowdown)

    def _stage(self, stream: Stream, resampler: bool = False) -> Stage:
        machine, own = self.machine, {} if resampler else dict(self.machine.options or {})
        told = DEFAULT if resampler else machine.backend  # clients choose rates, and a compiler is not for them to call
        if told is not None or own or not machine.calibrate:
            return Stage(open_engine(stream, machine.most, told or DEFAULT, own))
        names = dict.fromkeys((DEFAULT, stream.quickest(pooled=True)))
        return quicker([Stage(open_engine(stream, machine.most, name, own)) for name in names], machine.most)

    def known(self, given: Sound, wanted: Sound) -> Chain | None:
        """If it was made before."""
        return self._chains.get(self._settled(given, wanted))

    def chain(self, given: Sound, wanted: Sound) -> Chain:
        """The way of a stream with sound as it is given and wanted. May take a second: any thread."""
        key = self._settled(given, wanted)
        with self._lock:
            if key not in self._chains:
                made = self._made(*key)
                self._chains = {**({} if len(self._chains) >= CHAINS else self._chains), key: made}
            return self._chains[key]

    def check_rate(self, given: Sound) -> None:
        """Refused if sound that comes so can never be resampled for it."""
        rate = self.served.sample_rate
        if given.rate not in (None, rate) and isinstance(rate, int):
            check(given.rate or rate, rate)

    def _settled(self, given: Sound, wanted: Sound) -> tuple[Sound, Sound]:
        """With rates filled in; Refused if the model has no sound there."""
        out = []
        for what, sound, fits in (("input", given, self.served.hears), ("output", wanted, self.served.sounds)):
            if sound.sound and not fits:
                why = (
                    "nobody said at what rate" if self.served.sample_rate is None else "it is not one channel of sound"
                )
                raise Refused("unsupported", f"the {what} of {self.served.name!r} is raw frames: {why}")
            own = int(self.served.sample_rate or 0)
            out.append(Sound(sound.format, sound.rate or own) if sound.sound else Sound())
        return out[0], out[1]

    def _made(self, given: Sound, wanted: Sound) -> Chain:
        served = self.served
        rate, inputs, outputs = served.sample_rate, served.streams[0].inputs, served.streams[-1].outputs
        links, order = self._links(), list(range(len(self._stages)))
        source = Source(inputs, given.format, tuple(i.name for i in inputs))
        if given.sound and given.rate != rate:
            assert given.rate is not None and isinstance(rate, int)
            stage = self._resampler(given.rate, rate)
            links.insert(0, Link(stage, stage.spec.outputs[0].name, shaped(inputs[0])))
            order.insert(0, BEFORE)
            source = Source(stage.spec.inputs, given.format, (inputs[0].name,))
        if served.recogniser is not None:
            text = partial(Text, served.recogniser, given.rate or int(rate or 1))
            return Chain(tuple(links), tuple(order), source, text)
        names = tuple(o.name for o in outputs)
        if wanted.sound and wanted.rate != rate:
            assert wanted.rate is not None and isinstance(rate, int)
            stage = self._resampler(rate, wanted.rate)
            links[-1] = Link(links[-1].stage, outputs[0].name, shaped(stage.spec.inputs[0]), links[-1].length)
            links.append(Link(stage))
            order.append(AFTER)
            outputs = stage.spec.outputs
        return Chain(tuple(links), tuple(order), source, partial(Frames, outputs, wanted.format, names))

    def _links(self) -> list[Link]:
        """The model's own stages."""
        recogniser = self.served.recogniser
        if recogniser is None:
            return [Link(stage) for stage in self._stages]
        parts, out = recogniser.stages, []
        for at, (part, stage) in enumerate(zip(parts, self._stages, strict=True)):
            after = parts[at + 1] if at + 1 < len(parts) else None
            passes, adapt = (None, None) if after is None else (part.output.name, partial(part.into, after))
            out.append(Link(stage, passes, adapt, part.length))
        return out

    def _resampler(self, rate: int, to: int) -> Stage:
        out = to == self.served.sample_rate
        pulse = self.served.streams[0].pulse if out else round(self.served.streams[0].pulse * to / rate)
        key = rate, to, max(pulse, 1)
        if key not in self._resamplers:
            self._make_room(rate, to)
            self._resamplers[key] = self._stage(resampling(*key), resampler=True)
        else:
            self._resamplers[key] = self._resamplers.pop(key)  # now the last one to be forgotten
        return self._resamplers[key]

    def _make_room(self, rate: int, to: int) -> None:
        """Forget resamplers that nobody uses, unusual and old ones first; whoever is about to has it in hand."""
        size = 0 if usual(rate, to) else memory(rate, to)

        def full() -> bool:
            used = sum(memory(*key[:2]) for key in self._resamplers if not usual(*key[:2]))
            return len(self._resamplers) >= RATES or (size > 0 and used + size > RATES_BYTES)

        idle = [key for key, stage in self._resamplers.items() if not stage.seats]
        for key in sorted(idle, key=lambda each: usual(*each[:2])):
            if not full() or (usual(*key[:2]) and len(self._resamplers) < RATES):
                break
            gone = self._resamplers.pop(key)
            self._chains = {k: c for k, c in self._chains.items() if all(link.stage is not gone for link in c.links)}
        if full():
            raise Refused("unsupported", "too many rates are in use; send sound at the model's own, or 48000")

    def latency_seconds(self, chain: Chain, given: Sound) -> float | None:
        """All of the way."""
        rate = self.served.sample_rate
        if rate is None:
            return None
        total = self.served.latency / rate
        for order, link in zip(chain.order, chain.links, strict=True):
            if order in (BEFORE, AFTER):
                total += link.stage.spec.latency / (rate if order == AFTER else given.rate or rate)
        return total

    @property
    def summary(self) -> str:
        """One line for the log at the start."""
        served = self.served
        if served.pulses_seconds is not None and served.sample_rate is not None:
            seconds = max(served.pulses_seconds), served.latency / served.sample_rate
            lasts = [f"{1000 * each:g} ms" for each in seconds]
        else:
            lasts = [f"{units} frames" for units in (served.streams[0].pulse, served.latency)]
        names = ", ".join(dict.fromkeys(stage.engine.backend for stage in self._stages))
        room = self.capacity.streams
        return f"{served.name}: pulse {lasts[0]}, delay {lasts[1]}, back end {names}, up to {room} streams"

    @property
    def facts(self) -> dict[str, Any]:
        return {**self.served.facts, "backends": [stage.engine.backend for stage in self._stages]}

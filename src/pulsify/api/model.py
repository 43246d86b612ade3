"""A streaming model: its graph, what is to know about it, and everything that can be done with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack, cast, overload

import onnx_ir as ir

from pulsify.api.arguments import Frozen, check_options, check_single, frozen, whole
from pulsify.api.card import card
from pulsify.api.origin import Origin, SavedFile, write_page
from pulsify.backends.registry import DEFAULT
from pulsify.backends.registry import backend as back_end
from pulsify.backends.seam import (
    Executable,
    Opening,
    Options,
    Own,
    StepProgram,
    Wired,
    Wiring,
    Writing,
    own_options,
    plain,
)
from pulsify.core.arrays import Array, ArrayLike, Arrays, Given, Pieces, Result
from pulsify.core.boundary import public
from pulsify.core.chunks import Chunks, sizes
from pulsify.core.errors import CompileFailed, InvalidArgument, InvalidModel, NotSupported, PulsifyError
from pulsify.core.progress import tell
from pulsify.core.renamed import was_a_report
from pulsify.core.report import Report
from pulsify.core.spec import Binding, Input, Output, Proof, Spec, State, Static
from pulsify.core.status_line import showing, watched
from pulsify.core.traits import traits
from pulsify.core.weights import weight_bytes
from pulsify.export.onnx import Onnx
from pulsify.export.registry import Option, with_opening, with_options
from pulsify.runtime.framer import Framer, Ports, ports
from pulsify.runtime.pool import Pool
from pulsify.runtime.session import Session, check_batch, check_statics
from pulsify.runtime.streams import Streams
from pulsify.runtime.whole import alone, batch_of, named, pieces, run_pieces, run_whole, whole_length

if TYPE_CHECKING:
    from pulsify.convert.assemble import Probes
    from pulsify.convert.pulses import Natural
    from pulsify.plan.trail import Course

Kind = Literal["portable", "unfused", "single", "batch", "pool"]  # the forms a stream runs in
STREAMS: dict[Kind, int | None] = {"single": 1, "batch": 2, "pool": None}  # for so many a program is made


class Running(TypedDict, total=False):
    """How a whole stream is run: options of `Stream.session`."""

    padding: float
    check: bool
    fuse_quantised: bool
    portable: bool
    threads: int
    backend: str | None
    options: Mapping[str, Own] | None


class Stream:
    """A streaming model: the graph (`.model`, an onnx_ir model) and what is to know about it."""

    def __init__(
        self,
        model: ir.Model,
        spec: Spec,
        file: SavedFile | None = None,
        probes: Probes | None = None,
        natural: Callable[[], Natural] | None = None,
        opening: Stream | None = None,
        course: Course | None = None,
    ) -> None:
        self.model, self.spec, self._file, self._find_natural = model, spec, file, natural
        self.opening = opening  # the same model at a longer pulse, which runs the first `spec.opening` pulses as one
        self._taps: Probes = probes or {}
        self._course = course
        self._programs: dict[tuple[str, Kind], StepProgram] = {}
        self._open: dict[tuple[str, Kind, int, Frozen], Executable] = {}
        self._ports: dict[int, Ports] = {}
        self.verification: Report | None = None  # what the check against the batch model saw, if there was one
        self.origin: Origin | None = None  # what it was converted from; a stream that was loaded does not know
        self.notes: tuple[str, ...] = ()  # what else there is to know about the conversion

    @property
    def probes(self) -> Probes:
        """Batch wire -> where its frames are in the graph; a stream that was loaded does not know."""
        return self._taps

    @property
    def course(self) -> Course | None:
        """Time through it, wire by wire: where delay comes from. A stream that was loaded does not know."""
        return self._course

    @property
    def pulse(self) -> int:
        """Frames per call."""
        return self.spec.pulse

    @property
    def granularity(self) -> int:
        """The pulse must be a multiple of this."""
        return self.spec.granularity

    @property
    @public
    def natural_pulse(self) -> int | None:
        """The pulse with the smallest latency (pulse + delay): a chunk, where attention takes frames in chunks.

        Looked for when first asked, if another pulse was chosen; a stream that was loaded may not know (None).
        """
        if self.spec.natural_pulse is None and self._find_natural is not None:
            with showing("looking for the natural pulse"):
                found = self._find_natural()
            self.spec = replace(self.spec, natural_pulse=found.pulse, natural_latency=found.latency)
            self.model.metadata_props.update(self.spec.to_properties())
        return self.spec.natural_pulse

    @property
    @public
    def latency(self) -> int:
        """Frames from one that goes in to the output it belongs to, at the most: pulse and delay."""
        return self.spec.latency

    @property
    @public
    def start_up(self) -> int:
        """Frames that come before the first output can, and that nothing waits for again: those are no delay."""
        return self.spec.start_up

    @property
    @public
    def first_call(self) -> int:
        """Frames that the first call takes: as many as a pulse, but for an opening or a phase."""
        return self.spec.first_call

    @property
    def sample_rate(self) -> float | None:
        """Frames of the first input a second, if somebody said so when it was converted."""
        return self.spec.sample_rate

    @property
    def inputs(self) -> tuple[Input, ...]:
        return self.spec.inputs

    @property
    def statics(self) -> tuple[Static, ...]:
        """Inputs without a time axis, given when a session is opened."""
        return self.spec.statics

    @property
    def bindings(self) -> tuple[Binding, ...]:
        """Inputs of the batch model that the stream does not have: the length, masks of ones; given or guessed."""
        return self.spec.bindings

    @property
    def outputs(self) -> tuple[Output, ...]:
        return self.spec.outputs

    @property
    def states(self) -> tuple[State, ...]:
        return self.spec.states

    @property
    def proof(self) -> Proof:
        """What was proven of every length, to which horizon and period, and what was only sampled."""
        return self.spec.proof

    @property
    @public
    def state_bytes(self) -> int:
        """Memory of one stream's state."""
        return sum(s.nbytes for s in self.spec.states)

    @cached_property
    @public
    def quantised(self) -> bool:
        return any(traits(n.op_type, n.domain).quantizes == "to" for n in self.model.graph)

    def _program(self, kind: Kind, backend: str = DEFAULT) -> StepProgram:
        """What a back end makes of the graph; made once."""
        if (backend, kind) not in self._programs:
            machine, own = back_end(backend), plain(self.model, self.spec)
            made = machine.lower(self.model, self.spec, STREAMS[kind]) if kind in STREAMS else own
            self._programs[backend, kind] = made
        return self._programs[backend, kind]

    def _opened(
        self, kind: Kind, threads: int = 1, backend: str = DEFAULT, own: Mapping[str, Own] | None = None
    ) -> Executable:
        """The model open on a back end, in one of its forms; each is opened once."""
        key = backend, kind, threads, frozen(own or {})
        if key not in self._open:
            path = None if self._file is None else self._file.unchanged()
            try:
                program = self._program(kind, backend)
                path = path if program.general is self.model else None
                options = Options(threads, kind != "unfused", path, dict(key[-1]))
                with showing(f"opening the stream on {backend}"):
                    self._open[key] = back_end(backend).compile(program, self.spec, options)
            except Exception as error:
                if isinstance(error, PulsifyError) or self._file is None or self._file.sealed:
                    raise
                raise InvalidModel(f"{self._file.name!r} cannot be run, it may be damaged: {error!r:.200}") from error
        return self._open[key]

    @public
    def pooled(
        self, backend: str, portable: bool, fuse_quantised: bool, threads: int, own: Mapping[str, Own] | None = None
    ) -> Executable:
        """What a pool runs."""
        threads = whole(threads, f"threads={threads!r}: expected a whole number, at least 1")
        check_options(backend, own or {})
        return self._opened(self._kind("pool", portable, fuse_quantised), threads, backend, own)

    @public
    def opened_by(
        self, backend: str, fuse_quantised: bool, threads: int, own: Mapping[str, Own] | None = None
    ) -> Executable | None:
        """What runs the opening, if there is one: its graph as it is, for it is run once."""
        if self.opening is None:
            return None
        kind = self.opening._kind("portable", True, fuse_quantised)
        return self.opening._opened(kind, threads, backend, own)

    def _kind(self, quickest: Kind, portable: bool, fuse_quantised: bool) -> Kind:
        if self.quantised and not fuse_quantised:
            return "unfused"
        return "portable" if portable else quickest

    @property
    @public
    def warm(self) -> int:
        """Frames after which sessions run a step without boundaries; 0 if there is none."""
        program = self._program("batch")
        return program.since * self.pulse if program.steady is not None else 0

    @public
    def release_portable(self, more_than: int = 0) -> None:
        """Close the graph as `save` writes it, if its weights take more bytes: it is opened again when asked for."""
        if weight_bytes(self.model) > more_than:
            self._open = {key: opened for key, opened in self._open.items() if key[1] != "portable"}

    def __getstate__(self) -> dict[str, object]:
        """What is open here is opened again elsewhere."""
        return {**self.__dict__, "_programs": {}, "_open": {}, "_ports": {}, "_find_natural": None, "origin": None}

    @overload
    def session(
        self, *, batch: int, independent: Literal[True], padding: float = ..., check: bool = ...,
        fuse_quantised: bool = ..., portable: bool = ..., threads: int = ..., backend: str | None = ...,
        options: Mapping[str, Own] | None = ..., by_name: None = ..., statics: None = ..., **named: Own,
    ) -> Streams: ...  # fmt: skip

    @overload
    def session(
        self, *, batch: int | None = ..., independent: Literal[False] = ..., by_name: Literal[True],
        padding: float = ..., check: bool = ..., statics: Mapping[str, ArrayLike] | None = ...,
        fuse_quantised: bool = ..., portable: bool = ..., threads: int = ..., backend: str | None = ...,
        options: Mapping[str, Own] | None = ..., **named: ArrayLike | Own,
    ) -> Session[Arrays]: ...  # fmt: skip

    @overload
    def session(
        self, *, batch: int | None = ..., independent: Literal[False] = ..., by_name: Literal[False],
        padding: float = ..., check: bool = ..., statics: Mapping[str, ArrayLike] | None = ...,
        fuse_quantised: bool = ..., portable: bool = ..., threads: int = ..., backend: str | None = ...,
        options: Mapping[str, Own] | None = ..., **named: ArrayLike | Own,
    ) -> Session[Array]: ...  # fmt: skip

    @overload
    def session(
        self, *, batch: int | None = ..., independent: Literal[False] = ..., by_name: bool | None = ...,
        padding: float = ..., check: bool = ..., statics: Mapping[str, ArrayLike] | None = ...,
        fuse_quantised: bool = ..., portable: bool = ..., threads: int = ..., backend: str | None = ...,
        options: Mapping[str, Own] | None = ..., **named: ArrayLike | Own,
    ) -> Session: ...  # fmt: skip

    @public
    def session(
        self,
        *,
        batch: int | None = None,
        independent: bool = False,
        by_name: bool | None = None,
        padding: float = 0.0,
        check: bool = True,
        statics: Mapping[str, ArrayLike] | None = None,
        fuse_quantised: bool = True,
        portable: bool = False,
        threads: int = 1,
        backend: str | None = DEFAULT,
        options: Mapping[str, Own] | None = None,
        **named: ArrayLike | Own,
    ) -> Session | Streams:
        """A live stream. Static inputs are keyword arguments (or `statics`, by name); `batch` streams go in step.

        independent=True: each of them starts, waits and ends on its own, see `pulsify.runtime.streams.Streams`.
        by_name: results are dicts of arrays by output (True), or the array of the one output (False: an error if there
        are several). If not given: the array of the one output, a dict of several.
        backend: "ort" (ONNX Runtime), "native" (the step as C, compiled when first opened), "torch", or "reference"
        (onnx's own evaluator: slow, a second opinion). None: native where that is quicker and as strict, there is C for
        all of the step and a compiler, else ort (`quickest`).
        options: what a back end has for itself, keyword arguments too. torch: device ("cuda", "cpu"; by itself a card
        if there is one), dtype (None, "float16", "bfloat16"), mode ("eager", "graph", "compile"), allow_cpu and
        force_cpu (parts of the names of nodes that may, or must, stay with ONNX Runtime on the CPU; see
        `Session.placement`); docs/gpu.md has a page on them.
        threads: for one call of the model; more than one pays for large models only.

        padding fills the unreal part of the last pulse and never shows (tests use NaN); check=False lets NaN and
        infinite numbers in.
        fuse_quantised=False computes quantised operators as they are written, without the runtime's fused ones.
        portable=True runs the graph just as `save` writes it, not the form that is quickest here.
        """
        count = check_batch(self.spec, batch)
        if by_name is not None:
            check_single(self.spec, by_name, "push", independent)
        if backend is None:
            backend = self.quickest() if count == 1 and not independent and threads == 1 else DEFAULT
        own, given = self._sorted_out(backend, named, options or {}, statics or {})
        threads = whole(threads, f"threads={threads!r}: expected a whole number, at least 1")
        if independent:
            return Streams(
                Pool(
                    self, count, padding=padding, check=check, threads=threads, backend=backend, portable=portable,
                    fuse_quantised=fuse_quantised, options=own,
                )
            )  # fmt: skip
        fixed = check_statics(self.spec, given, count)
        kind = self._kind("single" if count == 1 else "batch", portable, fuse_quantised)
        if count not in self._ports:
            self._ports[count] = ports(self.spec, count)
        known = self._ports[count]
        opened = partial(self._opened(kind, threads, backend, own).stepper, count, fixed)
        opening = self.opened_by(backend, fuse_quantised, threads, own)
        first = None if opening is None else partial(opening.stepper, count, fixed)
        framer = Framer(known, padding, check)
        framer.by_name = framer.by_name if by_name is None else by_name
        return Session(opened, framer, known, check, first)

    @public
    def quickest(self, pooled: bool = False) -> str:
        """The back end that `backend=None` takes for a stream: C if that pays and can be had, else ONNX Runtime."""
        from pulsify.backends.choosing import never_asks_in_vain, small_enough

        if not (small_enough(self.model, self.spec) and never_asks_in_vain(self.model, self.spec)):
            return DEFAULT
        try:
            self._opened("pool" if pooled else "single", 1, "native")
            self.opened_by("native", True, 1)
        except (NotSupported, InvalidArgument, CompileFailed):
            return DEFAULT
        return "native"

    def _sorted_out(
        self,
        backend: str,
        named: Mapping[str, ArrayLike | Own],
        options: Mapping[str, Own],
        statics: Mapping[str, ArrayLike],
    ) -> tuple[dict[str, Own], dict[str, ArrayLike]]:
        """Options of the back end, and static inputs: a name that is both is the input."""
        takes, fixed = own_options(back_end(backend)), {s.name for s in self.statics}
        own = dict(options)
        given = dict(statics)
        for name, value in named.items():
            if name in takes and name not in fixed:
                own[name] = cast(Own, value)
            else:
                given[name] = cast(ArrayLike, value)
        if unknown := sorted(set(given) - fixed):
            known = ", ".join(name for name in signature(Stream.session).parameters if name not in ("self", "named"))
            own_ones = f"has {', '.join(takes)}" if takes else "has none of its own"
            still = ", ".join(sorted(fixed)) or "none"
            has = f"options: {known}; the back end {backend!r} {own_ones}; static inputs: {still}"
            raise InvalidArgument(f"session() has no option or static input {', '.join(map(repr, unknown))} ({has})")
        check_options(backend, own)
        return own, given

    @overload
    def run(
        self, inputs: Given | Pieces, chunks: Chunks = ..., *, by_name: Literal[True],
        statics: Mapping[str, ArrayLike] | None = ..., **options: Unpack[Running],
    ) -> Arrays: ...  # fmt: skip

    @overload
    def run(
        self, inputs: Given | Pieces, chunks: Chunks = ..., *, by_name: Literal[False],
        statics: Mapping[str, ArrayLike] | None = ..., **options: Unpack[Running],
    ) -> Array: ...  # fmt: skip

    @overload
    def run(
        self, inputs: Given | Pieces, chunks: Chunks = ..., *, by_name: bool | None = ...,
        statics: Mapping[str, ArrayLike] | None = ..., **options: Unpack[Running],
    ) -> Result: ...  # fmt: skip

    @public
    @watched("running the stream")
    def run(
        self,
        inputs: Given | Pieces,
        chunks: Chunks = None,
        *,
        by_name: bool | None = None,
        statics: Mapping[str, ArrayLike] | None = None,
        **options: Unpack[Running],
    ) -> Result:
        """A whole stream at once: what `push` and `flush` give, put together; an array, or arrays by output.

        inputs: the one input, or all of them by name, static ones too; or an iterator (or a list) of chunks, each an
        array or a dict, whose static inputs are in `statics`. chunks: a whole input is pushed in pieces of so many
        frames, or of these sizes; all at once if not given. What comes out is the same. by_name, options: as for
        `session`.
        """
        if unwanted := sorted({"batch", "independent"} & set(options)):
            raise InvalidArgument(f"run() has no option {unwanted[0]!r}: it runs as many streams as the input has")
        if by_name is not None:
            check_single(self.spec, by_name, "run")
        given = pieces(self.spec, inputs)
        if given is None:
            outputs = self._run_whole(named(self.spec, cast(Given, inputs), statics), chunks, options)
        elif chunks is not None:
            raise InvalidArgument(f"chunks={chunks!r}: the input comes in chunks already")
        else:
            outputs = run_pieces(
                lambda batch: self.session(batch=batch, statics=statics, **options), self.spec, given
            )  # fmt: skip
        return outputs if by_name else alone(self.spec, outputs)

    def _run_whole(self, given: Arrays, chunks: Chunks, options: Running) -> Arrays:
        length = whole_length(self.spec, given)
        statics = {s.name: given[s.name] for s in self.spec.statics}
        session = self.session(batch=batch_of(self.spec, given), statics=statics, **options)
        each = sizes(chunks, length)
        return run_whole(session, self.spec, given, each, lambda frames: tell(f"{frames} of {length} frames"))

    @was_a_report
    @public
    @watched("writing a report")
    def report(self, path: str | os.PathLike[str], *, seconds: float = 0.2, quiet: bool = False) -> None:
        """Write the page of `pulsify report`: one HTML file with delays, windows, cost and errors, layer by layer.

        The batch model is needed once more, so a stream that was loaded from a file cannot. seconds: for each of the
        measurements. quiet: show no progress. (What the check saw is `verification`, which was called `report`.)
        """
        write_page(self, self.origin, path, seconds)

    @public
    def sources(
        self, backend: str, batch: int | None = None, options: Mapping[str, Own] | None = None
    ) -> dict[str, str]:
        """The source that a back end writes, by the step's name: general, and steady if there is one."""
        count = check_batch(self.spec, batch)
        check_options(backend, options or {})
        opened = self._opened("single" if count == 1 else "batch", 1, backend, options)
        if not isinstance(opened, Writing):
            raise InvalidArgument(f"the back end {backend!r} writes no source")
        return opened.texts(count)

    @public
    def wired(
        self, backend: str, batch: int | None = None, options: Mapping[str, Own] | None = None
    ) -> tuple[StepProgram, dict[str, Wired]]:
        """A back end's program and its steps by name, with all wires; none if it does not show them."""
        count = check_batch(self.spec, batch)
        check_options(backend, options or {})
        kind: Kind = "single" if count == 1 else "batch"
        opened = self._opened(kind, 1, backend, options)
        return self._program(kind, backend), opened.wired(count) if isinstance(opened, Wiring) else {}

    @public
    @watched("saving the stream")
    def save(self, path: str | os.PathLike[str], share: bool = True) -> None:
        """One plain ONNX file. Large weights lie beside it, as external data, and so does the opening if there is one.

        Saved beside a batch model whose weights are external data, the stream reads them there. share=False writes
        them once more, for a stream that stands on its own.
        """
        Onnx(share, opening=self._first()).write(self.model, self.spec, Path(path))

    @public
    @watched("exporting the stream")
    def export(self, path: str | os.PathLike[str], target: str = "onnx", **options: Option) -> None:
        """Write the stream for somebody else to run; a name that is not there lists those that are.

        options: the target's own, docs/export.md has them all. c: weights ("source", or "file": one binary), name (of
        the functions). Any target takes merge_front_end, a file (an ONNX model from samples to this stream's input),
        and with it model, the batch model this stream is of: the two are converted as one; sample_rate is that of its
        samples, where this stream's does not say it.
        """
        if "merge_front_end" in options:
            front, batch = (str(options.pop(name, "")) for name in ("merge_front_end", "model"))
            rate = cast("float | None", options.pop("sample_rate", None))
            from pulsify.api.making import with_front_end

            with_front_end(self, front, batch, rate).export(path, target, **options)
            return
        if alone := [said for said in ("model=FILE", "sample_rate=N") if said.partition("=")[0] in options]:
            raise InvalidArgument(f"{alone[0]} goes with merge_front_end, a model to run in front of this stream")
        chosen = with_opening(target, with_options(target, options), self._first())
        chosen.write(self.model, self.spec, Path(path))

    def _first(self) -> Opening | None:
        return None if self.opening is None else Opening(self.opening.model, self.opening.spec)

    @public
    def __repr__(self) -> str:
        outs = ", ".join(f"{o.name}: rate {o.rate}, delay {self.spec.lateness(o)}" for o in self.outputs)
        start = f" start-up {self.spec.start_up}" if self.spec.start_up else ""
        exact = "" if self.spec.exact_up_to is None else f" exact up to {self.spec.exact_up_to} frames"
        opens = f" opens with {self.spec.opening} pulses" if self.spec.opening else ""
        binds = f" binds {', '.join(map(str, self.bindings))}" if self.bindings else ""
        more = f"{start} state {self.state_bytes} bytes{opens}{exact}{binds}"
        return f"<pulsify.Stream pulse={self.pulse} latency={self.latency} [{outs}]{more}>"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return card(self.spec, self.verification, "" if self.origin is None else 'stream.report("report.html")')

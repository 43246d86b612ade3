"""A recogniser's folder for sherpa-onnx, in its layout for NeMo's streaming models, whose caches are any two arrays.

    model.onnx (ctc), or encoder.onnx, decoder.onnx, joiner.onnx (transducer), and tokens.txt

sherpa calls (audio_signal [B, C, T], length, cache_last_channel, cache_last_time, cache_last_channel_len): all states
of the stream lie in the first cache, one behind the other, the second has nothing, and the number counts pulses. It has
no word for the end of a stream and takes every frame that comes out, so frames before the first (the delay) are blanks,
and an encoder of a transducer must have no delay.
"""

from __future__ import annotations

import math
import re
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnx_ir as ir

from pulsify.backends.registry import backend
from pulsify.backends.seam import Options, plain
from pulsify.core.errors import InvalidArgument, NotSupported
from pulsify.core.progress import counted
from pulsify.core.runner import open_model
from pulsify.core.spec import Input, Output, Spec, State
from pulsify.core.weights import write
from pulsify.export import portable
from pulsify.export.front import dims_by_port, streams_in_front
from pulsify.export.known import Known, hold
from pulsify.export.registry import Target
from pulsify.export.triton import rows_are_streams
from pulsify.optimize.builder import Builder
from pulsify.runtime.framer import Framer, ports
from pulsify.runtime.session import Session

KINDS = ("ctc", "transducer")
BLANKS = ("<blk>", "<eps>", "<blank>")  # what sherpa looks for, in this order
FEATURES = 80  # log-mel bands that sherpa makes of sound
NEVER = -1e30  # a score that no greedy search takes
F32, I64 = ir.DataType.FLOAT, ir.DataType.INT64


@dataclass(frozen=True)
class Sherpa:
    """tokens: a file, one unit a line, as sherpa has it ("a 1") or plain; one of them is <blk>.

    kind: "ctc" or "transducer", which takes decoder and joiner, two ONNX files as sherpa has them for NeMo, and the
    decoder's layers and hidden.
    """

    tokens: str = ""
    kind: str = "ctc"
    decoder: str = ""
    joiner: str = ""
    layers: int = 1
    hidden: int = 0

    def write(self, model: ir.Model, spec: Spec, path: Path) -> None:
        if self.kind not in KINDS:
            raise InvalidArgument(f"kind={self.kind!r}: there are {', '.join(KINDS)}")
        units = _units(self.tokens)
        given, out = self._ports(spec, len(units))
        blank = next(units.index(b) for b in BLANKS if b in units)
        made = _packed(model, spec, given, out, blank if self.kind == "ctc" else None)
        _check(made, model, spec, given, out, self.kind)
        made.metadata_props.clear()
        made.metadata_props.update(self._said(spec, out, len(units)))
        with portable.folder(path, "sherpa-onnx") as place:
            name = "model.onnx" if self.kind == "ctc" else "encoder.onnx"
            write({place / name: made}, share=False)
            portable.put(place, {"tokens.txt": "".join(f"{unit} {i}\n" for i, unit in enumerate(units))})
            if self.kind == "transducer":
                shutil.copy(self.decoder, place / "decoder.onnx")
                shutil.copy(self.joiner, place / "joiner.onnx")

    def _ports(self, spec: Spec, units: int) -> tuple[Input, Output]:
        """The one input and the one output, if it fits; NotSupported says what is missing."""
        portable.refuse_growing(spec, "sherpa-onnx")
        timed = [o for o in spec.outputs if o.axis is not None]
        if len(spec.inputs) != 1 or spec.statics or len(timed) != 1:
            names = [i.name for i in spec.inputs] + [s.name for s in spec.statics], [o.name for o in timed]
            raise _missing(f"one input of features and one output of frames; this stream has {names[0]} and {names[1]}")
        given, out = spec.inputs[0], timed[0]
        if spec.phase:
            raise _missing(
                f"pulses that begin with the stream: the first one of this takes {spec.first_call} of its frames, not "
                f"{spec.pulse}",
                "convert it with phase=False",
            )
        if given.dtype != np.float32 or len(given.dims) != 3 or given.axis not in (1, 2) or given.rate != 1:
            raise _missing(f"features [B, C, T] or [B, T, C] in float32; '{given.name}' is {given.dtype} {given.dims}")
        if out.dtype != np.float32 or len(out.dims) != 3 or out.axis not in (1, 2) or (1 / out.rate).denominator != 1:
            raise _missing(f"scores of whole numbers of frames, [B, T, units]; '{out.name}' is {out.dtype} {out.dims}")
        if odd := next((s for s in spec.states if s.name != spec.position and s.dtype != np.float32), None):
            raise _missing(f"states in float32, which its caches are; '{odd.name}' (of '{odd.node}') is {odd.dtype}")
        wide = out.dims[3 - out.axis]
        if self.kind == "ctc" and wide != units:
            raise _missing(f"a unit for every score: '{out.name}' has {wide}, tokens has {units}")
        if self.kind == "transducer" and out.delay:
            raise _missing(
                f"an encoder without delay: frames of '{out.name}' come {out.delay} late, and sherpa would decode what "
                "comes before the first",
                "take whole chunks of its attention as the pulse, and padding in front only",
            )
        if self.kind == "transducer" and not (self.decoder and self.joiner and self.hidden > 0 and self.layers > 0):
            raise InvalidArgument(
                "a transducer takes decoder=FILE, joiner=FILE, hidden=N (and layers=N) of the decoder"
            )
        if given.dims[3 - given.axis] != FEATURES:
            raise _missing(
                f"{FEATURES} features, which it makes itself; '{given.name}' has {given.dims[3 - given.axis]}"
            )
        if isinstance(given.dims[0], int) and given.dims[0] != 1:
            raise _missing(
                f"one stream a row; '{given.name}' has {given.dims[0]}", "convert it with a free batch, or 1"
            )
        return given, out

    def _said(self, spec: Spec, out: Output, units: int) -> dict[str, str]:
        """What sherpa reads when it opens the file."""
        size = sum(s.nbytes for s in _kept(spec)) // 4
        said: dict[str, object] = {
            "model_type": "EncDecCTCModelBPE" if self.kind == "ctc" else "EncDecHybridRNNTCTCBPEModel",
            "vocab_size": units - 1,  # sherpa counts the blank by itself
            "window_size": spec.pulse, "chunk_shift": spec.pulse, "subsampling_factor": int(1 / out.rate),
            "normalize_type": "NA", "comment": "made by pulsify",
        }  # fmt: skip
        sizes = {"channel": (1, 1, max(size, 1)), "time": (1, 1, 1)}
        said |= {f"cache_last_{k}_dim{i}": n for k, shape in sizes.items() for i, n in enumerate(shape, 1)}
        if self.kind == "transducer":
            said |= {"pred_rnn_layers": self.layers, "pred_hidden": self.hidden}
        return {key: str(value) for key, value in said.items()}


def _missing(what: str, hint: str = "") -> NotSupported:
    return NotSupported(f"sherpa-onnx takes {what}", target="sherpa-onnx", hint=hint)


def _units(file: str) -> list[str]:
    if not file:
        raise InvalidArgument("tokens=FILE is missing: one unit a line, in the order of the scores")
    try:
        text = Path(file).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"tokens={Path(file).name!r} is not in UTF-8, which sherpa-onnx reads") from error
    lines = [line for line in text.split("\n") if line.strip()]
    numbered = [re.fullmatch(r"(.+)[ \t](\d+)\s*", line) for line in lines]
    units = [line.strip() for line in lines]
    if all(numbered):
        found = {int(line[2]): line[1] for line in numbered if line}
        if sorted(found) != list(range(len(lines))):
            raise InvalidArgument(
                f"tokens={Path(file).name!r}: units are numbered from 0 to {len(lines) - 1}, each once"
            )
        units = [found[i] for i in range(len(lines))]
    if not any(blank in units for blank in BLANKS):
        raise InvalidArgument(f"tokens={Path(file).name!r} has no blank: call it <blk> there")
    return units


def _kept(spec: Spec) -> list[State]:
    """States that lie in the cache: the position follows from the number of pulses."""
    return [s for s in spec.states if s.name != spec.position]


def _packed(model: ir.Model, spec: Spec, given: Input, out: Output, blank: int | None) -> ir.Model:
    """The step with sherpa's ports."""
    with portable.told_the_length(model, spec):
        rows = rows_are_streams(model, spec)
    made = streams_in_front(model, dims_by_port(spec)) if rows else model.clone()
    graph = made.graph
    batch: int | str = "B" if rows else 1
    if spec.length is not None:  # never known: what is there by default
        length = next(v for v in graph.inputs if v.name == spec.length)
        graph.inputs.remove(length)
    inner = {str(v.name): v for v in (*graph.inputs, *graph.outputs)}
    for value in (v for node in graph for v in node.outputs):
        value.name = f"step/{value.name}"  # sherpa's ports have names that may be there already
    sizes = {s.name: math.prod(portable.one(s.shape)) for s in _kept(spec)}
    graph.inputs.clear()
    graph.outputs.clear()
    at = Builder(graph, graph[0])
    channels = given.dims[3 - given.axis]
    ports_in = {
        "audio_signal": (F32, [batch, channels, given.frames]), "frames": (I64, [batch]),
        "cache_last_channel": (F32, [batch, 1, 1, max(sum(sizes.values()), 1)]),
        "cache_last_time": (F32, [batch, 1, 1, 1]), "cache_last_channel_len": (I64, [batch]),
    }  # fmt: skip
    x, frames, cache, spare, count = (
        ir.Value(name=n + "_" * (n in graph.initializers), type=ir.TensorType(t), shape=ir.Shape(s))
        for n, (t, s) in ports_in.items()
    )
    graph.inputs.extend([x, frames, cache, spare, count])
    _enter(at, inner, spec, given, sizes, {"x": x, "cache": cache, "count": count}, rows)
    end = Builder(graph)
    scores = _scores(end, inner[out.name], out, count, blank, batch)
    caches = _leave(end, inner, spec, sizes, cache, rows)
    one = end.op("Add", [count, end.ints(1)], [batch], I64, name="pulses/more")
    lengths = end.op("Expand", [end.ints(out.frames), end.op("Shape", [count], [1], I64)], [batch], I64)
    named = {
        "logits": scores, "logits_length": lengths, "cache_last_channel_next": caches,
        "cache_last_time_next": end.op("Identity", [spare], [batch, 1, 1, 1], F32),
        "cache_last_channel_len_next": one,
    }  # fmt: skip
    for name, value in named.items():
        value.name = name + "_" * (name in graph.initializers)
        graph.outputs.append(value)
    return made


def _check(made: ir.Model, model: ir.Model, spec: Spec, given: Input, out: Output, kind: str) -> None:
    """Called as sherpa does it gives what the stream gives while it goes on, or NotSupported."""
    runner, about, rng = open_model(made), ports(spec, 1), np.random.default_rng(7)
    names, pulses = [i.name for i in runner.get_inputs()], 4 + (spec.latency + spec.start_up) // spec.pulse
    opened = backend("ort").compile(plain(model, spec), spec, Options(fuse=False))
    session = Session(partial(opened.stepper, 1, {}), Framer(about, 0.0, True), about, True, None)
    x = rng.standard_normal(portable.one(given.dims)[:1] + [int(given.dims[3 - given.axis]), pulses * spec.pulse])
    x = x.astype(np.float32)
    size = sum(s.nbytes for s in _kept(spec)) // 4
    states = [np.zeros((1, 1, 1, max(size, 1)), np.float32), np.zeros((1, 1, 1, 1), np.float32), np.zeros(1, np.int64)]
    parts = []
    for chunk in counted("checking pulse", np.split(x, pulses, 2)):
        scores, _, *states = runner.run(None, dict(zip(names, [chunk, np.array([spec.pulse]), *states], strict=True)))
        parts.append(scores)
    time = 1 if kind == "ctc" else 2
    wanted = session.push(x if given.axis == 2 else x.transpose(0, 2, 1))
    wanted = wanted[out.name] if isinstance(wanted, dict) else wanted
    wanted = wanted if out.axis == time else wanted.transpose(0, 2, 1)
    got = np.split(np.concatenate(parts, time), [out.delay], time)[1]
    hold({out.name: got}, Known(pulses * spec.pulse, {}, {}, {out.name: wanted}), "sherpa-onnx")


def _enter(
    at: Builder,
    inner: dict[str, ir.Value],
    spec: Spec,
    given: Input,
    sizes: dict[str, int],
    outer: dict[str, ir.Value],
    rows: bool,
) -> None:
    """States out of the cache, the position out of the number of pulses, features as the stream has them."""
    batch = -1 if rows else 1
    turned = outer["x"] if given.axis == 2 else at.op("Transpose", [outer["x"]], None, F32, perm=[0, 2, 1])
    inner[given.name].replace_all_uses_with(turned)
    if spec.position is not None:
        frames = at.op("Mul", [outer["count"], at.ints(spec.pulse)], None, I64)
        wide = at.op("Reshape", [frames, at.ints(batch, 1)], None, I64)
        inner[spec.position].replace_all_uses_with(at.op("Cast", [wide], None, ir.DataType.INT32, to=ir.DataType.INT32))
    begin = 0
    for state in _kept(spec):
        bounds = [at.ints(n) for n in (begin, begin + sizes[state.name], 3)]
        cut = at.op("Slice", [outer["cache"], *bounds], None, F32)
        shape = inner[state.name].shape
        assert shape is not None
        sized = [batch, *[d for d in shape[1:] if isinstance(d, int)]] if rows else portable.one(state.shape)
        inner[state.name].replace_all_uses_with(at.op("Reshape", [cut, at.ints(*sized)], None, F32))
        begin += sizes[state.name]


def _leave(
    at: Builder, inner: dict[str, ir.Value], spec: Spec, sizes: dict[str, int], cache: ir.Value, rows: bool
) -> ir.Value:
    """All new states in one row, as the cache has them."""
    batch = -1 if rows else 1
    parts = [at.op("Reshape", [inner[s.after], at.ints(batch, 1, 1, sizes[s.name])], None, F32) for s in _kept(spec)]
    joined = at.op("Concat", parts, cache.shape, F32, axis=3) if parts else at.op("Identity", [cache], cache.shape, F32)
    return joined


def _scores(
    at: Builder, value: ir.Value, out: Output, count: ir.Value, blank: int | None, batch: int | str
) -> ir.Value:
    """CTC: [B, T, units], blanks before the first frame. A transducer's encoder: [B, D, T]."""
    wide = out.dims[3 - (out.axis or 0)]
    assert isinstance(wide, int)
    wanted = 1 if blank is not None else 2
    shape = [batch, out.frames, wide] if wanted == 1 else [batch, wide, out.frames]
    turned = value if out.axis == wanted else at.op("Transpose", [value], shape, F32, perm=[0, 2, 1])
    if blank is None or not out.delay:
        return at.op("Identity", [turned], shape, F32)
    begun = at.op("Mul", [count, at.ints(out.frames)], None, I64)
    column = at.op("Reshape", [begun, at.ints(-1, 1, 1)], None, I64)
    places = at.ints(*(n - out.delay for n in range(out.frames)))
    steps = at.op("Reshape", [places, at.ints(1, -1, 1)], None, I64)
    frame = at.op("Add", [column, steps], None, I64)
    real = at.op("GreaterOrEqual", [frame, at.ints(0)], None, ir.DataType.BOOL)
    silent = np.full(wide, NEVER, np.float32)
    silent[blank] = 0
    return at.op("Where", [real, turned, at.constant("sherpa/blank", silent)], shape, F32)


TARGET: Target = Sherpa()

"""Which dimension is time: found automatically if there is only one answer, asked for otherwise."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from pulsify.core.errors import InvalidArgument
from pulsify.frontend.model import Model, Port

BATCH_NAMES = re.compile(r"(b|n|bs|bsz|batch.*|n_?batch|num_?batch.*)", re.IGNORECASE)
GIVEN_NAMES = re.compile(r"s\d+|unk__\d+|.*\.dim\d+")  # by exporters and by `named_dims`, not by a person
MASK_NAMES = re.compile(r"attention_?mask", re.IGNORECASE)  # [B, T]: which frames count, as Hugging Face exports it
FILLS = {"ones": 1, "zeros": 0}  # what an input may be bound to beside the length: all of it is that
LENGTH_NAMES = re.compile(r"length|len(s|gth|gths)?(_|\d|$)", re.IGNORECASE)  # x_lens, seqlen; not silence
SUFFIX = r"_?(len|lens|length|lengths)_?\d*"
CLEAR_NAMES = re.compile(  # of the whole input, whatever that is called; not max_len, prompt_length, text_lengths
    r"((x|xs|i|h|inputs?|seqs?|sequences?|src|source|samples?|frames?|mels?|spec|spectrogram|feats?|features?|enc|encoder|"
    r"((processed|input)_)?(audio|speech|wavs?|waveforms?|signal|audio_signal))_?)?" + SUFFIX[2:],
    re.IGNORECASE,
)
PRODUCT = re.compile(r"^(?:(\d+)\s*\*\s*)?([A-Za-z_][\w.]*)(?:\s*\*\s*(\d+))?$")


@dataclass(frozen=True)
class Lengths:
    """Which lengths a person says there are: `remainder` + n * `every`, from `least` to `most`."""

    every: int = 1
    remainder: int = 0
    least: int = 1
    most: int | None = None

    @property
    def step(self) -> int:
        """All of them are multiples of this."""
        return 1 if self.remainder else self.every

    def next(self, length: int) -> int:
        """The first of them from this length on."""
        start = max(length, self.least)
        return start + (self.remainder - start) % self.every


@dataclass(frozen=True)
class TimeSpec:
    """How the stream's length S and the batch size enter the model's inputs.

    streams: input -> (axis, frames per unit of S); bound: integer inputs whose value is S; filled: input -> (axis,
    frames per unit of S, value), masks that are the same at every frame; batch: the symbol of the batch dimension, if
    it is free; lengths: those that are declared. guessed: of the bound and the filled those that nobody named; reasons:
    what shows that they are (`trace/roles.py`). lone: the only open dimension, not named by the user, that may be
    the batch by its place or its name. others: dimensions that were not taken for time because of their places alone.
    window: of a time axis that the model declares as fixed, its size in units of S.
    """

    symbol: str
    streams: Mapping[str, tuple[int, int]]
    bound: tuple[str, ...] = ()
    batch: str | None = None
    fixed: Mapping[str, int] = field(default_factory=dict)
    lengths: Lengths = Lengths()
    filled: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    guessed: tuple[str, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)
    lone: bool = False
    others: tuple[str, ...] = ()
    window: int | None = None

    @property
    def step(self) -> int:
        return self.lengths.step

    @property
    def longest(self) -> int | None:
        return self.lengths.most

    def time_axis(self, name: str) -> tuple[int, int] | None:
        """The time axis of an input, and its frames per unit of S."""
        return self.streams[name] if name in self.streams else self.filled[name][:2] if name in self.filled else None

    def dims(self, port: Port, length: int, batch: int) -> tuple[int, ...]:
        """The concrete shape of an input."""
        sizes = {**self.fixed, self.symbol: length}
        if self.batch:
            sizes[self.batch] = batch
        out = []
        time = self.time_axis(port.name)
        for axis, dim in enumerate(named_dims(port)):
            if time is not None and time[0] == axis:
                out.append(length * time[1])
            elif isinstance(dim, int):
                out.append(dim)
            elif (port.name in self.bound or port.name in self.filled) and split_product(dim)[1] not in sizes:
                out.append(batch if self.batch else 1)  # a length or mask a stream, whatever it is called
            else:
                factor, symbol = split_product(dim)
                out.append(factor * sizes[symbol])
        return tuple(out)


def named_dims(port: Port) -> tuple[int | str, ...]:
    return tuple(d if d is not None else f"{port.name}.dim{i}" for i, d in enumerate(port.dims))


def split_product(dim: str) -> tuple[int, str]:
    """'256*T' -> (256, 'T'). Anything more complicated counts as a symbol of its own."""
    match = PRODUCT.match(dim.strip())
    if not match:
        return 1, dim
    return int(match[1] or match[3] or 1), match[2]


def find_time(
    model: Model,
    time: str | Mapping[str, int] | None = None,
    bind: Mapping[str, str | None] | None = None,
    set: Mapping[str, int | str] | None = None,  # the public contract's name
) -> TimeSpec:
    """Settle time, batch, bound and fixed dimensions, or say what to pass.

    Inputs that are called like a length are `guessed` to be it: `trace/roles.py` looks at what they are.
    """
    _check_kinds(time, bind, set)
    spec = _settled(model, time, bind, set)
    frames = [p.name for p in model.inputs if p.name in spec.guessed and _has_frames(p, spec)]
    return _settled(model, time, {**(bind or {}), **dict.fromkeys(frames)}, set) if frames else spec


def _has_frames(port: Port, spec: TimeSpec) -> bool:
    """One value a frame is no length."""
    if port.name in spec.filled or not port.dims:
        return False
    dim = port.dims[0]
    return isinstance(dim, str) and split_product(dim)[1] == spec.symbol


def _settled(
    model: Model,
    time: str | Mapping[str, int] | None,
    bind: Mapping[str, str | None] | None,
    set: Mapping[str, int | str] | None,
) -> TimeSpec:
    fixed, declared = _fixed(set or {})
    window: int | None = None
    filled = _filled(model, bind)
    bound = tuple(n for n in _bound(model, bind) if n not in filled)
    ports = [p for p in model.inputs if p.name not in bound and p.name not in filled]
    where = _symbols(ports, fixed)
    _check_fixed(where, fixed, declared, ports)
    if isinstance(time, Mapping):
        symbol, streams, window = _from_axes(ports, time, fixed)
    else:
        symbol = _guess(where, ports) if time is None else _check_symbol(time, where)
        streams = {
            p.name: (axis, split_product(d)[0])
            for p in ports
            for axis, d in enumerate(named_dims(p))
            if isinstance(d, str) and split_product(d)[1] == symbol
        }
    used = {symbol} | {split_product(str(named_dims(p)[streams[p.name][0]]))[1] for p in ports if p.name in streams}
    _check_bound({n: s for n, s in (bind or {}).items() if n not in filled}, used)
    batch = _batch({s: w for s, w in where.items() if s not in used})
    if batch is None:
        fixed |= _counted(model, [*bound, *filled], {*used, *where, *fixed}, streams)
    masks = {n: _mask(p, used, batch, filled[n]) for p in model.inputs if (n := p.name) in filled}
    guessed = tuple(n for n in (*bound, *masks) if n not in (bind or {}))
    streamed = [p for p in ports if p.name in streams]
    lone = time is None and len(where) == 1 and any(len(p.dims) > 1 for p in streamed)
    lone = lone and all(_may_be_batch(symbol, p, streams[p.name][0]) for p in streamed)
    others = tuple(s for s in _nameless(where) if s != symbol) if time is None else ()
    lengths = declared.get(symbol, Lengths())
    return TimeSpec(symbol, streams, bound, batch, fixed, lengths, masks, guessed, {}, lone, others, window)


def _may_be_batch(symbol: str, port: Port, axis: int) -> bool:
    """The first axis; another that is called so, or has no name of its own where the first one is several entries."""
    first = port.dims[0]
    unnamed = GIVEN_NAMES.fullmatch(symbol) is not None and isinstance(first, int) and first > 1
    return axis == 0 or BATCH_NAMES.fullmatch(symbol) is not None or unnamed


def _nameless(where: Mapping[str, object]) -> list[str]:
    """Dimensions that are not called like a batch; all, if every one is."""
    return [s for s in where if not BATCH_NAMES.fullmatch(s)] or list(where)


def _counted(
    model: Model, names: Container[str], known: Container[str], streams: Mapping[str, tuple[int, int]]
) -> dict[str, int]:
    """Open dimensions of lengths and masks that no other input has: as many as there are streams, which is fixed."""
    streamed = [(p, streams[p.name][0]) for p in model.inputs if p.name in streams]
    sizes = [d for p, time in streamed for a, d in enumerate(p.dims[:2]) if a != time and isinstance(d, int)]
    symbols = [d for p in model.inputs if p.name in names for d in named_dims(p)[:2] if isinstance(d, str)]
    return {s: (sizes or [1])[0] for s in symbols if split_product(s)[1] == s and s not in known}


def _filled(model: Model, bind: Mapping[str, str | None] | None) -> dict[str, int]:
    """Inputs that are ones (or zeros) throughout: those named by the user, and masks called so beside another input."""
    given = bind or {}
    found = {
        p.name: FILLS["ones"]
        for p in model.inputs
        if MASK_NAMES.fullmatch(p.name) and _whole(p) and len(p.dims) == 2 and not isinstance(p.dims[1], int)
        if any(q is not p and p.dims[1] in q.dims for q in model.inputs)
    }
    return {
        **{n: v for n, v in found.items() if n not in given},
        **{n: FILLS[s] for n, s in given.items() if s in FILLS},
    }


def _whole(port: Port) -> bool:
    return port.dtype.is_integer() or port.dtype == ir.DataType.BOOL


def _mask(port: Port, times: Container[str], batch: str | None, value: int) -> tuple[int, int, int]:
    """Where time stands in an input that is the same throughout: the axis called so, or the only one that is open."""
    dims = [(a, *split_product(d)) for a, d in enumerate(named_dims(port)) if isinstance(d, str)]
    named = [(a, n) for a, n, s in dims if s in times] or [(a, n) for a, n, s in dims if s != batch]
    if len(named) != 1:
        raise InvalidArgument(
            f"bind: of input '{port.name}' {list(named_dims(port))} it is not clear which axis is time; export it "
            "with the same name for that as the other inputs have"
        )
    return (*named[0], value)


def _check_kinds(time: object, bind: object, set: object) -> None:
    if time is not None and not isinstance(time, (str, Mapping)):
        raise InvalidArgument(
            f'time={time!r}: expected the name of a dimension ("T"), or an axis by input ({{"x": 2}})'
        )
    for name, given, example in (("bind", bind, '{"length": "T"}'), ("set", set, '{"B": 1}')):
        if given is not None and not isinstance(given, Mapping):
            raise InvalidArgument(f"{name}={given!r}: expected a dict such as {example}")


def _fixed(given: Mapping[str, int | str]) -> tuple[dict[str, int], dict[str, Lengths]]:
    """Dimensions that are fixed, and which sizes others have ("8*n", "16000+n", "320*n+80", "<=3000", "8*n <=3000")."""
    fixed: dict[str, int] = {}
    declared: dict[str, Lengths] = {}
    for symbol, value in given.items():
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            fixed[symbol] = value
            continue
        found = _declared(str(value))
        if found is None:
            raise InvalidArgument(
                f"set={{'{symbol}': {value!r}}}: expected a positive number, a multiple such as '8*n', lengths such as "
                "'320*n+80' or '16000+n', or a largest length such as '<=3000'"
            )
        declared[symbol] = found
    return fixed, declared


def _declared(text: str) -> Lengths | None:
    """320*n + 80 <= 3000, or parts of it."""
    series, bounded, largest = (part.strip() for part in text.partition("<="))
    parts = [p.strip() for p in series.split("+")]
    more = [int(p) for p in parts if p.isdigit()]
    terms = [p for p in parts if not p.isdigit()]
    if len(more) > 1 or len(terms) > 1 or (bounded and not (largest.isdigit() and int(largest))):
        return None
    match = PRODUCT.match(terms[0]) if terms and terms[0] else None
    every = int(match[1] or match[3] or 1) if match else 1
    least, plain = more[0] if more else 0, terms in ([""], ["n"])
    if not every or (match is None and not plain) or not (every > 1 or least or bounded):
        return None
    return Lengths(every, least % every, max(least, 1), int(largest) if bounded else None)


def _bound(model: Model, bind: Mapping[str, str | None] | None) -> tuple[str, ...]:
    """Inputs that hold the length: those named by the user, and those called so (bind={"max_len": None} frees one)."""
    names = {p.name: p for p in model.inputs}
    for name in bind or {}:
        if name not in names:
            raise InvalidArgument(f"bind: the model has no input '{name}'; its inputs are {list(names)}")
        if not names[name].dtype.is_integer() and (bind or {})[name] not in (*FILLS, None):
            raise InvalidArgument(f"bind: input '{name}' is {names[name].dtype.name}, a length is an integer")
    found = [p.name for p in model.inputs if _may_be_length(p, model)]
    free = [n for n, symbol in (bind or {}).items() if symbol is None]
    return tuple(n for n in dict.fromkeys([*(bind or {}), *found]) if n not in free)


def _may_be_length(port: Port, model: Model) -> bool:
    """A whole number, or one a stream, that is called so."""
    if not (port.dtype.is_integer() and len(port.dims) <= 1 and LENGTH_NAMES.search(port.name)):
        return False
    if port.dims and not any(len(p.dims) > 1 or p.dtype != port.dtype for p in model.inputs):
        return False  # it is all there is
    batches = {1, *(d for p in model.inputs if len(p.dims) > 1 for d in p.dims[:2])}  # time may come first
    return not port.dims or not isinstance(port.dims[0], int) or port.dims[0] in batches


def is_length_like(name: str) -> bool:
    """Is it called like some length?"""
    return LENGTH_NAMES.search(name) is not None


def is_called_length(name: str, streams: Iterable[str]) -> bool:
    """Is it called as the length of the whole input is: by itself, or after a streamed input?"""
    own = any(re.fullmatch(re.escape(stream) + SUFFIX, name, re.IGNORECASE) for stream in streams)
    return own or CLEAR_NAMES.fullmatch(name) is not None


def _check_bound(bind: Mapping[str, str | None], symbols: Iterable[str]) -> None:
    for name, symbol in bind.items():
        if symbol is not None and symbol not in symbols:
            raise InvalidArgument(
                f"bind={{'{name}': {symbol!r}}}: a length is bound to time, {' or '.join(sorted(symbols))}; a mask "
                'to "ones" or "zeros"'
            )


def _symbols(ports: list[Port], fixed: Mapping[str, int]) -> dict[str, list[tuple[str, int]]]:
    where: dict[str, list[tuple[str, int]]] = {}
    for p in ports:
        for axis, d in enumerate(named_dims(p)):
            if isinstance(d, str) and split_product(d)[1] not in fixed:
                where.setdefault(split_product(d)[1], []).append((p.name, axis))
    return where


def _check_fixed(
    where: Mapping[str, object], fixed: Mapping[str, int], declared: Mapping[str, Lengths], ports: list[Port]
) -> None:
    symbols = {split_product(d)[1] for p in ports for d in named_dims(p) if isinstance(d, str)}
    for symbol in [*fixed, *declared]:
        if symbol not in symbols:
            raise InvalidArgument(f"set: no input has a dimension '{symbol}'; the symbolic ones are {sorted(symbols)}")


def _from_axes(
    ports: list[Port], time: Mapping[str, int], fixed: Container[str]
) -> tuple[str, dict[str, tuple[int, int]], int | None]:
    """The symbol of time, its axes, and how many units of it the model declares, if they are fixed."""
    by_name = {p.name: p for p in ports}
    found: dict[str, tuple[int, int | str]] = {}
    for name, axis in time.items():
        if name not in by_name:
            raise InvalidArgument(f"time: the model has no input '{name}'; its inputs are {list(by_name)}")
        dims = named_dims(by_name[name])
        if isinstance(axis, bool) or not isinstance(axis, int) or not -len(dims) <= axis < len(dims):
            raise InvalidArgument(f"time: input '{name}' has {len(dims)} axes, there is no axis {axis!r}")
        found[name] = axis % len(dims), dims[axis]
    if not found:
        raise InvalidArgument('time={} names no input; pass for example time={"x": 2}')
    sizes = {name: dim for name, (_, dim) in found.items() if isinstance(dim, int)}
    named = [split_product(dim)[1] for _, dim in found.values() if isinstance(dim, str)]
    window = min(sizes.values()) if sizes and not named else None
    if window is not None and (apart := next((n for n, size in sizes.items() if size % max(window, 1)), None)):
        raise InvalidArgument(
            f"time: the axes have {', '.join(map(str, sizes.values()))} frames, and {sizes[apart]} is no multiple of "
            f"{window}: export the model with dynamic axes, which say how they follow from each other"
        )
    taken = {split_product(d)[1] for p in ports for d in named_dims(p) if isinstance(d, str)}
    symbol = named[0] if named else next(s for s in ("T", "time", "T_time") if s not in taken and s not in fixed)
    streams = {
        name: (axis, split_product(dim)[0] if isinstance(dim, str) else dim // window if window else 1)
        for name, (axis, dim) in found.items()
    }
    return symbol, streams, window


def _check_symbol(time: str, where: Mapping[str, list[tuple[str, int]]]) -> str:
    if time not in where:
        raise InvalidArgument(f"time='{time}': no input has that dimension; the symbolic ones are {_listing(where)}")
    return time


def name_the_axis(ports: Sequence[Port]) -> str:
    """What to do if time is an axis of fixed size: the largest of them is named."""
    sizes = [(dim, p.name, axis) for p in ports for axis, dim in enumerate(p.dims) if isinstance(dim, int) and dim > 1]
    if not sizes:
        return "export the model with a dynamic time axis"
    size, name, axis = max(sizes, key=lambda s: s[0])
    example = f'time={{"{name}": {axis}}} if it is the one of {size} entries'
    return f"if time is an axis of fixed size, name it ({example}), or export the model with that axis dynamic"


def _guess(where: Mapping[str, list[tuple[str, int]]], ports: Sequence[Port]) -> str:
    if not where:
        raise InvalidArgument(f"no input has a symbolic dimension, so its length is fixed: {name_the_axis(ports)}")
    if len(where) == 1:
        (symbol,) = where
        if BATCH_NAMES.fullmatch(symbol) and all(axis == 0 for _, axis in where[symbol]):
            raise InvalidArgument(
                f"the only symbolic dimension is {_listing(where)}, which looks like the batch: "
                f"{name_the_axis(ports)}; if '{symbol}' is time, pass time={symbol!r}"
            )
        return symbol
    rest = _nameless(where)
    if len(rest) > 1:  # an unnamed batch is still the first axis wherever it stands
        later = [s for s in rest if any(axis != 0 for _, axis in where[s])]
        rest = later if len(later) == 1 else rest
    if len(rest) > 1:
        raise InvalidArgument(
            f"several dimensions could be time: {_listing(where)}; say which with time={rest[0]!r} "
            "and fix others with set={...}"
        )
    return rest[0]


def _batch(others: Mapping[str, list[tuple[str, int]]]) -> str | None:
    if not others:
        return None
    batches = [s for s, w in others.items() if BATCH_NAMES.fullmatch(s) or all(axis == 0 for _, axis in w)]
    rest = [s for s in others if s not in batches[:1]]
    if rest:
        example = dict.fromkeys(rest, 1)
        raise InvalidArgument(
            f"besides time, these dimensions are symbolic: {_listing(others)}; fix them, e.g. set={example}"
        )
    return batches[0]


def _listing(where: Mapping[str, list[tuple[str, int]]]) -> str:
    return ", ".join(f"'{s}' ({', '.join(f'axis {a} of {n}' for n, a in w)})" for s, w in where.items())

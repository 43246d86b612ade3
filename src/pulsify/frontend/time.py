"""Which dimension is time: found by itself where there is only one answer, asked for otherwise."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pulsify.core.errors import InvalidArgument
from pulsify.frontend.model import Model, Port

BATCH_NAMES = re.compile(r"(b|n|bs|bsz|batch.*|n_?batch|num_?batch.*)", re.IGNORECASE)
LENGTH_NAMES = re.compile(r"length|len(s|gth|gths)?(_|\d|$)", re.IGNORECASE)  # x_lens, seqlen; not silence
PRODUCT = re.compile(r"^(?:(\d+)\s*\*\s*)?([A-Za-z_][\w.]*)(?:\s*\*\s*(\d+))?$")


@dataclass(frozen=True)
class TimeSpec:
    """How the stream's length S and the batch size enter the model's inputs.

    streams: input -> (axis, frames per unit of S); bound: integer inputs whose value is S;
    batch: the symbol of the batch dimension, if it is free; step: lengths are multiples of this, `longest` at the most.
    """

    symbol: str
    streams: Mapping[str, tuple[int, int]]
    bound: tuple[str, ...] = ()
    batch: str | None = None
    fixed: Mapping[str, int] = field(default_factory=dict)
    step: int = 1
    longest: int | None = None

    def dims(self, port: Port, length: int, batch: int) -> tuple[int, ...]:
        """The concrete shape of an input."""
        sizes = {**self.fixed, self.symbol: length}
        if self.batch:
            sizes[self.batch] = batch
        out = []
        for axis, dim in enumerate(named_dims(port)):
            if port.name in self.streams and self.streams[port.name][0] == axis:
                out.append(length * self.streams[port.name][1])
            elif isinstance(dim, int):
                out.append(dim)
            elif port.name in self.bound and split_product(dim)[1] not in sizes:
                out.append(batch if self.batch else 1)  # a length a stream, whatever the dimension is called
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
    """Settle time, batch, bound and fixed dimensions, or say what to pass."""
    _check_kinds(time, bind, set)
    fixed, steps, most = _fixed(set or {})
    bound = _bound(model, bind)
    ports = [p for p in model.inputs if p.name not in bound]
    where = _symbols(ports, fixed)
    _check_fixed(where, fixed, {**steps, **most}, ports)
    if isinstance(time, Mapping):
        symbol, streams = _from_axes(ports, time)
    else:
        symbol = _guess(where) if time is None else _check_symbol(time, where)
        streams = {
            p.name: (axis, split_product(d)[0])
            for p in ports
            for axis, d in enumerate(named_dims(p))
            if isinstance(d, str) and split_product(d)[1] == symbol
        }
    used = {symbol} | {split_product(str(named_dims(p)[streams[p.name][0]]))[1] for p in ports if p.name in streams}
    _check_bound(bind or {}, used)
    batch = _batch({s: w for s, w in where.items() if s not in used})
    return TimeSpec(symbol, streams, bound, batch, fixed, steps.get(symbol, 1), most.get(symbol))


def _check_kinds(time: object, bind: object, set: object) -> None:
    if time is not None and not isinstance(time, (str, Mapping)):
        raise InvalidArgument(
            f'time={time!r}: expected the name of a dimension ("T"), or an axis by input ({{"x": 2}})'
        )
    for name, given, example in (("bind", bind, '{"length": "T"}'), ("set", set, '{"B": 1}')):
        if given is not None and not isinstance(given, Mapping):
            raise InvalidArgument(f"{name}={given!r}: expected a dict such as {example}")


def _fixed(given: Mapping[str, int | str]) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Dimensions that are fixed, that are multiples ("8*n"), that have a largest size ("<=3000", "8*n <=3000")."""
    fixed: dict[str, int] = {}
    steps: dict[str, int] = {}
    most: dict[str, int] = {}
    for symbol, value in given.items():
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            fixed[symbol] = value
            continue
        text, bounded, largest = (part.strip() for part in str(value).partition("<="))
        match = PRODUCT.match(text)
        multiple = int(match[1] or match[3] or 0) if match else 0
        if not (multiple or (bounded and text in ("", "n"))) or (bounded and not (largest.isdigit() and int(largest))):
            raise InvalidArgument(
                f"set={{'{symbol}': {value!r}}}: expected a positive number, a multiple such as '8*n', or a largest "
                "length such as '<=3000'"
            )
        if multiple:
            steps[symbol] = multiple
        if bounded:
            most[symbol] = int(largest)
    return fixed, steps, most


def _bound(model: Model, bind: Mapping[str, str | None] | None) -> tuple[str, ...]:
    """Inputs that hold the length: those named by the user, and those called so (bind={"max_len": None} frees one)."""
    names = {p.name: p for p in model.inputs}
    for name in bind or {}:
        if name not in names:
            raise InvalidArgument(f"bind: the model has no input '{name}'; its inputs are {list(names)}")
        if not names[name].dtype.is_integer():
            raise InvalidArgument(f"bind: input '{name}' is {names[name].dtype.name}, a length is an integer")
    found = [p.name for p in model.inputs if p.dtype.is_integer() and len(p.dims) <= 1 and LENGTH_NAMES.search(p.name)]
    free = [n for n, symbol in (bind or {}).items() if symbol is None]
    return tuple(n for n in dict.fromkeys([*(bind or {}), *found]) if n not in free)


def _check_bound(bind: Mapping[str, str | None], symbols: Iterable[str]) -> None:
    for name, symbol in bind.items():
        if symbol is not None and symbol not in symbols:
            raise InvalidArgument(
                f"bind={{'{name}': {symbol!r}}}: a length is bound to time, {' or '.join(sorted(symbols))}"
            )


def _symbols(ports: list[Port], fixed: Mapping[str, int]) -> dict[str, list[tuple[str, int]]]:
    where: dict[str, list[tuple[str, int]]] = {}
    for p in ports:
        for axis, d in enumerate(named_dims(p)):
            if isinstance(d, str) and split_product(d)[1] not in fixed:
                where.setdefault(split_product(d)[1], []).append((p.name, axis))
    return where


def _check_fixed(
    where: Mapping[str, object], fixed: Mapping[str, int], steps: Mapping[str, int], ports: list[Port]
) -> None:
    declared = {split_product(d)[1] for p in ports for d in named_dims(p) if isinstance(d, str)}
    for symbol in [*fixed, *steps]:
        if symbol not in declared:
            raise InvalidArgument(f"set: no input has a dimension '{symbol}'; the symbolic ones are {sorted(declared)}")


def _from_axes(ports: list[Port], time: Mapping[str, int]) -> tuple[str, dict[str, tuple[int, int]]]:
    by_name = {p.name: p for p in ports}
    streams: dict[str, tuple[int, int]] = {}
    symbol = ""
    for name, axis in time.items():
        if name not in by_name:
            raise InvalidArgument(f"time: the model has no input '{name}'; its inputs are {list(by_name)}")
        dims = named_dims(by_name[name])
        if isinstance(axis, bool) or not isinstance(axis, int) or not -len(dims) <= axis < len(dims):
            raise InvalidArgument(f"time: input '{name}' has {len(dims)} axes, there is no axis {axis!r}")
        factor, own = split_product(str(dims[axis])) if isinstance(dims[axis], str) else (1, "T")
        symbol = symbol or own
        streams[name] = (axis % len(dims), factor)
    if not streams:
        raise InvalidArgument('time={} names no input; pass for example time={"x": 2}')
    return symbol, streams


def _check_symbol(time: str, where: Mapping[str, list[tuple[str, int]]]) -> str:
    if time not in where:
        raise InvalidArgument(f"time='{time}': no input has that dimension; the symbolic ones are {_listing(where)}")
    return time


def _guess(where: Mapping[str, list[tuple[str, int]]]) -> str:
    if not where:
        raise InvalidArgument(
            "no input has a symbolic dimension, so the length is baked in: export the model with a dynamic time "
            'axis, or try time={"x": 2} to name the axis'
        )
    if len(where) == 1:
        (symbol,) = where
        if BATCH_NAMES.fullmatch(symbol) and all(axis == 0 for _, axis in where[symbol]):
            raise InvalidArgument(
                f"the only symbolic dimension is {_listing(where)}, which looks like the batch: export the model "
                f"with a dynamic time axis, or say time={symbol!r} if it is time"
            )
        return symbol
    rest = [s for s in where if not BATCH_NAMES.fullmatch(s)] or list(where)
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

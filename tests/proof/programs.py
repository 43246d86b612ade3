"""Random programs over the stream's length and positions, each read by some operator.

python -m tests.proof.programs --seeds 0 200        outcomes by reader, and every wrong one with seed, pulse, length
"""

from __future__ import annotations

import argparse
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx

from tests.proof.expr import Expr, Maker
from tests.proof.judge import Batch, Outcome, judge
from tests.proof.net import Array, Net, Wire

EARLY = 100  # frames: an If that is settled by then is one for short streams
LINE, FIELD = 20_000, 1_600  # lengths looked at with numpy: along one axis, over two
FRAMES = 200_000  # in all streams of one program
NEAREST = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


class Draft:
    """A graph in the making; `read` holds the expressions it reads, for the lengths that matter."""

    def __init__(self, rng: np.random.Generator, top: int) -> None:
        self.net, self.make, self.rng = Net(), Maker(rng, top), rng
        self.read: list[Expr] = []
        self.branches: list[Expr] = []  # conditions of Ifs
        i, j = self.net.pos, self.net.pos
        self.leaves = {"T": self.net.T, "i": i}
        self.cells = {"T": self.net.T, "i": i.new(1), "j": j.new(0)}

    def wire(self, expr: Expr, cells: bool = False) -> Wire:
        self.read.append(expr)
        return expr.wire(self.net, self.cells if cells else self.leaves)

    def small(self, leaves: str, below: int) -> Wire:
        return self.wire(self.make.small(leaves, below))

    def truth(self, leaves: str) -> Wire:
        return self.wire(self.make.truth(leaves))

    def over_time(self) -> str:
        return self.make.pick("i", "i", "iT")


Reader = Callable[[Draft, Wire], Wire]


# ---- readers that keep [1, 2, T]


def factor(d: Draft, x: Wire) -> Wire:
    return x * d.net.where(d.truth("T"), 2.0, 1.0)


def scale(d: Draft, x: Wire) -> Wire:
    return x * (d.small("T", 4) + 1).float()


def mask(d: Draft, x: Wire) -> Wire:
    return x * d.net.where(d.truth(d.over_time()), 2.0, 1.0)


def where(d: Draft, x: Wire) -> Wire:
    return d.net.where(d.truth(d.over_time()) & d.truth("i"), x, 0.5)


def bias(d: Draft, x: Wire) -> Wire:
    return x + d.small(d.over_time(), 9).float()


def real_bias(d: Draft, x: Wire) -> Wire:
    """Bounded, so that nothing is lost in the scale of the output."""
    value = d.wire(d.make.real(d.over_time()))
    return x + d.net.op("Min", d.net.op("Max", value, -9.0), 9.0)


def counted(d: Draft, x: Wire) -> Wire:
    """A running count of frames that have a property."""
    return x + d.net.op("CumSum", d.truth(d.over_time()).int(), 0).float() * 0.01


def embedding(d: Draft, x: Wire) -> Wire:
    """Rows of a table: round and round, clamped, or until it ends."""
    rows, leaves = d.make.number() + 1, d.over_time()
    index, end, last = d.make.whole(leaves, 1), Expr("const", number=rows), Expr("const", number=rows - 1)
    how = d.make.pick("mod", "clamp", "low", "plain")
    if how == "mod":
        index = Expr("%", (index, end))
    if how == "clamp":
        index = Expr("max", (index, Expr("const", number=0)))
    if how in ("clamp", "low"):
        index = Expr("min", (index, last))
    d.read.append(Expr("<", (index, end), kind="b"))
    index = d.net.op("Expand", index.wire(d.net, d.leaves), d.net.vector(d.net.T))
    return x + d.net.weights(rows, 2).take(index).by(1, 0)


def table(d: Draft, x: Wire) -> Wire:
    """One entry by the length."""
    rows = d.make.number() + 1
    entries = np.ones(rows, np.float32)
    entries[int(d.rng.integers(rows))] = 2
    return x * d.net.const(entries).take(d.small("T", rows))


def branch(d: Draft, x: Wire) -> Wire:
    condition = d.truth("T")
    d.branches.append(d.read[-1])
    return d.net.choose(condition, lambda m: m.here(x) * 2.0, lambda m: m.here(x) * 1.0)


def loop(d: Draft, x: Wire) -> Wire:
    return d.net.repeat(d.small("T", 4), x, lambda m, v: v * 2.0)


def table_slice(d: Draft, x: Wire) -> Wire:
    start, rows = d.small("T", 4), d.make.number() + 20
    d.read.append(Expr("<", (Expr("T"), Expr("const", number=rows - 4)), kind="b"))
    return x + d.net.weights(2, rows).cut(start, start + d.net.T)


def counting(d: Draft, x: Wire) -> Wire:
    """Range with a start and a step."""
    start, step = d.small("T", 3), d.small("T", 3) + 1
    return x + (d.net.range(start, start + d.net.T * step, step) % 17).float()


def frames(d: Draft, x: Wire) -> Wire:
    """Frames by index, a few back."""
    back = d.small(d.over_time(), 5)
    return x.take(d.net.most(d.net.pos - back, 0), 2)


def attention(d: Draft, x: Wire) -> Wire:
    shown = d.wire(d.make.truth(d.make.pick("ij", "j", "i", "ijT", "jT")), cells=True)
    i, j = d.cells["i"], d.cells["j"]
    near = (j <= i) & (i - j <= 8)
    return attend(d, x, near & (shown | (i == j)), None)


def attention_bias(d: Draft, x: Wire) -> Wire:
    amount = d.wire(d.make.small(d.make.pick("ij", "j", "ijT"), 3), cells=True).float()
    i, j = d.cells["i"], d.cells["j"]
    return attend(d, x, (j <= i) & (i - j <= 8), amount)


def window(d: Draft, x: Wire) -> Wire:
    """How far a row looks back."""
    back = d.wire(d.make.small(d.make.pick("i", "iT", "T"), 8), cells=True)
    i, j = d.cells["i"], d.cells["j"]
    return attend(d, x, (j <= i) & (i - j <= back), None)


def weighted(d: Draft, x: Wire) -> Wire:
    """Weights that are known, in writings other than a softmax over what is summed."""
    i, j = d.cells["i"], d.cells["j"]
    apart = d.net.op("Abs", (i - j - d.make.number() * int(d.rng.integers(2))).float())
    band = (j <= i) & (d.wire(d.make.truth(d.make.pick("ij", "j", "i")), cells=True) | (i - j <= 4))
    how = d.make.pick("exp", "inverse", "line", "softmax", "other_axis")
    if how in ("softmax", "other_axis"):
        q = x.by(0, 2, 1)
        scores = d.net.where((j <= i) & (i - j <= 8), (q @ x) * 0.02, -1e9)
        made = d.net.op(d.make.pick("Softmax", "LogSoftmax"), scores, axis=-1 if how == "softmax" else 1)
        return (made @ q).by(0, 2, 1)
    far = {"exp": lambda: d.net.op("Exp", apart * -2.0), "inverse": lambda: d.net.op("Reciprocal", apart + 1.0),
           "line": lambda: apart * 0.01}[how]()  # fmt: skip
    return (d.net.where(band, far, 0.0) @ x.by(0, 2, 1)).by(0, 2, 1)


def sized(d: Draft) -> Wire:
    """A size near the length, or one that stops growing."""
    how = d.make.pick("fewer", "more", "capped")
    if how == "capped":
        return d.wire(Expr("min", (Expr("T"), Expr("const", number=d.make.number() + 2))))
    by = d.small("T", 3)
    return d.net.most(d.net.T - by, 1) if how == "fewer" else d.net.T + by


def reduced(d: Draft, x: Wire) -> Wire:
    """A sum, or the largest or smallest entry, of an array of such a size."""
    v = d.net.range(0, sized(d), 1)
    v = d.make.pick(lambda: v, lambda: d.net.T - v, lambda: v % d.make.number(), lambda: (v < d.net.T).int())()
    total = d.net.op(d.make.pick("ReduceSum", "ReduceMax", "ReduceMin"), v, keepdims=0)
    return x * d.net.where(total % (d.make.number() + 1) < d.make.number(), 2.0, 1.0)


def refilled(d: Draft, x: Wire) -> Wire:
    """An array of such a size, filled up behind, and read as long as the stream."""
    size = sized(d)
    kept = d.net.filled(1, size)
    if d.rng.random() < 0.5:
        kept = d.net.op("Pad", kept, d.net.vector(0, 5), d.net.const(0))
    else:
        kept = d.net.op("Concat", kept, d.net.filled(0, 5), axis=0)
    places = d.net.op("Min", d.net.pos, size + 4)
    return x * d.net.where(kept.take(places) == 1, 2.0, 1.0)


def counted_back(d: Draft, x: Wire) -> Wire:
    """Places before the start count from the end of an array of such a size."""
    v = d.net.range(0, sized(d), 1)
    back = int(d.rng.integers(1, 4))
    return x + (v.take(d.net.op("Min", d.net.pos, d.make.number()) - back) % 7).float()


def parts(d: Draft, x: Wire) -> Wire:
    """A known array cut in two, and one of the parts summed or measured."""
    first = d.net.most(d.net.T - d.small("T", 4), 1)
    cut = d.net.op("Split", d.net.pos, d.net.vector(first, d.net.T - first), outputs=2, axis=0, kind="i")
    part = cut[int(d.rng.integers(2))]
    count = part.net.op("Shape", part).take(0) if d.rng.random() < 0.5 else d.net.op("ReduceSum", part, keepdims=0)
    return x * d.net.where(count % 7 < 3, 2.0, 1.0)


def measured(d: Draft, x: Wire) -> Wire:
    """How large data are, that only some lengths fill."""
    size = d.make.number()
    d.read.append(Expr("min", (Expr("T"), Expr("const", number=size))))
    part = d.make.pick(
        lambda: x.cut(0, size), lambda: x.cut(-size), lambda: x.cut(size), lambda: x.cut(0, d.small("T", 3))
    )()
    count = d.net.op("Shape", part).take(2)
    return x * d.net.where(count < d.make.number(), 2.0, 1.0)


def attend(d: Draft, x: Wire, shown: Wire, amount: Wire | None) -> Wire:
    q = x.by(0, 2, 1)
    scores = (q @ x) * 0.02
    if amount is not None:
        scores = scores + amount
    return (d.net.op("Softmax", d.net.where(shown, scores, -1e9), axis=-1) @ q).by(0, 2, 1)


def convolution(d: Draft, x: Wire) -> Wire:
    return d.net.op("Conv", x, d.net.const(d.rng.integers(1, 4, (2, 2, 3)).astype(np.float32)), pads=[1, 1])


# ---- readers that change the shape


def slice_end(d: Draft, x: Wire) -> Wire:
    return x.cut(0, d.net.T - d.small("T", 4))


def slice_limit(d: Draft, x: Wire) -> Wire:
    return x.cut(0, d.wire(d.make.whole("T", 2)))


def slice_start(d: Draft, x: Wire) -> Wire:
    return x.cut(d.small("T", 3))


def pad_end(d: Draft, x: Wire) -> Wire:
    return d.net.pad(x, 0, d.small("T", 6))


def pad_front(d: Draft, x: Wire) -> Wire:
    return d.net.pad(x, d.small("T", 3), 1)


def pad_value(d: Draft, x: Wire) -> Wire:
    return d.net.op("Pad", x, [1, 2], d.small("T", 3).float(), [-1])


def tile(d: Draft, x: Wire) -> Wire:
    sizes = [1, 1 + d.small("T", 2)]
    return d.net.op("Tile", x, d.net.vector(1, *(sizes if d.rng.random() < 0.5 else sizes[::-1])))


def expand(d: Draft, x: Wire) -> Wire:
    return d.net.op("Expand", x.cut(0, 1, 1), d.net.vector(1, 1 + d.small("T", 3), 1))


def resize(d: Draft, x: Wire) -> Wire:
    return d.net.op("Resize", x, None, None, d.net.vector(1, 2, d.net.T * (1 + d.small("T", 3))), **NEAREST)


def reshape(d: Draft, x: Wire) -> Wire:
    width = d.net.where(d.truth("T"), *d.make.pick((2, 4), (4, 2), (2, 1), (1, 2)))
    return x.by(0, 2, 1).shaped(1, -1, width)


def split(d: Draft, x: Wire) -> Wire:
    back = d.small("T", 4)
    return d.net.op("Split", x, d.net.vector(d.net.T - back, back), outputs=2, axis=2)[0]


def scan(d: Draft, x: Wire) -> Wire:
    """A recurrence with a captured factor."""
    by = (d.small("T", 3) + 1).float()
    body = d.net.body(lambda m, h, u: [(s := h * 0.5 + u * m.here(by)), s], [("f", [2]), ("f", [2])])
    rows = d.net.op("Squeeze", x, [0]).by(1, 0)
    return d.net.op("Scan", [0.0, 0.0], rows, kind="f", outputs=2, num_scan_inputs=1, body=body)[1]


def join(d: Draft, x: Wire) -> Wire:
    zeros = d.net.filled(0.0, 1, 2, d.small("T", 4))
    return d.net.op("Concat", *d.make.pick((x, zeros), (zeros, x)), axis=2)


KEEPING: tuple[Reader, ...] = (
    factor, scale, mask, where, bias, real_bias, counted, embedding, embedding, table, branch, loop, table_slice,
    counting, frames, attention, attention, attention_bias, window, weighted, reduced, reduced, refilled, counted_back,
    parts, measured,
)  # fmt: skip
LAST: tuple[Reader, ...] = (
    slice_end, slice_limit, slice_start, pad_end, pad_front, pad_value, tile, expand, resize, reshape, split, scan,
    join,
)  # fmt: skip
FIELDS = (attention, attention_bias, window, weighted)


@dataclass(frozen=True)
class Program:
    """shortest: streams below are few, and may be turned down, because an If does another thing with them."""

    seed: int
    readers: tuple[str, ...]
    model: onnx.ModelProto
    pulse: int
    lengths: tuple[int, ...]
    shortest: int
    text: str

    def judge(self, verify: bool = False) -> Outcome:
        return judge(self.model, self.pulse, self.lengths, verify=verify, shortest=self.shortest)


def program(seed: int) -> Program:
    """The program of this seed: one that batch runs at some lengths."""
    rng = np.random.default_rng(seed)
    while True:
        made = attempt(seed, rng)
        if made is not None:
            return made


def attempt(seed: int, rng: np.random.Generator) -> Program | None:
    readers = [KEEPING[int(rng.integers(len(KEEPING)))]]
    if rng.random() < 0.4:
        readers = [LAST[int(rng.integers(len(LAST)))]]
    if rng.random() < 0.2:
        readers.insert(0, KEEPING[int(rng.integers(len(KEEPING)))])
    if rng.random() < 0.2:
        readers.insert(0, convolution)
    limit = FIELD if any(r in FIELDS for r in readers) else LINE
    draft = Draft(rng, top=limit * 2 // 3)
    y = draft.net.x
    for reader in readers:
        y = reader(draft, y)
    model = draft.net.model(y)
    lengths = critical(draft.read, limit, rng)
    batch = Batch(model)
    if sum(batch.run(batch.data(n)) is not None for n in lengths[:12]) < 4:
        return None
    text = "; ".join(str(e) for e in draft.read)
    pulse = int(rng.choice([3, 4, 8] if sum(lengths) < FRAMES // 4 else [16, 64, 100]))
    return Program(
        seed, tuple(r.__name__ for r in readers), model, pulse, tuple(lengths), settled(draft.branches), text
    )


# ---- the lengths that matter, by brute force


def settled(conditions: list[Expr]) -> int:
    """The length from which on none of them changes, if that is early; else 1."""
    T = np.arange(LINE + 1)
    last = [changes(np.broadcast_to(c.value({"T": T}), T.shape)) for c in conditions]
    at = max((int(c[-1]) for c in last if len(c)), default=1)
    return at if at <= EARLY else 1


def critical(read: list[Expr], limit: int, rng: np.random.Generator) -> list[int]:
    """Both sides of changes of any part, most of all of what is read; then some periods past the last."""
    wanted: list[int] = [*range(1, 10), 16, 33]
    for expr in read:
        for part in (expr, *expr.parts()):
            keep = 3 if part is expr else 1
            for series in probed(part, limit):
                wanted += chosen(changes(series), keep, rng)
    wanted += [int(n) for n in rng.integers(10, limit, 3)]
    near = list(dict.fromkeys(n + k for n in wanted for k in (0, -1, 1) if 1 <= n + k <= limit))
    budget, kept = FRAMES, []
    for n in near:
        if n <= budget and len(kept) < 70:
            kept.append(n)
            budget -= n
    return sorted(kept)


def probed(expr: Expr, limit: int) -> Iterator[Array]:
    """Its value at lengths 0, 1, .. limit: at the last frame, the one before, the first, and pairs of them."""
    T = np.arange(limit + 1)
    leaves = expr.leaves()
    if not leaves:
        return
    places = [T - 1, T - 2, T * 0, T // 2] if {"i", "T"} <= leaves else [T - 1]
    for i in places:
        others = [i, i - 1, i - 8, T * 0] if "j" in leaves else [i]
        for j in others:
            yield np.broadcast_to(expr.value({"T": T, "i": np.maximum(i, 0), "j": np.maximum(j, 0)}), T.shape)


def changes(series: Array) -> Array:
    """Lengths at which it does not go on as it does mostly."""
    with np.errstate(invalid="ignore"):
        steps = np.diff(series.astype(np.float64))
    values, counts = np.unique(steps[np.isfinite(steps)], return_counts=True)
    usual = values[np.argmax(counts)] if len(values) else 0.0
    return np.flatnonzero(~np.isclose(steps, usual, rtol=1e-3, atol=1e-6)) + 1


def chosen(at: Array, keep: int, rng: np.random.Generator) -> list[int]:
    """First and last ones, some between, and three periods past the last that is out of step."""
    if not len(at):
        return []
    gaps = np.diff(at)
    picked = [*at[:keep], *at[-keep:], *rng.choice(at, min(keep, len(at)), replace=False)]
    if len(gaps) > 3:
        period = int(np.bincount(gaps).argmax())
        odd = np.flatnonzero(gaps != period)
        last = int(at[odd[-1] + 1]) if len(odd) else int(at[0])
        picked += [last + k * period for k in range(4)][: keep + 1]
    return [int(n) for n in picked]


def main() -> None:
    parser = argparse.ArgumentParser(description="Judge random programs over the stream's length.")
    parser.add_argument("--seeds", nargs=2, type=int, default=(0, 100), metavar=("A", "B"))
    parser.add_argument("--verify", action="store_true", help="with the check on conversion")
    options = parser.parse_args()
    table: dict[str, Counter[str]] = defaultdict(Counter)
    for seed in range(*options.seeds):
        made = program(seed)
        start = time.perf_counter()
        outcome = made.judge(options.verify)
        took = time.perf_counter() - start
        for name in {made.readers[-1], "all"}:
            table[name][outcome.kind] += 1
        if outcome.kind in ("wrong", "error") or took > 10:
            print(f"seed {seed} {' > '.join(made.readers)} [{made.text}] {took:.1f} s: {outcome}", flush=True)
    kinds = ("exact", "refused", "wrong", "error")
    print(f"\n{'last reader':16}" + "".join(f"{k:>9}" for k in kinds))
    for name in sorted(table, key=lambda n: (n == "all", n)):
        print(f"{name:16}" + "".join(f"{table[name][k]:>9}" for k in kinds))


if __name__ == "__main__":
    main()

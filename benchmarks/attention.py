"""`stream_attention` on a card, beside torch's fused attention, FlexAttention and eager products.

    python -m benchmarks.attention                              all shapes, in bfloat16: some three minutes
    python -m benchmarks.attention --only flagship --json FILE  some of them, all figures in a file
    python -m benchmarks.attention --tune --only "70 + 14"      other tiles than those of the table, pulsify alone

    pulsify        a step of the stream: the ring as it lies, positions inside, new frames appended in place
    fused          torch's scaled_dot_product_attention alone: keys joined and the bias made beforehand
    fused, whole   the same with all that a step needs: the cache joined and moved on, the bias made
    flex           FlexAttention, compiled: keys joined, products with the table made beforehand
    flex, whole    the same with all that a step needs, compiled
    eager          products, softmax, products, with all that a step needs

Every call reads another cache, more of them than the card's own cache holds, and a recording makes all of them: what is
measured is the card. Bytes are those that have to move: keys, values, queries, new frames twice, results, one table.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from pulsify.kernels.stream_attention.operator import stream_attention
from pulsify.kernels.stream_attention.sizes import Sizes
from pulsify.kernels.targets import chosen

BANDWIDTH = 4.8e12  # bytes a second, of an H200
BEYOND = 256 << 20  # bytes: several times what a card caches
MOST_CALLS = 256  # in one recording
HEADS, DEPTH = 8, 128
PULSIFY = "pulsify"
Tensors = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """width: cached columns; as many new ones as queries."""

    name: str
    batch: int
    queries: int
    width: int
    relative: bool

    @property
    def columns(self) -> int:
        return self.width + self.queries

    def bytes(self, each: int) -> int:
        """That have to move."""
        frames = 2 * self.columns + 2 * self.queries + 2 * self.queries  # read; appended; queries and results
        table = (self.columns + self.queries - 1) * self.relative
        return (self.batch * frames + table) * HEADS * DEPTH * each


@dataclass(frozen=True)
class Row:
    """One contender at one shape. share: of the card's bandwidth. off: the largest difference to pulsify's result."""

    shape: str
    batch: int
    who: str
    us: float | None = None
    share: float | None = None
    times: float | None = None  # pulsify's time: how many of them
    off: float | None = None
    note: str = ""


SHAPES = [
    *(Shape("flagship 70 + 14", batch, 14, 70, True) for batch in (1, 128, 512)),
    *(Shape("flagship 70 + 1", batch, 1, 70, True) for batch in (1, 128, 512)),
    *(Shape(f"window {w:,}, {t} queries", 32, t, w, False) for w, t in product((1024, 8192), (1, 16))),
]


# ---- the contenders: each gets tensors and gives the result


def made(shape: Shape, dtype: Any) -> Tensors:
    """One call's tensors, with what some contenders are given ready: `joined_*`, `bias`, `products`."""
    b, t, w, c = shape.batch, shape.queries, shape.width, shape.columns

    def normal(*sizes: int) -> Any:
        return torch.randn(*sizes, device="cuda", dtype=dtype)

    x: Tensors = {"q": normal(b, t, HEADS, DEPTH).transpose(1, 2), "scale": DEPTH**-0.5}
    x |= {name: normal(b, HEADS, w, DEPTH) for name in ("keys", "values")}
    x |= {name: normal(b, t, HEADS, DEPTH).transpose(1, 2) for name in ("new_keys", "new_values")}
    x["start"] = torch.zeros(b, dtype=torch.int64, device="cuda")
    if shape.relative:
        x |= {"table": normal(HEADS, c + t - 1, DEPTH), "shift": t - 1}
        x |= {"u": normal(HEADS, DEPTH), "v": normal(HEADS, DEPTH)}
    return x


def ready(x: Tensors) -> Tensors:
    """With what is given to those that only attend."""
    x = x | {name: torch.cat([x[name], x[f"new_{name}"]], 2) for name in ("keys", "values")}
    if "table" in x:
        x["products"] = positions(x)
        x["bias"] = aligned(diagonal(x["products"], x) * x["scale"])
        x["q_content"] = x["q"] + x["u"][:, None]
    return x


def aligned(bias: Any) -> Any:
    """Rows that begin at multiples of eight: torch's kernels want them."""
    columns = bias.shape[3]
    return F.pad(bias, (0, -columns % 8))[..., :columns]


def positions(x: Tensors) -> Any:
    return (x["q"] + x["v"][:, None]) @ x["table"].mT


def diagonal(products: Any, x: Tensors) -> Any:
    """Along j - i, without an index: rows one step shorter than they are."""
    t, columns = products.shape[2], products.shape[3] - products.shape[2] + 1
    b, h, _, offsets = products.stride()
    start = products.storage_offset() + (t - 1) * offsets
    return products.as_strided((*products.shape[:3], columns), (b, h, products.stride(2) - offsets, offsets), start)


def moved_on(x: Tensors) -> tuple[Any, Any]:
    """The cache joined with the new frames; its last columns are kept."""
    joined = [torch.cat([x[name], x[f"new_{name}"]], 2) for name in ("keys", "values")]
    for name, whole in zip(("keys", "values"), joined):
        x[name].copy_(whole[:, :, x["q"].shape[2] :])
    return joined[0], joined[1]


def pulsify(x: Tensors) -> Any:
    return stream_attention(**x)


def fused(x: Tensors) -> Any:
    q = x.get("q_content", x["q"])
    return F.scaled_dot_product_attention(q, x["keys"], x["values"], attn_mask=x.get("bias"), scale=x["scale"])


def fused_whole(x: Tensors) -> Any:
    keys, values = moved_on(x)
    if "table" not in x:
        return F.scaled_dot_product_attention(x["q"], keys, values, scale=x["scale"])
    bias = aligned(diagonal(positions(x), x) * x["scale"])
    return F.scaled_dot_product_attention(x["q"] + x["u"][:, None], keys, values, attn_mask=bias, scale=x["scale"])


def eager(x: Tensors) -> Any:
    keys, values = moved_on(x)
    if "table" not in x:
        return (x["q"] @ keys.mT * x["scale"]).softmax(-1) @ values
    score = (x["q"] + x["u"][:, None]) @ keys.mT + diagonal(positions(x), x)
    return (score * x["scale"]).softmax(-1) @ values


def flex(whole: bool) -> Callable[[Tensors], Any]:
    """Compiled anew for each shape."""
    from torch.nn.attention.flex_attention import flex_attention

    def attend(q: Any, keys: Any, values: Any, products: Any, scale: float, shift: int) -> Any:
        def moved(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return score + products[b, h, i, j - i + shift] * scale

        return flex_attention(q, keys, values, score_mod=None if products is None else moved, scale=scale)

    def step(x: Tensors) -> Any:
        keys, values = moved_on(x)
        if "table" not in x:
            return attend(x["q"], keys, values, None, x["scale"], 0)
        return attend(x["q"] + x["u"][:, None], keys, values, positions(x), x["scale"], x["shift"])

    torch._dynamo.reset()
    if whole:
        return torch.compile(step, dynamic=False)
    compiled = torch.compile(attend, dynamic=False)

    def alone(x: Tensors) -> Any:
        q, shift = x.get("q_content", x["q"]), x.get("shift", 0)
        return compiled(q, x["keys"], x["values"], x.get("products"), x["scale"], shift)

    return alone


CONTENDERS: dict[str, tuple[Callable[[], Callable[[Tensors], Any]], bool]] = {  # how it is made; only attends
    PULSIFY: (lambda: pulsify, False),
    "fused": (lambda: fused, True),
    "fused, whole": (lambda: fused_whole, False),
    "flex": (lambda: flex(False), True),
    "flex, whole": (lambda: flex(True), False),
    "eager": (lambda: eager, False),
}


# ---- measuring


def recorded(call: Callable[[Tensors], Any], sets: list[Tensors]) -> Any:
    """One recording of a call for each set of tensors."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for x in sets[:3]:
            call(x)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for x in sets:
            call(x)
    return graph


def microseconds(call: Callable[[Tensors], Any], sets: list[Tensors], seconds: float) -> float:
    """The median of a call, over recordings of one call for each set."""
    graph = recorded(call, sets)
    spans, until = list[float](), time.perf_counter() + seconds
    graph.replay()
    while len(spans) < 7 or (time.perf_counter() < until and len(spans) < 50):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        spans.append(begin.elapsed_time(end) * 1e3 / len(sets))
    return statistics.median(spans)


def copies(x: Tensors) -> Tensors:
    return {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in x.items()}


def several(x: Tensors, shape: Shape, each: int) -> list[Tensors]:
    """Other caches, new frames and queries; the table and the biases are the model's, and shared."""
    count = max(2, min(MOST_CALLS, -(-BEYOND // shape.bytes(each))))
    own = [name for name in ("q", "keys", "values", "new_keys", "new_values", "products", "q_content") if name in x]
    sets = [x, *(x | {name: x[name].clone() for name in own} for _ in range(count - 1))]
    return [y | ({"bias": aligned(y["bias"].clone())} if "bias" in y else {}) for y in sets]


def rows(shape: Shape, dtype: Any, bandwidth: float, seconds: float, until: float) -> Iterator[Row]:
    torch.manual_seed(0)
    start, size = made(shape, dtype), torch.finfo(dtype).bits // 8
    want, first = pulsify(copies(start)).float(), None
    for who, (build, attends) in CONTENDERS.items():
        named = (shape.name, shape.batch, who)
        if time.perf_counter() > until:
            yield Row(*named, note="left out: no time left")
            continue
        try:
            call = build()
            x = ready(copies(start)) if attends else copies(start)
            off = float((call(copies(x)).float() - want).abs().max())
            us = microseconds(call, several(x, shape, size), seconds)
        except Exception as error:  # a peer that fails is a row, not an end
            yield Row(*named, note=f"{type(error).__name__}: {str(error).strip().splitlines()[:1]}"[:160])
            torch.cuda.synchronize()
            continue
        first = us if who == PULSIFY else first
        yield Row(*named, us, shape.bytes(size) / (us * 1e-6) / bandwidth, us / first if first else None, off)
        torch.cuda.empty_cache()


# ---- other tiles


def tunings(shape: Shape, each: int) -> Iterator[Any]:
    from pulsify.kernels.stream_attention import on_triton

    size = Sizes(shape.batch, HEADS, shape.queries, DEPTH, DEPTH, shape.batch, shape.width, shape.queries)
    own = on_triton.planned(size, each, on_triton.processors(torch.device("cuda")), shape.relative)
    yield own
    splits = (1,) if shape.columns <= 128 else (1, 4, 16)
    for block, warps, stages, split in product((32, 64, 128), (2, 4, 8), (2, 3, 4), splits):
        if block == 128 and shape.columns <= 128 and stages > 2:
            continue  # one tile: there is nothing to read ahead
        if shape.columns > 128 and warps == 2:
            continue
        yield dataclasses.replace(own, columns=block, warps=warps, stages=stages, split=split)


def tuned(shape: Shape, dtype: Any, bandwidth: float, seconds: float, until: float) -> Iterator[Row]:
    from pulsify.kernels.stream_attention import on_triton

    x, size = made(shape, dtype), torch.finfo(dtype).bits // 8
    sets, own = several(x, shape, size), None
    for plan in tunings(shape, size):
        what = f"{plan.columns} columns, {plan.warps} warps, {plan.stages} stages, split {plan.split}"
        if time.perf_counter() > until:
            return
        try:
            us = microseconds(lambda x, plan=plan: on_triton.stream_attention(**x, plan=plan), sets, seconds)
        except Exception as error:
            yield Row(shape.name, shape.batch, what, note=f"{type(error).__name__}"[:160])
            continue
        note = "" if own else "the table's"
        own = own or us
        yield Row(shape.name, shape.batch, what, us, shape.bytes(size) / (us * 1e-6) / bandwidth, us / own, note=note)


# ---- telling


def table(found: list[Row]) -> Iterator[str]:
    yield f"{'shape':24}{'batch':>6}  {'who':44}{'µs':>10}{'of bandwidth':>14}{'x pulsify':>11}{'off':>9}"
    for row in found:
        if row.us is None:
            yield f"{row.shape:24}{row.batch:>6}  {row.who:44}{row.note}"
            continue
        times = "" if row.times is None else f"{row.times:.2f}"
        off = "" if row.off is None else f"{row.off:.3f}"
        share = f"{row.share:.1%}"
        yield f"{row.shape:24}{row.batch:>6}  {row.who:44}{row.us:>10.2f}{share:>14}{times:>11}{off:>9}  {row.note}"


def bars(found: list[Row]) -> list[str]:
    """The bars, and whether they are met: of peers that ran."""
    out = []
    for (name, batch), group in grouped(found).items():
        own = next((row for row in group if row.who == PULSIFY and row.us), None)
        peers = [row for row in group if row.who != PULSIFY and row.times]
        if own is None or own.share is None:
            out.append(f"MISSED   {name}, batch {batch}: pulsify's kernel did not run")
            continue
        if name.startswith("flagship") and peers:
            least, best = (1.3 if batch == 128 else 1.0), min(peers, key=lambda row: row.times or 0.0)
            met = (best.times or 0.0) >= least
            out.append(
                f"{'met' if met else 'MISSED':8} {name}, batch {batch}: {best.times:.2f}x ({best.who}), {least}x wanted"
            )
        if "8,192" in name:
            out.append(f"{'met' if own.share >= 0.6 else 'MISSED':8} {name}: {own.share:.0%} of bandwidth, 60 % wanted")
    return out


def grouped(found: list[Row]) -> dict[tuple[str, int], list[Row]]:
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in found:
        groups.setdefault((row.shape, row.batch), []).append(row)
    return groups


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default="", metavar="PART", help="shapes with this in their names")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--bandwidth", type=float, default=BANDWIDTH, help="bytes a second of this card")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each measurement")
    parser.add_argument(
        "--most", type=float, default=210.0, help="seconds for all of it; what is left then is left out"
    )
    parser.add_argument("--tune", action="store_true", help="other tiles than those of the table")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    given = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("there is no card here: python -m benchmarks.attention needs one", file=sys.stderr)
        return 2
    until, dtype, measure = time.perf_counter() + given.most, getattr(torch, given.dtype), tuned if given.tune else rows
    found: list[Row] = []
    facts = {"card": torch.cuda.get_device_name(), "torch": torch.__version__, "target": chosen("cuda"), **vars(given)}
    for shape in SHAPES:
        if given.only in shape.name and not (given.tune and shape.batch in (1, 512)):
            with torch.inference_mode():
                for row in measure(shape, dtype, given.bandwidth, given.seconds, until):
                    found.append(row)
                    print(f"... {row.shape}, {row.batch}: {row.who} {row.us or row.note}", file=sys.stderr, flush=True)
    print(f"{facts['card']}, torch {facts['torch']}, {given.dtype}, kernel: {facts['target']}")
    print("\n".join(table(found)))
    judged = [] if given.tune else bars(found)
    print("\n".join(judged))
    if given.json:
        Path(given.json).write_text(
            json.dumps(facts | {"rows": [dataclasses.asdict(r) for r in found], "bars": judged})
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())

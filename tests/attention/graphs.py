"""Small attention models, built directly as ONNX: mask x writing x application x position scheme x layout.

built = build(Case(mask=Mask("chunk", 4, left=2), scheme="alibi"))
built.model, built.feeds(length)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from tests.attention.build import Array, Builder, Port
from tests.attention.masks import Mask, MaskWriter, Writing
from tests.attention.positions import (
    BIASES,
    LONGEST,
    REACH,
    ROPES,
    bias,
    relative_table,
    rotated,
    shifted,
    sinusoids,
)

WIDTH = 8  # channels of x

APPLIED = (
    "where_inf", "where_not_inf", "where_1e4", "where_min", "where_not_1e4", "add_inf", "add_1e9", "nemo", "mul_after",
    "sequence", "narrow", "relu", "decay", "sigmoid",
)  # fmt: skip
PRODUCTS = ("matmul", "einsum", "einsum_time", "swapped", "swapped_einsum", "time_first")
LAYOUTS = ("heads", "single", "folded")
SCALES = ("query", "mul", "div", "after")
PADDINGS = ("", "length", "bool", "float", "keys")
KEYS = ("same", "conv", "slice", "slow_queries")
RANKS = {"heads": (2, 3, 4), "single": (2, 3), "folded": (2, 3)}


@dataclass(frozen=True)
class Case:
    """One model. Several masks: several layers, each with its own; `layers` layers share what is known."""

    mask: Mask | tuple[Mask, ...] = field(default_factory=Mask)
    writing: Writing = field(default_factory=Writing)
    applied: str = "where_inf"
    scheme: str = "none"
    product: str = "matmul"
    layout: str = "heads"
    heads: int = 2
    rank: int = 2  # of the mask
    scale: str = "query"
    padding: str = ""  # length: an int input; bool, float: streamed inputs [B, T], of rows and cols; keys: of cols only
    keys: str = "same"  # at what rate
    subsample: bool = False  # a convolution of stride 2 in front
    cross: bool = False  # keys and values from a second input
    views: str = ""  # the scores, seen as [B, H, T, T] while they are masked (fairseq); masks expanded to them
    layers: int = 1
    batch: int | str = 1
    longest: int = LONGEST  # rows of the table of relative positions

    @property
    def masks(self) -> tuple[Mask, ...]:
        return self.mask if isinstance(self.mask, tuple) else (self.mask,) * self.layers


@dataclass(frozen=True)
class Built:
    """A model, the inputs it takes, and which of them are streamed (name -> axis) or bound to the length."""

    case: Case
    model: onnx.ModelProto
    streamed: dict[str, int]
    bound: tuple[str, ...]
    feeds: Callable[[int], dict[str, Array]]


def build(case: Case) -> Built:
    return _Model(case).built()


class _Model:
    def __init__(self, case: Case) -> None:
        self.case, self.b = case, Builder(seed=3)
        self.kept: dict[object, str] = {}  # masks and tables, shared by the layers
        self.inputs: dict[str, Port] = {"x": ([case.batch, "T", WIDTH], np.float32)}
        self.outputs: dict[str, tuple[int, Any]] = {"y": (3, np.float32)}

    def built(self) -> Built:
        b, case = self.b, self.case
        x, other = "x", "x"
        if case.cross:
            self.inputs["context"] = ([case.batch, "T", WIDTH], np.float32)
            other = "context"
        self._add_padding()
        if case.subsample:
            x = self._convolved("x")
            other = self._convolved("context") if case.cross else x
        if case.scheme in ("absolute", "sinusoid"):
            x = other = b.op("Add", x, self._absolute(x))
        for mask in case.masks:
            y = self._attention(x, x if other == x or not case.cross else other, mask)
            rows = x if case.keys != "slow_queries" else self.queries
            other = other if case.cross else ""
            x = b.op("Tanh", b.op("Add", rows, y))
            other = other or x
        b.op("Identity", x, called="y")
        return self._finish()

    def _finish(self) -> Built:
        case = self.case
        model = self.b.model(self.inputs, self.outputs)
        bound = ("length",) if case.padding == "length" else ()
        streamed = {n: 1 for n in self.inputs if n not in bound}

        def feeds(length: int) -> dict[str, Array]:
            rng = np.random.default_rng(length)
            size = 3 if isinstance(case.batch, str) else case.batch
            out: dict[str, Array] = {}
            for name, (_, dtype) in self.inputs.items():
                if name == "length":
                    out[name] = np.full(size, length, np.int64)
                elif name == "pad":  # single frames are left out, so that no row is without a key
                    keep = np.arange(length)[None] % 5 != (3 + np.arange(size)[:, None]) % 5
                    out[name] = (keep | (rng.random((size, length)) < 0.3)).astype(dtype)
                else:
                    out[name] = rng.standard_normal((size, length, WIDTH)).astype(np.float32)
            return out

        return Built(case, model, streamed, bound, feeds)

    # ---- parts in front

    def _convolved(self, x: str) -> str:
        """Stride 2, padded: ceil(T / 2) frames."""
        b = self.b
        y = b.op("Conv", b.transpose(x, 0, 2, 1), b.weight(WIDTH, WIDTH, 3, scale=0.3), strides=[2], pads=[1, 1])
        return b.transpose(y, 0, 2, 1)

    def _absolute(self, x: str) -> str:
        b, size = self.b, self.b.size(x, 1)
        if self.case.scheme == "absolute":
            return b.slice(b.const(sinusoids(np.arange(LONGEST), WIDTH)), 0, b.ints(0), b.vector(size))
        angle = b.op("Mul", b.unsqueeze(b.cast(b.range(size), np.float32), 1), b.const(0.1 * np.arange(1, WIDTH + 1)))
        return b.op("Sin", angle)

    def _add_padding(self) -> None:
        case, b = self.case, self.b
        if case.padding == "length":
            self.inputs["length"] = ([case.batch], np.int64)
            self.outputs["encoded_lengths"] = (1, np.int64)
            if case.subsample:
                b.op("Div", b.op("Add", "length", b.scalar(1)), b.scalar(2), called="encoded_lengths")
            else:
                b.op("Identity", "length", called="encoded_lengths")
        elif case.padding:
            self.inputs["pad"] = ([case.batch, "T"], np.float32 if case.padding == "float" else np.bool_)

    # ---- attention

    def _attention(self, x: str, source: str, mask: Mask) -> str:
        b, case = self.b, self.case
        rows, cols = x, source
        if case.keys == "conv":
            cols = self._convolved(source)
        elif case.keys == "slice":
            cols = b.slice(source, 1, b.ints(0), b.ints(2**31), 2)
        elif case.keys == "slow_queries":
            rows = self.queries = self._convolved(x)
        steps = {"same": (1, 1), "slow_queries": (2, 1)}.get(case.keys, (1, 2))
        sizes = self.size(rows), self.size(cols)
        q, k, v = (self._heads(b.op("MatMul", z, b.weight(WIDTH, WIDTH, scale=0.5))) for z in (rows, cols, cols))
        dim = WIDTH if case.layout == "single" else WIDTH // case.heads
        if case.scheme in ROPES:
            q = rotated(b, case.scheme, q, sizes[0], dim, steps[0])
            k = rotated(b, case.scheme, k, sizes[1], dim, steps[1])
        if case.scale == "query":
            q = b.op("Mul", q, b.const(dim**-0.5))
        scores = self._scores(q, k)
        scores = self._positioned(scores, q, sizes, steps, dim, mask)
        if case.scale in ("mul", "div"):
            scores = b.op(
                *(("Mul", scores, b.const(dim**-0.5)) if case.scale == "mul" else ("Div", scores, b.const(dim**0.5)))
            )
        shown = self._mask(mask, sizes, steps)
        if case.views == "expand":
            shown = b.op("Expand", shown, b.op("Shape", scores))
        elif case.views:
            rows, cols = sizes
            inner = b.reshape(scores, self._streams(), case.heads, rows, cols)
            flat = b.op("Where", shown, inner, b.const(-np.inf))
            scores = (
                b.reshape(flat, -1, rows, cols)
                if case.layout == "folded"
                else b.op("Reshape", flat, b.op("Shape", scores))
            )
        weights = self._weights(scores, shown, mask, sizes, steps, dim)
        return b.op("MatMul", self._joined(self._values(weights, v)), b.weight(WIDTH, WIDTH, scale=0.7))

    def size(self, x: str) -> str:
        return self._once(("size", x), lambda: self.b.size(x, 1))

    def _streams(self) -> str:
        return self._once("batch", lambda: self.b.size("x", 0))

    def _once(self, key: object, make: Callable[[], str]) -> str:
        if key not in self.kept:
            self.kept[key] = make()
        return self.kept[key]

    def _heads(self, x: str) -> str:
        """[B, T, C] -> [B, H, T, d], [B, T, C] or [B*H, T, d]."""
        b, case = self.b, self.case
        if case.layout == "single":
            return x
        split = b.transpose(b.reshape(x, 0, 0, case.heads, WIDTH // case.heads), 0, 2, 1, 3)
        return split if case.layout == "heads" else b.reshape(split, -1, self.size(x), WIDTH // case.heads)

    def _joined(self, x: str) -> str:
        b, case = self.b, self.case
        if case.layout == "single":
            return x
        if case.layout == "folded":
            x = b.reshape(x, -1, case.heads, b.size(x, 1), WIDTH // case.heads)
        return b.reshape(b.transpose(x, 0, 2, 1, 3), 0, 0, WIDTH)

    @property
    def swapped(self) -> bool:
        return self.case.product.startswith("swapped")

    def _placed(self, x: str, rank: int) -> str:
        """[..., i, j] of this rank, laid out as the scores are."""
        b = self.b
        if self.case.product == "time_first":  # [i, j, B, H]
            x = b.unsqueeze(x, *range(4 - rank)) if rank < 4 else x
            return b.transpose(x, 2, 3, 0, 1)
        return b.transpose(x, *range(rank - 2), rank - 1, rank - 2) if self.swapped else x

    @property
    def key_axis(self) -> int:
        return 1 if self.case.product == "time_first" else -2 if self.swapped else -1

    def _turned(self, x: str) -> str:
        """The last two axes exchanged."""
        return self.b.transpose(x, *((0, 1, 3, 2) if self.case.layout == "heads" else (0, 2, 1)))

    def _scores(self, q: str, k: str) -> str:
        b, case = self.b, self.case
        lead = "bh" if case.layout == "heads" else "b"
        if case.product == "matmul":
            return b.op("MatMul", q, self._turned(k), called="scores")
        if case.product == "swapped":
            return b.op("MatMul", k, self._turned(q), called="scores")
        if case.product == "einsum_time":
            assert case.layout == "heads"
            q, k = b.transpose(q, 0, 2, 1, 3), b.transpose(k, 0, 2, 1, 3)
            return b.op("Einsum", q, k, equation="bihd,bjhd->bhij", called="scores")
        if case.product == "time_first":
            assert case.layout == "heads"
            q, k = b.transpose(q, 2, 0, 1, 3), b.transpose(k, 2, 0, 1, 3)
            return b.op("Einsum", q, k, equation="ibnd,jbnd->ijbn", called="scores")
        out = "ij" if case.product == "einsum" else "ji"
        return b.op("Einsum", q, k, equation=f"{lead}id,{lead}jd->{lead}{out}", called="scores")

    def _values(self, weights: str, v: str) -> str:
        b, case = self.b, self.case
        lead = "bh" if case.layout == "heads" else "b"
        if case.product == "matmul":
            return b.op("MatMul", weights, v, called="values")
        if case.product == "swapped":
            return b.op("MatMul", self._turned(weights), v, called="values")
        if case.product == "einsum_time":
            y = b.op("Einsum", weights, b.transpose(v, 0, 2, 1, 3), equation="bhij,bjhd->bihd", called="values")
            return b.transpose(y, 0, 2, 1, 3)
        if case.product == "time_first":
            y = b.op("Einsum", weights, b.transpose(v, 2, 0, 1, 3), equation="ijbn,jbnd->ibnd", called="values")
            return b.transpose(y, 1, 2, 0, 3)
        cells = "ij" if case.product == "einsum" else "ji"
        return b.op("Einsum", weights, v, equation=f"{lead}{cells},{lead}jd->{lead}id", called="values")

    # ---- positions

    def _positioned(
        self, scores: str, q: str, sizes: tuple[str, str], steps: tuple[int, int], dim: int, mask: Mask
    ) -> str:
        b, case = self.b, self.case
        if case.scheme in BIASES:
            heads = 1 if case.layout == "single" else case.heads
            key = (case.scheme, sizes, mask.chunk)
            added = self._once(key, lambda: bias(b, case.scheme, heads, sizes, mask.chunk, steps))
            added = self._placed(added, 3)
            if case.layout == "folded":  # [H, T, T] for every stream
                shape = b.op("Concat", b.vector(self._streams()), b.op("Shape", added), axis=0)
                added = b.op("Reshape", b.op("Expand", added, shape), b.op("Shape", scores))
            return b.op("Add", scores, added)
        if case.scheme == "relative_key":
            lead = "bh" if case.layout == "heads" else "b"
            i, j = b.unsqueeze(b.range(sizes[0]), 1), b.unsqueeze(b.range(sizes[1]), 0)
            index = b.op("Add", b.op("Clip", b.op("Sub", j, i), b.scalar(-REACH), b.scalar(REACH)), b.scalar(REACH))
            table = b.op("Gather", b.weight(2 * REACH + 1, dim), index)
            added = b.op("Einsum", q, table, equation=f"{lead}id,ijd->{lead}ij")
        elif case.scheme.startswith("xl_"):
            added = self._relative(q, sizes[0], dim)
            if case.scheme.startswith("xl_hf"):
                return b.op("Add", scores, added)
        else:
            return scores
        return b.op("Add", scores, self._placed(added, 4 if case.layout == "heads" else 3))

    def _relative(self, q: str, size: str, dim: int) -> str:
        b, case = self.b, self.case
        heads = 1 if case.layout == "single" else case.heads
        table = self._once("table", lambda: relative_table(b, case.scheme, size, WIDTH, case.longest))
        rows = b.reshape(b.op("MatMul", table, b.weight(WIDTH, heads * dim, scale=0.7)), -1, heads, dim)
        if case.scheme.startswith("xl_hf"):
            return self._hugging_face(q, rows, size, dim)
        rows = b.transpose(rows, 1, 2, 0)
        if case.layout == "single":
            rows = b.op("Squeeze", rows, b.ints(0))
        raw = b.op("MatMul", b.op("Add", q, b.weight(*((heads, 1, dim) if heads > 1 else (1, dim)))), rows)
        batch = b.size(q, 0)
        lead: list[int | str] = [batch, heads] if case.layout == "heads" else [batch]
        return shifted(b, case.scheme, raw, lead, size)

    def _hugging_face(self, q: str, rows: str, size: str, dim: int) -> str:
        """Transformer-XL as Hugging Face has it: [i, j, B, H], shifted along the first two axes, no final slice."""
        b, case = self.b, self.case
        assert case.product == "time_first"
        q = b.op("Add", b.transpose(q, 2, 0, 1, 3), b.weight(case.heads, dim))
        raw = b.op("Einsum", q, rows, equation="ibnd,jnd->ijbn")
        rest: list[int | str] = [self._streams(), case.heads]
        x = b.op("Concat", b.op("ConstantOfShape", b.shape(size, 1, *rest)), raw, axis=1)
        x = b.reshape(x, b.op("Add", size, b.scalar(1)), size, *rest)
        return b.op("Reshape", b.slice(x, 0, b.ints(1), b.ints(2**31)), b.op("Shape", raw))

    # ---- masks

    def _mask(self, mask: Mask, sizes: tuple[str, str], steps: tuple[int, int]) -> str:
        """Bool, of the rank of the case (with padding: of the rank of the scores)."""
        return self._once((mask, sizes), lambda: self._written(mask, sizes, steps))

    def _written(self, mask: Mask, sizes: tuple[str, str], steps: tuple[int, int]) -> str:
        b, case = self.b, self.case
        shown = ""
        if mask.kind != "none" or not case.padding:
            shown = MaskWriter(b, case.writing, sizes, steps).write(mask)
        rank = case.rank
        if case.padding:
            shown, rank = self._padded(shown, sizes), 3
            if case.layout == "heads":
                shown, rank = b.unsqueeze(shown, 1), 4
        elif rank > 2:
            shown = b.unsqueeze(shown, *range(rank - 2))
        return self._placed(shown, rank)

    def _padded(self, shown: str, sizes: tuple[str, str]) -> str:
        """[B, T, T]: the window, and what the padding leaves."""
        b, case = self.b, self.case
        pad = "pad"
        if case.padding == "length":
            pad = b.op("Less", b.unsqueeze(b.range(sizes[0]), 0), b.unsqueeze("encoded_lengths", 1))
        i, j = b.unsqueeze(pad, 2), b.unsqueeze(pad, 1)
        if case.padding == "keys":
            return b.op("And", j, b.unsqueeze(shown, 0)) if shown else b.op("And", j, b.op("Or", i, b.op("Not", i)))
        if case.padding == "float":
            both = b.op("Mul", i, j)
            both = b.op("Mul", both, b.cast(shown, np.float32)) if shown else both
            return b.op("Greater", both, b.const(0.5))
        both = b.op("And", i, j)
        return b.op("And", both, b.unsqueeze(shown, 0)) if shown else both

    def _weights(
        self, scores: str, shown: str, mask: Mask, sizes: tuple[str, str], steps: tuple[int, int], dim: int
    ) -> str:
        b, how = self.b, self.case.applied
        low = {"inf": -np.inf, "1e4": -1e4, "min": np.finfo(np.float32).min, "1e9": -1e9}.get(how.split("_")[-1], -1e4)

        def finished(x: str) -> str:
            x = b.op("Mul", x, b.const(dim**-0.5)) if self.case.scale == "after" else x
            return b.op("Softmax", x, axis=self.key_axis, called="softmax")

        if how == "relu":
            return b.op("Where", shown, b.op("Relu", b.op("Mul", scores, b.const(0.1))), b.const(0.0))
        if how == "decay":
            return b.op("Mul", b.op("Mul", scores, b.const(0.1)), self._decay(shown, sizes, steps))
        if how == "sigmoid":
            return b.op("Sigmoid", b.op("Add", scores, b.op("Where", shown, b.const(0.0), b.const(-np.inf))))
        if how == "only_after":
            return b.op("Mul", finished(scores), b.cast(shown, np.float32))
        if how.startswith("where_not"):
            return finished(b.op("Where", b.op("Not", shown), b.const(low), scores))
        if how.startswith("where"):
            return finished(b.op("Where", shown, scores, b.const(low)))
        if how == "add_inf":
            return finished(b.op("Add", scores, b.op("Where", shown, b.const(0.0), b.const(-np.inf))))
        if how == "add_1e9":
            hidden = b.op("Sub", b.const(1.0), b.cast(shown, np.float32))
            return finished(b.op("Add", b.op("Mul", hidden, b.const(-1e9)), scores))
        if how == "nemo":
            filled = finished(b.op("Where", b.op("Not", shown), b.const(-1e4), scores))
            return b.op("Where", b.op("Not", shown), b.const(0.0), filled)
        if how == "mul_after":
            filled = finished(b.op("Where", shown, scores, b.const(-1e4)))
            return b.op("Mul", filled, b.cast(shown, np.float32))
        if how == "narrow":  # a narrower mask behind the softmax takes weight away, and nothing is normalised again
            return b.op("Mul", finished(b.op("Where", shown, scores, b.const(-np.inf))), self._near(sizes, steps))
        if how == "sequence":
            wide = b.op("Mul", b.op("Sub", b.const(1.0), self._near(sizes, steps, 100)), b.const(-1e9))
            filled = finished(b.op("Where", shown, b.op("Add", scores, wide), b.const(-1e4)))
            return b.op("Where", shown, filled, b.const(0.0))
        raise ValueError(how)

    def _near(self, sizes: tuple[str, str], steps: tuple[int, int], reach: int = 2) -> str:
        near = MaskWriter(self.b, Writing(), sizes, steps).write(Mask("token", 1, reach, reach))
        return self._placed(self.b.cast(near, np.float32), 2)

    def _decay(self, shown: str, sizes: tuple[str, str], steps: tuple[int, int]) -> str:
        """0.9 ** |i - j| where it is shown (retention)."""
        b = self.b
        i, j = (b.op("Mul", b.range(n), b.scalar(s)) for n, s in zip(sizes, steps, strict=True))
        distance = b.op("Abs", b.cast(b.op("Sub", b.unsqueeze(i, 1), b.unsqueeze(j, 0)), np.float32))
        decay = b.op("Pow", b.const(0.9), self._placed(distance, 2))
        return b.op("Where", shown, decay, b.const(0.0))

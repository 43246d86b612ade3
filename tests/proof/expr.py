"""Expressions over the length T and positions i, j: the same one as nodes of a graph and as numbers of numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.proof.net import Array, Net, Wire

Env = Mapping[str, Array]


def truncated(a: Array, b: Array) -> Array:
    """ONNX's whole division: towards zero."""
    with np.errstate(divide="ignore"):
        return np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))


OPS: dict[str, tuple[str, Callable[..., Any]]] = {
    "+": ("Add", np.add), "-": ("Sub", np.subtract), "*": ("Mul", np.multiply), "//": ("Div", truncated),
    "/": ("Div", np.divide), "%": ("Mod", np.mod), "min": ("Min", np.minimum), "max": ("Max", np.maximum),
    "<": ("Less", np.less), "<=": ("LessOrEqual", np.less_equal), ">": ("Greater", np.greater),
    ">=": ("GreaterOrEqual", np.greater_equal), "==": ("Equal", np.equal), "and": ("And", np.logical_and),
    "or": ("Or", np.logical_or), "not": ("Not", np.logical_not), "where": ("Where", np.where),
    "log": ("Log", np.log), "sqrt": ("Sqrt", np.sqrt), "floor": ("Floor", np.floor), "ceil": ("Ceil", np.ceil),
    "abs": ("Abs", np.abs),
}  # fmt: skip


@dataclass(frozen=True)
class Expr:
    """op: one of OPS, a leaf ("T", "i", "j", "const", "rows"), "float", "int", or "count" of positions i < T."""

    op: str
    args: tuple[Expr, ...] = ()
    number: Any = None
    kind: str = "i"

    def parts(self) -> Iterator[Expr]:
        yield self
        for a in self.args:
            yield from a.parts()

    def leaves(self) -> set[str]:
        if self.op == "count":
            return {"T"}
        return {self.op} if self.op in "Tij" else {n for a in self.args for n in a.leaves()}

    def wire(self, net: Net, leaves: Mapping[str, Wire]) -> Wire:
        if self.op in "Tij":
            return leaves[self.op]
        if self.op == "const":
            return net.const(self.number, self.kind)
        if self.op == "rows":  # how many rows a table has
            return net.op("Shape", net.const(np.ones((self.number, 2), np.float32))).take(0)
        if self.op == "count":
            seen = self.args[0].wire(net, {"T": net.T, "i": net.pos})
            return net.op("ReduceSum", seen.int(), keepdims=0)
        made = [a.wire(net, leaves) for a in self.args]
        if self.op in ("float", "int"):
            return made[0].float() if self.op == "float" else made[0].int()
        return net.op(OPS[self.op][0], *made, kind=self.kind)

    def value(self, env: Env) -> Array:
        if self.op in "Tij":
            return env[self.op]
        if self.op in ("const", "rows"):
            return np.asarray(self.number, {"f": np.float32, "b": np.bool_}.get(self.kind, np.int64))
        if self.op == "count":
            till = np.arange(int(env["T"].max()) + 1)
            seen = np.broadcast_to(self.args[0].value({"i": till}), till.shape)
            return np.concatenate([[0], np.cumsum(seen)])[env["T"]]
        made = [a.value(env) for a in self.args]
        if self.op in ("float", "int"):
            return made[0].astype(np.float32 if self.op == "float" else np.int64)
        with np.errstate(all="ignore"):
            return OPS[self.op][1](*made)

    def __str__(self) -> str:
        if self.op in "Tij":
            return self.op
        if self.op in ("const", "rows"):
            return f"{self.number}" if self.op == "const" else f"rows({self.number})"
        if len(self.args) == 2 and not self.op.isalpha():
            return f"({self.args[0]} {self.op} {self.args[1]})"
        return f"{self.op}({', '.join(map(str, self.args))})"


class Maker:
    """Draws expressions. top: no constant is much larger."""

    def __init__(self, rng: np.random.Generator, top: int) -> None:
        self.rng, self.top = rng, top

    def pick(self, *options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def number(self) -> int:
        low, high = self.pick((1, 13), (50, 401), (1000, 5001))
        if low >= self.top:
            low, high = 1, 13
        return int(self.rng.integers(low, min(high, self.top)))

    def const(self, low: int = 1, high: int = 12) -> Expr:
        return Expr("const", number=int(self.rng.integers(low, high + 1)))

    def leaf(self, leaves: str) -> Expr:
        return Expr(self.pick(*leaves))

    def whole(self, leaves: str, depth: int = 2) -> Expr:
        """An int64."""
        if depth == 0 or self.rng.random() < 0.15:
            return self.leaf(leaves)
        op = self.pick("+", "-", "*", "//", "//", "%", "%", "min", "max", "where", "abs", "float", "square", "both")
        a = self.whole(leaves, depth - 1)
        if op in ("+", "-", "min", "max"):
            return Expr(op, (a, Expr("const", number=self.number())))
        if op == "both":
            return Expr(self.pick("+", "-", "min", "max"), (a, self.whole(leaves, depth - 1)))
        if op == "*":
            return Expr(op, (a, self.const(2, 5)))
        if op in ("//", "%"):
            return Expr(op, (a, Expr("const", number=self.number() + 1)))
        if op == "where":
            return Expr(op, (self.truth(leaves, depth - 1), a, self.whole(leaves, depth - 1)))
        if op == "float":
            rounded = Expr(self.pick("floor", "ceil"), (self.real(leaves, depth - 1),), kind="f")
            return Expr("int", (rounded,))
        if op == "square":
            return Expr("*", (self.leaf(leaves), self.leaf(leaves)))
        return Expr("abs", (Expr("-", (a, Expr("const", number=self.number()))),))

    def real(self, leaves: str, depth: int = 1) -> Expr:
        """A float32, finite for T, i, j from 0 on."""
        a = Expr("float", (self.whole(leaves, depth),), kind="f")
        op = self.pick("/", "*", "log", "sqrt")
        if op in "/*":
            by = self.pick(2.0, 0.5, 3.0, 0.1, 1.5, 7.0)
            return Expr(op, (a, Expr("const", number=by, kind="f")), kind="f")
        positive = Expr("max", (a, Expr("const", number=1.0, kind="f")), kind="f")
        return Expr(op, (positive,), kind="f")

    def truth(self, leaves: str, depth: int = 2) -> Expr:
        """A bool."""
        how = self.pick("compare", "compare", "compare", "mod", "mod", "real", "rows", "join", "not", "end", "count")
        if how == "join" and depth > 0:
            return Expr(
                self.pick("and", "or"), (self.truth(leaves, depth - 1), self.truth(leaves, depth - 1)), kind="b"
            )
        if how == "not" and depth > 0:
            return Expr("not", (self.truth(leaves, depth - 1),), kind="b")
        if how == "mod":
            by = self.number() + 1
            rest = Expr("const", number=int(self.rng.integers(by)))
            left = Expr("%", (self.whole(leaves, depth - 1 if depth else 0), Expr("const", number=by)))
            return Expr(self.pick("==", "<", ">="), (left, rest), kind="b")
        if how == "real":
            real = self.real(leaves, min(depth, 1))
            near = float(real.value({n: np.array([self.number()]) for n in "Tij"})[0])
            return Expr(self.pick(">", "<="), (real, Expr("const", number=near, kind="f")), kind="b")
        if how == "rows":
            return Expr(self.pick(">", "<="), (self.leaf(leaves), Expr("rows", number=self.number())), kind="b")
        if how == "end" and "T" in leaves and "i" in leaves:
            back = Expr("-", (Expr("T"), self.small("T", 5)))
            return Expr(self.pick(">=", "=="), (Expr(self.pick(*leaves.replace("T", ""))), back), kind="b")
        if how == "count" and leaves == "T":
            count = Expr("count", (self.truth("i", 0),))
            return Expr(self.pick(">", "<"), (count, Expr("const", number=self.number())), kind="b")
        if len(leaves) > 1 and self.rng.random() < 0.4:
            return Expr(self.pick(">", "<=", "=="), (self.whole(leaves, depth), self.whole(leaves, depth)), kind="b")
        op = self.pick(">", "<", ">=", "<=", "==")
        return Expr(op, (self.whole(leaves, depth), Expr("const", number=self.number())), kind="b")

    def small(self, leaves: str, below: int) -> Expr:
        """0 <= value < below."""
        how = self.pick("mod", "where", "where", "min", "const")
        if how == "const":
            return Expr("const", number=int(self.rng.integers(below)))
        if how == "where":
            ends = [Expr("const", number=int(self.rng.integers(below))) for _ in range(2)]
            return Expr("where", (self.truth(leaves, 1), *ends))
        if how == "mod":
            return Expr("%", (self.whole(leaves, 1), Expr("const", number=below)))
        zero, most = Expr("const", number=0), Expr("const", number=below - 1)
        return Expr("max", (Expr("min", (self.whole(leaves, 1), most)), zero))

"""The written set: recurrent stacks by case, and dual-path, prefix and mixed models one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from tests.attention.masks import Mask, MaskWriter, Writing
from tests.recurrence.build import Builder, Built, Cell, Window, built

WIDTH = 2  # channels of x
BANDS = 4
AHEAD, CENTRE, BEFORE, VALID = Window(3, 0, 2), Window(4, 1, 2), Window(3, 2, 0), Window(4, 0, 0)
EVEN = Window(4, 1, 1, 2)  # every second frame
Write = Callable[[Builder], Sequence[str]]


def graph(write: Write, **options: Any) -> partial[Built]:
    """To be built when it is tested."""
    return partial(built, write, **options)


@dataclass(frozen=True)
class Case:
    """A convolution, cells over time (or none), a convolution.

    raw: x is what the first cell reads and Y as it is comes out, in the cell's own layout.
    finals: every cell's Y_h and Y_c come out too; alone: nothing else does.
    residual: what went into the cells is added to what comes out.
    """

    cells: Cell | tuple[Cell, ...] = field(default_factory=Cell)
    front: Window | None = None
    back: Window | None = None
    raw: bool = False
    finals: bool = False
    alone: bool = False
    residual: bool = False
    batch: int | str = 1

    @property
    def stack(self) -> tuple[Cell, ...]:
        return self.cells if isinstance(self.cells, tuple) else (self.cells,)

    @property
    def shortest(self) -> int:
        """The fewest frames that leave one for every operator."""
        return next(n for n in range(1, 99) if self._frames(n) > 0)  # none needs more

    def _frames(self, length: int) -> int:
        for window in (self.front, self.back):
            length = window.frames(length) if window is not None and length > 0 else length
        return length


def stacked(case: Case) -> Built:
    return built(lambda b: _raw(b, case) if case.raw else _stack(b, case), batch=case.batch, shortest=case.shortest)


def _raw(b: Builder, case: Case) -> list[str]:
    (cell,) = case.stack
    x = b.input("x", *((b.batch, "T", WIDTH) if cell.layout else ("T", b.batch, WIDTH)))
    return _outputs(case, b.recurrent(x, cell, WIDTH, "r0"))


def _stack(b: Builder, case: Case) -> list[str]:
    x, width = b.input("x", b.batch, WIDTH, "T"), WIDTH
    if case.front is not None:
        x = b.conv(x, case.front, width, width)
    into = x
    for i, cell in enumerate(case.stack):
        x, width = b.over_time(x, cell, width, f"r{i}"), cell.hidden * cell.directions
    if case.residual:
        x = b.op("Add", x, b.op("MatMul", b.weight(width, WIDTH), into))
    if case.back is not None:
        x = b.conv(x, case.back, width, 2)
    return _outputs(case, b.op("Identity", x, called="y"))


def _outputs(case: Case, y: str) -> list[str]:
    finals = [f"r{i}_{s}" for i, c in enumerate(case.stack) for s in ("hc" if c.op == "LSTM" else "h")]
    return finals if case.alone else [y, *finals] if case.finals else [y]


LSTM, GRU, RNN = Cell("LSTM"), Cell("GRU"), Cell("RNN")
ACTIVATIONS = {
    "Affine": (0.5, 0.1), "LeakyRelu": (0.2, 0.0), "ThresholdedRelu": (0.1, 0.0), "ScaledTanh": (0.8, 0.7),
    "HardSigmoid": (0.3, 0.4), "Elu": (0.6, 0.0), "Relu": (0.0, 0.0), "Softsign": (0.0, 0.0), "Softplus": (0.0, 0.0),
}  # fmt: skip


def activations(*names: str) -> dict[str, Any]:
    """All but a sigmoid and a tanh take their numbers from two lists, in order.

    Some are unbounded and must not let the state grow: sums are clipped to one.
    """
    own = [ACTIVATIONS[n] for n in names if n in ACTIVATIONS]
    numbers = {"activation_alpha": [a for a, _ in own], "activation_beta": [b for _, b in own]}
    return {"activations": list(names), "clip": 1.0, **(numbers if own else {})}


def acting(op: str, *names: str, **more: int) -> Cell:
    return Cell(op, attributes=activations(*names) | more)


def with_attributes(cell: Cell, **attributes: object) -> Cell:
    return replace(cell, attributes={**cell.attributes, **attributes})


CASES = {
    # plain, as the operator is
    **{f"{c.op}_raw": Case(c, raw=True) for c in (LSTM, GRU, RNN)},
    **{f"{c.op}_raw_finals": Case(c, raw=True, finals=True) for c in (LSTM, GRU, RNN)},
    **{f"{c.op}_raw_batch": Case(c, raw=True, finals=True, batch="B") for c in (LSTM, GRU, RNN)},
    **{f"{c.op}_finals_alone": Case(c, raw=True, alone=True) for c in (LSTM, GRU, RNN)},
    **{f"{c.op}_no_bias": Case(replace(c, bias=False), front=AHEAD) for c in (LSTM, GRU, RNN)},
    "two_rows": Case(LSTM, raw=True, finals=True, batch=2),
    # layout 1, which ONNX Runtime does not run
    **{f"{c.op}_layout_1": Case(replace(c, layout=1), raw=True, finals=True) for c in (LSTM, GRU, RNN)},
    "layout_1_batch": Case(replace(LSTM, layout=1), front=AHEAD, finals=True, batch="B"),
    "layout_1_initial": Case(replace(GRU, layout=1, initial="computed"), front=CENTRE, finals=True, batch="B"),
    "layout_1_static": Case(replace(LSTM, layout=1, initial="static"), raw=True, finals=True),
    "layout_1_lengths": Case(replace(RNN, layout=1, lengths="shape"), front=AHEAD, finals=True),
    "layout_1_below_0": Case((replace(GRU, layout=1), LSTM), front=AHEAD),
    # initial states
    **{
        f"{c.op}_{initial}": Case(replace(c, initial=initial), front=AHEAD, finals=True)
        for c in (LSTM, GRU, RNN)
        for initial in ("zero", "constant", "computed", "static", "of_static")
    },
    "only_hidden_given": Case(replace(LSTM, initial="hidden"), front=CENTRE, finals=True),
    "initial_raw": Case(replace(LSTM, initial="constant"), raw=True, finals=True),
    "static_raw": Case(replace(LSTM, initial="static"), raw=True),
    "initial_two_rows": Case(replace(GRU, initial="constant"), front=AHEAD, finals=True, batch=2),
    "computed_batch": Case(replace(LSTM, initial="computed"), front=AHEAD, finals=True, batch="B"),
    "static_batch": Case(replace(LSTM, initial="static"), front=AHEAD, finals=True, batch="B"),
    "static_two_rows": Case(replace(RNN, initial="of_static"), front=AHEAD, finals=True, batch=2),
    # attributes
    "peepholes": Case(replace(LSTM, peepholes=True), front=AHEAD, finals=True),
    "peepholes_initial": Case(replace(LSTM, peepholes=True, initial="constant", bias=False), raw=True, finals=True),
    "peepholes_lengths": Case(replace(LSTM, peepholes=True, lengths="shape"), front=CENTRE, batch="B"),
    **{f"{c.op}_clip": Case(with_attributes(c, clip=0.4), front=AHEAD, finals=True) for c in (LSTM, GRU, RNN)},
    "input_forget": Case(with_attributes(LSTM, input_forget=1), front=AHEAD, finals=True),
    "reset_before": Case(with_attributes(GRU, linear_before_reset=0), front=CENTRE, finals=True),
    "reset_after": Case(with_attributes(GRU, linear_before_reset=1), front=CENTRE, finals=True),
    **{f"RNN_{name}": Case(acting("RNN", name), front=AHEAD) for name in ACTIVATIONS},
    "GRU_activations": Case(acting("GRU", "HardSigmoid", "ScaledTanh"), front=AHEAD, finals=True),
    "GRU_mixed_activations": Case(acting("GRU", "Sigmoid", "Affine", linear_before_reset=1), front=CENTRE),
    "LSTM_activations": Case(acting("LSTM", "HardSigmoid", "LeakyRelu", "Elu"), front=AHEAD, finals=True),
    "LSTM_mixed_activations": Case(acting("LSTM", "Sigmoid", "Softsign", "Tanh"), front=CENTRE),
    # sequence_lens, as long as the stream
    **{
        f"{c.op}_lengths_{lengths}": Case(replace(c, lengths=lengths), finals=True, batch="B", front=CENTRE)
        for c in (LSTM, GRU, RNN)
        for lengths in ("shape", "filled")
    },
    **{f"{c.op}_length_input": Case(replace(c, lengths="input"), raw=True, finals=True) for c in (LSTM, GRU, RNN)},
    "length_input_batch": Case(replace(LSTM, lengths="input"), front=Window(3, 1, 1), finals=True, batch="B"),
    "lengths_of_fewer_frames": Case(replace(GRU, lengths="shape"), front=VALID, finals=True),
    "lengths_behind_stride": Case(replace(LSTM, lengths="shape", initial="computed"), front=EVEN, finals=True),
    # several
    "two_layers": Case((LSTM, LSTM), finals=True),
    "three_kinds": Case((RNN, replace(GRU, initial="computed"), LSTM), front=AHEAD, finals=True, batch="B"),
    "layers_of_lengths": Case((replace(GRU, lengths="shape"), replace(LSTM, lengths="filled")), front=AHEAD),
    # delays and ends
    **{f"{c.op}_ahead": Case(c, front=AHEAD, back=AHEAD, residual=True) for c in (LSTM, GRU, RNN)},
    **{f"{c.op}_valid": Case(c, front=VALID, back=VALID, finals=True) for c in (LSTM, GRU, RNN)},
    "ahead_batch": Case(GRU, front=CENTRE, back=CENTRE, residual=True, finals=True, batch="B"),
    "before": Case(LSTM, front=BEFORE, back=BEFORE, finals=True),
    "strided": Case(GRU, front=EVEN, back=CENTRE, finals=True),
    "strided_behind": Case(LSTM, front=AHEAD, back=EVEN, finals=True, batch="B"),
    "more_frames": Case(GRU, front=Window(2, 3, 3), finals=True),
    "fewer_than_a_window": Case(RNN, front=Window(7, 1, 1), finals=True),
}


# ---- frames in front, behind and cut


def padded(before: int, behind: int, value: float = 0.5) -> Write:
    def write(b: Builder) -> list[str]:
        x = b.input("x", 1, WIDTH, "T")
        x = b.op("Pad", x, b.ints(0, 0, before, 0, 0, behind), b.const(value))
        return [b.op("Identity", b.over_time(x, GRU, WIDTH), called="y"), "r_h"]

    return write


def shifted_right(b: Builder) -> list[str]:
    """A start frame, then all but the last: what a decoder reads."""
    x = b.input("x", 1, "T", WIDTH)
    x = b.op("Concat", b.weight(1, 1, WIDTH), b.slice(x, 1, b.ints(0), b.ints(-1)), axis=1)
    return [b.recurrent(b.transpose(x, 1, 0, 2), LSTM, WIDTH), "r_h"]


def joined_behind(b: Builder) -> list[str]:
    """A last frame is put behind the stream; the final state has read it."""
    x = b.op("Concat", b.input("x", "T", 1, WIDTH), b.weight(1, 1, WIDTH), axis=0)
    return [b.recurrent(x, GRU, WIDTH), "r_h"]


def edges(b: Builder) -> list[str]:
    """The first and the last frame are repeated."""
    x = b.op("Pad", b.input("x", 1, WIDTH, "T"), b.ints(0, 0, 2, 0, 0, 2), mode="edge")
    return [b.op("Identity", b.over_time(x, LSTM, WIDTH), called="y"), "r_h", "r_c"]


ENDS = {
    "pad_front": graph(padded(3, 0)),
    "pad_behind": graph(padded(0, 3)),
    "pad_both": graph(padded(2, 1)),
    "cut_front": graph(padded(-2, 0), shortest=3),
    "cut_behind": graph(padded(0, -2), shortest=3),
    "cut_and_pad": graph(padded(-1, 2), shortest=2),
    "shifted_right": graph(shifted_right),
    "joined_behind": graph(joined_behind),
    "edges": graph(edges),
}


# ---- dual path


def folded(b: Builder, x: str, cell: Cell, over: str, called: str, width: int = WIDTH) -> str:
    """[B, T, F, C]: a cell over F or over T, the other axis folded into the batch; as wide as before."""
    perm = {"F": (2, 0, 1, 3), "T": (1, 0, 2, 3)}[over]
    turned = b.transpose(x, *perm)
    rows = b.reshape(turned, 0, -1, width) if over == "F" else b.reshape(turned, b.size(x, 1), -1, width)
    made = b.merged(b.recurrent(rows, cell, width, called), cell)
    made = b.op("MatMul", made, b.weight(cell.hidden * cell.directions, width))
    back = b.op("Reshape", made, b.op("Shape", turned))
    return b.op("Add", x, b.transpose(back, *np.argsort(perm)))


def dual_path(first: Cell, then: Cell, blocks: int = 1, front: Window | None = None) -> Write:
    def write(b: Builder) -> list[str]:
        x = b.input("x", b.batch, WIDTH, BANDS, "T")
        if front is not None:
            w = b.weight(WIDTH, WIDTH, 1, front.kernel, scale=0.5)
            x = b.op("Conv", x, w, pads=[0, front.before, 0, front.ahead])
        x = b.transpose(x, 0, 3, 2, 1)
        for i in range(blocks):
            x = folded(b, x, first, "F", f"intra{i}")
            x = folded(b, x, then, "T", f"inter{i}")
        return [b.op("Identity", x, called="y")]

    return write


def batch_first(direction: str) -> Write:
    """As exporters write batch_first: [B*T, F, C] and [B*F, T, C], each transposed for the operator."""

    def write(b: Builder) -> list[str]:
        x = b.transpose(b.input("x", b.batch, WIDTH, BANDS, "T"), 0, 3, 2, 1)
        sizes = [b.size(x, i) for i in range(2)]
        rows = b.transpose(b.reshape(x, -1, BANDS, WIDTH), 1, 0, 2)
        cell = Cell("GRU", 2, direction)
        intra = b.transpose(b.merged(b.recurrent(rows, cell, WIDTH, "intra"), cell), 1, 0, 2)
        x = b.transpose(b.reshape(intra, *sizes, BANDS, cell.hidden * cell.directions), 0, 2, 1, 3)
        width = cell.hidden * cell.directions
        rows = b.transpose(b.reshape(x, -1, sizes[1], width), 1, 0, 2)
        inter = b.transpose(b.merged(b.recurrent(rows, LSTM, width, "inter"), LSTM), 1, 0, 2)
        return [b.op("Identity", b.reshape(inter, sizes[0], BANDS, sizes[1], LSTM.hidden), called="y")]

    return write


def bands_as_streams(b: Builder) -> list[str]:
    """Final states of every band: [1, B*F, H]."""
    x = b.transpose(b.input("x", b.batch, WIDTH, BANDS, "T"), 3, 0, 2, 1)
    rows = b.reshape(x, 0, -1, WIDTH)
    return [b.recurrent(rows, replace(LSTM, initial="computed"), WIDTH), "r_h", "r_c"]


DIRECTIONS = ("forward", "reverse", "bidirectional")
DUAL_PATH = {
    **{
        f"{op}_{direction}_{batch}": graph(dual_path(Cell(op, 2, direction), Cell(op, 2)), batch=batch)
        for op in ("LSTM", "GRU", "RNN")
        for direction in DIRECTIONS
        for batch in (1, "B")
    },
    **{
        f"batch_first_{direction}_{batch}": graph(batch_first(direction), batch=batch)
        for direction in DIRECTIONS
        for batch in (1, "B")
    },
    "ahead": graph(dual_path(Cell("GRU", 2, "bidirectional"), LSTM, front=Window(4, 1, 2))),
    "ahead_batch": graph(dual_path(Cell("LSTM", 2, "reverse"), GRU, front=Window(3, 0, 2)), batch="B"),
    "two_blocks": graph(dual_path(Cell("LSTM", 2, "bidirectional"), GRU, blocks=2, front=Window(3, 0, 2))),
    "two_blocks_batch": graph(dual_path(Cell("GRU", 2, "bidirectional"), LSTM, blocks=2), batch="B"),
    "initial": graph(
        dual_path(Cell("GRU", 2, initial="computed"), Cell("LSTM", 2, initial="computed"), front=Window(3, 0, 2))
    ),
    "initial_batch": graph(dual_path(Cell("GRU", 2), Cell("LSTM", 2, initial="computed")), batch="B"),
    "lengths": graph(dual_path(Cell("GRU", 2), Cell("LSTM", 2, lengths="shape"), front=Window(3, 0, 2)), batch="B"),
    "bands_as_streams": graph(bands_as_streams),
    "bands_as_streams_batch": graph(bands_as_streams, batch="B"),
}


# ---- running sums


def running(b: Builder, x: str, axis: int = 2, **attributes: Any) -> str:
    return b.op("CumSum", x, b.scalar(axis), **attributes)


def summed(
    *axes: int, dims: Sequence[int | str] = ("B", WIDTH, "T"), front: Window | None = None, **attributes: int
) -> Write:
    def write(b: Builder) -> list[str]:
        x = b.input("x", *(b.batch if d == "B" else d for d in dims))
        if front is not None:
            x = b.conv(x, front, WIDTH, WIDTH)
        for axis in axes:
            x = running(b, x, axis, **attributes)
        return [b.op("Identity", x, called="y")]

    return write


def of_type(dtype: type) -> Write:
    def write(b: Builder) -> list[str]:
        return [b.op("CumSum", b.input("x", 1, "T", dtype=dtype), b.const(np.array(1, np.int32)), called="y")]

    return write


def product(exclusive: int, front: Window | None = None) -> Write:
    def write(b: Builder) -> list[str]:
        x = b.input("x", b.batch, WIDTH, "T")
        if front is not None:
            x = b.conv(x, front, WIDTH, WIDTH)
        factor = b.op("Exp", b.op("Mul", b.op("Tanh", x), b.const(0.2)))
        return [b.op("CumProd", factor, b.scalar(2), exclusive=exclusive, called="y")]

    return write


def counts(b: Builder, x: str, axis: int, how: str) -> str:
    """1, 2, 3, … along time."""
    if how == "range":
        ones = b.op("Add", b.range(b.size(x, axis)), b.scalar(1))
        return b.cast(b.reshape(ones, *(-1 if i == axis else 1 for i in range(3))), np.float32)
    return running(b, b.op("Expand", b.const(np.ones(1, np.float32)), b.op("Shape", x)), axis)


def running_mean(how: str, front: Window | None = None) -> Write:
    def write(b: Builder) -> list[str]:
        x = b.input("x", b.batch, WIDTH, "T")
        if front is not None:
            x = b.conv(x, front, WIDTH, WIDTH)
        return [b.op("Div", running(b, x), counts(b, x, 2, how), called="y")]

    return write


def running_variance(b: Builder) -> list[str]:
    x = b.conv(b.input("x", b.batch, WIDTH, "T"), CENTRE, WIDTH, WIDTH)
    count = counts(b, x, 2, "range")
    mean = b.op("Div", running(b, x), count)
    square = b.op("Div", running(b, b.op("Mul", x, x)), count)
    variance = b.op("Relu", b.op("Sub", square, b.op("Mul", mean, mean)))
    return [b.op("Identity", variance, called="y"), b.op("Identity", mean, called="mean")]


def cumulative_layer_norm(front: Window | None) -> Write:
    """Over channels and all frames so far (Conv-TasNet's cLN)."""

    def write(b: Builder) -> list[str]:
        x = b.input("x", b.batch, WIDTH, "T")
        if front is not None:
            x = b.conv(x, front, WIDTH, WIDTH)
        count = b.op("Mul", counts(b, x, 2, "range"), b.const(float(WIDTH)))
        total = running(b, b.op("ReduceSum", x, b.ints(1), keepdims=1))
        squares = running(b, b.op("ReduceSum", b.op("Mul", x, x), b.ints(1), keepdims=1))
        mean = b.op("Div", total, count)
        variance = b.op("Sub", b.op("Div", squares, count), b.op("Mul", mean, mean))
        spread = b.op("Sqrt", b.op("Add", b.op("Relu", variance), b.const(0.1)))
        normal = b.op("Div", b.op("Sub", x, mean), spread)
        scaled = b.op("Add", b.op("Mul", normal, b.weight(1, WIDTH, 1)), b.weight(1, WIDTH, 1))
        return [b.op("Identity", scaled, called="y")]

    return write


def soft_maximum(b: Builder) -> list[str]:
    """log Σ exp of all frames so far."""
    x = b.conv(b.input("x", b.batch, WIDTH, "T"), AHEAD, WIDTH, WIDTH)
    return [b.op("Log", running(b, b.op("Exp", x)), called="y")]


def peak_of_sums(b: Builder) -> list[str]:
    """The largest of the last four running sums."""
    sums = running(b, b.conv(b.input("x", b.batch, WIDTH, "T"), CENTRE, WIDTH, WIDTH))
    return [b.op("MaxPool", sums, kernel_shape=[4], pads=[3, 0], called="y")]


def decaying(b: Builder) -> list[str]:
    """Σ x[j]·e^(a(j − i)): an exponential average, written by positions."""
    x = b.conv(b.input("x", b.batch, WIDTH, "T"), AHEAD, WIDTH, WIDTH)
    rate = b.op("Mul", counts(b, x, 2, "range"), b.const(0.02))
    sums = running(b, b.op("Mul", x, b.op("Exp", rate)))
    return [b.op("Mul", sums, b.op("Exp", b.op("Neg", rate)), called="y")]


def differences(b: Builder) -> list[str]:
    """A sum over a sliding window: the running sum less what it was three frames ago."""
    sums = running(b, b.conv(b.input("x", b.batch, WIDTH, "T"), AHEAD, WIDTH, WIDTH))
    late = b.op("Pad", sums, b.ints(0, 0, 3, 0, 0, -3))
    return [b.op("Sub", sums, late, called="y")]


def linear_attention(front: Window | None, exclusive: int = 0) -> Write:
    """q·Σ k vᵀ over q·Σ k, both sums of all frames so far."""

    def write(b: Builder) -> list[str]:
        x = b.input("x", b.batch, WIDTH, "T")
        if front is not None:
            x = b.conv(x, front, WIDTH, WIDTH)
        x = b.transpose(x, 0, 2, 1)
        q, k = (b.op("Exp", b.op("Tanh", b.op("MatMul", x, b.weight(WIDTH, 3)))) for _ in range(2))
        v = b.op("MatMul", x, b.weight(WIDTH, 2))
        outer = b.op("Mul", b.unsqueeze(k, 3), b.unsqueeze(v, 2))
        memory = running(b, outer, 1, exclusive=exclusive)
        weight = b.op("Add", running(b, k, 1, exclusive=exclusive), b.const(0.01))
        top = b.op("Squeeze", b.op("MatMul", b.unsqueeze(q, 2), memory), b.ints(2))
        below = b.op("ReduceSum", b.op("Mul", q, weight), b.ints(2), keepdims=1)
        return [b.op("Div", top, below, called="y")]

    return write


def linear_attention_einsum(b: Builder) -> list[str]:
    x = b.transpose(b.conv(b.input("x", b.batch, WIDTH, "T"), CENTRE, WIDTH, WIDTH), 0, 2, 1)
    q, k = (b.op("Softmax", b.op("MatMul", x, b.weight(WIDTH, 3)), axis=-1) for _ in range(2))
    memory = running(b, b.op("Einsum", k, x, equation="btd,bte->btde"), 1)
    return [b.op("Einsum", q, memory, equation="btd,btde->bte", called="y")]


def folded_sum(b: Builder) -> list[str]:
    """Time folded into the batch: a sum over the channels."""
    x = b.input("x", b.batch, "T", 4)
    flat = running(b, b.reshape(x, -1, 4), 1)
    return [b.op("Reshape", flat, b.op("Shape", x), called="y")]


def behind_stride(b: Builder) -> list[str]:
    sums = running(b, b.conv(b.input("x", b.batch, WIDTH, "T"), EVEN, WIDTH, WIDTH), exclusive=1)
    up = b.op("Resize", sums, "", b.const(np.array([1, 1, 2], np.float32)), mode="nearest", called="y",
              coordinate_transformation_mode="asymmetric", nearest_mode="floor")  # fmt: skip
    return [up]


def padded_sum(before: int, behind: int) -> Write:
    def write(b: Builder) -> list[str]:
        x = b.op("Pad", b.input("x", 1, WIDTH, "T"), b.ints(0, 0, before, 0, 0, behind), b.const(0.5))
        return [b.op("CumSum", x, b.scalar(2), called="y")]

    return write


PREFIX = {
    "sum": graph(summed(2)),
    "sum_batch": graph(summed(2), batch="B"),
    "sum_last": graph(summed(-1, front=AHEAD), batch="B"),
    "sum_first": graph(summed(0, dims=("T", "B", WIDTH)), batch="B"),
    "sum_middle": graph(summed(1, dims=("B", "T", 3, WIDTH)), batch="B"),
    "sum_exclusive": graph(summed(2, exclusive=1)),
    "sum_exclusive_ahead": graph(summed(2, front=AHEAD, exclusive=1), batch="B"),
    "sum_ahead": graph(summed(2, front=CENTRE)),
    "sum_before": graph(summed(2, front=BEFORE)),
    "sum_valid": graph(summed(2, front=VALID), shortest=4),
    "sum_of_sums": graph(summed(2, 2, front=AHEAD)),
    "sum_of_sums_exclusive": graph(summed(2, 2, front=CENTRE, exclusive=1), batch="B"),
    "channels": graph(summed(1, front=AHEAD)),
    "channels_backwards": graph(summed(1, front=AHEAD, reverse=1)),
    "channels_then_time": graph(summed(1, -1, front=AHEAD), batch="B"),
    "features_exclusive": graph(summed(3, 1, 2, dims=("B", "T", 3, WIDTH), exclusive=1)),
    "int64": graph(of_type(np.int64), dtypes={"y": np.int64}),
    "int32": graph(of_type(np.int32), dtypes={"y": np.int32}),
    "double": graph(of_type(np.float64), dtypes={"y": np.float64}),
    "padded_front": graph(padded_sum(3, 0)),
    "padded_behind": graph(padded_sum(0, 2)),
    "cut_front": graph(padded_sum(-2, 0), shortest=3),
    "cut_behind": graph(padded_sum(1, -2), shortest=2),
    "mean_by_range": graph(running_mean("range")),
    "mean_by_range_ahead": graph(running_mean("range", CENTRE), batch="B"),
    "mean_by_ones": graph(running_mean("ones"), batch="B"),
    "mean_by_ones_ahead": graph(running_mean("ones", AHEAD)),
    "variance": graph(running_variance),
    "variance_batch": graph(running_variance, batch="B"),
    "layer_norm": graph(cumulative_layer_norm(None)),
    "layer_norm_ahead": graph(cumulative_layer_norm(CENTRE), batch="B"),
    "soft_maximum": graph(soft_maximum),
    "peak_of_sums": graph(peak_of_sums, batch="B"),
    "decaying": graph(decaying),
    "differences": graph(differences, shortest=4),
    "product": graph(product(0), opset=26),
    "product_exclusive": graph(product(1), opset=26, batch="B"),
    "product_ahead": graph(product(0, AHEAD), opset=26, batch="B"),
    "product_exclusive_ahead": graph(product(1, CENTRE), opset=26),
    "linear_attention": graph(linear_attention(None)),
    "linear_attention_ahead": graph(linear_attention(AHEAD), batch="B"),
    "linear_attention_exclusive": graph(linear_attention(CENTRE, exclusive=1), batch="B"),
    "linear_attention_einsum": graph(linear_attention_einsum),
    "folded_sum": graph(folded_sum, batch="B"),
    "behind_stride": graph(behind_stride, shortest=2),
}


# ---- mixed


def conv_gru_conv(b: Builder) -> list[str]:
    """Two blocks, each with a residual of its own and one around both."""
    x = first = b.input("x", b.batch, WIDTH, "T")
    for i, cell in enumerate((GRU, LSTM)):
        y = b.conv(b.over_time(b.conv(x, CENTRE, WIDTH, 3), cell, 3, f"r{i}"), Window(5, 2, 2), cell.hidden, WIDTH)
        x = b.op("Add", x, b.op("Tanh", y))
    return [b.op("Add", x, first, called="y"), "r0_h", "r1_c"]


def down_and_up(up: str, cell: Cell) -> Write:
    """A recurrence at half the rate, beside the frames at the full one."""

    def write(b: Builder) -> list[str]:
        x = b.input("x", b.batch, WIDTH, "T")
        even = b.op("Pad", x, b.op("Concat", b.ints(0, 0, 0, 0, 0), _odd(b, x), axis=0))
        slow = b.over_time(b.conv(even, EVEN, WIDTH, 3), cell, 3)
        if up == "ConvTranspose":
            fast = b.op("ConvTranspose", slow, b.weight(cell.hidden, WIDTH, 4), strides=[2], pads=[1, 1])
        else:
            scales = b.const(np.array([1, 1, 2], np.float32))
            fast = b.op("Resize", slow, "", scales, mode=up, coordinate_transformation_mode="asymmetric",
                        nearest_mode="floor")  # fmt: skip
            fast = b.op("MatMul", b.weight(WIDTH, cell.hidden), fast)
        fast = b.slice(fast, 2, b.ints(0), b.vector(b.size(x, 2)))
        return [b.op("Add", fast, x, called="y"), "r_h"]

    return write


def _odd(b: Builder, x: str) -> str:
    """One frame more, if their number is odd; int64 [1]."""
    return b.op("Mod", b.vector(b.size(x, 2)), b.ints(2))


def two_rates(b: Builder) -> list[str]:
    """A slow recurrence steers a fast one; both have a final state."""
    x = b.input("x", b.batch, WIDTH, "T")
    slow = b.over_time(b.conv(x, Window(2, 0, 1, 2), WIDTH, 3), GRU, 3, "slow")
    fast = b.op("Resize", slow, "", b.const(np.array([1, 1, 2], np.float32)), mode="nearest",
                coordinate_transformation_mode="asymmetric", nearest_mode="floor")  # fmt: skip
    fast = b.slice(fast, 2, b.ints(0), b.vector(b.size(x, 2)))
    y = b.over_time(b.op("Concat", x, fast, axis=1), LSTM, WIDTH + 3, "fast")
    return [b.op("Identity", y, called="y"), "slow_h", "fast_h", "fast_c"]


def length_behind_stride(b: Builder) -> list[str]:
    """sequence_lens from the input `length`, as many as the stride leaves."""
    x = b.conv(b.input("x", b.batch, WIDTH, "T"), Window(3, 1, 1, 2), WIDTH, WIDTH)
    length = b.input("length", b.batch, dtype=np.int64)
    frames = b.op("Div", b.op("Add", length, b.scalar(1)), b.scalar(2))
    w, r = b.weight(1, 9, WIDTH), b.weight(1, 9, 3)
    rows = b.transpose(x, 2, 0, 1)
    b.node("GRU", [rows, w, r, "", b.cast(frames, np.int32)], ["r", "r_h"], hidden_size=3)
    return ["r", "r_h", b.op("Identity", frames, called="frames")]


def beside_attention(cell: Cell, mask: Mask) -> Write:
    """A recurrence and chunk-masked attention read the same frames; their results are added."""

    def write(b: Builder) -> list[str]:
        x = b.transpose(b.input("x", b.batch, WIDTH, "T"), 0, 2, 1)
        q, k, v = (b.op("MatMul", x, b.weight(WIDTH, 3)) for _ in range(3))
        size = b.size(x, 1)
        allowed = MaskWriter(b, Writing(), (size, size)).write(mask)
        scores = b.op("Where", allowed, b.op("MatMul", q, b.transpose(k, 0, 2, 1)), b.const(-np.inf))
        seen = b.op("MatMul", b.op("Softmax", scores, axis=-1), v)
        heard = b.transpose(b.merged(b.recurrent(b.transpose(x, 1, 0, 2), cell, WIDTH), cell), 1, 0, 2)
        return [b.op("Add", seen, heard, called="y"), "r_h"]

    return write


def behind_attention(b: Builder) -> list[str]:
    """The attention waits for its chunk, so the recurrence starts in the middle of a pulse."""
    x = b.transpose(b.input("x", b.batch, WIDTH, "T"), 0, 2, 1)
    size = b.size(x, 1)
    allowed = MaskWriter(b, Writing("float", "not"), (size, size)).write(Mask("chunk", 3, 1))
    scores = b.op("Where", allowed, b.op("MatMul", x, b.transpose(x, 0, 2, 1)), b.const(-1e4))
    seen = b.transpose(b.op("MatMul", b.op("Softmax", scores, axis=-1), x), 1, 0, 2)
    return [b.recurrent(seen, replace(LSTM, initial="computed"), WIDTH), "r_h", "r_c"]


def two_inputs(b: Builder) -> list[str]:
    """One of two streams is looked ahead in, both go into the same cell."""
    x, z = b.input("x", b.batch, WIDTH, "T"), b.input("z", b.batch, WIDTH, "T")
    both = b.op("Concat", b.conv(x, AHEAD, WIDTH, WIDTH), z, axis=1)
    return [b.op("Identity", b.over_time(both, GRU, 2 * WIDTH), called="y"), "r_h"]


def same_weights_twice(b: Builder) -> list[str]:
    """Two cells of one set of weights keep two states."""
    x = b.transpose(b.input("x", b.batch, 3, "T"), 2, 0, 1)
    w, r = b.weight(1, 9, 3), b.weight(1, 9, 3)
    b.node("GRU", [x, w, r], ["one", "one_h"], hidden_size=3)
    b.node("GRU", [b.op("Squeeze", "one", b.ints(1)), w, r], ["two", "two_h"], hidden_size=3)
    return ["two", "one_h", "two_h"]


def verdict(b: Builder) -> list[str]:
    """A score of the final state, and none of the frames."""
    b.over_time(b.conv(b.input("x", b.batch, WIDTH, "T"), CENTRE, WIDTH, WIDTH), LSTM, WIDTH)
    state = b.op("Concat", "r_h", "r_c", axis=2)
    score = b.op("MatMul", b.op("Squeeze", state, b.ints(0)), b.weight(2 * LSTM.hidden, 2))
    return [b.op("Softmax", score, axis=-1, called="y")]


def conditioned(b: Builder) -> list[str]:
    """A short sequence that does not stream is read first; its final state is where the stream starts."""
    voice = b.input("voice", 5, b.batch, WIDTH)
    w, r = b.weight(1, 9, WIDTH), b.weight(1, 9, 3)
    b.node("GRU", [voice, w, r], ["", "style"], hidden_size=3)
    x = b.transpose(b.conv(b.input("x", b.batch, WIDTH, "T"), AHEAD, WIDTH, WIDTH), 2, 0, 1)
    b.node("GRU", [x, w, r, "", "", "style"], ["r", "r_h"], hidden_size=3)
    return ["r", "r_h"]


def gated_by_sums(b: Builder) -> list[str]:
    """A running mean normalises what a recurrence reads, and gates what it gives."""
    x = b.conv(b.input("x", b.batch, WIDTH, "T"), AHEAD, WIDTH, 3)
    mean = b.op("Div", running(b, x), counts(b, x, 2, "range"))
    y = b.over_time(b.op("Sub", x, mean), GRU, 3)
    return [b.op("Mul", y, b.op("Sigmoid", mean), called="y"), "r_h"]


MIXED = {
    "conv_gru_conv": graph(conv_gru_conv),
    "conv_gru_conv_batch": graph(conv_gru_conv, batch="B"),
    "down_and_transposed": graph(down_and_up("ConvTranspose", GRU)),
    "down_and_transposed_batch": graph(down_and_up("ConvTranspose", LSTM), batch="B"),
    "down_and_nearest": graph(down_and_up("nearest", RNN)),
    "down_and_linear": graph(down_and_up("linear", replace(LSTM, initial="computed"))),
    "down_and_nearest_batch": graph(down_and_up("nearest", GRU), batch="B"),
    "two_rates": graph(two_rates, shortest=2),
    "length_behind_stride": graph(length_behind_stride, batch="B", dtypes={"frames": np.int64}),
    "beside_attention": graph(beside_attention(RNN, Mask("chunk", 4, 1))),
    "beside_attention_batch": graph(beside_attention(LSTM, Mask("chunk", 3, 2)), batch="B"),
    "beside_look_ahead": graph(beside_attention(GRU, Mask("token", 1, 3, 2)), batch="B"),
    "behind_attention": graph(behind_attention),
    "behind_attention_batch": graph(behind_attention, batch="B"),
    "two_inputs": graph(two_inputs, batch="B"),
    "same_weights_twice": graph(same_weights_twice),
    "verdict": graph(verdict),
    "verdict_batch": graph(verdict, batch="B"),
    "conditioned": graph(conditioned, batch="B"),
    "gated_by_sums": graph(gated_by_sums, batch="B"),
}

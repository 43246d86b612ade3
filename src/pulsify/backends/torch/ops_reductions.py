"""Operators that make one number of many: sums and the like, softmax, running sums."""

from __future__ import annotations

from pulsify.backends.site import Uncovered
from pulsify.backends.torch.site import Site
from pulsify.backends.torch.table import Written, op

AXES_ARE_INPUTS = {"ReduceSum": 13}  # the others: 18


def wide(n: Site, text: str) -> tuple[str, str]:
    """An expression in float32 where the type is lower, and what leads back."""
    narrow = n.kind() in ("float16", "bfloat16")
    return (f"{text}.float()", f".to(torch.{n.kind()})") if narrow else (text, "")


def _axes(n: Site) -> tuple[int, ...] | None:
    """None: it does nothing."""
    if n.opset >= AXES_ARE_INPUTS.get(n.op, 18):
        given = n.ints(1, "axes") if n.has(1) else []
    else:
        given = [int(a) for a in n.attr("axes", ())]
    if not given and n.attr("noop_with_empty_axes", 0):
        return None
    return tuple(sorted(a % n.rank() for a in given)) or tuple(range(n.rank()))


@op(
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
    "ReduceLogSumExp", "ReduceSumSquare",
)  # fmt: skip
def reduce(n: Site) -> Written:
    axes, keep = _axes(n), bool(n.attr("keepdims", 1))
    if axes is None or n.rank() == 0:
        if n.op not in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"):
            raise Uncovered("over no axes")
        return n.x()
    x, back = wide(n, n.x())
    end = f"{axes if len(axes) > 1 else axes[0]}, {keep}"
    whole = "" if n.floating() else f", dtype=torch.{n.made()}"
    if n.op == "ReduceProd":
        for axis in reversed(axes):
            x = f"torch.prod({x}, {axis}, {keep}{whole})"
        return x + back
    if n.op == "ReduceMean" and not n.floating():
        raise Uncovered("of integers")
    forms = {
        "ReduceSum": f"torch.sum({x}, {end}{whole})", "ReduceMean": f"torch.mean({x}, {end})",
        "ReduceMax": f"torch.amax({x}, {end})", "ReduceMin": f"torch.amin({x}, {end})",
        "ReduceL1": f"torch.sum({x}.abs(), {end}{whole})", "ReduceL2": f"torch.sum({x}.square(), {end}{whole}).sqrt()",
        "ReduceLogSum": f"torch.sum({x}, {end}).log()", "ReduceLogSumExp": f"torch.logsumexp({x}, {end})",
        "ReduceSumSquare": f"torch.sum({x}.square(), {end}{whole})",
    }  # fmt: skip
    if not n.floating() and n.op in ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp"):
        raise Uncovered("of integers")
    return forms[n.op] + back


@op("Softmax", "LogSoftmax")
def softmax(n: Site) -> Written:
    """Before opset 13 all axes from this one on are one."""
    name = "torch.softmax" if n.op == "Softmax" else "torch.log_softmax"
    axis, (x, back) = n.axis(default=-1 if n.opset >= 13 else 1), wide(n, n.x())
    if n.opset >= 13 or axis == n.rank() - 1:
        return f"{name}({x}, {axis}){back}"
    return f"{name}({x}.flatten({axis}), -1).reshape({n.x()}.shape){back}"


@op("CumSum", "CumProd")
def running(n: Site) -> Written:
    (axis,), (x, back) = n.ints(1, "axis"), wide(n, n.x())
    axis %= n.rank()
    exclusive, backwards = bool(n.attr("exclusive", 0)), bool(n.attr("reverse", 0))
    return f"op.running({n.op == 'CumProd'}, {x}, {axis}, {exclusive}, {backwards}){back}"


@op("Hardmax")
def hardmax(n: Site) -> Written:
    if n.opset < 13:
        raise Uncovered("over several axes at once, as it was before opset 13")
    axis = n.axis(default=-1)
    return f"F.one_hot({n.x()}.argmax({axis}), {n.sizes()[axis]}).movedim(-1, {axis}).to(torch.{n.made()})"

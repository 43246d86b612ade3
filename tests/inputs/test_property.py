"""Properties: declared lengths keep what they promise, equations are written out as NumPy reads them, folds hold."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pulsify
from pulsify.core.equation import explicit
from pulsify.frontend.time import Lengths, find_time
from tests.inputs.check import check
from tests.inputs.graphs import decided, folded
from tests.models import model, node
from tests.unit.frontend.test_time import of

FEW = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


@given(st.integers(1, 12), st.integers(0, 40), st.one_of(st.none(), st.integers(50, 500)), st.integers(1, 300))
def test_declared_lengths_are_those_of_the_formula(every: int, more: int, most: int | None, length: int) -> None:
    text = f"{every}*n+{more}" + (f" <={most}" if most else "")
    if every == 1 and not more and most is None:
        return
    found = find_time(of({"x": [1, 2, "T"]}), set={"T": text}).lengths
    assert found == Lengths(every, more % every, max(more, 1), most)
    there = [n * every + more for n in range(400) if n * every + more >= max(length, 1)]
    assert found.next(length) == min(there) and found.next(length) % found.step == 0


@FEW
@given(st.integers(2, 9), st.integers(0, 8), st.integers(2, 18), st.integers(0, 17))
def test_a_branch_on_the_length_is_exact_at_declared_lengths(by: int, rest: int, every: int, more: int) -> None:
    """Either all declared lengths are decided alike and the stream is exact, or it is refused."""
    proto = decided([node("Mod", "t by", "r"), node("Equal", "r is", "c")], by=by, **{"is": rest % by})
    lengths = [n * every + more for n in range(1, 20)]
    alike = len({n % by == rest % by for n in [more or every, *lengths]}) == 1
    given = {"T": f"{every}*n+{more}"}
    if alike:
        check(proto, 4, lengths[:6], set=given)
    else:
        with pytest.raises(pulsify.NotStreamable, match="decided otherwise"):
            pulsify.stream(proto, pulse=4, set=given)


@given(st.data())
def test_equations_are_written_out_as_numpy_reads_them(data: st.DataObject) -> None:
    sizes = dict(zip("abcd", (2, 3, 4, 5), strict=True))
    hidden = data.draw(st.integers(0, 2))
    terms, shapes = [], []
    for _ in range(data.draw(st.integers(1, 2))):
        letters = "".join(data.draw(st.permutations("abcd"))[: data.draw(st.integers(1, 3))])
        at = data.draw(st.integers(0, len(letters)))
        terms.append(letters[:at] + "..." + letters[at:])
        shapes.append([*(sizes[c] for c in letters[:at]), *([6, 7][:hidden]), *(sizes[c] for c in letters[at:])])
    kept = sorted({c for t in terms for c in t if c != "."})
    result = data.draw(st.sampled_from(["", "->..." + "".join(kept), "->" + "".join(reversed(kept)) + "..."]))
    equation = ",".join(terms) + result
    arrays = [np.random.default_rng(i).standard_normal(s) for i, s in enumerate(shapes)]
    written = explicit(equation, [len(s) for s in shapes])
    assert "." not in written
    np.testing.assert_allclose(np.einsum(written, *arrays), np.einsum(equation, *arrays))


POINTWISE = {
    "relu": lambda a, b: node("Relu", a, b),
    "softmax": lambda a, b: node("Softmax", a, b, axis=1),
    "scale": lambda a, b: node("Mul", f"{a} {a}", b),
    "turn": lambda a, b: node("Identity", a, b),
}


@FEW
@given(st.lists(st.sampled_from(sorted(POINTWISE)), min_size=1, max_size=4), st.integers(1, 3), st.integers(1, 5))
def test_chains_on_streams_folded_behind_time(chain: list[str], heads: int, pulse: int) -> None:
    names = ["f", *(f"n{i}" for i in range(len(chain) - 1)), "g"]
    nodes: list[onnx.NodeProto] = [POINTWISE[op](a, b) for op, a, b in zip(chain, names, names[1:], strict=False)]
    check(folded(*nodes, heads=2 if heads == 2 else 1), pulse, [1, 2, 5, 11], batch=heads)


def test_a_model_without_declared_lengths_takes_all() -> None:
    assert find_time(of({"x": [1, 2, "T"]})).lengths == Lengths()
    assert pulsify.stream(model([node("Neg", "x", "y")], {"x": [1, 2, "T"]}, ["y"]), pulse=4).spec.shortest == 1

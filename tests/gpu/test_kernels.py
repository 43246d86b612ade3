"""Kernels on a card, all sizes: python -m pytest tests/gpu/test_kernels.py -m gpu"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsify.kernels.checking import TYPES
from pulsify.kernels.registry import Case
from pulsify.kernels.stream_attention import cases
from pulsify.kernels.stream_attention.cases import CASES, Shape
from tests.unit.kernels.stream_attention.properties import CLAIMS, On

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]
TARGETS = ["triton", "torch"]
FULL = {"ring": True, "relative": True, "biased": True}


def on(target: str, dtype: str) -> On:
    if target == "triton":
        pytest.importorskip("triton", reason="Triton is not installed")
    return On(target, dtype, "cuda")


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case: Case, target: str, dtype: str) -> None:
    on(target, dtype).holds(case.make())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.__name__)
@given(data=st.data())
@settings(max_examples=20, deadline=None, derandomize=True)
def test_claim(claim: Any, dtype: str, data: st.DataObject) -> None:
    claim(on("triton", dtype), data)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("depth", "queries"), list(product((3, 80, 128, 256), (1, 14, 64))))
def test_depths_and_queries(depth: int, queries: int, dtype: str) -> None:
    """In one tile and in blocks, shared by several programs or not, with new frames."""
    for width in (70, 1024):
        on("triton", dtype).holds(cases.inputs(Shape(2, 2, queries, depth, width, queries, **FULL)))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("queries", [1, 16])
@pytest.mark.parametrize("width", [1024, 4097, 8192])
@pytest.mark.parametrize("batch", [1, 64])
def test_long_windows(batch: int, width: int, queries: int, dtype: str) -> None:
    on("triton", dtype).holds(cases.inputs(Shape(batch, 1, queries, 64, width, queries, **FULL)))


@pytest.mark.parametrize("queries", range(1, 65))
def test_any_number_of_queries(queries: int) -> None:
    on("triton", "bfloat16").holds(cases.inputs(Shape(1, 2, queries, 64, 70, queries, **FULL)))


def flagship(dtype: str, batch: int = 128, queries: int = 14) -> dict[str, Any]:
    from pulsify.kernels import checking

    shape = Shape(batch, 8, queries, 128, 70, queries, **FULL)
    made = checking.rounded(cases.inputs(shape), dtype)
    return {name: checking.tensor(value, "cuda", dtype) for name, value in made.items()}


@pytest.mark.parametrize("queries", [14, 1])
@pytest.mark.parametrize("dtype", TYPES)
def test_a_recording_is_eager_to_the_last_bit_and_nothing_waits(dtype: str, queries: int) -> None:
    """Pulse after pulse, appended in place; addresses stay, starts move on."""
    from pulsify.kernels.stream_attention.operator import chosen, stream_attention

    assert chosen("cuda") == "triton"
    own, other = flagship(dtype, queries=queries), flagship(dtype, queries=queries)
    want = []
    for _ in range(6):
        want.append(stream_attention(**own).clone())
        own["start"].add_(queries).remainder_(70)
    kept = {name: value.clone() for name, value in other.items() if name in ("keys", "values", "start")}
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        stream_attention(**other)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = stream_attention(**other)
        other["start"].add_(queries).remainder_(70)
    for name, value in kept.items():
        other[name].copy_(value)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        got = []
        for _ in range(6):
            graph.replay()
            got.append(made.clone())
        stream_attention(**other)  # eager: nothing waits either
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True))


def test_torch_compile_takes_it_whole() -> None:
    from pulsify.kernels.stream_attention.operator import stream_attention

    def step(q: Any, **others: Any) -> Any:
        return stream_attention(q * 1.0, **others) * 2.0

    own, other = flagship("bfloat16", batch=4), flagship("bfloat16", batch=4)
    got, want = torch.compile(step, fullgraph=True)(**own), step(**other)
    assert torch.equal(got, want)
    assert torch.equal(own["keys"], other["keys"]) and torch.equal(own["values"], other["values"])

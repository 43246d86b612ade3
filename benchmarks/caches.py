"""Key/value caches, three ways, by size: joined and cut (the portable form), ring, ring with fused attention.

    python -m benchmarks.caches

One attention layer (scores, softmax, values) per line, one thread, states bound once; microseconds per pulse, the
best of several interleaved rounds. `SMALLEST` in pulsify/backends/ort/ring.py is set by what this prints.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx_ir.passes import PassResult

import pulsify
from benchmarks.encoder import _mask, _Writer  # the same mask as the encoder's
from pulsify.backends.ort import ring
from pulsify.backends.ort.attention import FuseAttention
from pulsify.runtime.session import Session

SIZES = [(4, 8, 4, 8), (4, 16, 4, 8), (4, 16, 8, 16), (4, 32, 4, 16), (4, 64, 4, 32), (8, 64, 4, 64), (8, 64, 8, 128)]


def attention(heads: int, depth: int, chunk: int, left: int) -> onnx.ModelProto:
    """q, k, v [1, T, heads * depth] in, the attended values out; every chunk sees `left` chunks before it."""
    w = _Writer()
    split = w.constant([0, 0, heads, depth])
    q, k, v = (w.op("Transpose", w.op("Reshape", x, split), perm=[0, 2, 1, 3]) for x in ("q", "k", "v"))
    scores = w.op("MatMul", q, w.op("Transpose", k, perm=[0, 1, 3, 2]))
    scaled = w.op("Mul", scores, w.constant(depth**-0.5, np.float32))
    hidden = w.op("Where", _mask(w, "q", chunk, left), scaled, w.constant(-np.inf, np.float32))
    seen = w.op("MatMul", w.op("Softmax", hidden, axis=-1), v)
    out = w.op("Reshape", w.op("Transpose", seen, perm=[0, 2, 1, 3]), w.constant([0, 0, heads * depth]))
    dims = [1, "T", heads * depth]
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, dims) for n in ("q", "k", "v")]
    made = helper.make_tensor_value_info(out, TensorProto.FLOAT, dims)
    graph = helper.make_graph(w.nodes, "attention", info, [made], w.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _session(model: onnx.ModelProto, chunk: int, smallest: int, fuse: bool) -> Session:
    kept = FuseAttention.call
    if not fuse:
        FuseAttention.call = lambda _, model: PassResult(model, False)  # type: ignore[method-assign]
    ring.SMALLEST, before = smallest, ring.SMALLEST
    try:
        return pulsify.stream(model, pulse=chunk, verify=False).session(check=False)
    finally:
        FuseAttention.call, ring.SMALLEST = kept, before  # type: ignore[method-assign]


def _pulse(session: Session, heads: int, depth: int, chunk: int) -> Callable[[], None]:
    rng = np.random.default_rng(0)
    x = {n: rng.standard_normal((1, chunk, heads * depth), np.float32) for n in ("q", "k", "v")}

    def run() -> None:
        session.push(x)

    for _ in range(300):  # warm, and past the start
        run()
    return run


def _best(ways: list[Callable[[], None]], rounds: int = 15, calls: int = 100) -> list[float]:
    best = [np.inf] * len(ways)
    for _ in range(rounds):
        for i, way in enumerate(ways):
            start = time.perf_counter()
            for _ in range(calls):
                way()
            best[i] = min(best[i], (time.perf_counter() - start) / calls * 1e6)
    return best


def main() -> None:
    print(f"{'heads depth chunk left':24} {'cache KB':>9} {'joined':>9} {'ring':>9} {'fused':>9}  µs per pulse")
    for heads, depth, chunk, left in SIZES:
        model = attention(heads, depth, chunk, left)
        ways = [(1 << 62, False), (0, False), (0, True)]
        runs = [_pulse(_session(model, chunk, *way), heads, depth, chunk) for way in ways]
        times = _best(runs)
        kb = heads * depth * chunk * left * 4 // 1024
        print(f"{heads:5} {depth:5} {chunk:5} {left:5} {kb:10} " + " ".join(f"{t:9.1f}" for t in times), flush=True)


if __name__ == "__main__":
    main()

"""The delay is the smallest there is.

What an output frame truly depends on is found by disturbing the input of the batch model frame by frame; when it is
certain, the stream ending or not, by running the batch model at every length. From both follows the smallest delay at
which no frame is due before it can be known.
"""

from __future__ import annotations

import math
import os
import re

import numpy as np
import onnx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.property.check import Batch, convert, smallest_delay, smallest_latency
from tests.property.graph import Array, Graph, Tensor
from tests.property.strategies import FAMILIES, Draw, Fragment, pick, runs, sandwiched, whole

EXAMPLES = int(os.environ.get("PULSIFY_EXAMPLES", 0))
FACTORS = st.sampled_from([None, 2, 3, 1, 5])
LENGTH = 72
# Where the smallest delay is not reached: a transposed convolution that is dilated, or has a stride longer than its
# kernel, leaves holes, so that some output frames depend on less than their whole window; so does a cubic curve; a
# mirrored front may not be read before it is there.
HOLES = re.compile(
    r"ConvTranspose.*'dilations': \[(1, )?[23]"
    r"|ConvTranspose.*'kernel_shape': \[(1, )?(1\], 'strides': \[(1, )?[2-9]|2\], 'strides': \[(1, )?[3-9])"
    r"|'mode': 'cubic'|'mode': 'reflect'|pytorch_half_pixel"
)
WINDOWED = [
    "conv", "conv_transpose", "zero_ends", "interpolate", "max_pool", "average_pool", "local_response", "pad", "slice",
    "gather", "expand", "resize",
]  # fmt: skip


class Dependence:
    """Of the batch model's only output on its input, at one length."""

    def __init__(self, graph: Graph, made: Tensor, length: int = LENGTH) -> None:
        self.batch, self.axis, self.length = Batch(rough(graph.model([made]))), made.axis, length
        self.name = self.batch.names[0]
        self.shape = (1, graph.channels, length)

    def run(self, x: Array) -> Array | None:
        out = self.batch.run(x)
        return None if out is None else np.moveaxis(out[self.name], self.axis, 0)

    def last_read(self) -> list[int]:
        """For every output frame, the last input frame that changes it (-1: none does)."""
        last: list[int] = []
        for seed in range(3):
            x = np.random.default_rng(seed).normal(size=self.shape).astype(np.float32)
            plain = self.run(x)
            assert plain is not None
            last = last or [-1] * len(plain)
            for j in range(self.length):
                for amount in (50.0, -50.0, 0.3):
                    other = x.copy()
                    other[..., j] += amount
                    now = self.run(other)
                    assert now is not None
                    changed = (now != plain).reshape(len(plain), -1).any(1)
                    last = [max(k, j) if c else k for k, c in zip(last, changed, strict=True)]
        return last

    def settled_from(self) -> list[int]:
        """For every output frame, the number of input frames from which on it is what it is in the end.

        A stream may end anywhere: a frame is known once the batch model says the same of it at all longer lengths.
        """
        x = np.random.default_rng(0).normal(size=self.shape).astype(np.float32)
        final = self.run(x)
        assert final is not None
        out = [1] * len(final)
        for s in range(1, self.length):
            short = self.run(x[..., :s])
            if short is not None:
                out = [s + 1 if not alike(short, final, k) else n for k, n in enumerate(out)]
        return out


def alike(a: Array, b: Array, k: int) -> bool:
    return k < len(a) and bool(np.allclose(a[k], b[k], rtol=1e-4, atol=1e-4 * np.abs(b).max()))


def rough(model: onnx.ModelProto) -> onnx.ModelProto:
    """Float weights made irregular, so that no two contributions cancel."""
    rng = np.random.default_rng(1)
    for tensor in model.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        if array.dtype == np.float32 and array.ndim >= 3 and array.size > 1:  # kernels, not scales
            noisy = (array * rng.uniform(0.5, 1.5, array.shape)).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(noisy, tensor.name))
    return model


def check_delay(graph: Graph, made: Tensor, factor: int | None) -> None:
    stream = convert(graph.model([made]), factor)
    spec = stream.spec
    some = any(c.multiple > 1 or c.equals for c in spec.conditions)
    if some or spec.shortest > LENGTH // 3 or stream.pulse > LENGTH // 4:
        return  # too long to be measured, or not at every length
    dependence = Dependence(graph, made)
    read = dependence.last_read()
    inside = len(read) * 3 // 4  # frames near the end show the end instead
    needed = [max(r + 1, n) for r, n in zip(read, dependence.settled_from(), strict=True)][:inside]
    out = stream.outputs[0]
    pulses = (LENGTH * 3 // 4) // stream.pulse
    want = smallest_delay(needed, stream.pulse, out.frames, pulses, spec.opening, spec.phase)
    more = interpolations(graph.model([made])) * (-(-out.frames // stream.pulse) + 1)
    said = f"pulse {stream.pulse}, phase {spec.phase}: delay {out.delay}, {want} would do\n{graph!r}"
    assert want <= out.delay <= want + more, said
    places = [math.floor((k + 1) / out.rate) for k in range(len(needed))]  # the stream's frames up to the end of one
    begun = min(n - place for n, place in zip(needed, places, strict=True))
    assert 0 <= out.start_up <= max(begun, 0), f"start-up {out.start_up}, frames are there after {begun}\n{graph!r}"
    least = smallest_latency(needed, stream.pulse, out.frames, pulses, spec.opening, out.start_up)
    said = f"pulse {stream.pulse}, phase {spec.phase}: latency {stream.latency}, {least} would do\n{graph!r}"
    assert least <= stream.latency < least + more / out.rate + 1, said


def interpolations(model: onnx.ModelProto) -> int:
    """Linear Resizes read one frame more: the runtime's places are rounded, ever more coarsely."""
    linear = onnx.helper.make_attribute("mode", "linear")
    return sum(n.op_type == "Resize" and linear in n.attribute for n in model.graph.node)


@pytest.mark.parametrize("family", WINDOWED)
@settings(max_examples=EXAMPLES or 3)
@given(data=st.data())
def test_smallest_delay(family: str, data: st.DataObject) -> None:
    graph, outputs = data.draw(sandwiched(family))
    assume(not graph.may_refuse and not HOLES.search(repr(graph)))
    check_delay(graph, outputs[0], data.draw(FACTORS))


CAUSAL: list[Fragment] = [f for name in ("elementwise", "norms", "products", "transpose") for f in FAMILIES[name]]


@st.composite
def causal_graphs(draw: Draw) -> tuple[Graph, Tensor]:
    """Convolutions padded in front only, and what works frame by frame."""
    graph = Graph()
    x = graph.input
    for _ in range(whole(draw, 1, 4)):
        x = pick(draw, causal_conv, *CAUSAL)(draw, graph, x)
    assume(graph.nodes and runs(graph, [x]))
    return graph, x


def causal_conv(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    x = graph.to(x, "BCT")
    kernel, dilation, stride = whole(draw, 1, 4), whole(draw, 1, 3), whole(draw, 1, 2)
    pads = [(kernel - 1) * dilation + 1 - stride if kernel > 1 else 0, 0]
    stride = stride if kernel > 1 else 1
    made = graph.op("Conv", x, graph.weights(2, x.c, kernel), pads=pads, dilations=[dilation], strides=[stride])
    return x.but(made, c=2, rate=x.rate / stride)


@settings(max_examples=EXAMPLES or 15)
@given(made=causal_graphs(), factor=FACTORS)
def test_causal_models_have_no_delay(made: tuple[Graph, Tensor], factor: int | None) -> None:
    graph, x = made
    stream = convert(graph.model([x]), factor)
    assert stream.outputs[0].delay == 0, repr(graph)
    assert stream.spec.length is None, f"the end cannot matter\n{graph!r}"


def conv(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    """Any padding, so that it looks ahead, or begins late."""
    kernel, stride = whole(draw, 1, 4), whole(draw, 1, 3)
    kernel = max(kernel, stride)
    pads = [whole(draw, 0, kernel - 1), whole(draw, 0, kernel - 1)]
    made = graph.op("Conv", graph.to(x, "BCT"), graph.weights(2, x.c, kernel), pads=pads, strides=[stride])
    return x.but(made, layout="BCT", c=2, rate=x.rate / stride)


def spread(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    stride = whole(draw, 1, 3)
    kernel = stride + whole(draw, 0, 2)
    made = graph.op("ConvTranspose", graph.to(x, "BCT"), graph.weights(x.c, 2, kernel), strides=[stride])
    return x.but(made, layout="BCT", c=2, rate=x.rate * stride)


def pooled(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    kernel = whole(draw, 2, 4)
    stride = whole(draw, 1, kernel)
    made = graph.op("AveragePool", graph.to(x, "BCT"), kernel_shape=[kernel], strides=[stride])
    return x.but(made, layout="BCT", rate=x.rate / stride)


def blocks(draw: Draw, graph: Graph, x: Tensor) -> Tensor:
    """Each frame beside the mean of its block; what is no whole block at the end is left out."""
    size, x = whole(draw, 2, 4), graph.to(x, "BCT")
    end = graph.op("Mul", graph.op("Div", graph.frames(x), graph.ints(size)), graph.ints(size))
    kept = graph.op("Slice", x, graph.ints(0), end, graph.ints(2))
    whole_blocks = graph.op("Reshape", kept, graph.ints(0, x.c, -1, size))
    mean = graph.op("ReduceMean", whole_blocks, graph.ints(3))
    return x.but(graph.op("Reshape", graph.op("Sub", whole_blocks, mean), graph.ints(0, x.c, -1)), layout="BCT")


@st.composite
def compositions(draw: Draw) -> tuple[Graph, Tensor]:
    graph = Graph()
    x = graph.input
    for _ in range(whole(draw, 2, 4)):
        x = pick(draw, conv, conv, spread, pooled, blocks)(draw, graph, x)
    assume(runs(graph, [x], 72))
    return graph, x


@settings(max_examples=EXAMPLES or 12)
@given(made=compositions(), factor=FACTORS)
def test_compositions_have_the_smallest_latency(made: tuple[Graph, Tensor], factor: int | None) -> None:
    check_delay(*made, factor)

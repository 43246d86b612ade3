"""The natural pulse: the one with the smallest latency, found by itself, and never later than the model must be."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import pulsify
from pulsify.convert import convert as conversion
from pulsify.convert.analyse import Outputs
from pulsify.frontend.time import TimeSpec
from pulsify.plan.context import Context
from tests.attention.graphs import build
from tests.attention.test_graphs import CASES
from tests.proof.net import Net, Wire
from tests.property.check import smallest_delay
from tests.side import Batch

LENGTH = 72


def encoder(layers: int, chunk: int, left: int = 1, stride: int = 1, ahead: int = 0) -> onnx.ModelProto:
    """Chunked attention, layer on layer; a convolution in front that strides, or looks ahead."""
    net = Net()
    y = net.x
    if stride > 1 or ahead:
        taps = np.random.default_rng(0).normal(size=(2, 2, max(stride, ahead + 1))).astype(np.float32)
        y = net.op("Conv", y, net.const(taps), strides=[stride], pads=[0, ahead])
    count = net.op("Shape", y).take(2)
    place = net.range(0, count, 1)
    behind = place.new(1) // chunk - place.new(0) // chunk
    seen = (behind >= 0) & (behind <= left)
    for _ in range(layers):
        y = y + _attention(net, y, seen)
    return net.model(y)


def _attention(net: Net, x: Wire, seen: Wire) -> Wire:
    q = x.by(0, 2, 1)
    return (net.op("Softmax", net.where(seen, (q @ x) * 0.1, -1e9), axis=-1) @ q).by(0, 2, 1)


def needed_by(model: onnx.ModelProto) -> list[int]:
    """For every output frame, the number of input frames it takes: found by disturbing each."""
    batch = Batch(model)
    x = np.random.default_rng(0).normal(size=(1, 2, LENGTH)).astype(np.float32)
    plain = batch.run({"x": x})["y"][0]
    needed = np.zeros(plain.shape[1], int)
    for j in range(LENGTH):
        other = x.copy()
        other[..., j] += 3.0
        needed[(batch.run({"x": other})["y"][0] != plain).any(0)] = j + 1
    return needed[: len(needed) * 3 // 4].tolist()  # the last ones show the end


@pytest.mark.parametrize(
    ("layers", "chunk", "stride", "natural"),
    [(1, 4, 1, 4), (2, 4, 1, 4), (3, 6, 1, 6), (2, 4, 2, 8), (12, 3, 1, 3), (2, 1, 1, 1)],
)
def test_a_whole_chunk_has_no_delay_however_many_layers(layers: int, chunk: int, stride: int, natural: int) -> None:
    stream = pulsify.stream(encoder(layers, chunk, stride=stride))
    assert (stream.pulse, stream.natural_pulse, stream.latency) == (natural, natural, natural)
    assert stream.outputs[0].delay == 0


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize(("chunk", "stride", "ahead"), [(4, 1, 0), (3, 2, 0), (4, 1, 2), (1, 1, 3)])
def test_the_default_pulse_is_as_early_as_the_model_allows(layers: int, chunk: int, stride: int, ahead: int) -> None:
    model = encoder(layers, chunk, stride=stride, ahead=ahead)
    stream = pulsify.stream(model)
    (out,) = stream.outputs
    want = smallest_delay(needed_by(model), stream.pulse, out.frames, (LENGTH * 3 // 4) // stream.pulse)
    assert out.delay == want


def test_a_shorter_pulse_knows_what_it_costs() -> None:
    stream = pulsify.stream(encoder(2, 4), pulse=1)
    assert stream.latency > 4, "each layer waits for a chunk of its own"
    assert (stream.natural_pulse, stream.spec.natural_latency) == (4, 4)


def test_look_ahead_in_front_of_the_chunks_counts() -> None:
    """A pulse of one chunk would wait for the next whole chunk; a short one waits for two frames."""
    stream = pulsify.stream(encoder(1, 8, ahead=2))
    short = pulsify.stream(encoder(1, 8, ahead=2), pulse=1)
    assert stream.latency <= short.latency == 1 + 7 + 2


def test_a_pulse_that_fits_no_chunk_is_later() -> None:
    stream = pulsify.stream(encoder(2, 14, left=2, stride=4), pulse=36)
    assert stream.natural_pulse == 56 < stream.latency


def test_a_saved_stream_keeps_its_natural_pulse(tmp_path: object) -> None:
    path = f"{tmp_path}/stream.onnx"
    pulsify.stream(encoder(2, 4)).save(path)
    assert pulsify.load(path).natural_pulse == 4
    short = pulsify.stream(encoder(2, 4), pulse=2)
    short.save(path)
    assert pulsify.load(path).natural_pulse is None, "nobody asked"
    assert short.natural_pulse == 4
    short.save(path)
    assert (pulsify.load(path).natural_pulse, pulsify.load(path).latency) == (4, short.latency)


@pytest.mark.parametrize(
    ("layers", "chunk", "stride", "ahead"), [(2, 4, 1, 0), (1, 8, 1, 2), (2, 4, 2, 0), (2, 2, 4, 0), (1, 1, 1, 0)]
)
def test_the_pulse_that_is_taken_is_proven_whatever_was_scouted(
    layers: int, chunk: int, stride: int, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of pulses that are looked at to choose one, chunked attention is not proven; of the one that is built it is."""
    built: list[tuple[bool, bool, int]] = []
    plain = conversion._built

    def record(time: TimeSpec, ctx: Context, outputs: Outputs) -> conversion.Converted:
        built.append((ctx.ask.scouting, ctx.ask.unproven, ctx.ask.ledger.claims))
        return plain(time, ctx, outputs)

    monkeypatch.setattr(conversion, "_built", record)
    model = encoder(layers, chunk, stride=stride, ahead=ahead)
    found = pulsify.stream(model, verify=False)
    chosen, claims = found.pulse, built[-1][2]
    assert built and all(not unproven for _, unproven, _ in built)
    built.clear()
    assert pulsify.stream(model, pulse=chosen, verify=False).spec.latency == found.spec.latency
    assert built[-1] == (False, False, claims), "as many claims as without a choice"


def test_what_is_refused_at_pulses_shorter_than_a_chunk_streams_at_the_chunk() -> None:
    """Time in front of the batch: a mask that differs from pulse to pulse has no room for the streams."""
    model = build(CASES["batch_time_first"]).model
    with pytest.raises(pulsify.NotStreamable, match="no room for the batch"):
        pulsify.stream(model, pulse=1)
    assert pulsify.stream(model).pulse == 4

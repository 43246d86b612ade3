"""Property: a whole number is bound only if it is used as the length, and then listed; otherwise any value is exact."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

import pulsify
from tests.models import frames, model, node, weights
from tests.side import Batch, streamed

CLEAR = ("length", "x_lens", "seq_lens", "input_length", "audio_length")
VAGUE = ("prompt_length", "max_len", "min_length", "window_length", "speaker_lens", "text_lengths", "chunk_len")
OTHER = ("style", "count", "k")
COMPARED = {  # how positions are compared with the number, and whether that holds before it
    "less": ([node("Less", "places m", "c")], True),
    "not greater": ([node("Greater", "places m", "g"), node("Not", "g", "c")], True),
    "greater": ([node("Greater", "m places", "c")], True),
    "after": ([node("GreaterOrEqual", "places m", "c")], False),
    "difference": ([node("Sub", "places m", "d"), node("Less", "d zero", "c")], True),
}
AS_FLOAT = node("Cast", "c", "f", to=1)
OUTSIDE = [AS_FLOAT, node("Sub", "float_one f", "o")]
APPLIED = {  # with h: True if frames for which it holds are kept, False if the others are, None: both
    "where": ([node("Where", "c h nothing", "y")], True),
    "where not": ([node("Where", "c nothing h", "y")], False),
    "product": ([AS_FLOAT, node("Mul", "h f", "y")], True),
    "product not": ([*OUTSIDE, node("Mul", "h o", "y")], False),
    "low": ([*OUTSIDE, node("Mul", "o low", "b"), node("Add", "h b", "z"), node("Sigmoid", "z", "y")], True),
    "choice": ([node("Neg", "x", "other"), node("Where", "c h other", "y")], None),
    "sum": (
        [*OUTSIDE, node("Neg", "x", "other"), node("Mul", "h f", "p"), node("Mul", "other o", "q"),
         node("Add", "p q", "y")], None,
    ),
    "step": ([AS_FLOAT, node("Add", "h f", "y")], None),
}  # fmt: skip
ELSEWHERE = {  # used as something else, in no way as the length
    "index": [node("Gather", "table n", "row", axis=0), node("Add", "h row", "y")],
    "threshold": [node("Cast", "n", "nf", to=1), node("Greater", "h nf", "c"), node("Where", "c h nothing", "y")],
    "memory": [
        node("Less", "seven n", "c"), node("Where", "c row7 nothing", "kept"), node("ReduceSum", "kept last", "s"),
        node("Add", "h s", "y"),
    ],
}  # fmt: skip
KNOWN: dict[str, Any] = {
    "zero": np.array(0), "one": np.array(1), "two": np.array(2), "three": np.array(3), "last": np.array([2]),
    "nothing": np.array(0, np.float32), "float_one": np.array(1, np.float32), "low": np.array(-1e9, np.float32),
    "w": weights(2, 2, 3), "table": weights(40, 2, 1), "seven": np.arange(7), "row7": weights(1, 2, 7, seed=2),
}  # fmt: skip


@dataclass(frozen=True)
class Drawn:
    """A model, and whether what it does with the number is what one does with a length."""

    proto: onnx.ModelProto
    name: str
    dims: tuple[int, ...]
    is_length: bool


@st.composite
def drawn(draw: st.DrawFn) -> Drawn:
    name, dims = draw(st.sampled_from(CLEAR + VAGUE + OTHER)), draw(st.sampled_from([(), (1,)]))
    front = draw(st.sampled_from([
        [node("Conv", "x w", "h", pads=[1, 1])], [node("Conv", "x w", "h", pads=[2, 0])], [node("Tanh", "x", "h")],
    ]))  # fmt: skip
    if draw(st.integers(0, 5)) == 0:
        nodes, is_length = [*front, *ELSEWHERE[draw(st.sampled_from(list(ELSEWHERE)))]], False
        dims = () if any(n.op_type == "Gather" for n in nodes) else dims
    else:
        number = draw(st.sampled_from(["n", "less", "half"]))
        derived = {
            "n": [node("Identity", "n", "m")],
            "less": [node("Sub", "n three", "m")],
            "half": [node("Add", "n one", "a"), node("Div", "a two", "m")],
        }[number]
        compared, holds = COMPARED[draw(st.sampled_from(list(COMPARED)))]
        applied, kept = APPLIED[draw(st.sampled_from(["where", "product", "low", *APPLIED]))]
        positions = [node("Shape", "x", "s"), node("Gather", "s two", "t"), node("Range", "zero t one", "places")]
        nodes, is_length = [*front, *positions, *derived, *compared, *applied], kept is not None and kept == holds
    renamed = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    for n in renamed:
        n.input[:] = [name if i == "n" else i for i in n.input]
    read = {i for n in renamed for i in n.input}
    known = {k: v for k, v in KNOWN.items() if k in read}
    proto = model(renamed, {"x": [1, 2, "T"], name: list(dims)}, ["y"], known, dtypes={name: np.int64})
    return Drawn(proto, name, dims, is_length)


def exact(d: Drawn, stream: pulsify.Stream, values: dict[int, list[int]]) -> None:
    """At every length, for these values of the number."""
    batch = Batch(d.proto)
    for length, numbers in values.items():
        for number in numbers:
            feeds = {"x": frames(1, 2, length, seed=length), d.name: np.full(d.dims, number, np.int64)}
            want = batch.run(feeds)["y"]
            got = streamed(stream, feeds, [3] * (length // 3) + [length % 3] * (length % 3 > 0))["y"]
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * max(1.0, float(np.abs(want).max(initial=0))))


LENGTHS = (1, 2, 5, 12)


def attempt(d: Drawn, pulse: int) -> tuple[pulsify.Stream | None, str]:
    """The stream if there is one, and what is asked."""
    try:
        return pulsify.stream(d.proto, pulse=pulse, verify=False), ""
    except pulsify.InvalidArgument as error:
        return None, str(error)
    except pulsify.NotStreamable:
        return None, ""


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn(), st.sampled_from([1, 2, 4]))
def test_roles_are_never_silent(d: Drawn, pulse: int) -> None:
    free = {n: [0, 1, n // 2, n, n + 3, 30] for n in LENGTHS}
    own = {n: [n] for n in LENGTHS}
    stream, question = attempt(d, pulse)
    if question:
        event("asked")
        assert d.is_length and d.name in VAGUE, question
        assert all(f'bind={{"{d.name}": {value}}}' in question for value in ('"T"', "None"))
        for value, numbers in (("T", own), (None, free)):
            with suppress(pulsify.NotStreamable):  # half of the stream, say
                exact(d, pulsify.stream(d.proto, pulse=pulse, bind={d.name: value}, verify=False), numbers)
    elif stream is None:
        event("refused")
    elif stream.bindings:
        event("bound")
        (binding,) = stream.bindings
        assert d.is_length and d.name in CLEAR
        assert (binding.name, binding.value, binding.source) == (d.name, "T", "guessed") and binding.reason
        assert f"binds {d.name}=T (guessed)" in repr(stream)
        assert any(d.name in said for said in stream.proof.assumed)
        exact(d, stream, own)
    else:
        event("an input")
        assert not d.is_length or d.name in OTHER
        assert [s.name for s in stream.statics] == [d.name]
        exact(d, stream, free)

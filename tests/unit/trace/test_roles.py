"""Inputs that are called like a length or a mask: bound where that is what they are, and never silently."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest

from pulsify.core.errors import InvalidArgument, NotStreamable
from pulsify.frontend.load import load
from pulsify.trace.lengths import Tracer
from pulsify.trace.roles import settle
from pulsify.trace.usage import Use
from tests.models import model, node
from tests.unit.trace.test_usage import KNOWN, USES, using


def bound(proto: onnx.ModelProto, **meaning: Any) -> Tracer:
    return settle(load(proto), **meaning)


@pytest.mark.parametrize("name", ["length", "x_lens", "x_length", "seqlen", "audio_signal_length", "input_lengths"])
@pytest.mark.parametrize("case", [c for c, (_, use) in USES.items() if use is not Use.OTHER])
def test_what_is_called_and_used_as_the_length_is_bound(case: str, name: str) -> None:
    spec = bound(using(case, name)).time
    assert spec.bound == spec.guessed == (name,) and spec.reasons[name]


@pytest.mark.parametrize("name", ["length", "prompt_length", "max_len", "speaker_lens"])
@pytest.mark.parametrize("case", [c for c, (_, use) in USES.items() if use is Use.OTHER])
def test_what_is_something_else_is_an_input(case: str, name: str) -> None:
    spec = bound(using(case, name)).time
    assert not spec.bound and not spec.guessed


@pytest.mark.parametrize("name", ["prompt_length", "max_len", "window_length", "text_lengths"])
@pytest.mark.parametrize("case", ["masks", "scales", "divides", "cuts", "marks a place"])
def test_what_only_sounds_like_the_length_is_asked_for(case: str, name: str) -> None:
    proto = using(case, name)
    with pytest.raises(InvalidArgument) as caught:
        bound(proto)
    message = str(caught.value)
    assert f"'{name}'" in message and f'bind={{"{name}": "T"}}' in message and f'bind={{"{name}": None}}' in message
    assert any(f"{n.op_type} '{n.name}'" in message for n in USES[case][0])
    assert bound(proto, bind={name: "T"}).time.bound == (name,)
    assert bound(proto, bind={name: None}).time.bound == ()


def test_what_must_be_as_long_as_the_stream_is_bound_whatever_it_is_called() -> None:
    spec = bound(using("spreads", "max_len")).time
    assert spec.bound == ("max_len",) and "number of frames" not in spec.reasons and "frames" in spec.reasons["max_len"]


def test_one_value_a_frame_is_a_stream() -> None:
    nodes = [node("Cast", "note_length", "f", to=1), node("Mul", "x f", "y")]
    proto = model(nodes, {"x": [1, 2, "T"], "note_length": ["T"]}, ["y"], dtypes={"note_length": np.int64})
    spec = bound(proto).time
    assert spec.streams == {"x": (2, 1), "note_length": (0, 1)} and not spec.bound


def memory_of(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    """A memory of seven entries beside the frames."""
    read = {i for n in nodes for i in n.input}
    inputs = {"x": [1, 2, "T"], "memory": [1, 2, 7], "memory_length": []}
    known = {k: KNOWN[k] for k in KNOWN if k in read}
    return model(list(nodes), inputs, ["y"], known, dtypes={"memory_length": np.int64})


TO_ITS_END = [node("Mul", "memory mf", "kept"), node("ReduceSum", "kept last", "sum"), node("Add", "x sum", "y")]


def test_the_length_of_a_memory_is_an_input() -> None:
    inside = [node("Less", "memory_places memory_length", "inside"), node("Cast", "inside", "mf", to=1)]
    spec = bound(memory_of(*inside, *TO_ITS_END)).time
    assert not spec.bound and list(spec.streams) == ["x"]


def test_a_length_that_decides_a_size_beside_the_stream_is_refused_for_that() -> None:
    """It is not said that the model was exported for streams of seven frames."""
    proto = memory_of(node("Range", "zero memory_length one", "r"), node("Cast", "r", "mf", to=1), *TO_ITS_END)
    with pytest.raises(NotStreamable, match="depends on the data") as caught:
        bound(proto)
    assert caught.value.node == "r"


def masked(*nodes: onnx.NodeProto, outputs: Sequence[str] = ("y",), **known: Any) -> onnx.ModelProto:
    inputs = {"x": ["B", "T", 3], "attention_mask": ["B", "T"]}
    given = {"last": np.array([2]), **known}
    return model(list(nodes), inputs, list(outputs), given, dtypes={"attention_mask": np.int64})


BY_FRAME = [node("Unsqueeze", "attention_mask last", "m")]


def test_a_mask_that_masks_is_bound_and_says_where() -> None:
    proto = masked(*BY_FRAME, node("Cast", "m", "mf", to=1), node("Mul", "x mf", "y"))
    spec = bound(proto).time
    assert spec.guessed == ("attention_mask",) and "Mul" in spec.reasons["attention_mask"]


def test_a_mask_that_chooses_is_a_stream() -> None:
    proto = masked(
        *BY_FRAME, node("Cast", "m", "mb", to=9), node("Neg", "x", "other"), node("Where", "mb x other", "y")
    )
    spec = bound(proto).time
    assert not spec.filled and set(spec.streams) == {"x", "attention_mask"}


def test_a_mask_of_which_that_is_unclear_is_asked_for() -> None:
    nodes = [
        *BY_FRAME,
        node("Cast", "m", "mf", to=1),
        node("Softmax", "mf", "soft", axis=1),
        node("Mul", "x soft", "y"),
    ]
    with pytest.raises(InvalidArgument) as caught:
        bound(masked(*nodes))
    message = str(caught.value)
    assert "Softmax 'soft'" in message and 'bind={"attention_mask": "ones"}' in message
    assert bound(masked(*nodes), bind={"attention_mask": "ones"}).time.filled
    assert "attention_mask" in bound(masked(*nodes), bind={"attention_mask": None}).time.streams


def test_places_that_a_mask_counts_and_hides_are_no_choice() -> None:
    """position_ids as Hugging Face makes them: a row of the table where the mask hides."""
    nodes = [
        node("CumSum", "attention_mask axis", "places"), node("Equal", "attention_mask zero", "hidden"),
        node("Where", "hidden one places", "ids"), node("Gather", "table ids", "rows"), node("Add", "x rows", "y"),
    ]  # fmt: skip
    known = {"axis": np.array(1), "zero": np.array(0), "one": np.array(1)}
    inputs = {"x": ["B", "T", 3], "attention_mask": ["B", "T"]}
    table = {"table": np.ones((300, 3), np.float32)}
    proto = model(nodes, inputs, ["y"], {**known, **table}, dtypes={"attention_mask": np.int64})
    assert bound(proto).time.guessed == ("attention_mask",)

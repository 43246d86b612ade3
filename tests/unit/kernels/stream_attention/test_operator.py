"""The operators of torch: what computes, and that torch.compile takes them whole."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

from pulsify.core.errors import InvalidArgument
from pulsify.kernels import checking, targets
from pulsify.kernels.stream_attention import cases, on_torch, operator


def tensors(shape: cases.Shape) -> dict[str, Any]:
    made = cases.inputs(shape)
    return {name: checking.tensor(value, "cpu", "float32") for name, value in made.items()}


APPENDED = cases.Shape(new=3, ring=True, relative=True, biased=True)
READ = cases.Shape(ring=True)


@pytest.mark.parametrize("shape", [APPENDED, READ], ids=["append", "read"])
@pytest.mark.parametrize("compiled", [False, True])
def test_an_operator_is_its_implementation(shape: cases.Shape, compiled: bool) -> None:
    call = operator.stream_attention
    if compiled:
        call = torch.compile(call, backend="aot_eager", fullgraph=True)
    own, other = tensors(shape), tensors(shape)
    got, want = call(**own), on_torch.stream_attention(**other)
    assert torch.equal(got, want) and got.stride() == want.stride()
    for name in ("keys", "values"):
        assert torch.equal(own[name], other[name])
    assert torch.equal(own["keys"], tensors(shape)["keys"]) == (shape is READ)


def test_as_a_step_runs_it() -> None:
    with torch.inference_mode():
        own, other = tensors(APPENDED), tensors(APPENDED)
        assert torch.equal(operator.stream_attention(**own), on_torch.stream_attention(**other))
        assert torch.equal(own["keys"], other["keys"])


@pytest.mark.parametrize("shape", [APPENDED, READ], ids=["append", "read"])
def test_torch_finds_nothing_wrong_with_them(shape: cases.Shape) -> None:
    made = tensors(shape)
    given = {"fill": float("-inf"), "hollow": "nan", "shift": 0} | made
    arguments = [given.get(name) for name in ("q", "keys", "values", *operator.TYPES)]
    if shape is APPENDED:
        arguments += [made["new_keys"], made["new_values"]]
    found = torch.ops.pulsify.stream_attention_append if shape is APPENDED else torch.ops.pulsify.stream_attention
    seen = torch.library.opcheck(found.default, tuple(arguments), test_utils=("test_schema", "test_faketensor"))
    assert set(seen.values()) == {"SUCCESS"}


def test_what_computes_is_told_by_the_device() -> None:
    assert targets.chosen("cpu") == "torch"
    assert targets.chosen("cuda") == ("torch" if importlib.util.find_spec("triton") is None else "triton")


def test_what_does_not_fit_is_refused_before_anything_runs() -> None:
    made = tensors(READ)
    with pytest.raises(InvalidArgument, match="no columns"):
        operator.stream_attention(made["q"], made["keys"][:, :, :0], made["values"][:, :, :0])

"""The back end `torch` at the seam: steps and states on the device, options, a device that is not there."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from pulsify.backends.seam import Options, own_options
from pulsify.backends.torch import options as module
from pulsify.backends.torch.backend import BACKEND, Executable
from pulsify.backends.torch.options import NAMES, chosen
from pulsify.backends.torch.step import full_precision
from pulsify.core.errors import InvalidArgument
from tests.models import frames
from tests.unit.specs import remembers

CPU = Options(own={"device": "cpu"})


def opened(**own: Any) -> Executable:
    model, spec = remembers("B")
    made = BACKEND.compile(BACKEND.lower(model, spec, 2), spec, Options(own={"device": "cpu", **own}))
    assert isinstance(made, Executable)
    return made


def test_states_are_carried_kept_and_given_back() -> None:
    one, other = opened().stepper(1, {}), opened().stepper(1, {})
    x = frames(1, 2, 4)
    one.inputs["x"][...] = x
    first = {k: v.copy() for k, v in one.run().items()}
    np.testing.assert_array_equal(one.states()["s"], x[..., 2:])
    other.restore(one.states(), 4)
    for step in (one, other):
        step.inputs["x"][...] = x
    np.testing.assert_array_equal(one.run()["y"], other.run()["y"])
    one.reset()
    assert not one.states()["s"].any()
    one.inputs["x"][...] = x
    np.testing.assert_array_equal(one.run()["y"], first["y"])


def test_what_was_pushed_may_change_afterwards() -> None:
    """A state that is a part of an input is memory of its own."""
    step = opened().stepper(1, {})
    step.inputs["x"][...] = frames(1, 2, 4)
    step.run()
    before = step.states()["s"].copy()
    step.inputs["x"].fill(np.nan)
    np.testing.assert_array_equal(step.states()["s"], before)


def test_a_pulse_that_fails_leaves_states_as_they_were() -> None:
    step = opened().stepper(1, {})
    step.inputs["x"][...] = frames(1, 2, 4)
    step.run()
    before = step.states()["s"]
    inputs, step.inputs = step.inputs, {"x": np.zeros((1, 5, 4), np.float32)}
    with pytest.raises(RuntimeError):
        step.run()
    step.inputs = inputs
    np.testing.assert_array_equal(step.states()["s"], before)


def test_source_is_written_once_for_every_number_of_streams() -> None:
    on = opened()
    assert on.forms(2) is on.forms(2) is not on.forms(3)
    assert list(on.texts(1)) == ["general"] and "one stream, float32 on cpu" in on.texts(1)["general"]


def test_states_in_a_lower_type_are_the_files_outside() -> None:
    step = opened(dtype="bfloat16").stepper(1, {})
    step.inputs["x"][...] = frames(1, 2, 4)
    assert step.run()["y"].dtype == np.float32
    assert step.states()["s"].dtype == np.float32


def test_the_options_it_has() -> None:
    assert own_options(BACKEND) == NAMES == ("device", "dtype", "mode", "allow_cpu", "force_cpu")
    assert chosen({"device": "cpu", "dtype": "float32"}).dtype is None
    assert chosen({"device": "cpu", "force_cpu": ["a"]}).force_cpu == ("a",)


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"dtype": "int8"}, "dtype='int8': expected None, 'float32', 'float16', 'bfloat16'"),
        ({"mode": "fast"}, "mode='fast': there is eager, graph"),
        ({"device": "cpu", "mode": "graph"}, "mode='graph' records a CUDA graph, and the device is 'cpu'"),
        ({"device": "tpu"}, "device='tpu': expected 'cuda'"),
        ({"device": 3.5}, "device=3.5: expected 'cuda'"),
        ({"allow_cpu": "Softmax"}, "allow_cpu='Softmax': expected a list"),
        ({"force_cpu": [""]}, "expected a list of parts of names"),
        ({"speed": "9"}, r"unknown: \['speed'\]; the back end 'torch' takes device, dtype"),
    ],
)
def test_what_is_wrong_with_an_option(own: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        chosen({"device": "cpu", **own})


def test_a_card_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.torch.cuda, "is_available", lambda: False)
    with pytest.raises(InvalidArgument, match=r"device='cuda': torch .* sees no CUDA device here"):
        chosen({"device": "cuda"})
    assert chosen({}).device == "cpu"
    monkeypatch.setattr(module.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(module.torch.cuda, "device_count", lambda: 1)
    assert chosen({}).device == "cuda" and chosen({"device": "cuda:0"}).device == "cuda:0"
    with pytest.raises(InvalidArgument, match="there are 1, counted from 0"):
        chosen({"device": "cuda:1"})


def test_steps_go_when_they_are_not_needed() -> None:
    on = opened()
    first = on.form("general", 2)
    assert on.forms(2).general is first is on.form("general", 2)
    on.release(2)
    assert on.forms(2).general is not first


def test_islands_only_where_they_may_be() -> None:
    opened(force_cpu=["c"], allow_cpu=["c"]).forms(1)
    with pytest.raises(InvalidArgument, match=r"'c' \(asked for\)"):
        opened(force_cpu=["c"], allow_cpu=[]).forms(1)


def test_float32_is_float32_on_a_card_and_settings_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.torch.cuda, "is_available", lambda: True)
    library = module.torch.backends.cudnn
    switches = module.torch.backends.cuda.matmul, library.conv, library.rnn
    before = [s.fp32_precision for s in switches]
    with full_precision():
        assert [s.fp32_precision for s in switches] == ["ieee"] * 3
    assert [s.fp32_precision for s in switches] == before


def test_torch_is_imported_when_it_is_asked_for() -> None:
    code = "import sys, pulsify.cli.main as _, pulsify.backends.registry as r; r.backend('ort')"
    subprocess.run([sys.executable, "-c", f"{code}; assert 'torch' not in sys.modules"], check=True)

"""What a conversion does with a module, its inputs, its lengths and the terminal."""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

import inspect
import logging
import math
import os
import re
import runpy
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

import pulsify  # noqa: E402
from pulsify.frontend import torch as frontend  # noqa: E402
from tests.modules.enhancers import SOUND, PhaseKept  # noqa: E402
from tests.modules.published import PlainGru  # noqa: E402
from tests.modules.sensors import Counting, Dictionary, Uncovered, dictionary  # noqa: E402
from tests.modules.speech import LogMel, LoudestNormalised  # noqa: E402

# ---- what is peculiar about inputs


def test_an_argument_that_is_a_dict_and_one_that_is_a_number() -> None:
    torch.manual_seed(0)
    module, example = Dictionary().eval(), dictionary(0)
    stream = pulsify.stream(module, example=example)
    assert [i.name for i in stream.inputs] == ["batch_accel", "batch_gyro"]
    feeds = {"batch_accel": torch.randn(1, 23, 4), "batch_gyro": torch.randn(1, 23, 2)}
    got = stream.run({n: t.numpy() for n, t in feeds.items()}, chunks=5)
    with torch.no_grad():
        want = module({"accel": feeds["batch_accel"], "gyro": feeds["batch_gyro"]}, 0.5)
    np.testing.assert_allclose(got["y0"], want["hidden"], atol=1e-6)
    np.testing.assert_allclose(got["y1"], want["level"], atol=1e-6)


def test_complex_inputs_and_outputs_are_refused_with_a_remedy() -> None:
    class Spectra(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.stft(x, 64, 32, window=torch.hann_window(64), return_complex=True)

    with pytest.raises(pulsify.InvalidArgument, match=r"returns a complex tensor.*view_as_real"):
        pulsify.stream(Spectra(), example=torch.randn(1, 1000))
    with pytest.raises(pulsify.InvalidArgument, match=r"'x' is complex.*view_as_complex"):
        pulsify.stream(Spectra(), example=torch.randn(1, 1000, dtype=torch.complex64))


# ---- manners


def test_the_module_is_left_as_it_was(capfd: pytest.CaptureFixture[str]) -> None:
    module = Counting().train()
    module.conv.eval()
    module.conv.weight.requires_grad_(False)
    torch.manual_seed(3)
    state, default = torch.get_rng_state(), torch.get_default_dtype()
    hooks, attributes = dict(module._forward_hooks), set(vars(module))
    with warnings.catch_warnings(record=True) as caught, torch.autocast("cpu", dtype=torch.bfloat16):
        warnings.simplefilter("always")
        stream = pulsify.stream(module, example=torch.randn(1, 3, 60, generator=torch.Generator().manual_seed(0)))
        assert torch.is_autocast_enabled("cpu")
    assert float(module.runs) == 0 and module.last is None and set(vars(module)) == attributes
    assert [m.training for m in module.modules()] == [True, False]
    assert not module.conv.weight.requires_grad and module.conv.bias.requires_grad
    assert torch.equal(torch.get_rng_state(), state) and torch.get_default_dtype() == default
    assert dict(module._forward_hooks) == hooks
    assert not hasattr(torch.Tensor, "__ceil__") and torch.backends.mha.get_fastpath_enabled()
    assert stream.verification is not None and stream.verification.error < 1e-6
    assert not caught and capfd.readouterr() == ("", "") and logging.root.manager.disable == 0


def test_what_exporters_print_is_kept_in_the_error(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The older one prints its graph, from C++. The file that the message names has the same."""
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path))

    class Unknown(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = torch.nn.GRU(4, 4, batch_first=True)

        def forward(self, x: Any) -> Any:
            return torch.digamma(self.gru(x)[0] + 3)

    with pytest.raises(
        pulsify.InvalidModel, match=r"aten::digamma.*test_conversion\.py:\d+, in .*torch\.digamma"
    ) as error:
        pulsify.stream(Unknown(), example=torch.randn(1, 40, 4))
    assert capfd.readouterr() == ("", "")
    assert "Torch IR graph at exception" in error.value.log and "UnsupportedOperatorError" in error.value.log
    kept = tmp_path / "pulsify" / "export.log"
    assert f"what torch printed is in {kept})" in str(error.value) and kept.read_text("utf-8") == error.value.log
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(kept))  # a file, where nothing can be written
    with pytest.raises(pulsify.InvalidModel) as unwritten:
        pulsify.stream(Unknown(), example=torch.randn(1, 40, 4))
    assert "printed" not in str(unwritten.value) and unwritten.value.log


def test_no_rule_for_complex_numbers_needs_no_exporter_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontend, "dynamo", lambda *_: pytest.fail("the newer exporter cannot help"))
    with pytest.raises(pulsify.InvalidModel, match="linalg_svd of a complex tensor"):
        pulsify.stream(Uncovered(), example=torch.randn(1, 1000))


# ---- lengths and streams


class Detached(torch.nn.Module):
    """Sizes read off a tensor without its gradients, as Open-Unmix does."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.layer = torch.nn.Linear(6, 4), torch.nn.LSTM(4, 4)

    def forward(self, x: Any) -> Any:
        frames, streams, _ = x.data.shape
        within = self.into(x.reshape(-1, x.detach().shape[-1])).reshape(frames, streams, 4)
        return self.layer(within)[0] + within.detach()


def test_sizes_of_detached_tensors_stay_symbolic() -> None:
    module = Detached().eval()
    stream = pulsify.stream(module, example=torch.randn(40, 1, 6), time={"x": 0})
    x = torch.randn(23, 1, 6)
    with torch.no_grad():
        np.testing.assert_allclose(stream.run(x.numpy(), chunks=5), module(x), atol=1e-6)


class Doubling(torch.nn.Module):
    """A running sum in as many passes as the length has bits."""

    def forward(self, x: Any) -> Any:
        passes = math.ceil(math.log2(x.shape[1]))
        for step in range(passes):
            x = x + torch.nn.functional.pad(x, (0, 0, 2**step, 0))[:, : x.shape[1]]
        return x


def test_a_loop_of_as_many_passes_as_the_length_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontend, "dynamo", lambda *_: pytest.fail("the newer exporter cannot help"))
    with pytest.raises(
        pulsify.InvalidModel,
        match=r"Doubling\.forward: `x = x \+ .* calls torch more often .* times for 40\).*jit\.script",
    ):
        pulsify.stream(Doubling(), example=torch.randn(1, 40, 3), time={"x": 1})


class Reflected(torch.nn.Module):
    """Very short inputs are made longer before they are mirrored, and cut again."""

    def forward(self, x: Any) -> Any:
        short = 31 - x.shape[-1]
        if short > 0:
            x = torch.nn.functional.pad(x, (0, short))
        out = torch.nn.functional.pad(x, (30, 0), mode="reflect")
        return out[..., : out.shape[-1] - short] if short > 0 else out


def test_a_long_example_is_not_cut_so_far_that_another_branch_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths, trace = [], frontend.traced

    def counted(call: Any, units: Any, *rest: Any) -> Any:
        lengths.append(units.unit)
        return trace(call, units, *rest)

    monkeypatch.setattr(frontend, "traced", counted)
    frontend.export(Reflected(), torch.randn(1, 2, 4000), {"x": 2})
    assert len(lengths) == 1 and 62 <= lengths[0] < 500


def test_a_long_example_is_cut() -> None:
    exported = frontend.export(PlainGru(), torch.randn(1, 4000, 40), None)
    assert exported.judge.units.unit <= 64
    kept = frontend.export(LogMel(), torch.randn(1, 300), None)
    assert kept.judge.units.unit == 300, "half of it would be too short to be mirrored"


def test_lengths_that_the_module_rejects_are_rejected_by_the_stream() -> None:
    """A spectrum that mirrors 128 samples needs 129."""
    stream = pulsify.stream(LogMel(), example=torch.randn(1, 4000))
    session = stream.session()
    session.push(np.zeros((1, 128), np.float32))
    with pytest.raises(pulsify.InvalidLength, match="129"):
        session.flush()
    session = stream.session()
    session.push(np.zeros((1, 129), np.float32))
    assert session.flush() is not None


class AtLeast(torch.nn.Module):
    """Its own check, of which nothing is in the graph."""

    def forward(self, x: Any) -> Any:
        if x.shape[1] < 7:
            raise ValueError("too short")
        return torch.relu(x)


def test_a_length_check_of_the_modules_own_holds_for_the_stream() -> None:
    stream = pulsify.stream(AtLeast(), example=torch.randn(1, 64, 3), time={"x": 1})
    session = stream.session()
    session.push(np.zeros((1, 6, 3), np.float32))
    with pytest.raises(pulsify.InvalidLength, match="at least 7"):
        session.flush()


class Mixed(torch.nn.Module):
    """Streams are compared with one another."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv1d(2, 3, 3)

    def forward(self, x: Any) -> Any:
        y = self.conv(x)
        return y - 0.5 * y.mean(0, keepdim=True)


def test_a_batch_that_stays_fixed_is_said() -> None:
    stream = pulsify.stream(Mixed(), example=torch.randn(1, 2, 40))
    assert stream.spec.batch is None
    assert any("batch size stays the example's" in note for note in stream.notes)
    assert stream.verification is not None and stream.notes[0] in stream.verification.notes
    assert not pulsify.stream(PhaseKept(), example=torch.randn(*SOUND[0])).notes


class Reshaped(torch.nn.Module):
    """A size of the batch is the number of groups."""

    def forward(self, x: Any) -> Any:
        y = x.reshape(1, -1, x.shape[-1])
        return torch.nn.functional.conv1d(y, torch.ones(y.shape[1], 1, 3), groups=y.shape[1])


class Emphasis(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x[1:] - 0.97 * x[:-1]


@pytest.mark.parametrize(
    ("module", "example", "why"),
    [
        (
            torch.nn.Conv1d(2, 3, 3),
            torch.randn(2, 2, 40),
            "axis 0 of input has size 2; if it is the batch, an example of one",
        ),
        (Mixed(), torch.randn(1, 2, 40), "the module does not compute several streams as it does each of them"),
        (
            Reshaped(),
            torch.randn(1, 2, 40),
            r"fails at Reshape node 'Reshape_1' \(.*test_conversion\.py:\d+, in forward",
        ),
        (Emphasis(), torch.randn(200), "x has no batch axis"),
    ],
    ids=["several", "mixed", "fixed", "none"],
)
def test_the_reason_for_a_fixed_batch_is_the_right_one(module: Any, example: Any, why: str) -> None:
    (name,) = inspect.signature(module.forward).parameters
    (note,) = pulsify.stream(module.eval(), example=example, time={name: example.dim() - 1}).notes
    assert re.search(why, note) and "ONNXRuntimeError" not in note


def test_a_refusal_names_the_line_of_the_module() -> None:
    with pytest.raises(pulsify.NotStreamable) as error:
        pulsify.stream(LoudestNormalised().eval(), example=torch.randn(*SOUND[0]))
    assert re.match(r"tests/modules/speech\.py:\d+, in forward: `.*`$", error.value.line)
    assert f"\n  line: {error.value.line}\n  hint: " in str(error.value)


def test_verify_may_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    import pulsify.verify.check as checking

    monkeypatch.setattr(checking, "quick", lambda *_: pytest.fail("nothing is to be checked"))
    stream = pulsify.stream(PlainGru(), example=torch.randn(1, 40, 40), verify=False)
    assert stream.verification is None


def test_the_stream_is_compared_with_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """An export that is not the module is found out, whatever the exporter's check let through."""
    export = frontend.export

    def wrong(module: Any, *rest: Any) -> Any:
        made = export(module, *rest)
        with torch.no_grad():
            module.out.bias += 1
        return made

    monkeypatch.setattr(frontend, "export", wrong)
    with pytest.raises(pulsify.Mismatch, match="not the batch model"):
        pulsify.stream(PlainGru(), example=torch.randn(1, 40, 40))


# ---- branches


class Asserting(torch.nn.Module):
    """A check of the data that only raises."""

    def forward(self, x: Any) -> Any:
        if torch.isnan(x).any():
            raise ValueError("NaN")
        assert (x.abs() < 1e6).all()
        return torch.relu(x)


class Loudest(torch.nn.Module):
    """A number read off the data."""

    def forward(self, x: Any) -> Any:
        return x * float(np.abs(x.detach().numpy()).max())


def test_a_check_of_the_data_is_no_branch() -> None:
    stream = pulsify.stream(Asserting(), example=torch.randn(1, 40, 3), time={"x": 1})
    assert [o.delay for o in stream.outputs] == [0]


def test_a_number_read_off_the_data_is_refused() -> None:
    with pytest.raises(pulsify.InvalidModel, match=r"test_conversion\.py:\d+, in Loudest\.forward"):
        pulsify.stream(Loudest(), example=torch.randn(1, 40, 3), time={"x": 1})


def test_the_remedy_for_a_loop_works(tmp_path: Path) -> None:
    """As docs/torch.md has it; a scripted function needs a file."""
    page = (Path(__file__).parents[2] / "docs" / "torch.md").read_text()
    code = page.split('```python title="smooth.py"\n')[1].split("```")[0]
    (tmp_path / "smooth.py").write_text(code)
    named = runpy.run_path(str(tmp_path / "smooth.py"))
    x = torch.randn(1, 2, 37)
    np.testing.assert_allclose(named["stream"].run(x.numpy(), chunks=5), named["smooth"](x), atol=1e-6)

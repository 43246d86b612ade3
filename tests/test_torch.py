"""Torch modules come in by themselves: the exporter is chosen, the time axis is found or asked for."""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import pulsify
from tests.models import close

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from pulsify.frontend import torch as frontend  # noqa: E402
from pulsify.frontend.torch_call import Units, called  # noqa: E402
from pulsify.frontend.torch_time import found_axes  # noqa: E402


class Net(nn.Module):
    """A module from a function of itself and its inputs, and submodules."""

    def __init__(self, function: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)


class Single(Net):
    def forward(self, x: Any) -> Any:
        return self.function(self, x)


class Pair(Net):
    def forward(self, x: Any, y: Any) -> Any:
        return self.function(self, x, y)


class Lengths(Net):
    def forward(self, x: Any, length: Any) -> Any:
        return self.function(self, x, length)


class Several(Net):
    def forward(self, *parts: Any) -> Any:
        return self.function(self, *parts)


def tensor(*dims: int) -> Any:
    return torch.randn(*dims, generator=torch.Generator().manual_seed(sum(dims)))


def encoder() -> Any:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Conv1d(4, 5, 3, padding=1), nn.BatchNorm1d(5), nn.Dropout(0.5))
    return nn.Sequential(inner, nn.ReLU(), nn.Conv1d(5, 3, 3, padding=1, stride=2))


def batch(module: Any, *inputs: Any) -> Any:
    """What the module itself says, in eval mode."""
    with torch.no_grad():
        return module.eval()(*inputs)


@pytest.fixture
def legacy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the older exporter."""
    monkeypatch.setattr(frontend, "dynamo", failing)


def failing(*_: Any) -> Any:
    raise RuntimeError("not today")


# ---- a module streams


def test_module_equals_stream() -> None:
    module, x = encoder(), tensor(1, 4, 37)
    stream = pulsify.stream(module, pulse=4, example=tensor(1, 4, 20))
    assert [(i.name, i.axis) for i in stream.inputs] == [("input", 2)]
    assert [o.name for o in stream.outputs] == ["y"]
    session = stream.session()
    parts = [session.push(c) for c in np.split(x.numpy(), [5, 6, 30], 2)] + [session.flush()]
    close(np.concatenate(parts, 2), batch(module, x).numpy())


def test_good_manners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], recwarn: Any
) -> None:
    """Module, example and terminal are as before; no files are left; the model tells nothing of the machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(frontend, "_traced", noisy(frontend._traced))  # both exporters get their turn
    module, x = encoder().train(), tensor(1, 4, 20)
    module[0][1].eval()
    modes, before = [m.training for m in module.modules()], {n: p.clone() for n, p in module.state_dict().items()}
    stream = pulsify.stream(module, example=x)
    assert [m.training for m in module.modules()] == modes
    assert all(torch.equal(p, before[n]) for n, p in module.state_dict().items())
    assert torch.equal(x, tensor(1, 4, 20))
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list
    assert {f.name.partition("_")[0] for f in tmp_path.iterdir()} <= {"torchinductor"}  # torch's own, once a user
    stream.save("stream.onnx")
    data = Path("stream.onnx").read_bytes()
    for trace in (str(Path.home()), str(Path(__file__).parent), "site-packages", "test_torch", str(tmp_path)):
        assert trace.encode() not in data


def noisy(exporter: Any) -> Any:
    """An exporter that talks, and whose result is no good."""

    def export(*args: Any) -> Any:
        exporter(*args)
        print("exporting")
        print("still exporting", file=sys.stderr)
        warnings.warn("very old", FutureWarning, stacklevel=1)
        raise RuntimeError("not today")

    return export


def test_nodes_are_named_after_submodules() -> None:
    exported = frontend.export(encoder(), tensor(1, 4, 20), None)
    assert exported.time == "T"
    assert {"1/Relu", "2/Conv"} <= {n.name for n in exported.model.graph}
    assert not any(n.metadata_props for n in exported.model.graph)


def test_weights_are_a_snapshot() -> None:
    module, x = nn.Conv1d(2, 3, 3), tensor(1, 2, 20)
    want = batch(module, x).numpy()
    stream = pulsify.stream(module, pulse=4, example=x)
    with torch.no_grad():
        module.weight.fill_(0)
    session = stream.session()
    close(np.concatenate([session.push(x.numpy()), session.flush()], 2), want)


def test_inputs_written_into(legacy: None) -> None:
    x = tensor(1, 2, 20)
    pulsify.stream(Single(lambda s, x: x.mul_(2)), pulse=4, example=x, time={"x": 2})
    assert torch.equal(x, tensor(1, 2, 20))


# ---- several inputs and outputs


def two_rates(s: Any, x: Any, y: Any) -> Any:
    return {"up": F.interpolate(s.conv(x), scale_factor=4) + y, "down": s.conv(x)}


@pytest.mark.parametrize("by_name", [False, True])
def test_two_rates(by_name: bool) -> None:
    """Inputs after forward's arguments, in their order; outputs numbered, and not mixed up with an input called y."""
    module, x, y = Pair(two_rates, conv=nn.Conv1d(2, 2, 3, padding=1)), tensor(1, 2, 11), tensor(1, 2, 44)
    example: Any = {"y": y, "x": x} if by_name else (x, y)
    stream = pulsify.stream(module, pulse=4, example=example)
    assert [(i.name, i.axis, str(i.rate)) for i in stream.inputs] == [("x", 2, "1"), ("y", 2, "4")]
    assert [o.name for o in stream.outputs] == ["output0", "output1"]
    session = stream.session()
    results = [session.push({"x": x.numpy(), "y": y.numpy()}), session.flush()]
    want = batch(module, x, y)
    close(np.concatenate([r["output0"] for r in results], 2), want["up"].numpy())
    close(np.concatenate([r["output1"] for r in results], 2), want["down"].numpy())


def test_static_input(legacy: None) -> None:
    module = Pair(lambda s, x, y: s.conv(x) * s.proj(y)[:, :, None], conv=nn.Conv1d(2, 3, 3), proj=nn.Linear(5, 3))
    x, y = tensor(1, 2, 21), tensor(1, 5)
    stream = pulsify.stream(module, pulse=4, example=(x, y))
    assert [s.name for s in stream.statics] == ["y"]
    session = stream.session(y=y.numpy())
    close(np.concatenate([session.push(x.numpy()), session.flush()], 2), batch(module, x, y).numpy())


def test_length_input() -> None:
    """The length is masked with, and a shorter one comes out."""

    def masked(s: Any, x: Any, length: Any) -> Any:
        mask = torch.arange(x.shape[2])[None] < length[:, None]
        return s.conv(x * mask[:, None]), length // 2

    module, x = Lengths(masked, conv=nn.Conv1d(2, 3, 3, padding=1)), tensor(1, 2, 20)
    stream = pulsify.stream(module, pulse=4, example=(x, torch.tensor([20])))
    assert not stream.statics
    session = stream.session()
    first, last = session.push(x[..., :13].numpy()), session.flush()
    y, lengths = batch(module, x[..., :13], torch.tensor([13]))
    close(np.concatenate([first["y0"], last["y0"]], 2), y.numpy())
    assert last["y1"].tolist() == lengths.tolist() == [6]


def test_any_number_of_inputs() -> None:
    module = Several(lambda s, x, y: s.conv(x) + y, conv=nn.Conv1d(2, 2, 3, padding=1))
    stream = pulsify.stream(module, pulse=4, example=(tensor(1, 2, 20), tensor(1, 2, 20)))
    assert [i.name for i in stream.inputs] == ["parts0", "parts1"]


def test_batch_is_the_examples(legacy: None) -> None:
    module, x = nn.Conv1d(2, 3, 3), tensor(2, 2, 20)
    stream = pulsify.stream(module, pulse=4, example=x)
    session = stream.session()
    close(np.concatenate([session.push(x.numpy()), session.flush()], 2), batch(module, x).numpy())
    with pytest.raises(pulsify.InvalidChunk):
        stream.session().push(tensor(1, 2, 8).numpy())


# ---- which axis is time

SEQUENCE = Single(lambda s, x: s.rnn(x)[0], rnn=nn.GRU(4, 3))
PICTURE = Single(lambda s, x: s.out(s.conv(x)), conv=nn.Conv2d(1, 2, 3), out=nn.Linear(6, 2))
TABLE = Single(lambda s, x: x + s.table.weight[: x.shape[1]], table=nn.Embedding(20, 4))
MULTIPLES = Single(lambda s, x: s.out(x).reshape(x.shape[0], -1, 8), out=nn.Linear(4, 2))
FOUND: dict[str, tuple[Any, Any, dict[str, int]]] = {
    "channels first": (nn.Conv1d(4, 3, 3), (1, 4, 20), {"input": 2}),
    "channels last": (nn.Linear(4, 3), (3, 20, 4), {"input": 1}),
    "no batch": (nn.Linear(4, 3), (20, 4), {"input": 0}),
    "time first": (SEQUENCE, (20, 1, 4), {"x": 0}),
    "rows of a picture": (PICTURE, (1, 1, 20, 8), {"x": 2}),
    "bounded by a table": (TABLE, (2, 20, 4), {"x": 1}),
    "whole multiples": (MULTIPLES, (2, 24, 4), {"x": 1}),
}


@pytest.mark.parametrize("case", FOUND)
def test_time_is_found(case: str) -> None:
    module, shape, axes = FOUND[case]
    assert found_axes(called(module.eval(), tensor(*shape))).axes == axes


ASKED: dict[str, tuple[Any, Any, str]] = {
    "picture": (nn.Conv2d(1, 3, 3), (1, 1, 20, 30), r"time=\{'input': 2\}.*size 20.*time=\{'input': 3\}.*size 30"),
    "time first": (SEQUENCE, (20, 2, 4), r"time=\{'x': 1\}.*time=\{'x': 0\}"),
    "pointwise": (nn.ReLU(), (1, 4, 20), r"time=\{'input': 1\}.*time=\{'input': 2\}"),
    "nothing": (Single(lambda s, x: s.out(x.flatten()), out=nn.Linear(80, 3)), (1, 4, 20), "no time axis.*time="),
    "one frame": (nn.Conv1d(4, 3, 1), (1, 4, 1), "too short; pass a longer example"),
}


@pytest.mark.parametrize("case", ASKED)
def test_time_is_asked_for(case: str) -> None:
    module, shape, says = ASKED[case]
    with pytest.raises(pulsify.InvalidArgument, match=says):
        pulsify.stream(module, example=tensor(*shape))


def test_time_is_named(legacy: None) -> None:
    module = nn.Conv2d(1, 3, 3)
    stream = pulsify.stream(module, pulse=4, example=tensor(1, 1, 20, 30), time={"input": -1})
    assert (stream.inputs[0].axis, stream.spec.time) == (3, "T")
    stream = pulsify.stream(nn.Linear(4, 2), pulse=8, example=tensor(1, 20, 4), time="frames", set={"frames": "8*n"})
    assert (stream.spec.time, stream.spec.step) == ("frames", 8)


# ---- exporters


@pytest.mark.parametrize("which", ["dynamo", "_traced"])
def test_each_exporter_alone(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontend, which, failing)
    module, x = encoder(), tensor(1, 4, 37)
    session = pulsify.stream(module, pulse=4, example=tensor(1, 4, 20)).session()
    close(np.concatenate([session.push(x.numpy()), session.flush()], 2), batch(module, x).numpy())


def test_an_exporter_that_bakes_the_length_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one has its turn then."""
    fixed, traced = Units({}, {}, 1), frontend._traced
    monkeypatch.setattr(frontend, "_traced", lambda call, units, *rest: traced(call, fixed, *rest))
    monkeypatch.setattr(frontend, "dynamo", traced)
    model = frontend.export(Single(lambda s, x: s.conv(x), conv=nn.Conv1d(4, 3, 3)), tensor(1, 4, 9), None).model
    shape = model.graph.inputs[0].shape
    assert shape is not None
    assert str(shape[2]) == "T"


BAKED: dict[str, tuple[Any, str]] = {
    "the length": (lambda s, x: x * float(x.shape[2]), r"test_torch\.py:\d+, in .*reads a size as a number of Python"),
    "a branch": (
        lambda s, x: x if x.sum() > 0 else -2 * x,
        r"test_torch\.py:\d+, in .*is a branch that depends on the data",
    ),
    "numpy": (
        lambda s, x: x + torch.from_numpy(np.arange(x.shape[2], dtype=np.float32)),
        r"test_torch\.py:\d+, in .*np\.arange.* \(20 for 20 frames, \d+ for",
    ),
    "a mask by numpy": (
        lambda s, x: x @ torch.from_numpy(np.tril(np.ones((x.shape[2], x.shape[2]), np.float32))),
        r"test_torch\.py:\d+, in .*np\.tril.*reads a size",
    ),
    "noise": (lambda s, x: x + torch.rand_like(x), "random in eval mode"),
    "a loop": (
        lambda s, x: torch.stack([x[..., t] * (t + 1) for t in range(x.shape[2])], 2),
        r"test_torch\.py:\d+, in .*is a loop over time.*torch\.jit\.script",
    ),
    "frames": (
        lambda s, x: torch.stack([t * 0.5 for t in x.unbind(2)], 2),
        r"test_torch\.py:\d+, in .*is a loop over time.*torch\.jit\.script",
    ),
    "a transform": (lambda s, x: torch.fft.rfft(x).abs(), r"test_torch\.py:\d+.*Fourier transform along time"),
}


@pytest.mark.parametrize("case", BAKED)
def test_exports_that_are_not_the_module_are_refused(case: str) -> None:
    module, says = BAKED[case]
    with pytest.raises(pulsify.InvalidModel, match=says) as error:
        pulsify.stream(Single(module), example=tensor(1, 2, 20), time={"x": 2})
    assert "legacy" in error.value.log or "branch" in says  # which is found before anything is exported


def test_both_exporters_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontend, "dynamo", failing)
    monkeypatch.setattr(frontend, "_traced", lambda *_: failing())
    with pytest.raises(pulsify.InvalidModel, match=r"legacy: RuntimeError: not today.*; dynamo: RuntimeError"):
        pulsify.stream(nn.Conv1d(2, 3, 3), example=tensor(1, 2, 20))


def test_the_result_is_an_onnx_ir_model(legacy: None) -> None:
    model = frontend.export(nn.Conv1d(2, 3, 3), tensor(1, 2, 20), "frames").model
    assert isinstance(model, ir.Model)
    shape = model.graph.inputs[0].shape
    assert shape is not None
    assert [str(d) for d in shape] == ["B", "2", "frames"]


# ---- wrong arguments

X = (1, 2, 20)
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no example": ({}, r"needs example inputs: .*example=torch.randn"),
    "a number": ({"example": 3}, "expected a tensor.*example=torch.randn"),
    "an array": ({"example": np.zeros(X, np.float32)}, "ndarray, expected a tensor"),
    "a number too many": ({"example": (tensor(*X), 3)}, r"2 values, forward takes 1: \['input'\]"),
    "nothing": ({"example": ()}, "example is empty"),
    "too many": ({"example": (tensor(*X), tensor(*X))}, r"2 values, forward takes 1: \['input'\]"),
    "unknown name": ({"example": {"z": tensor(*X)}}, r"no argument \['z'\].*\['input'\]"),
    "channels": ({"example": tensor(1, 3, 20)}, r"does not run on the example \{'input': \[1, 3, 20\]\}"),
    "time no input": ({"example": tensor(*X), "time": {"x": 2}}, r"no argument 'x'.*\['input'\]"),
    "time no axis": ({"example": tensor(*X), "time": {"input": 3}}, "'input' has 3 axes"),
    "time no integer": ({"example": tensor(*X), "time": {"input": "T"}}, "there is no axis 'T'"),
    "time nothing": ({"example": tensor(*X), "time": {}}, "names no input"),
    "time fixed": ({"example": tensor(*X), "time": {"input": 1}}, "no other length of axis 1 of input, size 2"),
    "time no word": ({"example": tensor(*X), "time": "2 T"}, r"\{'x': 2\}\), or a word"),
    "time a number": ({"example": tensor(*X), "time": 2}, r"time=2: expected an axis by argument"),
    "pulse": ({"example": tensor(*X), "pulse": 0}, "pulse=0"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments(case: str) -> None:
    options, says = WRONG[case]
    with pytest.raises(pulsify.InvalidArgument, match=says):
        pulsify.stream(nn.Conv1d(2, 3, 3), **options)


def test_what_is_no_module() -> None:
    with pytest.raises(pulsify.InvalidArgument, match=r"expected a torch.nn.Module, got Tensor"):
        pulsify.stream(tensor(3), example=tensor(3))
    with pytest.raises(pulsify.InvalidArgument, match="returns no tensor"):
        pulsify.stream(Single(lambda s, x: None), example=tensor(1, 2, 20))


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Conv1d(2, 3, 3)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(pulsify.InvalidArgument, match=r"pip install 'pulsify\[torch\]'"):
        pulsify.stream(module, example=1)


def test_torch_is_not_imported_needlessly() -> None:
    code = """
import sys, pulsify
from tests import models
pulsify.stream(models.causal(), pulse=4).session()
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent.parent)


# ---- the batch


@pytest.mark.parametrize("exporter", ["dynamo", "legacy"])
def test_one_stream_in_the_example_leaves_the_batch_free(exporter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it can be pooled."""
    if exporter == "legacy":
        monkeypatch.setattr(frontend, "dynamo", failing)
    module, x = encoder(), tensor(3, 4, 36)
    stream = pulsify.stream(module, pulse=4, example=tensor(1, 4, 20))
    assert stream.spec.batch is not None
    session = stream.session(batch=3)
    close(np.concatenate([session.push(x.numpy()), session.flush()], 2), batch(module, x).numpy())
    pool = pulsify.Pool(stream, 3)
    lanes = [pool.open() for _ in range(3)]
    for i, lane in enumerate(lanes):
        lane.push(x[i : i + 1].numpy())
        lane.flush()
    results = pool.run()
    for i, lane in enumerate(lanes):
        close(results[lane], batch(module, x[i : i + 1]).numpy())


def test_time_first_leaves_the_second_axis_free(legacy: None) -> None:
    module, x = Single(lambda s, x: s.rnn(x)[0], rnn=nn.LSTM(4, 3)), tensor(19, 2, 4)
    stream = pulsify.stream(module, pulse=4, example=tensor(9, 1, 4), time={"x": 0})
    session = stream.session(batch=2)
    close(np.concatenate([session.push(x.numpy()), session.flush()], 0), batch(module, x).numpy())


def test_streams_that_mix_keep_the_examples_batch(legacy: None) -> None:
    module, x = (
        Single(lambda s, x: s.conv(x) - s.conv(x).mean(0, keepdim=True) * 0.5, conv=nn.Conv1d(2, 3, 3)),
        tensor(1, 2, 20),
    )
    stream = pulsify.stream(module, pulse=4, example=x)
    assert stream.spec.batch is None
    session = stream.session()
    close(np.concatenate([session.push(x.numpy()), session.flush()], 2), batch(module, x).numpy())

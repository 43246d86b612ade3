"""The verifier: it sees what is wrong, says where, and does not fall over."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import pulsify
from tests import models
from tests.models import frames, model, node, weights


def broken(weight: str, **options: Any) -> tuple[onnx.ModelProto, Any]:
    """A model, and its stream with one weight changed."""
    proto = models.look_ahead()
    stream = pulsify.stream(proto, pulse=4, verify=False, **options)
    value = stream.model.graph.initializers[weight]
    assert value.const_value is not None
    value.const_value = ir.tensor(value.const_value.numpy() * np.float32(1.5), name=weight)
    return proto, stream


def test_report() -> None:
    proto = models.look_ahead()
    report = pulsify.verify(proto, pulsify.stream(proto, pulse=4))
    assert report.runs == 3 * len(report.lengths)
    assert {1, 3, 4, 5} <= set(report.lengths)
    assert list(report.outputs) == ["y"]
    assert report.error <= report.tolerance == 1e-4
    assert report.departs is None
    assert f"{report.runs} streams at lengths" in str(report)
    assert "y: largest relative error" in str(report)


def test_an_output_without_axes() -> None:
    """The mean of all there is."""
    proto = model([node("ReduceMean", "x", "y", keepdims=0)], {"x": [1, 2, "T"]}, ["y"])
    stream = pulsify.stream(proto, pulse=4)
    assert pulsify.verify(proto, stream).ok and stream.run(frames(1, 2, 9)).shape == ()
    other = model([node("ReduceSum", "x", "y", keepdims=0)], {"x": [1, 2, "T"]}, ["y"])
    with pytest.raises(pulsify.Mismatch):
        pulsify.verify(other, stream)


@pytest.mark.parametrize("dtype", [np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64])
@pytest.mark.parametrize("op", ["Div", "Mod"])
def test_whole_numbers_are_not_divided_by_zero(op: str, dtype: type) -> None:
    """ONNX Runtime fails there: that is not the model's fault, nor that of its length."""
    types = dict.fromkeys(("x", "z", "y"), dtype)
    proto = model([node(op, "x z", "y")], {"x": [1, 2, "T"], "z": [1, 2, "T"]}, ["y"], dtypes=types)
    stream = pulsify.stream(proto, pulse=4)
    report = pulsify.verify(proto, stream, seed=1)
    assert report.ok and max(report.lengths) > 4


def test_lengths_and_chunkings_can_be_chosen() -> None:
    proto = models.look_ahead()
    report = pulsify.verify(proto, pulsify.stream(proto, pulse=4), lengths=[9, 9, 50], chunkings=("whole",))
    assert (report.lengths, report.runs) == ((9, 50), 2)


@pytest.mark.parametrize(("weight", "wire"), [("w1", "h"), ("w2", "y")])
def test_the_first_wire_that_departs(weight: str, wire: str) -> None:
    proto, stream = broken(weight)
    with pytest.raises(
        pulsify.Mismatch, match=f"first value inside the model that departs from batch is '{wire}'"
    ) as caught:
        pulsify.verify(proto, stream)
    report: Any = caught.value.report
    assert report.departs == wire
    assert report.error > report.tolerance
    worst = report.outputs["y"]
    assert worst.length in report.lengths
    assert 0 <= worst.frame < worst.length


def test_the_first_wire_of_a_file(tmp_path: Path) -> None:
    """The same from a path, from bytes and from an onnx_ir model."""
    proto, stream = broken("w1")
    onnx.save(proto, tmp_path / "model.onnx")
    sources: list[Any] = [
        tmp_path / "model.onnx",
        str(tmp_path / "model.onnx"),
        proto.SerializeToString(),
        ir.from_proto(proto),
    ]
    for source in sources:
        with pytest.raises(pulsify.Mismatch) as caught:
            pulsify.verify(source, stream, lengths=[9])
        report: Any = caught.value.report
        assert report.departs == "h"


def test_a_loaded_stream_does_not_know_its_wires(tmp_path: Path) -> None:
    proto, stream = broken("w1")
    stream.save(tmp_path / "stream.onnx")
    with pytest.raises(pulsify.Mismatch, match="largest relative error") as caught:
        pulsify.verify(proto, pulsify.load(tmp_path / "stream.onnx"))
    report: Any = caught.value.report
    assert report.departs is None


def test_conversion_verifies_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong rule does not get past `stream`, unless verify=False."""
    from pulsify.convert import convert as conversion

    convert = conversion.convert

    def spoiled(*args: Any) -> Any:
        made = convert(*args)
        made.model.graph.initializers["w1"].const_value = ir.tensor(np.zeros((4, 2, 3), np.float32), name="w1")
        return made

    monkeypatch.setattr(conversion, "convert", spoiled)
    with pytest.raises(pulsify.Mismatch, match="'h'"):
        pulsify.stream(models.look_ahead(), pulse=4)
    pulsify.stream(models.look_ahead(), pulse=4, verify=False)


def test_errors_only_at_the_end_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last frames alone are wrong if the model is not told the length."""
    from pulsify.backends.ort.step import Step

    run = Step.run
    monkeypatch.setattr(Step, "run", lambda self, length=None: run(self, None))
    with pytest.raises(pulsify.Mismatch) as caught:
        pulsify.stream(models.look_ahead(), pulse=4)
    report: Any = caught.value.report
    worst = report.outputs["y"]
    assert worst.frame >= worst.length - 3


def test_tolerance() -> None:
    proto, stream = broken("w1")
    assert pulsify.verify(proto, stream, tolerance=1e6).error > 1e-3


def test_a_count_that_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too few frames are a mismatch, not a crash."""
    from pulsify.runtime.session import Session

    flush = Session.flush
    monkeypatch.setattr(Session, "flush", lambda self: flush(self)[..., :-1])
    with pytest.raises(pulsify.Mismatch, match="inf") as caught:
        pulsify.stream(models.look_ahead(), pulse=4)
    report: Any = caught.value.report
    assert "shape" in report.outputs["y"].chunks


def test_lengths_the_model_does_not_take_are_not_run() -> None:
    """Below five frames the batch model fails: of a choice of lengths others are taken, a length given is refused."""
    proto = models.valid()
    stream = pulsify.stream(proto, pulse=4)
    assert stream.spec.shortest == 5
    assert min(pulsify.verify(proto, stream).lengths) == 5
    assert pulsify.verify(proto, stream, lengths=[7]).lengths == (7,)
    with pytest.raises(
        pulsify.InvalidArgument, match="2 frames are no length this model takes; the next one it takes is 5"
    ):
        pulsify.verify(proto, stream, lengths=[7, 2])


@pytest.mark.parametrize("total", [1, 2, 3, 4])
def test_too_short_streams_say_so(total: int) -> None:
    session = pulsify.stream(models.valid(), pulse=4).session()
    session.push(frames(1, 2, total))
    with pytest.raises(pulsify.InvalidLength, match=rf"{total} frames? (is|are) too few: this model needs at least 5"):
        session.flush()


def test_integers_must_be_equal() -> None:
    """One cell that is off by one is enough, however large the others."""
    proto = model(
        [node("Cast", "x", "c", to=onnx.TensorProto.INT64), node("Add", "c big", "y")],
        {"x": [1, 2, "T"]},
        ["y"],
        {"big": np.array(10**9)},
        dtypes={"y": np.int64},
    )
    stream = pulsify.stream(proto, pulse=4, verify=False)
    assert pulsify.verify(proto, stream).tolerance == 0
    stream = pulsify.stream(proto, pulse=4, verify=False)
    stream.model.graph.initializers["big"].const_value = ir.tensor(np.array(10**9 + 1), name="big")
    with pytest.raises(pulsify.Mismatch):
        pulsify.verify(proto, stream)


def test_every_output_is_measured_by_its_own_type() -> None:
    """A double that is off by 1e-3 is wrong, whatever a half beside it may be off by."""
    proto = model(
        [
            node("Cast", "x", "half", to=onnx.TensorProto.FLOAT16),
            node("Cast", "x", "d", to=onnx.TensorProto.DOUBLE),
            node("Mul", "d scale", "double"),
        ],
        {"x": [1, 2, "T"]},
        ["half", "double"],
        {"scale": np.array(1.0)},
        dtypes={"half": np.float16, "double": np.float64},
    )
    stream = pulsify.stream(proto, pulse=4)
    assert stream.verification is not None
    assert {n: d.tolerance for n, d in stream.verification.outputs.items()} == {"half": 2e-2, "double": 1e-9}
    stream = pulsify.stream(proto, pulse=4, verify=False)
    stream.model.graph.initializers["scale"].const_value = ir.tensor(np.array(1.001), name="scale")
    with pytest.raises(pulsify.Mismatch) as caught:
        pulsify.verify(proto, stream)
    report = caught.value.report
    assert report is not None
    assert [d.ok for d in report.outputs.values()] == [True, False]
    assert report.worst is report.outputs["double"]


def test_nan_where_batch_has_nan_is_right() -> None:
    """0/0 in batch is 0/0 in the stream; NaN where batch has a number is wrong."""
    proto = model(
        [node("Conv", "x w", "h", pads=[1, 1]), node("Sqrt", "h", "y")],
        {"x": [1, 2, "T"]},
        ["y"],
        {"w": weights(3, 2, 3)},
    )
    stream = pulsify.stream(proto, pulse=4)
    assert pulsify.verify(proto, stream).error < 1e-4
    stream = pulsify.stream(proto, pulse=4, verify=False)
    stream.model.graph.initializers["w"].const_value = ir.tensor(np.full((3, 2, 3), np.nan, np.float32), name="w")
    with pytest.raises(pulsify.Mismatch, match="relative error inf"):
        pulsify.verify(proto, stream)


def padded_pool(pad: float = 0.0) -> onnx.ModelProto:
    """ONNX Runtime's optimiser makes the pad the pool's own, and forgets that it was zero."""
    nodes = [node("Neg", "x", "n"), node("Pad", "n pads value", "p"), node("MaxPool", "p", "y", kernel_shape=[3])]
    pads = {"pads": np.array([0, 0, 2, 0, 0, 2]), "value": np.array(pad, np.float32)}
    return model(nodes, {"x": [1, 2, "T"]}, ["y"], pads)


def test_a_model_that_the_optimiser_changes(tmp_path: Path) -> None:
    """The stream is the model as it is written, and the report says that this was compared."""
    proto = padded_pool()
    stream = pulsify.stream(proto, pulse=4)
    stream.save(tmp_path / "stream.onnx")
    for made in (stream, pulsify.load(tmp_path / "stream.onnx")):
        report = pulsify.verify(proto, made)
        assert "as it is written" in str(report)
        assert report.error <= report.tolerance
    assert "as it is written" in str(stream.verification)


def test_a_wrong_stream_of_a_model_that_the_optimiser_changes() -> None:
    stream = pulsify.stream(padded_pool(1.0), pulse=4, verify=False)
    with pytest.raises(pulsify.Mismatch, match="as it is written"):
        pulsify.verify(padded_pool(), stream)


def test_batch_is_opened_once_where_nothing_departs(monkeypatch: pytest.MonkeyPatch) -> None:
    from pulsify.verify import check

    opened, open_model = list[bool](), check.open_model

    def counted(source: Any, optimize: bool = True, **options: Any) -> Any:
        opened.append(optimize)
        return open_model(source, optimize, **options)

    monkeypatch.setattr(check, "open_model", counted)
    pulsify.stream(models.look_ahead(), pulse=4)
    assert opened == [True]


def test_static_inputs_and_lengths_are_made_up() -> None:
    for proto in (models.conditioned(), models.with_length(), models.two_rates(), models.tokens()):
        report = pulsify.verify(proto, pulsify.stream(proto, pulse=4))
        assert report.runs
        assert set(report.outputs) == {o.name for o in proto.graph.output}


def test_another_model() -> None:
    stream = pulsify.stream(models.look_ahead(), pulse=4)
    with pytest.raises(pulsify.Mismatch):
        pulsify.verify(models.causal(), stream)
    with pytest.raises(pulsify.InvalidArgument, match=r"takes \['slow', 'fast'\].*made from"):
        pulsify.verify(models.two_rates(), stream)


def test_verify_is_there_before_and_after() -> None:
    """`pulsify.verify` is a folder of the package too; it can be called all the same."""
    importlib.import_module("pulsify.verify.check")
    proto = models.causal()
    assert pulsify.verify(proto, pulsify.stream(proto, pulse=4), lengths=[5]).lengths == (5,)
    assert sys.modules["pulsify.verify.check"]

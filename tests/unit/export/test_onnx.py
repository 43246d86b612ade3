"""Plain ONNX otherwise: in half precision, in another opset, in ONNX Runtime's own format, with its front end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import pulsify
from pulsify.export.half import HALF, halved
from pulsify.export.onnx import rounding
from pulsify.verify.distance import TOLERANCE
from tests import models
from tests.models import close, frames, model, node, run_batch, weights
from tests.test_artefact import stream_with_onnx_runtime
from tests.unit.export.running import ZOO, converted, is_batch, zoo

HALVED = TOLERANCE["float16"]  # of an output's scale, as `verify` allows half precision
SOME = sorted(ZOO - {"attn_chunk_rope", "unet", "wavenet_noncausal"})


def loaded(path: Path) -> Any:
    stream = pulsify.load(path)
    return lambda inputs, statics: _named(stream, stream.run({**inputs, **statics}, chunks=5))


def _named(stream: pulsify.Stream, made: Any) -> Any:
    return made if isinstance(made, dict) else {stream.outputs[0].name: made}


# ---- half precision


@pytest.mark.parametrize("name", SOME)
def test_half_precision_is_near_and_says_how_near(name: str, tmp_path: Path) -> None:
    stream, path = converted(zoo(name)), tmp_path / "half.onnx"
    stream.export(path, "onnx", fp16=True)
    worst = is_batch(zoo(name), stream, loaded(path), tolerance=HALVED)
    (said,) = rounding(path).values()
    assert 0 <= said < 2e-3 and worst < 3 * said + 1e-4
    assert {s.dtype for s in stream.states if s.dtype.kind == "f"} <= {np.dtype(np.float32), np.dtype(np.float64)}


def test_weights_and_states_are_half_and_ports_are_not(tmp_path: Path) -> None:
    stream, path = converted(models.look_ahead("B")), tmp_path / "half.onnx"
    stream.export(path, "onnx", fp16=True)
    proto, made = onnx.load(path), pulsify.load(path)
    onnx.checker.check_model(proto, full_check=True)
    kinds = {v.name: v.type.tensor_type.elem_type for v in (*proto.graph.input, *proto.graph.output)}
    assert kinds["x"] == kinds["y"] == onnx.TensorProto.FLOAT
    assert [s.dtype for s in made.states] == [np.float16, np.float16, np.int32]
    assert {kinds[n] for s in made.states[:2] for n in (s.name, s.after)} == {onnx.TensorProto.FLOAT16}
    floats = {t.name: t.data_type for t in proto.graph.initializer if t.data_type in (1, 10) and len(t.dims)}
    assert len(floats) == 2 and set(floats.values()) == {onnx.TensorProto.FLOAT16}
    assert made.state_bytes < 0.6 * stream.state_bytes and not rounding_of_original(stream)


def rounding_of_original(stream: pulsify.Stream) -> list[str]:
    """What was made half in the stream itself: nothing may."""
    values = [v for n in stream.model.graph for v in n.outputs] + list(stream.model.graph.inputs)
    return [str(v.name) for v in values if v.dtype == HALF]


def test_what_is_carried_stays_float32() -> None:
    """A sum over the stream would stand still in half precision: it and all on its way are as they were."""
    source = model([node("CumSum", "x axis", "y")], {"x": [1, 2, "T"]}, ["y"], {"axis": np.array(2)})
    stream = converted(source)
    made, spec = halved(stream.model, stream.spec)
    assert [s.kind for s in spec.states if s.dtype.kind == "f"] == ["carry"]
    assert all(s.dtype != np.float16 for s in spec.states)
    assert not [v for n in made.graph for v in n.outputs if v.dtype == HALF]


def test_the_clock_stays_exact_in_half_precision(tmp_path: Path) -> None:
    """sin(position / 10) beside frames, after 4,000 of them: half precision has no number 4001."""
    nodes = [
        node("Shape", "x", "s"), node("Gather", "s two", "t"), node("Range", "zero t one", "r"),
        node("Cast", "r", "f", to=1), node("Mul", "f tenth", "a"), node("Sin", "a", "p"), node("Add", "x p", "y"),
    ]  # fmt: skip
    given = {"two": np.array(2), "zero": np.array(0), "one": np.array(1), "tenth": np.array(0.1, np.float32)}
    source = model(nodes, {"x": [1, 2, "T"]}, ["y"], given)
    stream, path, x = converted(source, 50), tmp_path / "half.onnx", frames(1, 2, 4500)
    stream.export(path, "onnx", fp16=True)
    got, wanted = pulsify.load(path).run(x), run_batch(source, x)["y"]
    assert np.abs(got - wanted).max() < 2**-9  # one rounding of a sum below 8; another sine would be off by 0.1


def test_a_number_too_large_for_half_precision_is_refused(tmp_path: Path) -> None:
    source = model(
        [node("Mul", "x big", "l"), node("Mul", "l big", "h"), node("Conv", "h w", "y", pads=[2, 0])],
        {"x": [1, 2, "T"]}, ["y"], {"big": np.array(1e4, np.float32), "w": weights(3, 2, 3)},
    )  # fmt: skip
    with pytest.raises(pulsify.NotSupported, match=r"'y' is not finite in half precision: .* larger than 65504"):
        converted(source).export(tmp_path / "half.onnx", "onnx", fp16=True)
    assert not (tmp_path / "half.onnx").exists()


# ---- opsets


@pytest.mark.parametrize("opset", [13, 15, 21])
@pytest.mark.parametrize("name", ["conv_lstm", "attn_relpos_skew", "upsample_linear", "cumulative_layernorm"])
def test_another_opset_is_the_same_stream(name: str, opset: int, tmp_path: Path) -> None:
    stream, path = converted(zoo(name)), tmp_path / "other.onnx"
    assert stream.model.opset_imports[""] == 17
    stream.export(path, "onnx", opset=opset)
    assert next(o.version for o in onnx.load(path).opset_import if o.domain == "") == opset
    is_batch(zoo(name), stream, loaded(path))


@pytest.mark.parametrize("opset", [18, 21])
def test_axes_that_become_inputs(opset: int, tmp_path: Path) -> None:
    mean = [node("ReduceMean", "h", "m", axes=[1], keepdims=1), node("Sub", "h m", "y")]
    nodes = [node("Conv", "x w", "h", pads=[1, 1]), *mean]
    proto, path = model(nodes, {"x": ["B", 2, "T"]}, ["y"], {"w": weights(3, 2, 3)}), tmp_path / "other.onnx"
    converted(proto).export(path, "onnx", opset=opset)
    x = frames(1, 2, 50)
    close(pulsify.load(path).run(x, chunks=7), run_batch(proto, x)["y"])


def test_an_operator_that_an_opset_does_not_have_is_named(tmp_path: Path) -> None:
    with pytest.raises(pulsify.NotSupported, match="No Previous Version of STFT exists") as refused:
        converted(zoo("stft_mel_center")).export(tmp_path / "o.onnx", "onnx", opset=15)
    assert refused.value.op == "STFT" and refused.value.node == "/STFT" and "opset 15" in refused.value.hint
    with pytest.raises(pulsify.InvalidArgument, match="opset=99: this onnx converts to versions from 7 to"):
        converted(models.causal()).export(tmp_path / "o.onnx", "onnx", opset=99)


def test_half_precision_in_another_opset(tmp_path: Path) -> None:
    stream = converted(models.look_ahead("B"))
    stream.export(tmp_path / "o.onnx", "onnx", fp16=True, opset=15)
    is_batch(models.look_ahead("B"), stream, loaded(tmp_path / "o.onnx"), tolerance=HALVED)
    assert rounding(tmp_path / "o.onnx")


# ---- ONNX Runtime's own format


@pytest.mark.parametrize("name", ["look_ahead", "mirrored"])
def test_ort_s_own_format_runs_by_the_readme_s_loop(name: str, tmp_path: Path) -> None:
    source = getattr(models, name)(1)
    stream, x = pulsify.stream(source, pulse=2, verify=False), frames(1, 2, 37)
    assert (stream.opening is not None) is (name == "mirrored")
    stream.export(tmp_path / "s.ort", "onnx", ort_format=True)
    files = {"s.ort", "s.opening.ort"} if stream.opening else {"s.ort"}
    assert {p.name for p in tmp_path.iterdir()} == files
    close(stream_with_onnx_runtime(str(tmp_path / "s.ort"), x), run_batch(source, x)["y"])


def test_ort_s_own_format_has_its_own_name(tmp_path: Path) -> None:
    with pytest.raises(pulsify.InvalidArgument, match=r"'s.onnx': .* is called \*.ort"):
        converted(models.causal()).export(tmp_path / "s.onnx", "onnx", ort_format=True)


@pytest.mark.parametrize("options", [{"fp16": True}, {"opset": 15}])
def test_an_opening_is_written_alike(options: dict[str, Any], tmp_path: Path) -> None:
    source = models.mirrored_lstm(1)
    stream = pulsify.stream(source, pulse=2, verify=False)
    stream.export(tmp_path / "s.onnx", "onnx", **options)
    made = pulsify.load(tmp_path / "s.onnx")
    assert made.opening is not None
    is_batch(source, stream, loaded(tmp_path / "s.onnx"), tolerance=HALVED if "fp16" in options else None)


# ---- a front end


def front_end() -> onnx.ModelProto:
    """samples [1, T] to features [1, 2, T / 4]: windows of 8, 4 apart, the middle of the first at the first sample."""
    nodes = [
        node("Unsqueeze", "samples one", "u"),
        node("Conv", "u bank", "c", pads=[4, 4], strides=[4]),
        node("Abs", "c", "features"),
    ]
    return model(nodes, {"samples": [1, "T"]}, ["features"], {"bank": weights(2, 1, 8), "one": np.array([1])})


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    out = {"merge_front_end": str(tmp_path / "front.onnx"), "model": str(tmp_path / "batch.onnx")}
    onnx.save(front_end(), out["merge_front_end"])
    onnx.save(models.look_ahead(1), out["model"])
    return out


def test_a_front_end_is_merged(files: dict[str, str], tmp_path: Path) -> None:
    stream = pulsify.stream(files["model"], pulse=4)
    pulsify.export(stream, "onnx", tmp_path / "whole.onnx", **files)
    made, x = pulsify.load(tmp_path / "whole.onnx"), frames(1, 99)
    assert (made.pulse, [i.name for i in made.inputs], [o.name for o in made.outputs]) == (16, ["samples"], ["y"])
    wanted = run_batch(models.look_ahead(1), run_batch(front_end(), {"samples": x})["features"])["y"]
    close(made.run(x, chunks=7), wanted)


def test_lengths_of_a_front_end_are_merged_too(tmp_path: Path) -> None:
    """samples and their length to features and theirs: both go on to the model."""
    nodes = [
        node("Unsqueeze", "samples one", "u"), node("Conv", "u bank", "features", pads=[4, 3], strides=[4]),
        node("Div", "samples_length four", "features_length"),
    ]  # fmt: skip
    kinds = {"samples_length": np.int64, "features_length": np.int64}
    given = {"bank": weights(2, 1, 8), "one": np.array([1]), "four": np.array([4])}
    front = model(
        nodes, {"samples": [1, "T"], "samples_length": [1]}, ["features", "features_length"], given, dtypes=kinds
    )
    onnx.save(front, tmp_path / "front.onnx")
    onnx.save(models.with_length(1), tmp_path / "batch.onnx")
    files = {"merge_front_end": str(tmp_path / "front.onnx"), "model": str(tmp_path / "batch.onnx")}
    pulsify.stream(files["model"], pulse=4).export(tmp_path / "whole.onnx", "onnx", **files)
    made, x = pulsify.load(tmp_path / "whole.onnx"), frames(1, 96)
    features = run_batch(front, {"samples": x, "samples_length": np.array([96])})
    wanted = run_batch(models.with_length(1), {"x": features["features"], "length": features["features_length"]})
    got = made.run(x, chunks=7)
    close(got["y"], wanted["y"])
    assert np.array_equal(got["encoded_lengths"], wanted["encoded_lengths"])


def test_any_target_has_its_front_end_merged(files: dict[str, str], tmp_path: Path) -> None:
    pulsify.stream(files["model"], pulse=4).export(tmp_path / "out", "triton", name="net", **files)
    facts = json.loads((tmp_path / "out" / "stream.json").read_text())
    assert [i["name"] for i in facts["inputs"]] == ["samples"] and facts["pulse"] == 16


def test_a_front_end_needs_the_stream_s_own_batch_model(files: dict[str, str], tmp_path: Path) -> None:
    stream = pulsify.stream(files["model"], pulse=4)
    with pytest.raises(
        pulsify.InvalidArgument, match="needs the batch model that this stream was made from: model=FILE"
    ):
        stream.export(tmp_path / "o.onnx", "onnx", merge_front_end=files["merge_front_end"])
    onnx.save(models.causal(), tmp_path / "other.onnx")
    with pytest.raises(pulsify.InvalidArgument, match=r"'other.onnx' is not the batch model that this stream"):
        stream.export(tmp_path / "o.onnx", "onnx", **{**files, "model": str(tmp_path / "other.onnx")})
    with pytest.raises(pulsify.InvalidArgument, match=r"no such file: .*gone.onnx"):
        stream.export(tmp_path / "o.onnx", "onnx", **{**files, "merge_front_end": "gone.onnx"})


def test_options_stay_out_of_what_save_writes(tmp_path: Path) -> None:
    stream = converted(models.look_ahead(1))
    stream.save(tmp_path / "saved.onnx")
    stream.export(tmp_path / "exported.onnx", "onnx")
    one, other = (ir.load(tmp_path / f"{n}.onnx") for n in ("saved", "exported"))
    assert dict(one.metadata_props) == dict(other.metadata_props) and "pulsify.fp16" not in one.metadata_props

"""The command line: what it prints, what it writes, and how it exits."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import time
import wave
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import TensorProto, helper

from pulsify.cli.main import main
from pulsify.cli.outcome import spoken
from tests import models
from tests.attention.test_graphs import framed_causal

MODELS = Path(__file__).parent / "zoo" / "fixtures" / "legacy"
STRIDED = str(MODELS / "conv_same_stride.onnx")
REFUSED = str(MODELS / "global_mean.onnx")


def pulsify(*arguments: object, code: int = 0) -> Result:
    result = CliRunner(env={"COLUMNS": "100"}).invoke(main, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    return result


def pulsify_json(*arguments: object, code: int = 0) -> Any:
    """Standard output must be one JSON object and nothing else."""
    return json.loads(pulsify(*arguments, "--json", code=code).stdout)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("streams") / "stream.onnx"
    pulsify("stream", STRIDED, "-p", 8, "-o", path)
    return str(path)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model of the demo."""
    folder = tmp_path_factory.mktemp("sound")
    from pulsify.demo.model import enhancer

    onnx.save(enhancer(), folder / "model.onnx")
    pulsify("stream", folder / "model.onnx", "-p", 160, "-o", folder / "stream.onnx")
    return folder


def onnx_metadata(path: Path) -> dict[str, str]:
    return {p.key: p.value for p in onnx.load(path).metadata_props}


def frames(folder: Path, *shape: int, dtype: str = "float32") -> str:
    path = folder / "x.npy"
    np.save(path, np.random.default_rng(0).standard_normal(shape).astype(dtype))
    return str(path)


# ---- help


def test_help_says_what_the_exit_codes_mean() -> None:
    text = pulsify("--help").output
    for word in ("stream", "inspect", "verify", "run", "bench", "demo", "asr", "Exit codes", "not streamable"):
        assert word in text


@pytest.mark.parametrize("command", ["stream", "inspect", "verify", "run", "bench", "demo", "asr"])
def test_every_command_has_help_and_takes_json(command: str) -> None:
    assert "--json" in pulsify(command, "--help").output


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys\n"
        "from pulsify.cli.main import main\n"
        "main(['--help'], standalone_mode=False)\n"
        "main(['stream', '--help'], standalone_mode=False)\n"
        "heavy = {'numpy', 'onnx', 'onnx_ir', 'onnxruntime', 'rich', 'torch'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)
    assert (
        time.perf_counter() - start < 5
    )  # a tenth of a second on an idle machine; never the seconds of a heavy import


# ---- stream


def test_stream_shows_ports_states_and_the_error() -> None:
    text = pulsify("stream", STRIDED, "-p", 8, "--sample-rate", 16000).stdout
    assert "1.25 output frames = 5 input frames = 0.312 ms" in text
    assert "any multiple of 4" in text
    assert "state_001_1_Relu" in text
    assert "largest relative error" in text


def test_stream_json_is_complete(tmp_path: Path) -> None:
    facts = pulsify_json("stream", STRIDED, "-p", 8, "--sample-rate", 16000, "-o", tmp_path / "s.onnx")
    assert (facts["pulse"], facts["granularity"], facts["pulse_ms"]) == (8, 4, 0.5)
    assert (
        facts["outputs"][0] | {"delay": 1.25, "delay_input_frames": 5, "delay_ms": 0.3125, "rate": "1/4"}
        == facts["outputs"][0]
    )
    assert facts["state_bytes"] == sum(s["bytes"] for s in facts["states"])
    assert facts["verified"]["ok"]
    assert facts["nodes"] > 0
    assert facts["saved"] == str(tmp_path / "s.onnx")
    assert (tmp_path / "s.onnx").stat().st_size > 0


def test_stream_without_a_pulse_takes_the_smallest() -> None:
    assert pulsify_json("stream", STRIDED, "--no-verify")["pulse"] == 4
    assert "no (--no-verify)" in pulsify("stream", STRIDED, "--no-verify").stdout


def test_stream_takes_time_and_lengths() -> None:
    assert pulsify_json("stream", STRIDED, "--time", "S", "--set", "S=8*n")["lengths"]["every"] == 8
    assert pulsify_json("stream", STRIDED, "--time", "x=2")["inputs"][0]["axis"] == 2


def test_a_pulse_that_does_not_fit_says_which_does() -> None:
    result = pulsify("stream", STRIDED, "-p", 6, code=4)
    assert "multiple of 4; try -p 8" in result.stderr
    assert result.stdout == ""
    assert pulsify_json("stream", STRIDED, "-p", 6, code=4)["error"]["granularity"] == 4


def test_a_refusal_names_node_reason_and_hint() -> None:
    result = pulsify("stream", REFUSED, code=3)
    assert "not streamable: Mul node '/Mul'" in result.stderr
    assert "hint:" in result.stderr
    assert "Traceback" not in result.output
    error = pulsify_json("stream", REFUSED, code=3)["error"]
    assert (error["kind"], error["op"], error["node"]) == ("NotStreamable", "Mul", "/Mul")
    assert "ReduceMean '/ReduceMean'" in error["reason"]
    assert error["hint"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--time", "nope"),
        ("--time", "x=9"),
        ("--time", "x=a"),
        ("--set", "S"),
        ("--set", "S=0*"),
        ("--set", "Q=1"),
        ("--bind", "x"),
        ("--bind", "nope=T"),
        ("--unbounded", "0"),
        ("--unbounded", "some"),
        ("-p", "0"),
        ("-p", "many"),
        ("--sample-rate", "0"),
        ("--no-such-option",),
    ],
)
def test_wrong_arguments_exit_with_2(arguments: tuple[str, ...]) -> None:
    assert "Traceback" not in pulsify("stream", STRIDED, *arguments, code=2).output


def test_files_that_cannot_be_used_exit_with_5(tmp_path: Path) -> None:
    junk = tmp_path / "junk.onnx"
    junk.write_bytes(b"not a model")
    assert "no such model file" in pulsify("stream", tmp_path / "nope.onnx", code=5).stderr
    assert "not a readable ONNX model" in pulsify("stream", junk, code=5).stderr
    assert "No such file" in pulsify("stream", STRIDED, "-o", tmp_path / "no" / "s.onnx", code=5).stderr


def test_a_stream_is_not_converted_again(made: str) -> None:
    assert "a stream already" in pulsify("stream", made, code=2).stderr
    assert "a stream already" in pulsify("bench", made, code=2).stderr


def test_hints_speak_of_options() -> None:
    assert spoken('declare set={"T": "8*n"}, or pass time={"x": 2}') == "declare --set 'T=8*n', or pass --time x=2"
    assert spoken("say which with time='T' and fix others with set={...}") == (
        "say which with --time T and fix others with --set NAME=VALUE"
    )
    assert spoken("try pulse=16") == "try -p 16"
    assert spoken('or pass unbounded="grow" to keep all') == "or pass --unbounded grow to keep all"


def test_a_bug_is_not_taken_for_a_mismatch(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("pulsify.cli.stream.convert_batch", broken)
    assert "ZeroDivisionError: oops" in pulsify("stream", STRIDED, code=70).stderr
    assert pulsify_json("stream", STRIDED, code=70)["error"]["exit_code"] == 70


# ---- inspect


def test_inspect_a_batch_model() -> None:
    text = pulsify("inspect", STRIDED, "-p", 8).stdout
    assert "'S': axis 2 of x [1, 32, S]" in text
    assert "5 of 5 nodes carry data" in text
    assert "[-2, 0)" in text  # the window of y: two frames, two late
    facts = pulsify_json("inspect", STRIDED, "-p", 8)
    assert facts["kind"] == "batch"
    wire = next(w for w in facts["windows"]["wires"] if w["wire"] == "y")
    assert (wire["frames"], wire["window"], wire["delay"]) == (2, [-2, 0], 2)
    assert facts["stream"]["outputs"][0]["delay"] == 1.25  # the pulses begin three frames before the stream


def test_inspect_a_stream(made: str) -> None:
    facts = pulsify_json("inspect", made)
    assert facts["kind"] == "stream"
    assert facts["pulse"] == 8
    assert "state_000_x" in pulsify("inspect", made).stdout
    pulsify("inspect", made, "--stage", "trace", code=2)
    pulsify("inspect", made, "-p", 4, code=2)


def test_inspect_shows_what_leads_to_a_refusal() -> None:
    result = pulsify("inspect", REFUSED, code=3)
    assert "axis 2 of x" in result.stdout
    assert "ReduceMean" in result.stderr
    facts = pulsify_json("inspect", REFUSED, code=3)
    assert facts["time"]["symbol"] == "S"
    assert facts["error"]["op"] == "Mul"
    assert pulsify_json("inspect", REFUSED, "--stage", "windows", code=3)["wires"][0]["wire"] == "x"
    assert pulsify_json("inspect", STRIDED, "-p", 6, code=4)["error"]["granularity"] == 4


def test_stage_trace_tells_data_from_known() -> None:
    facts = pulsify_json("inspect", MODELS / "posenc_arange.onnx", "--stage", "trace")
    rows = {r["op"]: r for r in facts["values"]}
    assert rows["Add"]["data"]
    assert not rows["Range"]["data"]
    assert [d[0] for d in rows["Range"]["dims"]] == facts["lengths"]
    assert rows["Gather"]["values"] == facts["lengths"]
    text = pulsify("inspect", MODELS / "posenc_arange.onnx", "--stage", "trace").stdout
    assert "|".join(map(str, facts["lengths"])) in text


def test_stage_plan_says_what_is_read_kept_and_waited_for() -> None:
    facts = pulsify_json("inspect", MODELS / "unet.onnx", "--stage", "plan")
    assert facts["pulse"] == 4 and facts["plan"][-1] == "output y: delay 8"
    text = pulsify("inspect", MODELS / "unet.onnx", "--stage", "plan").stdout
    assert "keeps 2 past frames" in text and "k-1 ... k+1, 0 outside the stream" in text


def test_stage_windows_has_every_wire() -> None:
    facts = pulsify_json("inspect", MODELS / "unet.onnx", "--stage", "windows")
    kept = {w["wire"]: w["kept"] for w in facts["wires"] if w["kept"]}
    assert kept["x"] == 2
    assert "[-8, -4)" in pulsify("inspect", MODELS / "unet.onnx", "--stage", "windows").stdout
    positions = pulsify("inspect", MODELS / "posenc_arange.onnx", "--stage", "windows").stdout
    assert "any (from the position)" in positions


def test_stage_stream_is_the_graph(made: str) -> None:
    text = pulsify("inspect", STRIDED, "-p", 8, "--stage", "stream").stdout
    assert "in   state_000_x: float32[1, 32, 3]" in text
    assert "Conv(" in text
    assert "0.weight: float32[64, 32, 5]" in text
    assert pulsify("inspect", made, "--stage", "stream").stdout == text
    assert pulsify_json("inspect", made, "--stage", "stream")["graph"] == text.splitlines()


# ---- verify


def test_verify(made: str) -> None:
    assert "the stream is the batch model" in pulsify("verify", STRIDED, made).stdout
    facts = pulsify_json("verify", STRIDED, made, "-n", 5, "-n", 33)
    assert facts["made_from_this_file"]
    assert facts["verified"]["lengths"] == [5, 33]
    assert facts["verified"]["ok"]


def test_a_stream_that_forgets_says_up_to_where_it_is_exact(tmp_path: Path) -> None:
    model, stream = tmp_path / "model.onnx", tmp_path / "stream.onnx"
    onnx.save(framed_causal(up=2, front=6), model)
    text = pulsify("stream", model, "-p", 2, "--unbounded", 16, "-o", stream).stdout
    assert "exact up to 7 frames" in " ".join(text.split())
    facts = pulsify_json("verify", model, stream)
    assert facts["verified"]["ok"]
    assert max(facts["verified"]["lengths"]) == 7
    assert facts["verified"]["exact_up_to"] == 7
    assert "exact up to 7 frames" in facts["verified"]["notes"][0]
    for command in (("verify", model, stream), ("inspect", stream)):
        assert "exact up to 7 frames" in " ".join(pulsify(*command).stdout.split())
    assert pulsify_json("inspect", stream)["exact_up_to"] == 7
    assert json.loads(onnx_metadata(stream)["pulsify.time"])["exact_up_to"] == 7


@pytest.mark.parametrize("front", [0, 40])
@pytest.mark.parametrize("command", ["stream", "bench --seconds 0", "bench -p 4 --seconds 0"])
def test_a_stream_that_forgets_is_no_failure(command: str, front: int, tmp_path: Path) -> None:
    """Commands succeed where the library does, however little is kept; nobody tries how far back it looks."""
    onnx.save(framed_causal(front=front), tmp_path / "model.onnx")
    name, *rest = command.split()
    pulsify(name, tmp_path / "model.onnx", "--unbounded", 6, *rest)


def test_verify_tells_another_model_apart(made: str, tmp_path: Path) -> None:
    model = onnx.load(STRIDED)
    bias = next(t for t in model.graph.initializer if t.name == "4.bias")
    bias.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(bias) + 1, bias.name))
    onnx.save(model, tmp_path / "other.onnx")
    text = pulsify("verify", tmp_path / "other.onnx", made, code=1).stdout
    assert "MISMATCH" in text
    assert "made from another file" in text
    facts = pulsify_json("verify", tmp_path / "other.onnx", made, code=1)
    assert not facts["verified"]["ok"]
    assert not facts["made_from_this_file"]
    assert facts["error"]["kind"] == "Mismatch"


def test_verify_wants_the_right_files(made: str, sound: Path) -> None:
    assert "not a streaming model" in pulsify("verify", STRIDED, STRIDED, code=5).stderr
    assert "comes first" in pulsify("verify", made, made, code=2).stderr
    assert "not made from this model" in pulsify("verify", sound / "model.onnx", made, code=2).stderr


# ---- run


@pytest.mark.parametrize("chunk", [(), ("--chunk", 1), ("--chunk", 3), ("--chunk", 1000)])
def test_run_equals_batch_for_any_chunk(made: str, tmp_path: Path, chunk: tuple[Any, ...]) -> None:
    x = frames(tmp_path, 1, 32, 101)
    facts = pulsify_json("run", made, x, "-o", tmp_path / "y.npy", "--compare", STRIDED, *chunk)
    assert facts["frames"] == 101
    assert facts["compared"]["outputs"]["y"]["ok"]
    assert np.load(tmp_path / "y.npy").shape == (1, 64, 26)


def test_run_converts_a_batch_model(tmp_path: Path) -> None:
    text = pulsify("run", STRIDED, frames(tmp_path, 1, 32, 40, dtype="float64"), "--compare", STRIDED, "-p", 8).stdout
    assert "y float32 [1, 64, 10]" in text
    assert "equal" in text


def test_run_tells_a_mismatch(made: str, tmp_path: Path) -> None:
    other = MODELS / "conv_causal.onnx"
    assert "MISMATCH" in pulsify("run", made, frames(tmp_path, 1, 32, 40), "--compare", other, code=1).stdout


def test_run_says_what_is_wrong_with_the_input(made: str, tmp_path: Path) -> None:
    assert (
        "takes [1, 32, time], the file holds [1, 31, 9]"
        in pulsify("run", made, frames(tmp_path, 1, 31, 9), code=5).stderr
    )
    assert "[32, 9]" in pulsify("run", made, frames(tmp_path, 32, 9), code=5).stderr
    assert "no frames" in pulsify("run", made, frames(tmp_path, 1, 32, 0), code=5).stderr
    assert "float32" in pulsify("run", made, frames(tmp_path, 1, 32, 9, dtype="complex64"), code=5).stderr
    assert "no such input file" in pulsify("run", made, tmp_path / "nope.npy", code=5).stderr
    np.savez(tmp_path / "z.npz", z=np.zeros(3))
    assert "missing: ['x']; unknown: ['z']" in pulsify("run", made, tmp_path / "z.npz", code=5).stderr
    (tmp_path / "x.txt").write_text("1 2 3")
    assert ".npy, .npz or .wav" in pulsify("run", made, tmp_path / "x.txt", code=5).stderr
    (tmp_path / "junk.npy").write_text("junk")
    assert "not a readable" in pulsify("run", made, tmp_path / "junk.npy", code=5).stderr
    pulsify("run", made, frames(tmp_path, 1, 32, 9), "-o", tmp_path / "y.txt", code=2)


def two_by_two() -> onnx.ModelProto:
    """Two streamed inputs and a static one, two outputs."""
    nodes = [
        helper.make_node("Mul", ["y", "gain"], ["scaled"]),
        helper.make_node("Add", ["x", "scaled"], ["sum"]),
        helper.make_node("Sub", ["x", "scaled"], ["difference"]),
    ]
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["B", "T", 2]) for n in ("x", "y")]
    inputs.append(helper.make_tensor_value_info("gain", TensorProto.FLOAT, [2]))
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["B", "T", 2]) for n in ("sum", "difference")]
    graph = helper.make_graph(nodes, "two", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_run_with_several_inputs_and_outputs(tmp_path: Path) -> None:
    model = tmp_path / "two.onnx"
    onnx.save(two_by_two(), model)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 3, 21, 2)).astype(np.float32)
    gain = np.array([2, 3], np.float32)
    np.savez(tmp_path / "in.npz", x=x, y=y, gain=gain)
    pulsify("run", model, tmp_path / "in.npz", "-p", 4, "-o", tmp_path / "out.npz", "--compare", model)
    out = np.load(tmp_path / "out.npz")
    np.testing.assert_allclose(out["sum"], x + y * gain, rtol=1e-6)
    np.testing.assert_allclose(out["difference"], x - y * gain, rtol=1e-5, atol=1e-6)
    assert ".npz" in pulsify("run", model, tmp_path / "in.npz", "-o", tmp_path / "out.npy", code=2).stderr
    np.save(tmp_path / "x.npy", x)
    assert "by name" in pulsify("run", model, tmp_path / "x.npy", code=5).stderr


def write_wav(path: Path, samples: np.ndarray[Any, Any], width: int) -> str:
    """samples: whole numbers [frames, channels] at the scale of the width."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(samples.shape[1])
        file.setsampwidth(width)
        file.setframerate(16000)
        raw = (samples + 128).astype(np.uint8) if width == 1 else samples.astype("<i4").view(np.uint8)
        if width > 1:
            raw = raw.reshape(samples.shape[0], samples.shape[1], 4)[:, :, :width]
        file.writeframes(np.ascontiguousarray(raw).tobytes())
    return str(path)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_wav_samples_are_scaled(tmp_path: Path, width: int) -> None:
    from pulsify.asr.wav import read_wav

    top = 1 << (8 * width - 1)
    whole = np.array([[0, 1], [-top, 0], [top - 1, 0], [top // 2, 0]], np.int64)
    path = write_wav(tmp_path / "a.wav", whole, width)
    samples, rate = read_wav(path, 0)
    assert rate == 16000
    assert samples.dtype == np.float32
    np.testing.assert_allclose(samples, whole[:, 0] / top, atol=1e-7)
    assert samples.max() < 1
    assert read_wav(path, 1)[0][0] == pytest.approx(1 / top)


def test_run_a_wav_file(sound: Path, tmp_path: Path) -> None:
    samples = np.random.default_rng(0).integers(-3000, 3000, (4000, 1))
    path = write_wav(tmp_path / "a.wav", samples, 2)
    facts = pulsify_json("run", sound / "stream.onnx", path, "--compare", sound / "model.onnx")
    assert facts["sample_rate"] == 16000
    assert facts["outputs"]["clean"]["shape"] == [1, 1, 4000]
    assert facts["compared"]["outputs"]["clean"]["ok"]
    assert "real time" in pulsify("run", sound / "stream.onnx", path).stdout


def test_sound_in_and_out_as_floats(sound: Path, tmp_path: Path) -> None:
    """What is saved as sound is what .npy would hold, bit for bit, and is read again."""
    samples = np.random.default_rng(0).standard_normal((3000, 2)).astype(np.float32)
    from pulsify.asr.wav import read_wav

    write_floats(tmp_path / "two.wav", samples, 16000)
    given = (sound / "stream.onnx", tmp_path / "two.wav")
    pulsify("run", *given, "-o", tmp_path / "out.wav")
    pulsify("run", *given, "-o", tmp_path / "out.npy")
    got, rate = read_wav(str(tmp_path / "out.wav"))
    assert rate == 16000
    np.testing.assert_array_equal(got, np.load(tmp_path / "out.npy").reshape(-1))
    np.testing.assert_array_equal(read_wav(str(tmp_path / "two.wav"), 1)[0], samples[:, 1])
    np.testing.assert_allclose(read_wav(str(tmp_path / "two.wav"))[0], samples.mean(1), atol=1e-6)


def write_floats(path: Path, samples: np.ndarray[Any, Any], rate: int) -> None:
    """As most editors write them: with a description that is longer than that of whole numbers."""
    channels, raw = samples.shape[1], samples.astype("<f4").tobytes()
    form = struct.pack("<HHIIHHH", 3, channels, rate, rate * 4 * channels, 4 * channels, 32, 0)
    body = (
        b"fmt " + struct.pack("<I", len(form)) + form + b"LIST\x03\0\0\0abc\0data" + struct.pack("<I", len(raw)) + raw
    )
    path.write_bytes(b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WAVE" + body)


def test_a_sample_rate_is_kept_in_the_file(sound: Path, tmp_path: Path) -> None:
    made = tmp_path / "s.onnx"
    pulsify("stream", sound / "model.onnx", "--sample-rate", 8000, "-o", made)
    assert pulsify_json("inspect", made)["sample_rate"] == 8000
    np.save(tmp_path / "x.npy", np.zeros((1, 1, 800), np.float32))
    assert pulsify_json("run", made, tmp_path / "x.npy")["sample_rate"] == 8000
    other = write_wav(tmp_path / "a.wav", np.zeros((400, 1), np.int64), 2)
    assert "16000 samples a second, this stream was made for 8000" in pulsify("run", made, other, code=5).stderr
    pulsify("run", sound / "stream.onnx", tmp_path / "x.npy", "-o", tmp_path / "o.wav", code=2)


def test_wav_files_that_do_not_fit(sound: Path, made: str, tmp_path: Path) -> None:
    stereo = write_wav(tmp_path / "s.wav", np.zeros((400, 2), np.int64), 2)
    pulsify("run", sound / "stream.onnx", stereo)
    pulsify("run", sound / "stream.onnx", stereo, "--channel", 1)
    pulsify("run", sound / "stream.onnx", stereo, "--channel", 2, code=2)
    assert "not one channel of sound" in pulsify("run", made, stereo, "--channel", 0, code=5).stderr
    (tmp_path / "junk.wav").write_bytes(b"junk")
    assert "not a PCM .wav file" in pulsify("run", sound / "stream.onnx", tmp_path / "junk.wav", code=5).stderr


# ---- bench and demo


def test_bench() -> None:
    facts = pulsify_json("bench", STRIDED, "-p", 8, "--seconds", 0)
    assert facts["threads"] == 1
    for part in ("stream", "batch", "sliding"):
        assert 0 < facts[part]["p50_us"] <= facts[part]["p99_us"]
    # three convs: pads 2, 1, 1 at strides 2, 2, 1 look this far, in whole output frames
    assert facts["sliding"]["window"] >= facts["sliding"]["looks_back"] + facts["sliding"]["looks_ahead"] + 8
    text = pulsify("bench", STRIDED, "-p", 8, "--seconds", 0, "--sample-rate", 100).stdout
    assert "one pulse" in text
    assert "a pulse lasts 80 ms" in text


def test_demo_is_exact(tmp_path: Path) -> None:
    facts = pulsify_json("demo", "--save", tmp_path / "demo.onnx")
    assert all(row["error"] <= 1e-5 for row in facts["exact"])
    assert facts["stream"]["outputs"][0]["delay_ms"] == pytest.approx(19.9, abs=0.05)
    assert pulsify_json("stream", tmp_path / "demo.onnx", "-p", 160)["verified"]["ok"]


def test_demo_draws_what_happens() -> None:
    text = pulsify("demo", "-p", 320).stdout
    assert "pulse 0" in text
    assert "flush" in text
    assert "######" in text
    assert all(len(line) <= 100 for line in text.splitlines())
    assert "multiple of 160" in pulsify("demo", "-p", 100, code=4).stderr


def test_a_bug_has_a_code_and_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from pulsify.ops.registry import RULES

    def broken(ctx: Any, node: Any) -> None:
        raise IndexError("list index out of range")

    broken.__module__ = RULES["Conv"].rule.__module__
    monkeypatch.setitem(RULES, "Conv", replace(RULES["Conv"], rule=broken))
    onnx.save(models.look_ahead(), tmp_path / "m.onnx")
    done = CliRunner().invoke(main, ["stream", str(tmp_path / "m.onnx"), "-p", "4", "--json"])
    assert done.exit_code == 70
    error = json.loads(done.stdout)["error"]
    assert (error["kind"], error["exit_code"], error["node"], error["op"]) == ("InternalError", 70, "h", "Conv")
    assert error["reason"] == "IndexError: list index out of range" and "onnxruntime" in error["versions"]
    assert "Traceback" in done.stderr and "internal error: this is a bug in pulsify at Conv node 'h'" in done.stderr


def test_a_file_that_cannot_be_written_is_no_bug(tmp_path: Path) -> None:
    onnx.save(models.look_ahead(), tmp_path / "m.onnx")
    missing = tmp_path / "none" / "s.onnx"
    done = CliRunner().invoke(main, ["stream", str(tmp_path / "m.onnx"), "-p", "4", "-o", str(missing)])
    assert done.exit_code == 5 and "No such file or directory" in done.stderr and "bug" not in done.stderr

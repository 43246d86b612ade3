"""A folder for sherpa-onnx: called as sherpa calls it, and by sherpa itself on sound."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import pulsify
from tests import models
from tests.models import Array, close, frames, model, node, run_batch, weights
from tests.unit.export.running import converted, zoo

UNITS = ["<blk>", *"abcdefgh"]
PULSE = 16


def aligned(source: onnx.ModelProto, pulse: int = 4, **options: Any) -> pulsify.Stream:
    """Sherpa begins with a whole pulse."""
    return converted(source, pulse, phase=False, **options)


def ctc(batch: int | str = "B", turned: bool = False) -> onnx.ModelProto:
    """Features [B, 80, T] (or [B, T, 80]) to scores [B, T / 4, 9]: two strides, an LSTM, both boundaries, a delay."""
    nodes = [node("Transpose", "audio_signal", "x", perm=[0, 2, 1])] if turned else []
    nodes += [
        node("Conv", f"{'x' if turned else 'audio_signal'} w1", "c1", pads=[1, 1], strides=[2]),
        node("Relu", "c1", "r1"),
        node("Conv", "r1 w2", "c2", pads=[2, 2], strides=[2]),
        node("Transpose", "c2", "t", perm=[2, 0, 1]),
        node("LSTM", "t w r", "l", hidden_size=8),
        node("Squeeze", "l one", "s"),
        node("MatMul", "s head", "h"),
        node("LogSoftmax", "h", "p", axis=-1),
        node("Transpose", "p", "logits", perm=[1, 0, 2]),
    ]
    given = {
        "w1": weights(16, 80, 3) / 30, "w2": weights(8, 16, 5) / 3, "w": weights(1, 32, 8),
        "r": weights(1, 32, 8, seed=3), "head": 3 * weights(8, len(UNITS), seed=4), "one": np.array([1]),
    }  # fmt: skip
    return model(nodes, {"audio_signal": [batch, "T", 80] if turned else [batch, 80, "T"]}, ["logits"], given)


def tokens(folder: Path, units: Sequence[str] = UNITS) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "units.txt").write_text("\n".join(units) + "\n")
    return str(folder / "units.txt")


def exported(source: onnx.ModelProto, folder: Path, pulse: int = PULSE) -> pulsify.Stream:
    stream = aligned(source, pulse)
    pulsify.export(stream, "sherpa-onnx", folder / "out", tokens=tokens(folder))
    return stream


class Calls:
    """As `online-nemo-ctc-model.cc` calls it: caches of the shapes that the metadata says, zeros at first."""

    def __init__(self, file: Path) -> None:
        self.runner = ort.InferenceSession(file, providers=["CPUExecutionProvider"])
        self.said = self.runner.get_modelmeta().custom_metadata_map
        self.names = [i.name for i in self.runner.get_inputs()]
        assert len(self.names) == 5

    def number(self, key: str) -> int:
        return int(self.said[key])

    def begun(self, kind: str) -> Array:
        return np.zeros([1, *(self.number(f"cache_last_{kind}_dim{i}") for i in (1, 2, 3))], np.float32)

    def states(self) -> list[Array]:
        return [self.begun("channel"), self.begun("time"), np.zeros(1, np.int64)]

    def __call__(self, x: Array, states: list[Array]) -> tuple[Array, list[Array]]:
        length = np.full(len(x), self.number("window_size"), np.int64)
        out = self.runner.run(None, dict(zip(self.names, [x, length, *states], strict=True)))
        return out[0], out[2:]


def blanks(y: Array) -> Array:
    return np.argmax(y, -1) == 0


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("batch", [1, "B"])
def test_frames_are_the_batch_model_s_behind_blanks(turned: bool, batch: int | str, tmp_path: Path) -> None:
    """The stream goes on behind the sound, so it is compared with batch on more of it, up to where the end shows."""
    source = ctc(batch, turned)
    stream, call = exported(source, tmp_path), Calls(tmp_path / "out" / "model.onnx")
    assert call.number("window_size") == call.number("chunk_shift") == stream.pulse == PULSE
    assert call.number("subsampling_factor") == 4 and call.number("vocab_size") == len(UNITS) - 1
    x, (out,) = frames(1, 80, 10 * PULSE), stream.outputs
    parts, states = [], call.states()
    for n in range(10):
        y, states = call(x[..., n * PULSE : (n + 1) * PULSE], states)
        parts.append(y)
    got, wanted = np.concatenate(parts, 1), run_batch(source, x.transpose(0, 2, 1) if turned else x)["logits"]
    assert out.delay > 0 and blanks(got[:, : out.delay]).all()
    close(got[:, out.delay :], wanted[:, : got.shape[1] - out.delay])


def test_streams_of_a_batch_stay_apart(tmp_path: Path) -> None:
    """sherpa joins caches of streams that are ready, whatever their age."""
    source = ctc()
    stream, call = exported(source, tmp_path), Calls(tmp_path / "out" / "model.onnx")
    given = [frames(1, 80, 8 * PULSE, seed=s) for s in (1, 2)]
    states, parts, at, delay = [call.states() for _ in given], [[], []], [0, 0], stream.outputs[0].delay
    for which in ([0], [0, 1], [1], [0, 1], [0, 1], [0], [0, 1], [0, 1]):
        x = np.concatenate([given[i][..., at[i] * PULSE : (at[i] + 1) * PULSE] for i in which])
        together = [np.concatenate([states[i][k] for i in which]) for k in range(3)]
        y, after = call(x, together)
        for row, i in enumerate(which):
            parts[i].append(y[row : row + 1])
            states[i], at[i] = [s[row : row + 1] for s in after], at[i] + 1
    for x, out in zip(given, parts, strict=True):
        got = np.concatenate(out, 1)[:, delay:]
        close(got, run_batch(source, x)["logits"][:, : got.shape[1]])


def test_the_folder_is_what_sherpa_takes(tmp_path: Path) -> None:
    exported(ctc(), tmp_path)
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"model.onnx", "tokens.txt"}
    assert (tmp_path / "out" / "tokens.txt").read_text().splitlines()[:2] == ["<blk> 0", "a 1"]
    onnx.checker.check_model(onnx.load(tmp_path / "out" / "model.onnx"), full_check=True)
    aligned(ctc(), PULSE).export(tmp_path / "again", "sherpa-onnx", tokens=str(tmp_path / "out" / "tokens.txt"))
    assert (tmp_path / "again" / "tokens.txt").read_text() == (tmp_path / "out" / "tokens.txt").read_text()


def sound(seed: int) -> Array:
    """Two seconds and a bit: tones that change ten times a second."""
    rng, time = np.random.default_rng(seed), np.arange(1600) / 16000
    tones = [a * np.sin(2 * np.pi * f * time) for a, f in zip(rng.uniform(0.01, 0.5, 22), rng.uniform(100, 6000, 22))]
    return np.concatenate([*tones, rng.uniform(-0.1, 0.1, 777)]).astype(np.float32)


def greedy(y: Array) -> str:
    best = np.argmax(y[0], -1)
    kept = [b for a, b in zip([-1, *best], best, strict=False) if b not in (a, 0)]
    return "".join(UNITS[i] for i in kept)


@pytest.mark.parametrize("pulse", [4, 16, 48])
def test_sherpa_itself_hears_what_batch_hears(pulse: int, tmp_path: Path) -> None:
    sherpa = pytest.importorskip("sherpa_onnx", reason="sherpa-onnx is not installed")
    source = ctc()
    stream = exported(source, tmp_path, pulse)
    recogniser = sherpa.OnlineRecognizer.from_nemo_ctc(
        tokens=str(tmp_path / "out" / "tokens.txt"), model=str(tmp_path / "out" / "model.onnx"), num_threads=1
    )
    for text, features, pulses in [_heard(recogniser, sound(seed)) for seed in (1, 2)]:
        wanted = run_batch(source, features)["logits"]
        last = pulses * pulse // 4 - stream.outputs[0].delay  # the frames that had come out
        assert text == greedy(wanted[:, :last]) and len(text) > 5


def _heard(recogniser: Any, sound: Array) -> tuple[str, Array, int]:
    """What sherpa says, the features it made, [1, 80, T], and how often it called the model."""
    listening, looked_at = recogniser.create_stream(), recogniser.create_stream()
    for piece in np.array_split(sound, 7):
        listening.accept_waveform(16000, piece)
        looked_at.accept_waveform(16000, piece)
    count = (len(sound) - 280) // 160 + 1  # windows of 400, their middles 160 apart, the first at 80
    features = np.concatenate([np.asarray(looked_at.get_frames(i, 1)).reshape(1, 80, 1) for i in range(count)], 2)
    pulses = 0
    while recogniser.is_ready(listening):
        recogniser.decode_stream(listening)
        pulses += 1
    return recogniser.get_result(listening), features.astype(np.float32), pulses


# ---- transducers


def encoder() -> onnx.ModelProto:
    """Features [B, 80, T] to [B, 6, T / 4], padded in front only: no delay at whole strides."""
    nodes = [
        node("Conv", "audio_signal w1", "c1", pads=[3, 0], strides=[4]),
        node("Tanh", "c1", "t1"),
        node("Conv", "t1 w2", "outputs", pads=[2, 0]),
    ]
    return model(
        nodes, {"audio_signal": ["B", 80, "T"]}, ["outputs"], {"w1": weights(6, 80, 4) / 40, "w2": weights(6, 6, 3)}
    )


def prediction() -> onnx.ModelProto:
    """targets [B, 1], their number, h and c [1, B, 5] to [B, 5, 1], the number, h and c: as NeMo exports it."""
    nodes = [
        node("Gather", "table targets", "e"),
        node("Transpose", "e", "t", perm=[1, 0, 2]),
        node("LSTM", "t w r _ _ h c", "l h_next c_next", hidden_size=5),
        node("Squeeze", "l one", "s"),
        node("Transpose", "s", "outputs", perm=[1, 2, 0]),
        node("Identity", "target_length", "prednet_lengths"),
    ]
    kinds = {"targets": np.int32, "target_length": np.int32, "prednet_lengths": np.int32}
    ports = {"targets": ["B", 1], "target_length": ["B"], "h": [1, "B", 5], "c": [1, "B", 5]}
    given = {
        "table": weights(len(UNITS), 4), "w": weights(1, 20, 4), "r": weights(1, 20, 5, seed=2), "one": np.array([1])
    }  # fmt: skip
    return model(nodes, ports, ["outputs", "prednet_lengths", "h_next", "c_next"], given, dtypes=kinds)


def joint() -> onnx.ModelProto:
    """[B, 6, 1] and [B, 5, 1] to [B, 1, 1, units]."""
    nodes = [
        node("Concat", "encoder_outputs decoder_outputs", "j", axis=1),
        node("Transpose", "j", "t", perm=[0, 2, 1]),
        node("MatMul", "t head", "m"),
        node("Unsqueeze", "m one", "outputs"),
    ]
    ports = {"encoder_outputs": ["B", 6, 1], "decoder_outputs": ["B", 5, 1]}
    return model(nodes, ports, ["outputs"], {"head": 2 * weights(11, len(UNITS), seed=6), "one": np.array([1])})


NEMO = [*UNITS[1:], "<blk>"]  # NeMo has its blank last


def transducer(folder: Path, pulse: int = PULSE, source: onnx.ModelProto | None = None, **options: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(prediction(), folder / "d.onnx")
    onnx.save(joint(), folder / "j.onnx")
    files = {"decoder": str(folder / "d.onnx"), "joiner": str(folder / "j.onnx")}
    chosen = {"kind": "transducer", "tokens": tokens(folder, NEMO), "hidden": 5, **files, **options}
    aligned(source or encoder(), pulse).export(folder / "out", "sherpa-onnx", **chosen)


def test_an_encoder_is_the_batch_model(tmp_path: Path) -> None:
    transducer(tmp_path)
    call, x = Calls(tmp_path / "out" / "encoder.onnx"), frames(1, 80, 6 * PULSE)
    states, parts = call.states(), []
    for n in range(6):
        y, states = call(x[..., n * PULSE : (n + 1) * PULSE], states)
        parts.append(y)
    close(np.concatenate(parts, 2), run_batch(encoder(), x)["outputs"])
    assert (call.number("pred_hidden"), call.number("pred_rnn_layers")) == (5, 1)
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "encoder.onnx",
        "decoder.onnx",
        "joiner.onnx",
        "tokens.txt",
    }


def transduced(y: Array) -> str:
    """Greedy search over encoder frames [1, 6, T]: up to ten units a frame."""
    blank, out = len(NEMO) - 1, list[int]()

    def predicted(state: dict[str, Array]) -> tuple[Array, dict[str, Array]]:
        last = np.array([[out[-1] if out else blank]], np.int32)
        made = run_batch(prediction(), {"targets": last, "target_length": np.ones(1, np.int32), **state})
        return made["outputs"], {"h": made["h_next"], "c": made["c_next"]}

    heard, after = predicted({n: np.zeros((1, 1, 5), np.float32) for n in ("h", "c")})
    for t in range(y.shape[2]):
        for _ in range(10):
            given = {"encoder_outputs": y[:, :, t : t + 1], "decoder_outputs": heard}
            best = int(np.argmax(run_batch(joint(), given)["outputs"]))
            if best == blank:
                break
            out.append(best)
            heard, after = predicted(after)
    return "".join(NEMO[i] for i in out)


def test_sherpa_itself_transduces_what_batch_does(tmp_path: Path) -> None:
    sherpa = pytest.importorskip("sherpa_onnx", reason="sherpa-onnx is not installed")
    transducer(tmp_path)
    files = {n: str(tmp_path / "out" / f"{n}.onnx") for n in ("encoder", "decoder", "joiner")}
    recogniser = sherpa.OnlineRecognizer.from_transducer(
        tokens=str(tmp_path / "out" / "tokens.txt"), num_threads=1, **files
    )
    for text, features, pulses in [_heard(recogniser, sound(seed)) for seed in (1, 2)]:
        frames_out = run_batch(encoder(), features)["outputs"][..., : pulses * PULSE // 4]
        assert text == transduced(frames_out) and len(text) > 5


# ---- refusals


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (models.two_rates(), r"one input of features and one output of frames; .*'slow', 'fast'.*'sum', 'negative'"),
        (models.conditioned(), r"one input of features .*'x', 'scale'"),
        (models.tokens(), r"features \[B, C, T\] or \[B, T, C\] in float32; 'x' is int64"),
        (models.look_ahead(), r"a unit for every score: 'y' has 3, tokens has 9"),
    ],
)
def test_what_does_not_fit_says_what_is_missing(source: onnx.ModelProto, says: str, tmp_path: Path) -> None:
    with pytest.raises(pulsify.NotSupported, match=f"sherpa-onnx takes {says}"):
        exported(source, tmp_path, 4)
    assert not (tmp_path / "out").exists()


def test_a_transducer_s_encoder_with_a_delay_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        pulsify.NotSupported, match=r"without delay: frames of 'y' come 3 late(.|\n)*hint: take whole chunks"
    ):
        transducer(tmp_path, 4, models.look_ahead("B"))


def test_growing_caches_and_openings_are_refused(tmp_path: Path) -> None:
    given = {"tokens": tokens(tmp_path)}
    with pytest.raises(pulsify.NotSupported, match="grows with the stream, and sherpa-onnx has states of one size"):
        aligned(zoo("attn_full_causal"), unbounded="grow").export(tmp_path / "out", "sherpa-onnx", **given)
    opening = pulsify.stream(models.mirrored(1), pulse=2, verify=False)
    with pytest.raises(pulsify.InvalidArgument, match=r"'sherpa-onnx' takes one graph.*opening=False"):
        opening.export(tmp_path / "out", "sherpa-onnx", **given)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "tokens=FILE is missing"),
        ({"tokens": ["a", "b"]}, r"tokens='units.txt' has no blank: call it <blk> there"),
        ({"tokens": UNITS, "kind": "attention"}, "kind='attention': there are ctc, transducer"),
        ({"tokens": UNITS, "kind": "transducer"}, "a transducer takes decoder=FILE, joiner=FILE, hidden=N"),
    ],
)
def test_options_that_are_missing(options: dict[str, Any], says: str, tmp_path: Path) -> None:
    if "tokens" in options:
        options = {**options, "tokens": tokens(tmp_path, options["tokens"])}
    with pytest.raises(pulsify.InvalidArgument, match=says):
        aligned(encoder(), PULSE).export(tmp_path / "out", "sherpa-onnx", **options)


def test_what_computes_otherwise_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches that never change: the second pulse is another stream's first."""
    from pulsify.export import sherpa as target

    monkeypatch.setattr(
        target,
        "_leave",
        lambda at, inner, spec, sizes, cache, rows: at.op("Identity", [cache], cache.shape, target.F32),
    )
    with pytest.raises(pulsify.NotSupported, match=r"sherpa-onnx computes otherwise: 'logits' .* nothing was written"):
        exported(ctc(), tmp_path)
    assert not (tmp_path / "out").exists()


def small(features: int = 80, batch: int | str = 1) -> onnx.ModelProto:
    nodes = [node("Conv", "x w", "c", pads=[1, 1]), node("Transpose", "c", "y", perm=[0, 2, 1])]
    return model(nodes, {"x": [batch, features, "T"]}, ["y"], {"w": weights(len(UNITS), features, 3) / 9})


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (small(40), "sherpa-onnx takes 80 features, which it makes itself; 'x' has 40"),
        (small(80, 2), r"sherpa-onnx takes one stream a row; 'x' has 2(.|\n)*hint: convert it with a free batch"),
    ],
)
def test_what_sherpa_could_not_call_is_not_written(source: onnx.ModelProto, says: str, tmp_path: Path) -> None:
    with pytest.raises(pulsify.NotSupported, match=says):
        exported(source, tmp_path)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("between", [" ", "\t"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_units_may_be_numbered_in_any_order(mark: str, between: str, end: str, tmp_path: Path) -> None:
    lines = [f"{unit}{between}{i}{end}" for i, unit in enumerate(UNITS)]
    (tmp_path / "t.txt").write_bytes((mark + "".join(reversed(lines))).encode())
    aligned(small(), PULSE).export(tmp_path / "out", "sherpa-onnx", tokens=str(tmp_path / "t.txt"))
    wanted = "".join(f"{unit} {i}\n" for i, unit in enumerate(UNITS))
    assert (tmp_path / "out" / "tokens.txt").read_text() == wanted


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("<blk>\n\xe9\n".encode("latin-1"), "tokens='t.txt' is not in UTF-8"),
        (b"<blk> 0\na 1\nb 1\n", "units are numbered from 0 to 2, each once"),
    ],
)
def test_units_that_are_none_say_why(text: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(text)
    with pytest.raises(pulsify.InvalidArgument, match=says):
        aligned(small(), PULSE).export(tmp_path / "out", "sherpa-onnx", tokens=str(tmp_path / "t.txt"))

"""Streaming recognition: the transcript of any chunks is the one the batch models and a plain decoder give."""

from __future__ import annotations

import json
import signal
import sys
import threading
import types
import wave
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from click.testing import CliRunner, Result

import pulsify
from pulsify.cli.main import main

pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from pulsify.asr import Recogniser, Transcriber
from pulsify.asr.greedy import Ctc
from pulsify.asr.text import Vocabulary
from tests.asr_models import HIDDEN, HOP, PULSE, RATE, UNITS, export_all, sound
from tests.models import model, node

Array = np.ndarray[Any, Any]
KINDS = ("ctc", "two", "one")
BLANK = len(UNITS)
COMMON = f'sample_rate = {RATE}\nvocabulary = "vocabulary.txt"\npreprocessor = "preprocessor.onnx"\npulse = {PULSE}\n'
HEADS = {
    "ctc": 'kind = "ctc"\nencoder = "ctc.onnx"\n',
    "two": 'kind = "rnnt"\nencoder = "encoder.onnx"\ndecoder = "decoder.onnx"\njoint = "joint.onnx"\n',
    "one": 'kind = "rnnt"\nencoder = "encoder.onnx"\ndecoder_joint = "decoder_joint.onnx"\n',
}
LENGTHS = (1, 15, 16, 17, 31, 32, 33, 127, 128, 129, 255, 257, 1000, 2047, 3211)


@pytest.fixture(scope="module", autouse=True)
def converted_once() -> Iterator[None]:
    """The same model with the same options is converted (and checked) once for all tests."""
    made: dict[Any, pulsify.Stream] = {}

    def remembered(path: Path, verify: bool, **options: Any) -> pulsify.Stream:
        key = (path, repr(sorted(options.items())))
        if key not in made:
            made[key] = pulsify.stream(path, **options)
        return made[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pulsify.asr.stages.stream", remembered)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("asr")
    export_all(path)
    for kind in KINDS:
        (path / f"{kind}.toml").write_text(HEADS[kind] + COMMON)
    return path


@pytest.fixture(scope="module")
def recognisers(folder: Path) -> Any:
    return cache(lambda kind: Recogniser.open(folder / f"{kind}.toml"))


@pytest.fixture(scope="module")
def plain(folder: Path) -> Any:
    return cache(lambda kind: Plain(folder, kind))


class Plain:
    """The offline path, written out: nothing of pulsify in it."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.kind = kind
        names = ["preprocessor", "ctc" if kind == "ctc" else "encoder", "decoder", "joint"]
        self.models = [ort.InferenceSession(str(folder / f"{n}.onnx")) for n in names]

    def __call__(self, samples: Array) -> list[int]:
        preprocessor, encoder, decoder, joint = self.models
        length = np.array([samples.size])
        mels, frames = preprocessor.run(None, {"audio": samples[None], "audio_length": length})
        if not frames[0]:
            return []
        out, lengths = encoder.run(None, {"audio_signal": mels, "length": frames})
        if self.kind == "ctc":
            best = out[0, : lengths[0]].argmax(1)
            return [int(t) for i, t in enumerate(best) if t != BLANK and (i == 0 or t != best[i - 1])]
        tokens: list[int] = []
        states = [np.zeros((2, 1, HIDDEN), np.float32)] * 2
        one = np.ones(1, np.int32)

        def predict(token: int) -> Any:
            feeds = {"targets": np.array([[token]], np.int32), "target_length": one}
            feeds |= {"input_states_1": states[0], "input_states_2": states[1]}
            return decoder.run(["outputs", "output_states_1", "output_states_2"], feeds)

        predicted, *states = predict(BLANK)
        for t in range(lengths[0]):
            for _ in range(10):
                (scores,) = joint.run(None, {"encoder_outputs": out[:, :, t : t + 1], "decoder_outputs": predicted})
                best_one = int(scores[0, 0, 0].argmax())
                if best_one == BLANK:
                    break
                tokens.append(best_one)
                predicted, *states = predict(best_one)
        return tokens


def cut(samples: Array, sizes: Iterable[int]) -> Iterator[Array]:
    at = 0
    for size in sizes:
        yield samples[at : at + size]
        at += size
    yield samples[at:]


def heard(stream: Transcriber, chunks: Iterable[Array]) -> list[int]:
    """All chunks and the end. What is returned piece by piece must add up to the text."""
    stream.reset()
    pieces = [stream.push(c) for c in chunks]
    pieces.append(stream.flush())
    assert "".join(pieces) == stream.text
    return stream.tokens


# ---- exactness


@pytest.mark.parametrize("kind", KINDS)
def test_stream_is_batch_at_ragged_lengths(kind: str, recognisers: Any, plain: Any) -> None:
    recogniser = recognisers(kind)
    stream = recogniser.transcriber()
    said = set()
    for length in LENGTHS:
        samples = sound(length, seed=length)
        want = plain(kind)(samples)
        assert heard(stream, cut(samples, [128] * (length // 128))) == want, length
        batch = recogniser.batch(samples)
        assert (list(batch.tokens), batch.text) == (want, stream.text), length
        said.update(want)
    assert len(said) > 6  # it does say something


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_do_not_matter(kind: str, recognisers: Any, plain: Any) -> None:
    samples, rng = sound(2500, seed=1), np.random.default_rng(0)
    stream, want = recognisers(kind).transcriber(), plain(kind)(samples)
    ways = [[], [1] * 300, [0, 7, 0, 0, 900], [HOP] * 150, [PULSE * HOP - 1] * 9]
    ways += [list(rng.integers(0, 500, 12)) for _ in range(5)]
    for way in ways:
        assert heard(stream, cut(samples, way)) == want


def test_repeats_are_collapsed_across_chunks() -> None:
    best = np.array([2, 0, 0, 2, 0, 1, 1, 2, 2, 1])
    rows, ctc = np.eye(3)[best], Ctc(3, None)
    for size in range(1, 11):
        state = ctc.start()
        tokens = [t for i in range(0, 10, size) for t in ctc.decode(rows[i : i + size], state)]
        assert tokens == [(0, 1), (0, 4), (1, 5), (1, 9)]  # unit and frame
    assert ctc.decode(rows[:0], ctc.start()) == []
    assert [t.unit for t in Ctc(3, 0).decode(rows, Ctc(3, 0).start())] == [2, 2, 1, 2, 1]


def test_text_grows_and_never_changes() -> None:
    pieces = Vocabulary(("▁", "▁he", "llo", "▁you", ""), 4)
    assert pieces.added("", [0, 1, 2, 3]) == "hello you"
    assert pieces.added("", [0]) == ""
    assert pieces.added("hello", [3]) == " you"
    words = Vocabulary(("go", "left"), 2, words=True)
    assert words.added("", [0, 1]) == "go left"
    assert words.added("go", [1]) == " left"


# ---- streams beside each other


@pytest.mark.parametrize("kind", KINDS)
def test_streams_do_not_touch_each_other(kind: str, recognisers: Any, plain: Any) -> None:
    recogniser = recognisers(kind)
    sounds = [sound(2000, seed=s) for s in (5, 6, 7)]
    want = [plain(kind)(s) for s in sounds]
    assert want[0] != want[1]
    streams = [recogniser.transcriber() for _ in sounds]
    for at in range(0, 2000, 70):
        for stream, samples in zip(streams, sounds, strict=True):
            stream.push(samples[at : at + 70])
    for stream in streams:
        stream.flush()
    assert [s.tokens for s in streams] == want

    results: dict[int, list[int]] = {}

    def work(i: int) -> None:
        results[i] = heard(recogniser.transcriber(), cut(sounds[i], [40] * 50))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [results[i] for i in range(3)] == want


def test_reset_forgets_and_flush_ends(recognisers: Any) -> None:
    stream = recognisers("two").transcriber()
    first = list(heard(stream, [sound(1500)]))
    with pytest.raises(pulsify.SessionClosed):
        stream.push(sound(10))
    stream.reset()
    assert (stream.text, stream.tokens, set(stream.seconds.values())) == ("", [], {0.0})
    stream.push(sound(700, seed=9))
    assert heard(stream, [sound(1500)]) == first
    assert all(v > 0 for v in stream.seconds.values())
    assert heard(stream, []) == []
    with pytest.raises(pulsify.InvalidChunk, match="one channel of floats"):
        stream.push(np.zeros((2, 5), np.float32))
    with pytest.raises(pulsify.InvalidChunk, match="one channel of floats"):
        stream.push([1, 2])


def test_max_symbols(folder: Path) -> None:
    path = folder / "max.toml"
    path.write_text(HEADS["two"] + COMMON + "max_symbols = 1\n")
    stream = Recogniser.open(path, verify=False).transcriber()
    assert 0 < len(heard(stream, [sound(1500)])) <= (1500 // HOP + 14) // 8


# ---- other shapes of the same thing


def test_streams_made_before_are_taken_as_they_are(folder: Path, plain: Any) -> None:
    pulsify.stream(folder / "ctc.onnx", pulse=PULSE).save(folder / "made.onnx")
    path = folder / "made.toml"
    text = (HEADS["ctc"] + COMMON).replace("ctc.onnx", "made.onnx")
    path.write_text(text)
    with pytest.raises(pulsify.InvalidArgument, match="a stream already"):
        Recogniser.open(path)
    path.write_text(text.replace(f"pulse = {PULSE}\n", ""))
    recogniser = Recogniser.open(path)
    samples = sound(900)
    assert heard(recogniser.transcriber(), [samples]) == plain("ctc")(samples)
    with pytest.raises(pulsify.InvalidArgument, match="the batch model it was made from"):
        recogniser.batch(samples)


def test_sound_straight_into_the_encoder(folder: Path) -> None:
    """One file from samples [B, 1, S] to scores [B, units, T']; options go to its conversion."""
    weight = np.random.default_rng(0).standard_normal((BLANK + 1, 1, HOP)).astype(np.float32)
    conv = node("Conv", "x w", "y", strides=[HOP], pads=[HOP - 1, 0])
    onnx.save(model([conv], {"x": ("B", 1, "S")}, ["y"], {"w": weight}), folder / "direct.onnx")
    path = folder / "direct.toml"
    path.write_text(
        f'kind = "ctc"\nsample_rate = {RATE}\nencoder = "direct.onnx"\nvocabulary = "vocabulary.txt"\n'
        f'[encoder_options]\npulse = {2 * HOP}\ntime = "S"\nset = {{B = 1}}\n'
    )
    recogniser = Recogniser.open(path)
    assert recogniser.parts == ("encoder", "decoder")
    assert recogniser.stages[0].stream.pulse == 2 * HOP
    samples = sound(1501)
    tokens = heard(recogniser.transcriber(), cut(samples, [333] * 4))
    assert len(tokens) > 20 and tokens == list(recogniser.batch(samples).tokens)


def test_other_names_blank_first_and_words(folder: Path, plain: Any) -> None:
    """The decoder under other names, and the blank at 0 with a line of its own."""
    renamed = onnx.load(folder / "decoder.onnx")
    for step in renamed.graph.node:
        step.input[:] = ["token" if i == "targets" else i for i in step.input]
    renamed.graph.input[0].name = "token"
    onnx.save(renamed, folder / "renamed.onnx")
    path = folder / "renamed.toml"
    path.write_text(HEADS["two"].replace("decoder.onnx", "renamed.onnx") + COMMON + '[names]\ntargets = "token"\n')
    samples = sound(900)
    assert heard(Recogniser.open(path, verify=False).transcriber(), [samples]) == plain("two")(samples)

    (folder / "blank.txt").write_text("<b>\n" + "\n".join(f"w{i}" for i in range(BLANK)) + "\n")
    path.write_text(HEADS["ctc"] + COMMON.replace("vocabulary.txt", "blank.txt") + "blank = 0\nwords = true\n")
    stream = Recogniser.open(path, verify=False).transcriber()
    tokens = heard(stream, [samples])
    assert tokens and 0 not in tokens
    assert stream.text == " ".join(f"w{t - 1}" for t in tokens)


# ---- what is wrong with a file


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind = ", "not a readable TOML file"),
        (COMMON, "'kind' is missing"),
        (HEADS["ctc"] + COMMON + "speed = 3\n", "unknown key 'speed'"),
        (HEADS["ctc"] + COMMON.replace("1600", '"1600"'), "sample_rate = '1600': expected a whole number"),
        (HEADS["ctc"] + COMMON + "words = 1\n", "words = 1: expected true or false"),
        (HEADS["ctc"] + COMMON + "max_symbols = 0\n", "expected 1 or more"),
        (HEADS["ctc"].replace('"ctc"', '"tdt"') + COMMON, 'expected "ctc" or "rnnt"'),
        (HEADS["ctc"].replace("ctc.onnx", "nope.onnx") + COMMON, "no such file (paths are relative"),
        (HEADS["ctc"].replace("ctc.onnx", "vocabulary.txt") + COMMON, "not a readable ONNX model"),
        (HEADS["ctc"] + COMMON + 'joint = "joint.onnx"\n', "decoded without one"),
        (HEADS["two"].replace("joint =", "decoder_joint =") + COMMON, "either decoder and joint"),
        (HEADS["ctc"] + COMMON + "[encoder_options]\npulse = 8\n", "given twice"),
        (HEADS["ctc"] + COMMON + "[encoder_options]\nhop = 8\n", "unknown key in [encoder_options] 'hop'"),
        (HEADS["ctc"] + COMMON + "[names]\nstates = 8\n", "unknown name 'states'"),
        (HEADS["ctc"] + COMMON + "blank = 99\n", "blank = 99: the model has 12 scores"),
        (HEADS["ctc"] + COMMON + "blank = 0\n", "11 units, the model 12 scores"),
        (HEADS["ctc"] + COMMON.replace("preprocessor.onnx", "ctc.onnx"), "does not fit the encoder's input"),
        (HEADS["ctc"] + COMMON.replace('preprocessor = "preprocessor.onnx"\n', ""), "name a preprocessor"),
        (HEADS["two"].replace('"decoder.onnx"', '"joint.onnx"') + COMMON, "no input 'targets'"),
        (HEADS["two"].replace('"joint.onnx"', '"decoder.onnx"') + COMMON, "no input 'encoder_outputs'"),
        (HEADS["two"] + COMMON + '[names]\nlengths = "x"\n', "as states go in"),
    ],
)
def test_a_wrong_file_is_said(folder: Path, text: str, said: str) -> None:
    path = folder / "wrong.toml"
    path.write_text(text)
    with pytest.raises(pulsify.PulsifyError) as error:
        Recogniser.open(path, verify=False)
    assert said in str(error.value)
    assert isinstance(error.value, pulsify.InvalidModel)


# ---- the command


def asr(*arguments: object, code: int = 0) -> Result:
    result = CliRunner(env={"COLUMNS": "100"}).invoke(main, ["asr", *(str(a) for a in arguments)])
    assert result.exit_code == code, result.output
    return result


def write(path: Path, samples: Array, rate: int = RATE) -> Path:
    """samples [frames] or [frames, channels]."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_with_batch_check(folder: Path, tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / "a.wav", sound(3001))
    result = asr(path, "--model", folder / f"{kind}.toml", "--no-realtime", "--batch-check", "--json", "--no-verify")
    facts = json.loads(result.stdout)
    assert facts["text"] and facts["text"] == facts["batch"]["text"]
    assert facts["batch"]["agrees"]
    assert facts["chunks"] == -(-3001 // 128)
    assert list(facts["seconds"]) == ["preprocessor", "encoder", "decoder"]
    assert facts["total_seconds"] == pytest.approx(sum(facts["seconds"].values()))
    assert facts["real_time_factor"] == pytest.approx(facts["total_seconds"] / (3001 / RATE))


def test_text_comes_in_lines_and_at_the_pace_of_speech(folder: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", sound(800))
    text = asr(path, "-m", folder / "ctc.toml", "--chunk-ms", 50, "--no-verify", "--batch-check", "-p", 16).stdout
    lines = text.splitlines()
    assert lines[0].endswith("yzree")
    assert " s  " in lines[0]
    for word in ("text", "0.50 s at 1600 Hz, in 10 chunks of 50 ms", "real-time factor", "agrees"):
        assert word in text


def test_pacing(monkeypatch: pytest.MonkeyPatch) -> None:
    from pulsify.cli.asr import paced

    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    monkeypatch.setattr("time.sleep", lambda s: now.__setitem__(0, now[0] + s))
    at = [(len(c), now[0]) for c in paced(np.zeros(250), 1000, 100, True, lambda: False)]
    assert at == [(100, pytest.approx(0.1)), (100, pytest.approx(0.2)), (50, pytest.approx(0.25))]
    assert list(paced(np.zeros(250), 1000, 100, True, lambda: True)) == []


def test_a_transcript_that_differs_exits_with_1(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.wav", sound(800))
    honest = Recogniser.batch
    monkeypatch.setattr(Recogniser, "batch", lambda self, samples: honest(self, samples * 0))
    arguments = (path, "-m", folder / "ctc.toml", "--no-realtime", "--no-verify", "--batch-check")
    assert "DIFFERS" in asr(*arguments, code=1).stdout
    assert not json.loads(asr(*arguments, "--json", code=1).stdout)["batch"]["agrees"]


def test_channels_are_averaged_or_chosen(folder: Path, tmp_path: Path) -> None:
    from pulsify.cli.asr import read_sound

    both = np.stack([sound(400), sound(400, seed=1)], 1)
    path = str(write(tmp_path / "s.wav", both))
    np.testing.assert_allclose(read_sound(path, RATE, None), both.mean(1), atol=1e-4)
    np.testing.assert_allclose(read_sound(path, RATE, 1), both[:, 1], atol=1e-4)
    assert "has only 2" in asr(path, "-m", folder / "ctc.toml", "--channel", 2, "--no-verify", code=2).stderr


def test_sound_that_cannot_be_used(folder: Path, tmp_path: Path) -> None:
    chosen = ("--model", folder / "ctc.toml", "--no-verify", "--no-realtime")
    fast = write(tmp_path / "fast.wav", sound(100), rate=8000)
    said = asr(fast, *chosen, code=5).stderr
    assert "8000 samples a second, the model takes 1600" in said
    assert "ffmpeg -i fast.wav -ar 1600" in said
    assert "no such input file" in asr(tmp_path / "nope.wav", *chosen, code=5).stderr
    (tmp_path / "junk.wav").write_bytes(b"junk")
    assert "not a PCM .wav file" in asr(tmp_path / "junk.wav", *chosen, code=5).stderr
    empty = write(tmp_path / "empty.wav", sound(0))
    facts = json.loads(asr(empty, *chosen, "--batch-check", "--json").stdout)
    assert (facts["text"], facts["real_time_factor"], facts["batch"]["agrees"]) == ("", None, True)


def test_wrong_usage(folder: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", sound(100))
    assert "either a .wav file or --live" in asr("--model", folder / "ctc.toml", code=2).stderr
    assert "either a .wav file or --live" in asr(path, "--live", "--model", folder / "ctc.toml", code=2).stderr
    assert "16000" in asr(path, code=5).stderr  # the built-in recogniser takes no other rate
    assert "no such file" in asr(path, "--model", tmp_path / "nope.toml", code=5).stderr
    assert "multiple of 8" in asr(path, "--model", folder / "ctc.toml", "-p", 9, code=4).stderr
    assert json.loads(asr("--json", "--model", "x", code=2).stdout)["error"]["kind"] == "InvalidArgument"


# ---- the microphone


def test_live_without_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    assert "pip install 'pulsify[live]'" in asr("--live", "--model", folder / "ctc.toml", code=2).stderr


class Microphone:
    """A device that has its say at once; then someone presses Ctrl-C."""

    samples = sound(2000)

    def __init__(self, samplerate: int, blocksize: int, channels: int, dtype: str, callback: Any) -> None:
        assert (samplerate, channels, dtype) == (RATE, 1, "float32")
        self.size, self.callback = blocksize, callback

    def __enter__(self) -> None:
        block = np.empty((self.size, 1), np.float32)  # one memory for all, as devices do
        for at in range(0, len(self.samples) - self.size + 1, self.size):
            block[:, 0] = self.samples[at : at + self.size]
            self.callback(block, self.size, None, None)
        signal.raise_signal(signal.SIGINT)

    def __exit__(self, *_: object) -> None: ...


def test_live_until_interrupted(folder: Path, monkeypatch: pytest.MonkeyPatch, plain: Any) -> None:
    fake = types.SimpleNamespace(InputStream=Microphone, PortAudioError=RuntimeError)
    monkeypatch.setitem(sys.modules, "sounddevice", fake)
    before = signal.getsignal(signal.SIGINT)
    arguments = ("--live", "--model", folder / "two.toml", "--chunk-ms", 100, "--no-verify", "--batch-check", "--json")
    facts = json.loads(asr(*arguments).stdout)
    assert facts["tokens"] == plain("two")(Microphone.samples[: 2000 // 160 * 160])
    assert facts["batch"]["agrees"]
    assert signal.getsignal(signal.SIGINT) is before

    def none(**_: object) -> None:
        raise RuntimeError("no device")

    fake.InputStream = none
    assert "no microphone at 1600" in asr("--live", "--model", folder / "ctc.toml", "--no-verify", code=2).stderr


def test_on_a_terminal_text_grows_in_place(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from pulsify.cli.asr import growing

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    with growing(quiet=False) as grow:
        grow(0.1, "one", "one")
        grow(0.2, " two", "one two")
    shown = capsys.readouterr().out
    assert "one two" in shown
    assert "\x1b[2K" in shown  # lines are erased and written anew

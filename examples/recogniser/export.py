"""Writes the trained recogniser as batch ONNX models with all they need, and counts their errors in ONNX Runtime.

python -m examples.recogniser.export weights.pt src/pulsify/demo/recogniser --data /tmp/recogniser
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import warnings
import wave
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch

from examples.recogniser.model import BLANK, CONFIG, Preprocessor, Recogniser, errors, words_of
from examples.recogniser.speech import RATE, WORDS, Corpus, Utterance, speak, spoil

SAMPLES = {  # voices and an accent never trained on
    "lights.wav": Utterance("light on, play music louder", "en-gb-x-gbcwmd+f4", 150, 50, 100, 4, 1.0),
    "numbers.wav": Utterance("go left, three, seven, stop", "en-us+m5", 160, 45, 100, 4, 1.0),
}
TOML = f"""\
# A small FastConformer-CTC of digits and commands: see README.md.
kind = "ctc"
sample_rate = {RATE}
preprocessor = "preprocessor.onnx"
encoder = "encoder.onnx"
pulse = {8 * CONFIG.chunk}  # one attention chunk: no layer waits for the next one
vocabulary = "vocabulary.txt"
blank = {BLANK}
words = true
"""


def export(weights: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    model = Recogniser()
    model.load_state_dict(torch.load(weights, map_location="cpu"))
    frames = 8 * 3 * CONFIG.chunk + 5
    features = torch.randn(2, CONFIG.mels, frames), torch.tensor([frames, frames - 9])
    save(Preprocessor(), (torch.randn(2, RATE + 7),), out / "preprocessor.onnx", {"audio": "S"}, ["features"])
    names = ["log_probs", "encoded_lengths"]
    save(model.eval(), features, out / "encoder.onnx", {"audio_signal": "T", "length": None}, names)
    (out / "vocabulary.txt").write_text("".join(f"{w}\n" for w in WORDS))
    (out / "model.toml").write_text(TOML)


def save(model: Any, example: Any, path: Path, time: dict[str, str | None], outputs: list[str]) -> None:
    """Batch and time stay symbolic; time is the last axis of each input that `time` gives a name."""
    shapes = {n: {0: "B"} | ({x.dim() - 1: t} if t else {}) for (n, t), x in zip(time.items(), example)}
    logging.disable(logging.WARNING)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model, example, str(path), input_names=list(time), output_names=outputs, dynamic_shapes=shapes,
            opset_version=18, dynamo=True, external_data=False, verbose=False,
        )  # fmt: skip
    logging.disable(logging.NOTSET)
    written = onnx.load(path)
    for part in (written, written.graph, *written.graph.node, *written.graph.value_info, *written.graph.input):
        del part.metadata_props[:]  # the exporter's notes on its own source
    onnx.save(written, path)


class Batch:
    """Offline recognition with the exported models."""

    def __init__(self, folder: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.preprocessor = onnxruntime.InferenceSession(folder / "preprocessor.onnx", options)
        self.encoder = onnxruntime.InferenceSession(folder / "encoder.onnx", options)

    def __call__(self, audio: Any) -> list[str]:
        """audio [S], from -1 to 1."""
        (features,) = self.preprocessor.run(None, {"audio": np.asarray(audio, np.float32)[None]})
        length = np.array([features.shape[2]])
        log_probs = self.encoder.run(None, {"audio_signal": features, "length": length})[0]
        return words_of(log_probs[0].argmax(-1).tolist())


def sample(path: Path, utterance: Utterance) -> None:
    """Speech between silences with a little noise, as a microphone has."""
    spoken = np.pad(speak(utterance) * 0.7, (RATE * 3 // 10, RATE * 4 // 10))
    spoken = spoken + np.random.default_rng(0).normal(0, 20, len(spoken))
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(np.clip(np.rint(spoken), -32768, 32767).astype("<i2").tobytes())


def read(path: Path) -> Any:
    with wave.open(str(path), "rb") as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768


def count(batch: Batch, corpus: Corpus, snr: tuple[float, float] | None, seed: int = 0) -> str:
    """The word error rate, how many utterances are wholly right, and the words most often missed."""
    g = torch.Generator().manual_seed(seed)
    wrong, whole, missed = 0, 0, Counter[str]()
    for chosen in torch.arange(len(corpus.texts)).split(100):
        audio, lengths = corpus.batch(chosen, g)
        audio = spoil(audio, lengths, g, snr) if snr else audio
        for index, row, length in zip(chosen.tolist(), audio, lengths.tolist()):
            said, heard = corpus.texts[index], batch(row[:length])
            wrong += errors(said, heard)
            whole += said == heard
            missed.update((Counter(said) - Counter(heard)).keys())
    total = sum(len(t) for t in corpus.texts)
    rate = f"{100 * wrong / total:.2f} % ({wrong} of {total} words)"
    return f"{rate}, {whole} of {len(corpus.texts)} utterances right; missed: {dict(missed.most_common(6))}"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("weights", type=Path)
    parser.add_argument("out", type=Path, metavar="DIR")
    parser.add_argument("--data", type=Path, help="the folder that `speech` wrote: measures word error rates")
    args = parser.parse_args(argv)
    export(args.weights, args.out)
    batch = Batch(args.out)
    for name, utterance in SAMPLES.items():
        sample(args.out / name, utterance)
        print(f"{name}: {' '.join(batch(read(args.out / name)))}", flush=True)
    for name in ("test", "accent") if args.data else ():
        corpus = Corpus(args.data / f"{name}.npz")
        for label, snr in (("clean", None), ("20 to 5 dB", (5.0, 20.0)), ("5 to 0 dB", (0.0, 5.0))):
            print(f"{name}, {label}: {count(batch, corpus, snr)}", flush=True)


if __name__ == "__main__":
    main()

"""Measures the exported enhancer on sentences, voices and noises that were never trained on.

python -m examples.enhancer.evaluate /tmp/enhancer src/pulsify/demo/enhancer/enhancer.onnx
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnxruntime

from examples.enhancer.noises import HELD_KINDS, KINDS, Array, babble
from examples.recogniser.speech import RATE

SNRS = (-5, 0, 5, 10, 20)


def si_sdr(got: Array, clean: Array) -> float:
    """In decibels: the part of `got` that is `clean` at any scale, over what remains."""
    got, clean = got.astype(np.float64), clean.astype(np.float64)
    target = got @ clean / (clean @ clean) * clean
    return float(10 * np.log10((target @ target) / np.square(got - target).sum()))


def mixtures(pieces: list[Array], kind: str, snr: float, count: int) -> list[tuple[Array, Array]]:
    """(heard, clean): utterances between two pauses; noise at `snr` below the utterance."""
    rng = np.random.default_rng([ord(letter) for letter in kind])
    out, speech = [], np.concatenate(pieces[count:])
    for piece in pieces[:count]:
        spoken = piece / 32768 * 10 ** (rng.uniform(-16, 0) / 20)
        clean = np.pad(spoken, RATE // 2)
        clean = clean[: len(clean) // 160 * 160]
        noise = babble(rng, len(clean), speech) if kind == "babble" else {**KINDS, **HELD_KINDS}[kind](rng, len(clean))
        level = np.sqrt(np.mean(np.square(spoken)) / np.mean(np.square(noise)))
        out.append((clean + noise * level * 10 ** (-snr / 20), clean))
    return out


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="the folder that `speech` wrote")
    parser.add_argument("model", type=Path)
    parser.add_argument("--count", type=int, default=100, help="utterances per kind of noise and SNR")
    args = parser.parse_args(argv)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(args.model, options)
    data = np.load(args.data / "test.npz")
    pieces = np.split(data["samples"], data["ends"][:-1])
    print("| noise | " + " | ".join(f"{snr} dB" for snr in SNRS) + " |\n|---|" + "---|" * len(SNRS))
    every: list[Array] = []
    for kind in (*KINDS, "babble", *HELD_KINDS):
        figures = []
        for snr in SNRS:
            pairs = []
            for heard, clean in mixtures(pieces, kind, snr, args.count):
                (got,) = session.run(None, {"audio": heard.astype(np.float32)[None, None]})
                pairs.append((si_sdr(heard, clean), si_sdr(got[0, 0], clean)))
            figures.append(np.mean(pairs, axis=0))
        every.append(np.array(figures))
        print(f"| {kind} | " + " | ".join(f"{a:.1f} → {b:.1f}" for a, b in figures) + " |", flush=True)
    print("| **all** | " + " | ".join(f"{a:.1f} → **{b:.1f}**" for a, b in np.mean(every, axis=0)) + " |")


if __name__ == "__main__":
    main()

"""Trains the recogniser on the corpus of `speech`.

python -m examples.recogniser.train /tmp/recogniser weights.pt       (minutes on a GPU)
"""

# torch is not typed.
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import argparse
import copy
import math
import time
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from examples.recogniser.model import BLANK, HOP, Preprocessor, Recogniser, errors, words_of
from examples.recogniser.speech import WORDS, Corpus, spoil

LABELS = {word: number for number, word in enumerate(WORDS)}


def train(folder: Path, out: Path, *, steps: int, batch: int, rate: float, seed: int, device: str) -> None:
    torch.manual_seed(seed)
    g = torch.Generator(device).manual_seed(seed)
    corpus, tests = Corpus(folder / "train.npz", device), Corpus(folder / "test.npz", device)
    model, features = Recogniser(seed=seed).to(device).train(), Preprocessor().to(device)
    averaged = copy.deepcopy(model).eval()
    print(f"{sum(p.numel() for p in model.parameters())} parameters, {len(corpus.texts)} utterances", flush=True)
    targets = torch.full((len(corpus.texts), 5), BLANK)
    for row, text in zip(targets, corpus.texts):
        row[: len(text)] = torch.tensor([LABELS[w] for w in text])
    targets, counts = targets.to(device), torch.tensor([len(t) for t in corpus.texts], device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.02)
    began, mute = time.time(), batch // 50  # noise alone is no word
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * min((step + 1) / 500, 0.5 + 0.5 * math.cos(math.pi * step / steps))
        chosen = torch.randint(len(corpus.texts), (batch,), generator=g, device=device)
        with torch.no_grad():
            audio, lengths = corpus.batch(chosen, g)
            audio = spoil(audio, lengths, g, (0.0, 40.0), spared=0.15, mute=mute)
            inputs = hidden(features(audio), g)
        said = counts[chosen]
        said[:mute] = 0
        log_probs, tokens = model(inputs, lengths // HOP + 1)
        loss = F.ctc_loss(log_probs.transpose(0, 1), targets[chosen], tokens, said, BLANK, zero_infinity=True)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        keep = min(0.999, step / (step + 100))
        with torch.no_grad():
            torch._foreach_lerp_(list(averaged.parameters()), list(model.parameters()), 1 - keep)
        if step % 1000 == 999 or step == steps - 1:
            rates = [f"{100 * word_error_rate(averaged, tests, snr, seed):.2f}" for snr in (None, (5.0, 20.0))]
            spent = time.time() - began
            print(
                f"{step + 1}: {spent:.0f} s, loss {loss.item():.4f}, test clean {rates[0]} % noisy {rates[1]} %",
                flush=True,
            )
            torch.save(averaged.state_dict(), out)


def hidden(features: Tensor, g: torch.Generator) -> Tensor:
    """Some bands and some frames of half the utterances are set to 0."""
    batch, bands, frames = features.shape
    for axis, size, widest in ((1, bands, 7), (2, frames, 12)) * 2:
        at = torch.arange(size, device=g.device)
        first, width, chance = torch.rand((3, batch, 1), generator=g, device=g.device)
        first = first * size
        mask = (at >= first) & (at < first + width * widest) & (chance < 0.5)
        features = features.masked_fill(mask.unsqueeze(3 - axis), 0.0)
    return features


@torch.no_grad()
def word_error_rate(model: Recogniser, corpus: Corpus, snr: tuple[float, float] | None, seed: int) -> float:
    """Of greedy decoding, all words counted alike."""
    device = str(corpus.samples.device)
    g, features = torch.Generator(device).manual_seed(seed), Preprocessor().to(device)
    wrong = 0
    for chosen in torch.arange(len(corpus.texts), device=device).split(250):
        audio, lengths = corpus.batch(chosen, g)
        if snr:
            audio = spoil(audio, lengths, g, snr)
        log_probs, tokens = model(features(audio), lengths // HOP + 1)
        best = log_probs.argmax(-1).tolist()
        for index, labels, size in zip(chosen.tolist(), best, tokens.tolist()):
            wrong += errors(corpus.texts[index], words_of(labels[:size]))
    return wrong / sum(len(t) for t in corpus.texts)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="the folder that `speech` wrote")
    parser.add_argument("out", type=Path, help="the weights")
    parser.add_argument("--steps", type=int, default=10000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args(argv)
    train(args.data, args.out, steps=args.steps, batch=args.batch, rate=args.rate, seed=args.seed, device=args.device)


if __name__ == "__main__":
    main()

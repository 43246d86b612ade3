"""Sentences that espeak-ng speaks, and noises: the enhancer's data.

python -m examples.enhancer.speech /tmp/enhancer        (needs espeak-ng; some minutes)

writes speech of train.npz and test.npz (sentences, words and voices never trained on), and noises.npz. Everything
follows from the seed.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np

from examples.enhancer.noises import KINDS, Array, Random, babble
from examples.recogniser.speech import (
    ACCENTS,
    HELD_ACCENT,
    HELD_VARIANTS,
    RATE,
    VARIANTS,
    Utterance,
    synthesise,
)

SECONDS = 4  # of a noise in noises.npz
TRAIN = {
    "forms": [
        "The {a} {n} {v} the {n} {w}.",
        "{w}, {p} {v} a {a} {n}.",
        "Did {p} ever {b} the {n} {w}?",
        "{p} will {b} {m} {a} {n}s before the {n} is {a}.",
        "Please {b} the {n}, and then {b} my {a} {n}.",
        "There were {m} {n}s near the {a} {n}.",
        "Why would {p} {b} such a {a} {n}?",
        "{m} {m} {m}, {m} {m}.",
        "If the {n} is {a}, {p} will {b} it {w}.",
        "It was {a} and {a}, but {p} {v} the {n}.",
    ],
    "n": "river window teacher garden horse engine letter cousin bridge market ticket doctor kitchen shadow village "
    "camera pencil jacket morning picture basket chicken story finger yellow valley hospital thousand friend city "
    "journey question machine farmer island orange table church captain number voice father zebra judge youth",
    "a": "quiet green heavy golden strange empty broken careful sudden warm early bitter famous narrow perfect rough "
    "shallow thick useful vague wise young cheap jealous huge other",
    "v": "watched followed opened carried painted measured forgot chased believed washed visited judged owned missed "
    "gathered pushed shook described examined threw",
    "b": "watch follow open carry paint measure forget chase believe wash visit judge own miss gather push shake use",
    "w": "yesterday after_lunch in_the_evening without_a_word very_slowly at_the_station before_noon this_week "
    "for_an_hour under_the_bridge once_more by_accident with_great_pleasure on_the_other_side",
    "p": "she he they we I you my_brother nobody everyone the_children our_neighbour Joanna Victor",
    "m": "two five seven eleven thirteen twenty forty sixty eighty ninety several fourteen three_hundred nine",
}
TEST = {
    "forms": [
        "Could somebody {b} these {a} {n}s {w}?",
        "{p} {v} {m} of them, because the {n} looked {a}.",
        "A {n} and a {n} are never {a} {w}.",
        "{w} the {n} {v} us, so {p} had to {b} it again.",
        "What {a} {n}s! {p} {v} every {n}.",
    ],
    "n": "station apple mirror lawyer blanket forest piano sailor thunder cabbage museum leather planet butter "
    "candle dragon elbow whistle uncle paper",
    "a": "foggy silver gentle awkward polite cruel fresh modern purple sharp lonely damp",
    "v": "noticed repaired collected borrowed destroyed ignored polished recorded untied welcomed",
    "b": "notice repair collect borrow destroy ignore polish record untie welcome",
    "w": "tomorrow during_the_storm near_the_fence twice_a_year behind_closed_doors most_of_the_time",
    "p": "Margaret the_pilots his_aunt Oliver these_people someone",
    "m": "four six eight twelve fifty seventy",
}


def sentence(rng: Random, grammar: dict[str, list[str]]) -> str:
    """A form, filled with words."""
    parts = str(rng.choice(grammar["forms"])).split("{")
    filled = parts[0]
    for part in parts[1:]:
        kind, after = part.split("}", 1)
        filled += str(rng.choice(grammar[kind])).replace("_", " ") + after
    return filled[0].upper() + filled[1:]


def plan(count: int, seed: int, lists: dict[str, str | list[str]], voices: list[str]) -> list[Utterance]:
    """Utterances of one or two sentences, each by a voice, a pace and a pitch of its own."""
    rng = np.random.default_rng(seed)
    grammar = {kind: words.split() if isinstance(words, str) else words for kind, words in lists.items()}
    utterances = []
    for _ in range(count):
        text = " ".join(sentence(rng, grammar) for _ in range(rng.integers(1, 3)))
        speed, pitch, volume = (int(rng.integers(*r)) for r in ((110, 231), (15, 86), (60, 110)))
        utterances.append(
            Utterance(text, str(rng.choice(voices)), speed, pitch, volume, 0, float(rng.uniform(0.88, 1.14)))
        )
    return utterances


def timeline(path: Path, rng: Random) -> Array:
    """All utterances of a file in random order with pauses between them: int16."""
    data = np.load(path)
    pieces = np.split(data["samples"], data["ends"][:-1])
    out = []
    for index in rng.permutation(len(pieces)):
        out += [pieces[index], np.zeros(int(rng.exponential(0.35) * RATE), np.int16)]
    return np.concatenate(out)


def noises(path: Path, count: int, seed: int, speech: Array) -> None:
    """`count` noises, every kind as often as the others: float16 [count, samples]."""
    rng = np.random.default_rng(seed)
    kinds = [*KINDS, "babble"]
    rows = np.empty((count, SECONDS * RATE), np.float16)
    for row, number in zip(rows, range(count)):
        kind, size = kinds[number % len(kinds)], len(row)
        row[:] = babble(rng, size, speech) if kind == "babble" else KINDS[kind](rng, size)
    np.savez(path, noises=rows)
    print(f"{path}: {count} noises, {count * SECONDS / 3600:.1f} h", flush=True)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, metavar="DIR")
    parser.add_argument("--train", type=int, default=5000, help="utterances")
    parser.add_argument("--test", type=int, default=240, help="utterances")
    parser.add_argument("--noises", type=int, default=3200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    voices = [f"{accent}+{variant}" for accent in ACCENTS for variant in VARIANTS]
    held = [f"{accent}+{variant}" for accent in (*ACCENTS, HELD_ACCENT) for variant in HELD_VARIANTS]
    synthesise(args.out / "test.npz", plan(args.test, 1000 * args.seed, TEST, held), args.jobs)
    synthesise(args.out / "train.npz", plan(args.train, 1000 * args.seed + 1, TRAIN, voices), args.jobs)
    speech = timeline(args.out / "train.npz", np.random.default_rng(args.seed))
    noises(args.out / "noises.npz", args.noises, 1000 * args.seed + 2, speech)


if __name__ == "__main__":
    main()

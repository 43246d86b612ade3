"""Ways out for a model that is refused: options, other outputs, changes to the model. Nothing is tried here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pulsify.core.errors import NotStreamable
from pulsify.core.refusal import Kind

KEPT = 256  # frames of the past that a bounded cache is tried with
MOST_OUTPUTS = 4  # others that are tried, one by one


@dataclass(frozen=True)
class Way:
    """options: of `pulsify.stream`. outputs: the model is cut there first. code: what to change, if it is the model.

    exact: what comes of it is the batch model (cut, perhaps), at every length.
    """

    title: str
    says: str
    options: Mapping[str, Any] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    code: str = ""
    exact: bool = True

    @property
    def can_be_tried(self) -> bool:
        return bool(self.options or self.outputs)


def ways_out(error: NotStreamable, before: Sequence[str], others: Sequence[str]) -> list[Way]:
    """before: streams that the refusing node reads. others: outputs of the model that it may not be needed for."""
    return [*_options(error), *_cuts(error, before, others), *_changes(error)]


def _options(error: NotStreamable) -> Iterator[Way]:
    """Options of `pulsify.stream` that may help: what the error offers, and keeping the past if that is unbounded."""
    if error.kind is Kind.LOOK_BACK:
        yield Way(
            "Keep all of the past",
            "Exact. The state grows with the stream, and so does the work.",
            {"unbounded": "grow"},
        )
        yield Way(
            f"Keep the last {KEPT} frames",
            "Bounded. Equal to the batch model until a frame that it looks at has been dropped.",
            {"unbounded": KEPT},
            exact=False,
        )
    for options in (remedy.options for remedy in error.remedies):
        if "set" in options:
            declared = ", ".join(f"{k} = {v}" for k, v in options["set"].items())
            yield Way(f"Declare {declared}", "Exact, for the lengths and sizes that are declared.", options)
        elif "bind" in options:
            names = ", ".join(options["bind"])
            yield Way(f"Keep {names} as an input", "Exact. Its value is given when a stream starts.", options)
        elif "proof" in options:
            yield Way(
                "Accept what a sample of lengths shows",
                "Not proven at every length; the stream says so.",
                options,
                exact=False,
            )


def _cuts(error: NotStreamable, before: Sequence[str], others: Sequence[str]) -> Iterator[Way]:
    for name in others[:MOST_OUTPUTS]:
        yield Way(
            f"Give out '{name}' alone", "The model's other output, without the one that is refused.", outputs=(name,)
        )
    if before:
        names = ", ".join(f"'{n}'" for n in before)
        yield Way(
            f"Cut the model in front of {error.op}",
            f"Stream what comes before it ({names}); do the rest in a second model, when the stream has ended.",
            outputs=tuple(before),
        )


# ---- changes to the model, as PyTorch has it: what is refused -> what streams. A model is trained as it is then.


CHANGES: tuple[tuple[Kind, str, str, str, str], ...] = (  # kind, pattern of operators, title, explanation, code
    (
        Kind.BACKWARDS,
        r"GRU|LSTM|RNN",
        "Let the recurrence run forward only",
        "A backward pass starts at the end of the stream, which a live one does not have.",
        "- rnn = nn.LSTM(width, width, bidirectional=True)\n+ rnn = nn.LSTM(width, 2 * width)",
    ),
    (
        Kind.BACKWARDS,
        "",
        "Read the stream from its start",
        "Whatever starts at the end has to wait for it.",
        "- y = x.flip(-1).cumsum(-1).flip(-1)\n+ y = x.cumsum(-1)",
    ),
    (
        Kind.LOOK_AHEAD,
        "",
        "Bound how far attention looks ahead",
        "Frames in chunks: each looks at its own chunk and at four before it.",
        "  scores = q @ k.transpose(-2, -1)\n"
        "+ t = torch.arange(scores.shape[-1]) // 16\n"
        "+ seen = (t <= t[:, None]) & (t >= t[:, None] - 4)\n"
        '+ scores = scores.masked_fill(~seen, float("-inf"))\n'
        "  weights = scores.softmax(-1)",
    ),
    (
        Kind.LOOK_BACK,
        "",
        "Bound how far attention looks back",
        "Each frame looks at itself and at 63 before it: the state no longer grows.",
        "+ t = torch.arange(scores.shape[-1])\n"
        "+ seen = (t <= t[:, None]) & (t > t[:, None] - 64)\n"
        '+ scores = scores.masked_fill(~seen, float("-inf"))',
    ),
    (
        Kind.WHOLE_STREAM,
        "",
        "Normalize with the frames so far",
        "A mean over the whole stream is known at its end only. A running mean, or a norm over channels, has no delay.",
        "- y = x - x.mean(-1, keepdim=True)\n"
        "+ y = x - x.cumsum(-1) / torch.arange(1, x.shape[-1] + 1)\n"
        "  # or, frame by frame: nn.LayerNorm(channels) on x.transpose(1, 2)",
    ),
    (
        Kind.LENGTH,
        "",
        "Do not use the length of the whole stream",
        "It is not known before the end. A running count, or a constant, is.",
        "- y = x / x.shape[-1]\n+ y = x.cumsum(-1) / torch.arange(1, x.shape[-1] + 1)",
    ),
)


def _changes(error: NotStreamable) -> Iterator[Way]:
    for kind, operators, title, says, code in CHANGES:
        if kind is error.kind and re.search(operators, error.op):
            yield Way(title, says, code=code)
            break
    if error.hint:
        yield Way("As the error says", f"{error.hint[0].upper()}{error.hint[1:]}.")

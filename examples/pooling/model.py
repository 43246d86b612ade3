"""Two networks that pool over all of time: attention for a keyword, statistics for a speaker.

    keywords   mel frames -> depthwise convolutions -> attentive pooling -> one of twelve words
    speaker    mel frames -> dilated convolutions, Res2Net branches -> attentive mean and deviation -> an embedding

The speaker network is an ECAPA-TDNN without what looks at the whole recording before its end: no squeeze-excitation,
no global context in front of the attention, no normalisation of the utterance. With `statistics=True`: an x-vector.
"""

# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

import torch
from torch import Tensor, nn

BANDS, WORDS, SPEAKER = 40, 12, 96


class Separable(nn.Module):
    """A depthwise convolution over time, and one across channels."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.over_time = nn.Conv1d(inputs, inputs, kernel, stride, kernel // 2, groups=inputs)
        self.across = nn.Conv1d(inputs, outputs, 1)
        self.norm = nn.BatchNorm1d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.across(self.over_time(x))))


class Keywords(nn.Module):
    """Probabilities of words, [B, WORDS], of frames [B, T, BANDS]."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.body = nn.Sequential(Separable(BANDS, width, 9, 2), Separable(width, width, 9), Separable(width, width, 9))
        self.score = nn.Linear(width, 1)
        self.head = nn.Linear(width, WORDS)

    def forward(self, frames: Tensor) -> Tensor:
        h = self.body(frames.transpose(1, 2)).transpose(1, 2)
        weights = torch.softmax(self.score(torch.tanh(h)), 1)
        return torch.softmax(self.head((weights * h).sum(1)), -1)


class Res2Block(nn.Module):
    """Branches of channels, each seeing what the one before has made: many reaches in one layer."""

    def __init__(self, width: int, dilation: int, branches: int = 4) -> None:
        super().__init__()
        each = width // branches
        self.branches = nn.ModuleList(
            nn.Conv1d(each, each, 3, dilation=dilation, padding=dilation) for _ in range(branches - 1)
        )
        self.before, self.after = nn.Conv1d(width, width, 1), nn.Conv1d(width, width, 1)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        first, *rest = torch.relu(self.before(x)).chunk(len(self.branches) + 1, 1)
        made = [first]
        for conv, part in zip(self.branches, rest, strict=True):
            made.append(torch.relu(conv(part + made[-1] if len(made) > 1 else part)))
        return x + torch.relu(self.norm(self.after(torch.cat(made, 1))))


class Speaker(nn.Module):
    """An embedding of unit length, [B, SPEAKER], of frames [B, T, BANDS]. statistics: plain mean and deviation."""

    def __init__(self, width: int = 64, statistics: bool = False) -> None:
        super().__init__()
        self.first = nn.Conv1d(BANDS, width, 5, padding=2)
        self.blocks = nn.ModuleList(Res2Block(width, d) for d in (2, 3, 4))
        self.join = nn.Conv1d(3 * width, 2 * width, 1)
        self.attention = nn.Sequential(nn.Conv1d(2 * width, 32, 1), nn.Tanh(), nn.Conv1d(32, 2 * width, 1))
        self.norm = nn.BatchNorm1d(4 * width)
        self.embed = nn.Linear(4 * width, SPEAKER)
        self.statistics = statistics

    def forward(self, frames: Tensor) -> Tensor:
        x = torch.relu(self.first(frames.transpose(1, 2)))
        seen = []
        for block in self.blocks:
            x = block(x)
            seen.append(x)
        h = torch.relu(self.join(torch.cat(seen, 1)))
        mean, deviation = self.pooled(h)
        embedding = self.embed(self.norm(torch.cat([mean, deviation], 1)))
        return embedding / embedding.norm(dim=1, keepdim=True)

    def pooled(self, h: Tensor) -> tuple[Tensor, Tensor]:
        if self.statistics:
            return h.mean(2), h.std(2)
        weights = torch.softmax(self.attention(h), 2)  # for every channel its own frames
        mean = (weights * h).sum(2)
        spread = (weights * (h - mean.unsqueeze(2)) ** 2).sum(2)
        return mean, spread.clamp(min=1e-6).sqrt()


def build(name: str) -> nn.Module:
    """keywords, speaker or x-vector, with weights that are always the same."""
    torch.manual_seed(0)
    kinds = {"keywords": Keywords, "speaker": Speaker, "x-vector": lambda: Speaker(statistics=True)}
    made: nn.Module = kinds[name]()
    for part in made.modules():
        if isinstance(part, nn.BatchNorm1d):
            nn.init.uniform_(part.running_mean, -0.1, 0.1)
            nn.init.uniform_(part.running_var, 0.5, 1.5)
    return made.eval()

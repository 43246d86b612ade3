"""Networks that end in one result, or begin with a value, as people write them; for both exporters."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import onnx
import torch
from torch import Tensor, nn

CHANNELS = 6


class Net(nn.Module):
    """A function of frames [B, T, C] with a few layers at hand."""

    def __init__(self, forward: Callable[[Net, Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv1d(CHANNELS, CHANNELS, 3, padding=1)
        self.strided = nn.Conv1d(CHANNELS, CHANNELS, 4, stride=2, padding=1)
        self.score, self.head = nn.Linear(CHANNELS, 1), nn.Linear(CHANNELS, 3)
        self.gru, self.lstm = (kind(CHANNELS, CHANNELS, batch_first=True) for kind in (nn.GRU, nn.LSTM))
        self.written = forward

    def forward(self, x: Tensor) -> Any:
        return self.written(self, x)

    def thin(self, x: Tensor) -> Tensor:
        """Every second frame."""
        out: Tensor = self.strided(x.transpose(1, 2)).transpose(1, 2)
        return out

    def over(self, x: Tensor) -> Tensor:
        """A convolution over time, of frames."""
        out: Tensor = self.conv(x.transpose(1, 2)).transpose(1, 2)
        return out


def attentive(m: Net, x: Tensor) -> Tensor:
    return (torch.softmax(m.score(torch.tanh(m.over(x))), 1) * x).sum(1)


def attentive_product(m: Net, x: Tensor) -> Tensor:
    weights = torch.softmax(m.score(x).squeeze(-1), 1).unsqueeze(1)
    return torch.bmm(weights, m.over(x)).squeeze(1)


def attentive_behind(m: Net, x: Tensor) -> Tensor:
    return torch.matmul(x.transpose(1, 2), torch.softmax(m.score(x), 1)).squeeze(2)


def attentive_statistics(m: Net, x: Tensor) -> Tensor:
    weights = torch.softmax(m.score(m.over(x)), 1)
    mean = (weights * x).sum(1)
    spread = (weights * (x - mean.unsqueeze(1)) ** 2).sum(1).clamp(min=1e-6).sqrt()
    return torch.cat([mean, spread], -1)


def masked_by_data(m: Net, x: Tensor) -> Tensor:
    loud = (x[..., :1] > 0).float()
    count = loud.sum(1) + 1
    mean = (x * loud).sum(1) / count
    return torch.cat([mean, (((x - mean.unsqueeze(1)) ** 2) * loud).sum(1) / count], -1)


def weights_by_hand(m: Net, x: Tensor) -> Tensor:
    gates = torch.sigmoid(m.score(x))
    return (gates / gates.sum(1, keepdim=True) * x).sum(1)


def hidden_scores(m: Net, x: Tensor) -> Tensor:
    """Frames that the data hide have no weight."""
    scores = m.score(x).masked_fill(x[..., :1] < -1, float("-inf"))
    return (torch.softmax(scores, 1) * x).sum(1)


FOLDS: dict[str, Callable[[Net, Tensor], Any]] = {
    "mean": lambda m, x: x.mean(1),
    "mean_of_all": lambda m, x: x.mean((1, 2)),
    "sum_by_length": lambda m, x: x.sum(1) / x.shape[1],
    "largest": lambda m, x: m.over(x).amax(1),
    "smallest": lambda m, x: x.amin(1, keepdim=True),
    "norm": lambda m, x: torch.linalg.vector_norm(x, dim=1),
    "log_sum_exp": lambda m, x: torch.logsumexp(m.over(x), 1),
    "deviation": lambda m, x: x.std(1),
    "variance": lambda m, x: x.var(1, unbiased=False),
    "statistics": lambda m, x: torch.cat([m.over(x).mean(1), m.over(x).std(1)], -1),
    "classifier": lambda m, x: torch.softmax(m.head(m.strided(x.transpose(1, 2)).relu().mean(2)), -1),
    "argmax": lambda m, x: m.over(x).argmax(1),
    "last_of_gru": lambda m, x: m.gru(x)[0][:, -1],
    "last_of_lstm": lambda m, x: m.head(m.lstm(x)[0][:, -1]),
    "last_five": lambda m, x: m.over(x)[:, -5:],
    "both_ends": lambda m, x: torch.cat([x[:, 0], x[:, -1]], -1),
    "gram": lambda m, x: x.transpose(1, 2) @ m.over(x) / x.shape[1],
    "einsum": lambda m, x: torch.einsum("btc,btd->bcd", x, m.over(x)),
    "attentive": attentive,
    "attentive_product": attentive_product,
    "attentive_behind": attentive_behind,
    "attentive_statistics": attentive_statistics,
    "masked_by_data": masked_by_data,
    "weights_by_hand": weights_by_hand,
    "hidden_scores": hidden_scores,
    "beside_frames": lambda m, x: (m.over(x), x.mean(1), m.strided(x.transpose(1, 2)).amax(2), m.gru(x)[0][:, -1]),
    "appended_mean": lambda m, x: torch.cat([x, x.mean(1, keepdim=True)], 1),
}
LATCHES: dict[str, Callable[[Net, Tensor], Any]] = {
    "less_the_first": lambda m, x: x - x[:, :1],
    "less_the_fourth": lambda m, x: m.over(x) - m.over(x)[:, 3:4],
    "scaled": lambda m, x: x * x[:, :5].mean(1, keepdim=True),
    "tiled": lambda m, x: torch.cat([x, x[:, :1].expand(-1, x.shape[1], -1)], 2),
    "edges": lambda m, x: torch.cat([x[:, :1], x, x[:, -1:]], 1),
    "wide_edges": lambda m, x: m.over(torch.cat([x[:, :1].repeat(1, 3, 1), x, x[:, -1:].repeat(1, 2, 1)], 1)),
    "round": lambda m, x: torch.cat([x, x[:, :2]], 1),
    "first_five": lambda m, x: m.over(x)[:, :5],
    "of_the_first": lambda m, x: m.head(x[:, 0]),
    "state": lambda m, x: m.gru(x, m.over(x)[:, :1].transpose(0, 1).contiguous())[0],
    "behind_a_stride": lambda m, x: m.thin(x) / (1 + m.thin(x)[:, :3].abs().amax(1, True)),
}


@cache
def exported(kind: str, name: str, batch: bool = True) -> onnx.ModelProto:
    """kind: legacy, dynamo."""
    net, x = Net({**FOLDS, **LATCHES}[name]).eval(), torch.randn(2 if batch else 1, 24, CHANNELS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind == "legacy":
            axes = {0: "B", 1: "T"} if batch else {1: "T"}
            buffer = io.BytesIO()
            torch.onnx.export(
                net, (x,), buffer, dynamo=False, input_names=["x"], dynamic_axes={"x": axes}, opset_version=17
            )
            return onnx.load_from_string(buffer.getvalue())
        logging.disable(logging.WARNING)
        shape = (
            {0: torch.export.Dim("B"), 1: torch.export.Dim("T", min=8)} if batch else {1: torch.export.Dim("T", min=8)}
        )
        program = torch.onnx.export(net, (x,), dynamo=True, dynamic_shapes={"x": shape}, verbose=False)
        logging.disable(logging.NOTSET)
        assert program is not None
        return program.model_proto

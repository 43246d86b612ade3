"""Video and skeletons: frames with more than one axis of space."""

# A torch module is Any where torch is not typed.
# mypy: disable-error-code="no-any-return, misc"

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.modules.case import Case, Modules

FRAMES = (1, 3, 12)


class Cubes(nn.Module):
    """3D convolutions that look back only, space pooled away."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = (
            nn.Conv3d(3, 4, (3, 3, 3), padding=(0, 1, 1)),
            nn.Conv3d(4, 6, (3, 3, 3), (1, 2, 2), (0, 1, 1)),
        )
        self.norm, self.out = nn.BatchNorm3d(4), nn.Linear(6, 5)

    def forward(self, x: Any) -> Any:  # [B, 3, T, H, W]
        x = F.relu(self.norm(self.one(F.pad(x, (0, 0, 0, 0, 2, 0)))))
        x = F.relu(self.two(F.pad(x, (0, 0, 0, 0, 2, 0))))
        return self.out(x.mean((-2, -1)).transpose(1, 2))


class PerFrame(nn.Module):
    """A network a frame, by folding time into the batch, and a GRU; pixels in 8 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
        self.gru, self.out = nn.GRU(16, 12, batch_first=True), nn.Linear(12, 4)

    def forward(self, x: Any) -> Any:  # [B, T, 3, H, W]
        b, t = x.shape[:2]
        y = self.conv(x.float().div(255).flatten(0, 1)).view(b, t, -1)
        return self.out(self.gru(y)[0])


class Shifted(nn.Module):
    """Some channels come from the frame before, some from the next, written into zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Any) -> Any:  # [B, T, 8, H, W]
        b, t, c, h, w = x.shape
        out = torch.zeros_like(x)
        out[:, :-1, :2] = x[:, 1:, :2]
        out[:, 1:, 2:4] = x[:, :-1, 2:4]
        out[:, :, 4:] = x[:, :, 4:]
        return x + F.relu(self.conv(out.reshape(b * t, c, h, w))).view(b, t, c, h, w)


class Motion(nn.Module):
    """Differences of frames, beside the frames."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3, padding=1)

    def forward(self, x: Any) -> Any:  # [T, 1, H, W], time first
        before = torch.cat([x[:1], x[:-1]], 0)
        return torch.sigmoid(self.conv(torch.cat([x, x - before], 1)))


@torch.jit.script
def carried(gates: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    h = torch.zeros_like(gates[:, 0, :2])
    c = torch.zeros_like(h)
    out = torch.jit.annotate(list[torch.Tensor], [])
    for t in range(gates.size(1)):
        g = gates[:, t] + torch.conv2d(h, weight, padding=[1, 1])
        i, f, o, u = torch.sigmoid(g[:, :2]), torch.sigmoid(g[:, 2:4]), torch.sigmoid(g[:, 4:6]), torch.tanh(g[:, 6:])
        c = f * c + i * u
        h = o * torch.tanh(c)
        out.append(h)
    return torch.stack(out, 1)


class ConvLstm(nn.Module):
    """A convolutional LSTM, by a script."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.weight = nn.Conv2d(3, 8, 3, padding=1), nn.Parameter(torch.randn(8, 2, 3, 3) / 5)

    def forward(self, x: Any) -> Any:
        b, t = x.shape[:2]
        gates = self.into(x.flatten(0, 1)).unflatten(0, (b, t))
        return carried(gates, self.weight)


class Lips(nn.Module):
    """A 3D stem, a 2D network a frame, temporal convolutions, classes at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv3d(1, 4, (5, 3, 3), (1, 2, 2), (2, 1, 1)), nn.PReLU(4), nn.MaxPool3d((1, 2, 2))
        )
        self.body, self.time, self.out = nn.Conv2d(4, 8, 3), nn.Conv1d(8, 8, 3, padding=1), nn.Linear(8, 6)

    def forward(self, x: Any) -> Any:  # [B, 1, T, H, W]
        x = self.stem(x)
        b, c, t, h, w = x.shape
        y = F.relu(self.body(x.transpose(1, 2).reshape(b * t, c, h, w))).mean([2, 3]).view(b, t, -1)
        return self.out(F.relu(self.time(y.transpose(1, 2))).mean(-1))


class Skeleton(nn.Module):
    """Graph convolutions over joints, convolutions over time."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("graph", torch.rand(3, 7, 7))
        self.mix, self.time = nn.Conv2d(3, 24, 1), nn.Conv2d(8, 8, (5, 1), padding=(2, 0))

    def forward(self, x: Any) -> Any:  # [B, 3, T, V]
        y = self.mix(x)
        b, kc, t, v = y.size()
        y = torch.einsum("nkctv,kvw->nctw", y.view(b, 3, kc // 3, t, v), self.graph)
        return F.relu(self.time(y.contiguous()))


class Folded(nn.Module):
    """Pictures are folded into the streams, and unfolded by how many there are."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: Any) -> Any:  # [B, 3, T, H, W]
        b, c, t = x.shape[:3]
        y = self.conv(x.transpose(1, 2).reshape(b * t, c, *x.shape[3:]))
        return y.reshape(y.shape[0] // t, t, *y.shape[1:]).transpose(1, 2)


class Loop(nn.Module):
    """A list of frames, each through a network."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: Any) -> Any:
        return torch.stack([self.conv(frame) for frame in x.unbind(1)], dim=1)


FILMS: Modules = {
    "cubes": Case(Cubes, ((1, 3, 16, 8, 8),), FRAMES, {"time": {"x": 2}}),
    "per frame": Case(
        PerFrame, lambda n: torch.randint(0, 256, (1, n or 16, 3, 8, 8), dtype=torch.uint8), FRAMES, {"time": {"x": 1}}
    ),
    "shifted": Case(Shifted, ((1, 16, 8, 4, 4),), FRAMES, {"time": {"x": 1}}),
    "motion": Case(Motion, ((16, 1, 6, 6),), FRAMES, {"time": {"x": 0}}),
    "convolutional lstm": Case(ConvLstm, ((1, 16, 3, 6, 6),), FRAMES, {"time": {"x": 1}}),
    "lips": Case(Lips, ((1, 1, 16, 12, 12),), FRAMES, {"time": {"x": 2}}),
    "skeleton": Case(Skeleton, ((1, 3, 16, 7),), FRAMES, {"time": {"x": 2}}),
    "folded": Case(Folded, ((1, 3, 16, 6, 6),), FRAMES, {"time": {"x": 2}}),
    "loop over frames": Case(
        Loop, ((1, 16, 3, 6, 6),), refused=r"modules/films\.py:\d+, in Loop.*loop over time", options={"time": {"x": 1}}
    ),
}

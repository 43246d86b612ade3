# ruff: noqa: SIM108  branches are what is tried
"""Filters and gates as written for TorchScript: loops over frames whose state starts as zeros like a frame."""

from __future__ import annotations

import torch


@torch.jit.script
def ema(x: torch.Tensor) -> torch.Tensor:
    state = torch.zeros_like(x[:, 0])
    out = []
    for t in range(x.shape[1]):
        state = 0.9 * state + 0.1 * x[:, t]
        out.append(state)
    return torch.stack(out, 1)


@torch.jit.script
def biquad(x: torch.Tensor) -> torch.Tensor:
    first = x.new_zeros(x[:, 0].shape)
    second = torch.zeros_like(x[:, 0])
    out = []
    for t in range(x.shape[1]):
        y = 0.2 * x[:, t] + first
        first = 0.3 * x[:, t] + 0.5 * y + second
        second = 0.2 * x[:, t] - 0.3 * y
        out.append(y)
    return torch.stack(out, 1)


@torch.jit.script
def gate(x: torch.Tensor) -> torch.Tensor:
    envelope = torch.zeros_like(x[:, 0])
    gain = torch.ones_like(x[:, 0])
    out = []
    for t in range(x.shape[1]):
        envelope = torch.maximum(x[:, t].abs(), 0.95 * envelope)
        gain = torch.where(envelope > 0.5, torch.ones_like(envelope), 0.8 * gain)
        out.append(x[:, t] * gain)
    return torch.stack(out, 1)


@torch.jit.script
def last_frame_first(x: torch.Tensor) -> torch.Tensor:
    """The state has the frame's axis, of size one."""
    state = torch.zeros_like(x[:, 0:1])
    out = []
    for t in range(x.shape[1]):
        out.append(state)
        state = x[:, t : t + 1]
    return torch.cat(out, 1)


@torch.jit.script
def channels_first(x: torch.Tensor) -> torch.Tensor:
    state = torch.zeros_like(x[:, :, 0])
    out = []
    for t in range(x.shape[2]):
        state = 0.5 * state + x[:, :, t]
        out.append(state)
    return torch.stack(out, 2)


@torch.jit.script
def like_the_mean(x: torch.Tensor) -> torch.Tensor:
    state = torch.zeros_like(x.mean(1))
    out = []
    for t in range(x.shape[1]):
        state = torch.maximum(0.5 * state, x[:, t])
        out.append(state)
    return torch.stack(out, 1)


@torch.jit.script
def begun_with_a_branch(x: torch.Tensor, warm: bool) -> torch.Tensor:
    state = torch.zeros_like(x[:, 0])
    if warm:
        state = state + 1.0
    out = []
    for t in range(x.shape[1]):
        if warm:
            state = 0.9 * state + 0.1 * x[:, t]
        out.append(state)
    return torch.stack(out, 1)


@torch.jit.script
def squeezed(x: torch.Tensor) -> torch.Tensor:
    state = torch.zeros_like(x[:, 0])
    out = []
    for t in range(x.shape[1]):
        state = 0.5 * state + x[:, t : t + 1].squeeze(1)
        out.append(state)
    return torch.stack(out, 1)


@torch.jit.script
def squeezed_state(x: torch.Tensor) -> torch.Tensor:
    state = torch.zeros_like(x[:, :1])
    out = []
    for t in range(x.shape[1]):
        state = 0.5 * state + x[:, t].unsqueeze(1)
        out.append(state.squeeze(1))
    return torch.stack(out, 1)


@torch.jit.script
def every_third(x: torch.Tensor) -> torch.Tensor:
    """A branch that most turns do not take reads the frame."""
    state = torch.zeros_like(x[:, 0])
    out = []
    for t in range(x.shape[1]):
        if t % 3 == 0:
            state = x[:, t]
        else:
            state = 0.5 * state + x[:, t]
        out.append(state)
    return torch.stack(out, 1)


@torch.jit.script
def branches_in_branches(x: torch.Tensor) -> torch.Tensor:
    state = torch.zeros_like(x[:, 0])
    out = []
    for t in range(x.shape[1]):
        if t % 2 == 0:
            if t % 3 == 0:
                state = x[:, t]
            else:
                state = state + x[:, t]
        elif t % 5 == 0:
            for _ in range(3):
                state = state * 0.5 + x[:, t]
        out.append(state)
    return torch.stack(out, 1)


@torch.jit.script
def a_flag(x: torch.Tensor) -> torch.Tensor:
    """What is carried is no number."""
    state = torch.zeros_like(x[:, 0])
    on = False
    out = []
    for t in range(x.shape[1]):
        if t == 3:
            on = True
        if on:
            state = state * 0.9 + x[:, t]
        out.append(state)
    return torch.stack(out, 1)


@torch.jit.script
def appended_in_branches(x: torch.Tensor) -> torch.Tensor:
    state = torch.zeros_like(x[:, 0])
    out = []
    for t in range(x.shape[1]):
        state = 0.5 * state + x[:, t]
        if t % 2 == 0:
            out.append(state)
        else:
            out.append(2 * state)
    return torch.stack(out, 1)


@torch.jit.script
def by_the_data(x: torch.Tensor) -> torch.Tensor:
    state = torch.zeros_like(x[:, 0])
    count = 0
    out = []
    for t in range(x.shape[1]):
        if bool(state.abs().max() < 1.0):
            count = count + 1
            state = state + x[:, t]
        else:
            count = 0
            state = state * 0.1
        out.append(state + float(count))
    return torch.stack(out, 1)


@torch.jit.script
def appended_sometimes(x: torch.Tensor) -> torch.Tensor:
    out = []
    for t in range(x.shape[1]):
        if t % 2 == 0:
            out.append(x[:, t] * 2.0)
    return torch.stack(out, 1)


@torch.jit.script
def of_two_shapes(x: torch.Tensor) -> torch.Tensor:
    state = x[:, 0]
    out = []
    for t in range(x.shape[1]):
        if t % 2 == 0:
            state = torch.cat([x[:, t], x[:, t]], 1)
        else:
            state = x[:, t]
        out.append(state.sum(1))
    return torch.stack(out, 1)


@torch.jit.script
def the_frame_before(x: torch.Tensor) -> torch.Tensor:
    """The first turn has none."""
    out = []
    for t in range(x.shape[1]):
        if t > 0:
            step = x[:, t] - x[:, t - 1]
        else:
            step = x[:, t]
        out.append(step)
    return torch.stack(out, 1)


@torch.jit.script
def divided_by_the_turn(x: torch.Tensor) -> torch.Tensor:
    state = torch.zeros_like(x[:, 0])
    out = []
    for t in range(x.shape[1]):
        if t > 0:
            state = state + x[:, t] * float(100 // t)
        else:
            state = x[:, t]
        out.append(state)
    return torch.stack(out, 1)


@torch.jit.script
def beside_others(x: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Only the first turns read the frames of another tensor, which ends early."""
    state = torch.zeros_like(x[:, 0])
    out = []
    for t in range(x.shape[1]):
        if t < 4:
            state = state + others[:, t]
        state = 0.5 * state + x[:, t]
        out.append(state)
    return torch.stack(out, 1)


class BesideFirst(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return beside_others(x, x[:, :5] * 2)


class Warm(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return begun_with_a_branch(x, True)


class BetweenConvolutions(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList(torch.nn.Conv1d(3, 3, 3, padding=1) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv, loop in zip(self.convs[:3], (ema, biquad, gate), strict=True):
            x = loop(conv(x.transpose(1, 2)).transpose(1, 2))
        return self.convs[3](x.transpose(1, 2)).transpose(1, 2)


class InARow(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return gate(biquad(ema(x)))


class Alone(torch.nn.Module):
    def __init__(self, loop: torch.jit.ScriptFunction) -> None:
        super().__init__()
        self.loop = loop

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.loop(x)

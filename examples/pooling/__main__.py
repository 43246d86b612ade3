"""python -m examples.pooling: both networks as streams, looked at while they listen."""

from __future__ import annotations

import time

import numpy as np
import torch

import pulsify
from examples.pooling.model import BANDS, build

FRAMES, PULSE, EVERY = 1000, 10, 200


def main() -> None:
    x = np.random.default_rng(0).standard_normal((1, FRAMES, BANDS)).astype(np.float32)
    for name in ("keywords", "speaker", "x-vector"):
        module = build(name)
        stream = pulsify.stream(module, pulse=PULSE, example=torch.zeros(1, 100, BANDS), time={"frames": 1})
        session = stream.session()
        shown = []
        for at in range(0, FRAMES, PULSE):
            session.push(x[:, at : at + PULSE])
            if (at + PULSE) % EVERY == 0:
                shown.append(session.peek())
        final = session.flush()
        with torch.no_grad():
            batch = module(torch.from_numpy(x)).numpy()
        moved = ", ".join(f"{np.abs(s - final).max():.1e}" for s in shown)
        off = np.abs(final - batch).max() / np.abs(batch).max()
        print(f"{name}: off batch by {off:.1e}, state {state(stream)} bytes")
        print(f"  off the end's result every {EVERY} frames: {moved}")
        pulse, peek = (took(stream, x) * 1e6 for took in (pulse_time, peek_time))
        print(f"  {pulse:.0f} us a pulse of {PULSE} frames, {peek:.0f} us a peek")


def state(stream: pulsify.Stream) -> int:
    return sum(s.nbytes for s in stream.spec.states)


def pulse_time(stream: pulsify.Stream, x: np.ndarray) -> float:
    session, took = stream.session(), []
    for at in range(0, FRAMES, PULSE):
        chunk = x[:, at : at + PULSE]
        start = time.perf_counter()
        session.push(chunk)
        took.append(time.perf_counter() - start)
    return float(np.median(took))


def peek_time(stream: pulsify.Stream, x: np.ndarray) -> float:
    session, took = stream.session(), []
    session.push(x)
    for _ in range(20):
        start = time.perf_counter()
        session.peek()
        took.append(time.perf_counter() - start)
    return float(np.median(took))


if __name__ == "__main__":
    main()

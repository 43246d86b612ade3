"""100 replicas with failures: how much time do streams lose?   python -m benchmarks.scale [--json]

A simulation, in steps of 50 ms. A replica has time for so many live streams; one that fails drops all of its streams
at once and is back after a while. A client notices, waits (longer after every refusal, with chance in it), asks any
replica, and is taken if there is room. Its stream is restored from the last snapshot, up to `snapshot` seconds old;
what came since is sent again and computed with the time that is left over. A stream is late from the failure until it
has caught up. Nothing else is lost: what comes out is the batch model's, every frame (tests/serve/test_resume.py).
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

STEP = 0.05  # seconds
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Scene:
    """replicas with room for `room` streams each, `load` of it taken. Times in seconds."""

    name: str
    replicas: int = 100
    room: int = 400
    load: float = 0.6
    hours: float = 2.0
    between: float = 4 * 3600  # failures of one replica, in the mean
    at_once: int = 1  # so many fail together: a rack, a zone
    back: float = 60.0  # until a replica that failed takes streams again
    notice: float = 0.3  # until a client knows: a reset connection; a machine that vanishes takes its ping's time
    wait: float = 0.2  # before the first try; doubled after every refusal, up to 5 s
    restore: float = 0.05  # to read a snapshot and open a lane
    snapshot: float = 2.0


SCENES = (
    Scene("a replica fails every 4 hours"),
    Scene("the same, at 90 % of capacity", load=0.9),
    Scene("machines vanish without a word (ping 10 s)", notice=10.0),
    Scene("racks of 10 fail together", at_once=10, between=24 * 3600),
    Scene("racks of 10, at 90 % of capacity", at_once=10, between=24 * 3600, load=0.9),
    Scene("a rolling restart: each once an hour", between=3600.0),
)


def simulated(scene: Scene, seed: int = 0) -> dict[str, Any]:
    """How long streams were late, and how often they were."""
    rng = np.random.default_rng(seed)
    count = int(scene.replicas * scene.room * scene.load)
    home = rng.permutation(np.repeat(np.arange(scene.replicas), scene.room))[:count]  # of every stream; -1: none
    taken = np.bincount(home, minlength=scene.replicas)
    down = np.zeros(scene.replicas)  # seconds until it is back
    due, pause = np.full(count, np.inf), np.full(count, scene.wait)
    since, behind = np.full(count, np.inf), np.zeros(count)
    gaps: list[float] = []
    refused = moved = 0
    chance = 1 - np.exp(-STEP * scene.replicas / scene.at_once / scene.between)
    for now in np.arange(0, scene.hours * 3600, STEP):
        down = np.maximum(down - STEP, 0)
        if rng.random() < chance:
            first = int(rng.integers(scene.replicas))
            dead = np.arange(first, first + scene.at_once) % scene.replicas
            hit = np.isin(home, dead)
            since[hit] = np.minimum(since[hit], now)
            behind[hit] += rng.uniform(0, scene.snapshot, int(hit.sum()))
            due[hit], pause[hit], home[hit] = (
                now + scene.notice + rng.uniform(0, scene.wait, int(hit.sum())),
                scene.wait,
                -1,
            )
            down[dead], taken[dead] = scene.back, 0
        for i in np.flatnonzero(due <= now).tolist():
            asked = int(rng.integers(scene.replicas))
            if down[asked] or taken[asked] >= scene.room:
                refused += 1
                pause[i] = min(2 * pause[i], 5.0)
                due[i] = now + pause[i] * rng.uniform(0.5, 1.5)
                continue
            home[i], due[i], moved = asked, np.inf, moved + 1
            behind[i] += now - since[i] + scene.restore
            taken[asked] += 1
        late = np.flatnonzero(np.isfinite(since) & (home >= 0))
        if late.size:  # a replica's spare time goes to those of its streams that are behind
            those = np.bincount(home[late], minlength=scene.replicas)
            spare = np.maximum(scene.room - taken, scene.room * 0.02) / np.maximum(those, 1)
            behind[late] -= STEP * spare[home[late]]
            done = late[behind[late] <= 0]
            gaps += (now - since[done]).tolist()
            since[done], behind[done] = np.inf, 0.0
    total = count * scene.hours * 3600
    stuck = [scene.hours * 3600 - t for t in since[np.isfinite(since)].tolist()]
    return {
        **asdict(scene), "streams": count, "moved": moved, "refusals": refused, "still_late": len(stuck),
        "late_p50": _part(gaps, 50), "late_p99": _part(gaps, 99), "late_most": max([*gaps, *stuck], default=0.0),
        "late_share": (sum(gaps) + sum(stuck)) / total,
    }  # fmt: skip


def _part(gaps: list[float], percent: float) -> float:
    return float(np.percentile(gaps, percent)) if gaps else 0.0


def table(found: list[dict[str, Any]]) -> str:
    lines = [
        "| scene | streams | moved | refusals | late p50, s | p99, s | longest, s | share of stream time |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for f in found:
        lines.append(
            f"| {f['name']} | {f['streams']:,} | {f['moved']:,} | {f['refusals']:,} | {f['late_p50']:.2f} | "
            f"{f['late_p99']:.2f} | {f['late_most']:.1f} | {f['late_share']:.4%} |"
        )
    return "\n".join(lines)


def main(given: list[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--json", action="store_true")
    options.add_argument("--hours", type=float, default=2.0)
    chosen = options.parse_args(given)
    found = [simulated(replace(scene, hours=chosen.hours)) for scene in SCENES]
    print(json.dumps(found, indent=1) if chosen.json else table(found))


if __name__ == "__main__":
    main()

"""How many workers, and what is each one's part."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CGROUPS, OWN_CGROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
MEMINFO = Path("/proc/meminfo")
OWN_THREAD = ("ort", "native", "reference")  # back ends that compute in the thread that calls them
SPARE = 0.8  # of the memory that is free, for more workers


@dataclass(frozen=True)
class Part:
    """One of `count` workers, which share `cores`."""

    index: int = 0
    count: int = 1
    cores: float = math.inf

    def of(self, most: int) -> int:
        """Its own of so many streams; those of all workers are `most`."""
        return most // self.count + (self.index < most % self.count)

    @property
    def time(self) -> float:
        """Of a core's time, what it may take: less than all of it if there are more workers than cores."""
        return min(1.0, self.cores / self.count)


@dataclass(frozen=True)
class Cost:
    """What a worker says once its models are open.

    streams: for how many of each model there is time on one core; None: unknown. threads: back ends that compute
    elsewhere than in the thread that calls them, on a GPU for example.
    """

    most: int
    streams: tuple[int | None, ...]
    elsewhere: bool
    memory: int

    @staticmethod
    def read(message: dict[str, Any]) -> Cost:
        return Cost(message["most"], tuple(message["streams"]), message["elsewhere"], message["memory"])


def worth(cost: Cost, cores: float, free: int | None) -> tuple[int, str]:
    """How many workers pay off, and why not more."""
    known = [count for count in cost.streams if count is not None]
    if cost.elsewhere:
        return 1, "a back end that does not compute on one core"
    if not known:
        return 1, "no model has a known rate, so what a stream costs is unknown"
    limits = [(max(1, math.floor(cores)), f"{cores:g} cores"),
              (math.ceil(cost.most / max(1, min(known))), f"--most {cost.most}")]  # fmt: skip
    if free is not None and cost.memory:
        limits.append((1 + math.floor(SPARE * free / cost.memory), f"{free >> 20} MiB of free memory"))
    return min(limits)


def cores() -> float:
    """Those that this process may use."""
    count = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    for group in _groups():
        with suppress(OSError, ValueError):
            quota, period = (CGROUPS / group / "cpu.max").read_text().split()
            if quota != "max":
                count = min(count, max(int(quota) / int(period), 0.1))
    return count


def _groups() -> list[Path]:
    """Control groups that this process is in, relative to the outermost one, which is that of a container."""
    with suppress(OSError, StopIteration):
        lines = OWN_CGROUP.read_text().splitlines()
        own = Path(next(line[3:] for line in lines if line.startswith("0::")).strip("/"))
        return [own, *own.parents]
    return [Path()]


def free_memory() -> int | None:
    """Bytes; None: unknown."""
    with suppress(OSError, ValueError, StopIteration):
        return 1024 * int(next(line.split()[1] for line in MEMINFO.open() if line.startswith("MemAvailable")))
    return None


def own_memory() -> int:
    """Bytes of this process; 0: unknown."""
    with suppress(OSError, ValueError, AttributeError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def has_rate(sources: Sequence[str], sample_rate: float | None) -> bool:
    """May a model have a known rate? Only then it can be measured what a stream of it costs."""
    if not sources or sample_rate is not None:
        return True
    return any(each.endswith(".toml") or _is_rate(each.rpartition("@")[2]) for each in sources)


def _is_rate(text: str) -> bool:
    with suppress(ValueError):
        return float(text) > 0
    return False

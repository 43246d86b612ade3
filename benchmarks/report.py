"""What was measured, as tables and as a picture."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.runners import (
    BARS,
    BATCH,
    BY_HAND,
    CLOSE,
    NATIVE,
    NATIVE_STEP,
    OTHERWISE,
    PULSIFY,
    SLIDING,
    STEP,
    TRACT,
    TRACT_BARE,
)  # fmt: skip
from pulsify.report.render_speed import pyplot

Facts = dict[str, Any]
ORDER = (PULSIFY, STEP, NATIVE, NATIVE_STEP, OTHERWISE, TRACT, TRACT_BARE, BY_HAND, SLIDING, CLOSE, BATCH)
COLOURS = {
    PULSIFY: "#1b6ca8",
    TRACT: "#d9822b",
    BY_HAND: "#5a9e4b",
    SLIDING: "#777777",
    CLOSE: "#aaaaaa",
    BATCH: "#dddddd",
}


def machine() -> Facts:
    """What the figures hold for."""
    packages = ("pulsify", "onnxruntime", "tract", "numpy")
    return {
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in packages}},
        "cpu": _cpu(),
        "system": platform.system(),
        "threads": 1,
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(named)} x {named[0]}" if named else platform.processor() or platform.machine()


def machine_line(facts: Facts) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    return f"{versions}; {facts['cpu']}, one thread each"


# ---- tables


def model_lines(result: Facts) -> Iterator[str]:
    """One model: who takes how long for a pulse, and what pulsify's time is of theirs."""
    facts, times = result["facts"], result["times"]
    yield f"{result['name']}: {result['what']}, pulse {result['pulse']}"
    yield f"  {'µs per pulse':24s}{'p50':>10s}{'p99':>10s}{'pulsify is':>12s}"
    for name in (n for n in ORDER if n in times or n in result["notes"]):
        note = result["notes"].get(name, "")
        if name not in times:
            yield f"  {name:24s}{'-':>10s}{'-':>10s}{'':12s}  {note[:90]}"
            continue
        ratio = "" if name in (PULSIFY, STEP) else f"{result['ratios'][name]:.2f}x"
        p50, p99 = times[name]["p50_us"], times[name]["p99_us"]
        yield f"  {name:24s}{p50:10,.1f}{p99:10,.1f}{ratio:>12s}  {note[:90]}".rstrip()
    theirs = f", tract in {facts['tract_convert_s']:.2f} s unchecked" if "tract_convert_s" in facts else ""
    hand = f" (by hand {facts['by_hand_state_bytes']:,})" if "by_hand_state_bytes" in facts else ""
    delays = f"delay {facts['delay']}" + (f" (tract {facts['tract_delay']})" if "tract_delay" in facts else "")
    windows = f"windows of {facts['window']} and {facts.get('shortest_window', '-')} frames"
    yield f"  {delays}, state {facts['state_bytes']:,} bytes{hand}, {windows}"
    yield f"  converted and checked in {facts['convert_s']:.2f} s{theirs}"


def ratios(results: Sequence[Facts]) -> list[Facts]:
    """Every comparison that has a bar."""
    return [
        {"model": r["name"], "peer": name, "ratio": r["ratios"][name], "bar": bar, "met": r["ratios"][name] <= bar}
        for r in results
        for name, bar in BARS.items()
        if name in r["ratios"]
    ]


def summary_lines(results: Sequence[Facts]) -> Iterator[str]:
    """All models in one table, and how they stand against the bars; ! misses, ~ has a note above."""
    found = {(r["model"], r["peer"]): r for r in ratios(results)}
    yield f"{'pulsify / peer':24s}" + "".join(f"{f'{name} <= {bar:g}':>24s}" for name, bar in BARS.items())
    for result in results:
        cells = []
        for name in BARS:
            ratio = found.get((result["name"], name))
            note = result["notes"].get(name, "-").partition(":")[0]
            mark = "~" if name in result["notes"] else " "
            cells.append(f"{ratio['ratio']:.2f}{mark if ratio['met'] else '!'}" if ratio else f"{note} ")
        yield f"{result['name']:24s}" + "".join(f"{cell:>24s}" for cell in cells)
    for name, bar in BARS.items():
        judged = [r for r in found.values() if r["peer"] == name]
        missed = [f"{r['model']} {r['ratio']:.2f}" for r in judged if not r["met"]]
        yield f"{name} <= {bar:g}: {len(judged) - len(missed)} of {len(judged)}" + (
            f"; misses: {', '.join(missed)}" if missed else ""
        )


# ---- a picture


def plot(results: Sequence[Facts], about: Mapping[str, Any], path: Path) -> None:
    """Bars on a logarithmic scale, one group a model."""
    plots = pyplot()
    shown = [name for name in COLOURS if any(name in r["times"] for r in results)]
    figure, axes = plots.subplots(figsize=(9, 1 + 0.62 * len(results)), layout="constrained")
    height = 0.8 / len(shown)
    for i, name in enumerate(shown):
        rows = [(n, r["times"][name]["p50_us"]) for n, r in enumerate(results) if name in r["times"]]
        places = [n + (i - (len(shown) - 1) / 2) * height for n, _ in rows]
        axes.barh(places, [us for _, us in rows], height, label=name, color=COLOURS[name])
    axes.set_yticks(range(len(results)), [r["name"] for r in results])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("µs per pulse (p50)")
    axes.set_title(machine_line(dict(about)), fontsize=7)
    axes.grid(axis="x", which="both", alpha=0.2)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=150)
    plots.close(figure)

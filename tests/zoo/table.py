"""Runs the zoo and prints what came of it.

    python -m tests.zoo.table [legacy|dynamo|both] [part of a name] [--scope FAMILY]

The exit code is 0 iff cases ran and every one of them is as it should be.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.zoo.harness import Result, check
from tests.zoo.manifest import EXPORTERS, FAMILIES, Entry, Exporter, load, runnable

ROW = "{:34s} {:8s} {:8s} {:8s} {:>8s}  {}"


def model_path(entry: Entry, exporter: Exporter, folder: Path) -> Path:
    """The fixture, or for a large model a fresh export into `folder`, which needs torch."""
    if not entry.exports[exporter].large:
        return entry.fixture(exporter)
    from tests.zoo.export import export_case

    path = folder / f"{entry.name}.{exporter}.onnx"
    export_case(entry.name, exporter, path)
    return path


def check_entry(entry: Entry, path: Path, **running: Any) -> Result:
    """running: options of the sessions."""
    options: dict[str, Any] = {"time": entry.time, **({"bind": entry.bind} if entry.bind else {})}
    return check(path, entry.inputs, {"x": entry.axis}, entry.pulse, entry.lengths, running=running, **options)


def select(
    entries: Iterable[Entry],
    exporter: str,
    name: str,
    scope: str,
) -> Iterator[tuple[Entry, Exporter]]:
    wanted = [e for e in entries if name in e.name and scope in (e.family, "all")]
    return (pair for pair in runnable(wanted, masks=True) if exporter in (pair[1], "both"))


def row(entry: Entry, exporter: Exporter, result: Result) -> str:
    error = "" if result.worst != result.worst else f"{result.worst:.1e}"
    delays = ",".join(str(delay) for delay in result.delays.values())
    line = ROW.format(entry.name, exporter, entry.expected, result.status, error, delays)
    if result.status == entry.expected:
        return line.rstrip()
    return f"{line}  <- {result.detail}"


def run(pairs: Iterable[tuple[Entry, Exporter]]) -> bool:
    """Prints a row per pair and a summary; whether all are right."""
    tally: Counter[str] = Counter()
    have_torch = importlib.util.find_spec("torch") is not None
    start = time.perf_counter()
    print(ROW.format("case", "exporter", "expected", "got", "error", "delay"))
    with tempfile.TemporaryDirectory() as folder:
        for entry, exporter in pairs:
            if entry.exports[exporter].large and not have_torch:
                tally["not run (large, needs torch)"] += 1
                continue
            result = check_entry(entry, model_path(entry, exporter, Path(folder)))
            tally["right" if result.status == entry.expected else result.status] += 1
            print(row(entry, exporter, result), flush=True)
    counts = ", ".join(f"{count} {what}" for what, count in tally.most_common())
    print(f"{tally.total()} models: {counts or 'none'}; {time.perf_counter() - start:.0f} s")
    return tally["right"] > 0 and not any(tally[s] for s in ("exact", "wrong", "refused", "error"))


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs the zoo and prints what came of it.")
    parser.add_argument("exporter", nargs="?", default="both", choices=[*EXPORTERS, "both"])
    parser.add_argument("name", nargs="?", default="", help="part of a case's name")
    parser.add_argument("--scope", default="all", choices=[*FAMILIES, "all"], help="family of cases")
    arguments = parser.parse_args()
    pairs = select(load(), arguments.exporter, arguments.name, arguments.scope)
    return 0 if run(pairs) else 1


if __name__ == "__main__":
    sys.exit(main())

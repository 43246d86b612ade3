"""Streams of many models, timed side by side with whoever else can run them.

python -m benchmarks [--only NAME ...] [--json OUT] [--plot OUT.png]
python -m benchmarks --long      a million frames: no slower, no larger
python -m benchmarks --many      1, 8 and 64 streams in one call
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import long, many, report
from benchmarks.cases import CASES, Case, prepare
from benchmarks.runners import PULSIFY, line_up
from benchmarks.turns import figures, measure
from pulsify.report.render_speed import pyplot

Facts = dict[str, Any]
Say = Callable[[str], None]


def side_by_side(cases: Sequence[Case], seconds: float, folder: Path | None, say: Say) -> list[Facts]:
    """Every model against everyone who runs it; said model by model, and all together at the end."""
    paths = prepare([name for case in cases for name in case.models], folder)
    results = []
    for case in cases:
        field = line_up(case, paths)
        times = measure(field.runs, seconds)
        about = {"name": case.name, "what": case.what, "pulse": field.facts.pop("pulse")}
        ratios = {name: times[PULSIFY].ratio(t) for name, t in times.items() if name != PULSIFY}
        results.append({**about, "facts": field.facts, "notes": field.notes, "times": figures(times), "ratios": ratios})
        del field
        gc.collect()
        say("\n".join(report.model_lines(results[-1])) + "\n")
    say("\n".join(report.summary_lines(results)))
    return results


def old_and_young(cases: Sequence[Case], seconds: float, folder: Path | None, say: Say) -> list[Facts]:
    results = []
    for case in cases:
        results.append(long.run(case, prepare([case.batch], folder), seconds))
        say("\n".join(long.lines(results[-1])))
    return results


def in_numbers(cases: Sequence[Case], seconds: float, folder: Path | None, say: Say) -> list[Facts]:
    paths = prepare([case.many for case in cases if case.many], folder)
    results = []
    for case in cases:
        results.append(many.run(case, paths, seconds))
        say("\n".join(many.lines(results[-1])))
    return results


def main(argv: Sequence[str] | None = None) -> Facts:
    args = _parser().parse_args(argv)
    suite = "long" if args.long else "many" if args.many else "models"
    fitting = {"long": long.NAMES, "many": [c.name for c in CASES if c.many], "models": [c.name for c in CASES]}[suite]
    cases = [c for c in CASES if c.name in (args.only or fitting)]
    if suite == "many" and not all(c.many for c in cases):
        raise SystemExit(f"--many: there are {', '.join(c.name for c in CASES if c.many)}")
    if args.list:
        print("\n".join(f"{c.name:20s} pulse {c.pulse or 'its own'!s:>7}  {c.what}" for c in cases))
        return {}
    if args.plot:
        pyplot()  # if there is none, that is said before the work
    about = report.machine()
    say: Say = lambda text: print(text, flush=True)  # noqa: E731
    say(report.machine_line(about) + "\n")
    run = {"long": old_and_young, "many": in_numbers, "models": side_by_side}[suite]
    results = run(cases, args.seconds, args.models, say)
    facts: Facts = {"machine": about, suite: results}
    if suite == "models":
        facts["bars"] = report.ratios(results)
        if args.plot:
            report.plot(results, about, args.plot)
    if args.json:
        args.json.write_text(json.dumps(facts, indent=2) + "\n")
    return facts


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    names = [case.name for case in CASES]
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help="this model; repeatable")
    parser.add_argument("--seconds", type=float, default=1.5, help="for each contestant of a model (default 1.5)")
    parser.add_argument("--list", action="store_true", help="the models, and nothing else")
    parser.add_argument("--long", action="store_true", help="streams of a million frames")
    parser.add_argument("--many", action="store_true", help="many streams in one call")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all figures")
    parser.add_argument("--plot", type=Path, metavar="OUT", help="write a picture, .png or .svg (matplotlib)")
    parser.add_argument("--models", type=Path, metavar="DIR", help="where the models are, or are written to")
    return parser


if __name__ == "__main__":
    main(sys.argv[1:])

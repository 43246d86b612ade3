"""What pulsify and tract make of every fixture of the zoo, side by side, in one run.

    python -m benchmarks.coverage [--name PART] [--write docs/comparison.md]

Both tools get the same model, pulse and inputs; ONNX Runtime on the whole input says what is right.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

import pulsify
from benchmarks import peer
from benchmarks.peer import TOLERANCE, Status, compare
from tests.zoo import harness
from tests.zoo.manifest import FAMILIES, Entry, Exporter, Family, load, runnable
from tests.zoo.test_zoo import SUPPORTED

Array = npt.NDArray[Any]

TIMEOUT = 120.0  # seconds for one model on tract
PEER_PROCESSES = 2
DETAIL_LENGTH = 140
SEVERITY: tuple[Status, ...] = ("exact", "tail", "wrong")
RUN = "python -m benchmarks.coverage --write docs/comparison.md"


@dataclasses.dataclass(frozen=True)
class Case:
    """One fixture, with what batch answers at a whole number of pulses and at a ragged length."""

    entry: Entry
    exporter: Exporter
    inputs: list[Array]
    expected: list[Array]
    axis: int  # the time axis of the output
    whole: bool = False  # it has none: a result about the whole recording

    @property
    def path(self) -> Path:
        return self.entry.fixture(self.exporter)

    @property
    def frames(self) -> list[int]:
        return [y.shape[self.axis] for y in self.expected]


@dataclasses.dataclass(frozen=True)
class Verdict:
    status: Status
    detail: str = ""
    delay: str = ""  # in output frames
    whole: bool = False  # exact as long as the length is a whole number of pulses
    bound: bool = False  # tract: exact once the length is written into its serialised model


@dataclasses.dataclass(frozen=True)
class Row:
    case: Case
    tract: Verdict
    ours: Verdict


def main() -> None:
    parser = argparse.ArgumentParser(description="What pulsify and tract make of every fixture of the zoo.")
    parser.add_argument("--name", default="", help="only cases with this in their name")
    parser.add_argument("--write", type=Path, help="the page to write")
    arguments = parser.parse_args()
    if arguments.name and arguments.write:
        parser.error("the page is of all cases: --write goes without --name")
    entries = [entry for entry in load() if arguments.name in entry.name]
    rows = []
    for row in measure(cases(entries)):
        print(line(row), flush=True)
        rows.append(row)
    print("", *summary(rows), "", *families(rows), sep="\n")
    if arguments.write:
        arguments.write.write_text(page(rows))


def cases(entries: Sequence[Entry]) -> Iterator[Case]:
    for entry, exporter in runnable(entries):
        if not entry.exports[exporter].large:
            yield make_case(entry, exporter)


def make_case(entry: Entry, exporter: Exporter) -> Case:
    session = batch_session(entry.fixture(exporter))
    half = entry.pulse // 2
    x, y = run_batch(session, entry, [entry.length])
    x_ragged, y_ragged = run_batch(session, entry, [entry.length + n for n in (half + 1, half, 1)])
    _, y_longer = run_batch(session, entry, [2 * entry.length])
    axis = next((i for i, (a, b) in enumerate(zip(y.shape, y_longer.shape, strict=True)) if a != b), None)
    if axis is None:  # a result about the whole recording: one frame of it
        return Case(entry, exporter, [x, x_ragged], [y[None], y_ragged[None]], 0, whole=True)
    return Case(entry, exporter, [x, x_ragged], [y, y_ragged], axis)


def batch_session(path: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run_batch(session: Any, entry: Entry, lengths: Iterable[int]) -> tuple[Array, Array]:
    """Input and output at the first of the lengths that the model can take."""
    for length in lengths:
        inputs = entry.inputs(length)
        try:
            return inputs["x"], session.run(None, inputs)[0]
        except Exception:  # ONNX Runtime has no common class for them
            continue
    raise LookupError(f"{entry.name} runs at none of the lengths")


def measure(todo: Iterable[Case]) -> Iterator[Row]:
    """tract in processes of its own, a few at a time, and pulsify meanwhile."""
    with ThreadPoolExecutor(PEER_PROCESSES) as pool:
        started = [(case, pool.submit(judge_tract, case)) for case in todo]
        for case, future in started:
            ours = judge_pulsify(case)
            yield Row(case, future.result(), ours)


def judge_tract(case: Case) -> Verdict:
    """At the pulse of the case; where that is refused, at twice the pulse."""
    pulse = case.entry.pulse
    verdict = settle(case, lambda: run_tract(case, pulse))
    if verdict.status == "refused":
        again = settle(case, lambda: run_tract(case, 2 * pulse))
        if again.status == "refused":
            return verdict
        pulse = 2 * pulse
        verdict = dataclasses.replace(again, detail=join(f"at pulse {pulse}", again.detail))
    if verdict.status == "wrong" and case.entry.streamable:
        late = frames_late(case, pulse)
        return dataclasses.replace(verdict, detail=join(verdict.detail, late))
    if verdict.status != "tail":
        return verdict
    bound = settle(case, lambda: run_tract(case, pulse, known_length=True))
    return dataclasses.replace(verdict, bound=bound.status == "exact")


def frames_late(case: Case, pulse: int) -> str:
    """Whether wrong numbers are right ones at another delay than the one tract reports."""
    entry, count = case.entry, case.frames[0]
    job = peer.Job(entry.shape, entry.axis, pulse, case.inputs[:1], [count + pulse])
    (got,) = peer.run_apart(case.path, job, TIMEOUT).outputs
    for late in range(1, pulse + 1):
        shifted = np.take(got, range(late, late + count), case.axis)
        if compare(shifted, case.expected[0], case.axis)[0] != "wrong":
            return f"right if its delay were {late} more"
    return ""


def run_tract(case: Case, pulse: int, known_length: bool = False) -> tuple[list[Array], str]:
    entry = case.entry
    job = peer.Job(entry.shape, entry.axis, pulse, case.inputs, case.frames, known_length)
    streamed = peer.run_apart(case.path, job, TIMEOUT)
    return streamed.outputs, str(streamed.delay)


def judge_pulsify(case: Case) -> Verdict:
    return settle(case, lambda: run_pulsify(case))


def run_pulsify(case: Case) -> tuple[list[Array], str]:
    stream = compile_pulsify(case.path, case.entry.pulse, case.entry.time)
    (output,) = stream.outputs
    outputs = []
    for x in case.inputs:
        whole, rest = divmod(x.shape[case.entry.axis], stream.pulse)
        cuts = [stream.pulse] * whole + [rest] * (rest > 0)
        got = harness.run_stream(stream, {"x": x}, cuts)[output.name]
        outputs.append(got[None] if case.whole else got)
    return outputs, str(output.delay)


def compile_pulsify(path: Path, pulse: int, time: str | None = None) -> Any:
    """The stream, at the pulse and with the growing cache that pulsify itself asks for."""
    try:
        return pulsify.stream(str(path), pulse=pulse, time=time)
    except pulsify.InvalidPulse as error:
        multiple = int(error.granularity)
        return pulsify.stream(str(path), pulse=math.ceil(pulse / multiple) * multiple, time=time)
    except pulsify.NotStreamable as error:
        if "unbounded" not in str(error):
            raise
        return pulsify.stream(str(path), pulse=pulse, time=time, unbounded="grow")


def settle(case: Case, run: Callable[[], tuple[list[Array], str]]) -> Verdict:
    """Runs one tool and says what came of it; any error is a refusal."""
    try:
        outputs, delay = run()
    except pulsify.NotStreamable as error:
        return Verdict("refused", brief(f"{error.op}: {error.reason}"))
    except Exception as error:
        return Verdict("refused", brief(str(error)))
    if not case.entry.streamable:
        return Verdict("wrong", "converted, but has no exact stream", delay)
    pairs = zip(outputs, case.expected, strict=True)
    found = [compare(got, expected, case.axis) for got, expected in pairs]
    status, detail = max(found, key=lambda f: SEVERITY.index(f[0]))
    whole = found[0][0] == "exact"
    if status != "exact" and whole:
        detail = f"ragged length only: {detail}"
    return Verdict(status, detail, delay, whole)


def join(*parts: str) -> str:
    return ": ".join(part for part in parts if part)


def brief(text: str) -> str:
    """One line without machine paths, fit for a table."""
    text = " ".join(text.replace(f"{peer.REPOSITORY}/", "").replace("|", "/").split())
    return text if len(text) <= DETAIL_LENGTH else text[: DETAIL_LENGTH - 1] + "…"


def line(row: Row) -> str:
    entry = row.case.entry
    text = f"{entry.name:30s} {row.case.exporter:7s} {entry.expected:8s} "
    return text + f"tract {label(row.tract):20s} pulsify {label(row.ours):8s} {row.tract.detail[:80]}"


def label(verdict: Verdict) -> str:
    if verdict.bound:
        return "tail (exact if bound)"
    return "tail (ragged)" if verdict.status == "tail" and verdict.whole else verdict.status


# The page. Counts are of models: a case as one exporter wrote it.

GROUPS: tuple[tuple[str, Callable[[Entry, Verdict], bool]], ...] = (
    ("has an exact stream", lambda e, v: e.streamable),
    ("&emsp;exact, first frame to last", lambda e, v: e.streamable and v.status == "exact"),
    ("&emsp;exact but for the last frames", lambda e, v: e.streamable and v.status == "tail"),
    ("&emsp;&emsp;of them, exact at whole pulses", lambda e, v: v.status == "tail" and v.whole),
    ("&emsp;&emsp;of them, exact once told the length", lambda e, v: v.status == "tail" and v.bound),
    ("&emsp;wrong numbers, no error", lambda e, v: e.streamable and v.status == "wrong"),
    ("&emsp;refused", lambda e, v: e.streamable and v.status == "refused"),
    ("has no exact stream", lambda e, v: not e.streamable),
    ("&emsp;refused, as it must be", lambda e, v: not e.streamable and v.status == "refused"),
    ("&emsp;converted, wrong numbers", lambda e, v: not e.streamable and v.status == "wrong"),
)


def summary(rows: Sequence[Row]) -> list[str]:
    """Counts for the families pulsify supports, and for all."""
    supported = [row for row in rows if row.case.entry.family in SUPPORTED]
    lines = [
        "| model | tract | pulsify | tract, all families | pulsify, all families |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, belongs in GROUPS:
        counts = [n for part in (supported, rows) for n in count(part, belongs)]
        lines.append(f"| {name} | " + " | ".join(map(str, counts)) + " |")
    return lines


def count(rows: Sequence[Row], belongs: Callable[[Entry, Verdict], bool]) -> tuple[int, int]:
    tract = sum(belongs(row.case.entry, row.tract) for row in rows)
    return tract, sum(belongs(row.case.entry, row.ours) for row in rows)


def families(rows: Sequence[Row]) -> list[str]:
    lines = [
        "| family | tool | exact | tail | wrong | refused | must refuse: refused | must refuse: converted |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for family in FAMILIES:
        part = [row for row in rows if row.case.entry.family == family]
        if not part:  # masks beside x are not for tract
            continue
        lines += [family_line(family, "tract", [(row.case.entry, row.tract) for row in part])]
        lines += [family_line(family, "pulsify", [(row.case.entry, row.ours) for row in part])]
    return lines


def family_line(family: Family, tool: str, found: Sequence[tuple[Entry, Verdict]]) -> str:
    tally = Counter((entry.streamable, verdict.status) for entry, verdict in found)
    streamable = [tally[True, status] for status in ("exact", "tail", "wrong", "refused")]
    counts = [*streamable, tally[False, "refused"], tally[False, "wrong"]]
    name = family if family in SUPPORTED else f"{family} (not yet supported)"
    return f"| {name} | {tool} | " + " | ".join(map(str, counts)) + " |"


def page(rows: Sequence[Row]) -> str:
    lines = [*intro(rows), "", *summary(rows), "", "## By family", "", *families(rows), "", "## Case by case", ""]
    for family in FAMILIES:
        part = [row for row in rows if row.case.entry.family == family]
        if part:
            lines += [f"### {family}", "", *table(part), ""]
    return "\n".join(lines).rstrip() + "\n"


def intro(rows: Sequence[Row]) -> list[str]:
    cases_kept = len({row.case.entry.name for row in rows})
    measured = sorted(SUPPORTED & {row.case.entry.family for row in rows})
    return [
        "# pulsify and tract, side by side",
        "",
        f"Made by `{RUN}`: do not edit.",
        "",
        f"pulsify {importlib.metadata.version('pulsify')} and [tract](https://github.com/sonos/tract) {peer.version()}",
        "(its `pulse` transform, from its Python package) on the same models, in one run. ONNX Runtime",
        f"{onnxruntime.__version__} on the whole input says what is right.",
        "",
        f"- **Models**: {len(rows)} fixtures of the zoo (`tests/zoo`), {cases_kept} cases, most of them as both",
        "  PyTorch exporters write them. A few large cases, not kept as files, are left out.",
        "- **Lengths**: that of the case, which is a whole number of pulses, and a ragged one. A verdict is the worse",
        "  of the two.",
        f"- **Tolerance**: {TOLERANCE:g} of the largest magnitude in the batch output, or of 1 if that is smaller.",
        "- **exact**: every frame is right, first to last. **tail**: the first half is right, and what is wrong is at",
        "  the end. **wrong**: anything else that runs. **refused**: any error, crash or time-out. A model with no",
        "  exact stream must be refused; there, anything else is wrong. Output that would be right at another",
        "  delay than the one reported is wrong too; the table says so.",
        "- **tract** gets zeros to fill the last pulse and to flush its delay. Where it refuses the pulse, twice the",
        "  pulse is tried. Its Rust API can be told the length while it runs, its Python API cannot: tails are tried",
        "  again with the length written into the serialised model (*exact if bound*, *once told the length*).",
        "- **pulsify** gets NaN where tract gets zeros, and the pulse or growing cache it asks for where it refuses.",
        "- **delay** is in frames of the output.",
        "",
        f"The first two columns count the families pulsify supports today: {', '.join(measured)}.",
    ]


def table(rows: Sequence[Row]) -> list[str]:
    lines = [
        "| case | export | pulse | tract | delay | pulsify | delay | tract says | pulsify says |",
        "|---|---|---:|---|---:|---|---:|---|---|",
    ]
    for row in rows:
        entry, tract, ours = row.case.entry, row.tract, row.ours
        name = entry.name if entry.streamable else f"{entry.name} (must refuse)"
        cells = [name, row.case.exporter, str(entry.pulse), label(tract), tract.delay, label(ours), ours.delay]
        lines.append(f"| {' | '.join(cells)} | {tract.detail} | {ours.detail} |")
    return lines


if __name__ == "__main__":
    main()

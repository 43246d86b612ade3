"""Exports every case of the zoo with both PyTorch exporters and writes the manifest.

    python -m tests.zoo.export

The same versions of torch and onnxscript give the same bytes again: weights are seeded, and what varies with
the machine (source locations, stack traces) is stripped. Needs torch and onnxscript; the tests need neither.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import re
import tempfile
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import onnxruntime

from tests.zoo import cases
from tests.zoo.manifest import EXPORTERS, FIXTURES, MANIFEST, Exporter

LARGE = 400_000  # bytes; beyond it a model is exported when needed instead of kept
NOTES = {"doc_string", "metadata_props"}  # where exporters leave source locations and stack traces


class NotExportable(Exception):
    """The exporter cannot express the case. Its limit, not a fault of the case."""


def fresh_processes() -> ProcessPoolExecutor:
    """A new process for every task.

    What torch exports depends on what it exported before: an LSTM after an LSTM gets its length baked in.
    """
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(mp_context=context, max_tasks_per_child=1)


def export_case(name: str, exporter: Exporter, path: Path) -> None:
    """Writes one case as a clean ONNX file, or raises NotExportable."""
    with fresh_processes() as pool:
        pool.submit(_export_here, name, exporter, path).result()


def _export_here(name: str, exporter: Exporter, path: Path) -> None:
    logging.disable(logging.WARNING)
    case = cases.CASES[name]
    try:
        cases.export(case, path, exporter)
    except Exception as error:  # whatever an exporter may raise
        raise NotExportable(_short(error)) from error
    clean(path)
    if _length_is_baked_in(path, case.axis):
        path.unlink()
        raise NotExportable("length baked in")


def clean(path: Path) -> None:
    """Drops all that says where and how the model was exported."""
    model = onnx.load(path)
    _strip(model)
    model.producer_version = model.producer_version.partition("+")[0]
    data = model.SerializeToString(deterministic=True)
    for trace in ("site-packages", str(Path.home()), str(Path.cwd())):
        if trace != "/" and trace.encode() in data:
            raise ValueError(f"{path.name} mentions {trace}")
    path.write_bytes(data)


def _strip(message: Any) -> None:
    """Clears the notes of a protobuf message and of all messages inside."""
    for field, value in message.ListFields():
        if field.name in NOTES:
            message.ClearField(field.name)
        elif field.message_type is not None:
            for item in [value] if hasattr(value, "ListFields") else value:
                _strip(item)


def _length_is_baked_in(path: Path, axis: int) -> bool:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return isinstance(session.get_inputs()[0].shape[axis], int)


def _short(error: Exception) -> str:
    """The first sentence of the root cause, without paths."""
    while isinstance(error.__cause__, Exception):
        error = error.__cause__
    sentence = str(error).strip().partition("\n")[0].partition(". ")[0]
    sentence = re.sub(r"(?:/[\w.+-]+){2,}", "...", sentence)
    return f"{type(error).__name__}: {sentence}"


def _keep(folder: Path, job: tuple[str, Exporter]) -> dict[str, Any]:
    """Exports one case and copies it into the fixtures if it is small; the manifest's line about it."""
    name, exporter = job
    scratch = folder / f"{name}.{exporter}.onnx"
    try:
        _export_here(name, exporter, scratch)
    except NotExportable as error:
        return {"reason": str(error)}
    if scratch.stat().st_size > LARGE:
        return {"large": True}
    target = FIXTURES / exporter / f"{name}.onnx"
    target.write_bytes(scratch.read_bytes())
    return {"file": target.relative_to(FIXTURES).as_posix()}


def _describe(case: cases.Case) -> dict[str, Any]:
    return {
        "name": case.name,
        "family": case.family,
        "shape": list(case.shape),
        "axis": case.axis,
        "pulse": case.pulse,
        "length": case.length,
        "streamable": case.streamable,
        "note": case.note,
        **({"masks": dict(case.masks)} if case.masks else {}),
    }


def _clear_fixtures() -> None:
    for exporter in EXPORTERS:
        folder = FIXTURES / exporter
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.onnx"):
            old.unlink()


def main() -> None:
    _clear_fixtures()
    lines = {name: _describe(case) for name, case in cases.CASES.items()}
    jobs: list[tuple[str, Exporter]] = [(name, exporter) for name in lines for exporter in EXPORTERS]
    with tempfile.TemporaryDirectory() as folder, fresh_processes() as pool:
        for (name, exporter), result in zip(jobs, pool.map(partial(_keep, Path(folder)), jobs), strict=True):
            lines[name][exporter] = result
            print(f"{name:34s} {exporter:8s} {result}", flush=True)
    MANIFEST.write_text(_one_case_per_line(lines.values()))
    kept = list(FIXTURES.glob("*/*.onnx"))
    print(f"{len(kept)} fixtures, {sum(f.stat().st_size for f in kept) / 1e6:.1f} MB")


def _one_case_per_line(lines: Iterable[dict[str, Any]]) -> str:
    return '{"cases": [\n' + ",\n".join(json.dumps(line) for line in lines) + "\n]}\n"


if __name__ == "__main__":
    main()

"""The export to OpenVINO beside ONNX Runtime, in turns, one thread: microseconds a pulse, quickest call.

python -m benchmarks.openvino [--only NAME ...] [--seconds 1]

plain: the file as any ONNX Runtime runs it, states in and out. pulsify: a session, with the forms it makes of the file.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

import pulsify
from benchmarks.cases import CASES, prepare
from benchmarks.runners import endless, warmed
from benchmarks.turns import Run, measure
from pulsify.core.runner import open_model
from pulsify.core.spec import concrete

NAMES = ("openvino", "plain", "pulsify")


def by_openvino(stream: pulsify.Stream, folder: Path) -> Any:
    """A pulse a call; statics and the length as a caller would give them."""
    stream.export(folder, "openvino")
    facts = json.loads((folder / "stream.json").read_text())
    request = ov.Core().compile_model(folder / "stream.xml", "CPU", facts["compile"]).create_infer_request()
    chunk, name = endless(stream), facts["inputs"][0]["name"]
    length = {facts["length"]: np.full((1, 1), facts["unknown_length"], np.int32)} if facts["length"] else {}
    return lambda: request.infer({name: chunk(), **length}, share_inputs=True, share_outputs=True)


def by_plain(stream: pulsify.Stream) -> Any:
    """A pulse a call, the states handed back."""
    runner, chunk, name = open_model(stream.model), endless(stream), stream.inputs[0].name
    state = {s.name: np.zeros(concrete(s.shape, 1), s.dtype) for s in stream.states}
    wanted = [o.name for o in stream.outputs] + [s.after for s in stream.states]

    def call() -> None:
        made = runner.run(wanted, {name: chunk(), **state})
        state.update(zip(state, made[len(stream.outputs) :], strict=True))

    return call


def line(name: str, stream: pulsify.Stream, seconds: float) -> str:
    with tempfile.TemporaryDirectory() as place:
        session, chunk = warmed(stream), endless(stream)
        calls = (by_openvino(stream, Path(place, "out")), by_plain(stream), lambda: session.push(chunk()))
        times = measure({n: Run(call) for n, call in zip(NAMES, calls, strict=True)}, seconds)
    least = {n: t.least_us for n, t in times.items()}
    cells = " ".join(f"{least[n]:10.1f}" for n in NAMES)
    ratios = " ".join(f"{least['openvino'] / least[n]:9.2f}x" for n in NAMES[1:])
    return f"{name:20s} {cells} {ratios}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    print(f"{'model':20s} " + " ".join(f"{n:>10s}" for n in NAMES) + f" {'of plain':>10s} {'of pulsify':>10s}")
    for case in CASES:
        if given.only and case.name not in given.only:
            continue
        paths = prepare([case.batch], given.folder)
        stream = pulsify.stream(paths[case.batch], pulse=case.pulse, verify=False, opening=False)
        try:
            print(line(case.name, stream, given.seconds), flush=True)
        except pulsify.NotSupported as refusal:
            print(f"{case.name:20s} {str(refusal).splitlines()[0]}", flush=True)


if __name__ == "__main__":
    main()

"""Streams a file through stream.xml with OpenVINO alone:  python client.py IN.npy OUT.npz   (or IN.npz, by input)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from pulsify.core.framing import Array, back
from pulsify.export.clients.frames import Frames, command, fixed, read, whole, write

HERE = Path(__file__).parent


def opened(compiled: ov.CompiledModel, facts: Mapping[str, Any], statics: Mapping[str, Array]) -> Frames:
    """A stream on an inference request of its own, which begins with zeros. statics: inputs that stay the same."""
    request, given, counter, rebased = compiled.create_infer_request(), fixed(facts, statics), facts["counter"], 0

    def step(inputs: dict[str, Array], total: int | None, last: bool) -> dict[str, Array]:
        nonlocal rebased
        at = stream.pulses * facts["pulse"] - rebased
        if counter is not None and at >= counter["from"]:  # positions are compared in float32: they must stay small
            less = back(at, counter["multiple"])
            variable = next(s for s in request.query_state() if s.name == counter["variable"])
            variable.state = ov.Tensor(variable.state.data - np.int32(less))
            rebased += less
        length = np.full((1, 1), facts["unknown_length"] if total is None else total - rebased, np.int32)
        made = request.infer({**given, **inputs, **({facts["length"]: length} if facts["length"] else {})})
        return {o["name"]: made[o["name"]].copy() for o in facts["outputs"]}

    stream = Frames(facts, step)
    return stream


def main(source: str, target: str) -> None:
    facts = json.loads((HERE / "stream.json").read_text())
    inputs, statics = read(source, facts)
    compiled = ov.Core().compile_model(
        HERE / "stream.xml", "CPU", facts["compile"]
    )  # once; every stream is a request of it
    write(target, whole(opened(compiled, facts, statics), inputs))


if __name__ == "__main__":
    command(main, "IN.npy OUT.npz", 2)

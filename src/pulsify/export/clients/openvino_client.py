"""Streams a file through stream.xml with OpenVINO alone:  python client.py IN.npy OUT.npz   (or IN.npz, by input)."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from pulsify.export.clients.frames import Array, Frames, read, whole

HERE = Path(__file__).parent


def opened(compiled: ov.CompiledModel, facts: Mapping[str, Any], statics: Mapping[str, Array]) -> Frames:
    """A stream on an inference request of its own, which begins with zeros. statics: inputs that stay the same."""
    request = compiled.create_infer_request()

    def step(inputs: dict[str, Array], total: int | None, last: bool) -> dict[str, Array]:
        length = np.full((1, 1), facts["unknown_length"] if total is None else total, np.int32)
        made = request.infer({**statics, **inputs, **({facts["length"]: length} if facts["length"] else {})})
        return {o["name"]: made[o["name"]].copy() for o in facts["outputs"]}

    return Frames(facts, step)


def main(source: str, target: str) -> None:
    facts = json.loads((HERE / "stream.json").read_text())
    inputs, statics = read(source, facts)
    compiled = ov.Core().compile_model(
        HERE / "stream.xml", "CPU", facts["compile"]
    )  # once; every stream is a request of it
    made: dict[str, Any] = whole(opened(compiled, facts, statics), inputs)
    np.savez(target, **made)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Streams a file through a Triton server:  python client.py IN.npy OUT.npz [localhost:8001]   (or IN.npz, by input).

Needs NumPy and tritonclient[grpc].
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import np_to_triton_dtype

from pulsify.core.framing import Array
from pulsify.export.clients.frames import Frames, command, fixed, read, whole, write

HERE = Path(__file__).parent


def opened(server: Any, facts: Mapping[str, Any], statics: Mapping[str, Array]) -> Frames:
    """A stream of its own on the server: a sequence, begun with its first pulse and ended with its last."""
    sequence, wires, given = random.randrange(1, 1 << 63), facts["wires"], fixed(facts, statics)

    def step(inputs: dict[str, Array], total: int | None, last: bool) -> dict[str, Array]:
        length = np.full((1, 1), facts["unknown_length"] if total is None else total, np.int32)
        tensors = []
        for name, value in {**given, **inputs, **({facts["length"]: length} if facts["length"] else {})}.items():
            tensors.append(triton.InferInput(name, wires[name], np_to_triton_dtype(value.dtype)))
            tensors[-1].set_data_from_numpy(np.ascontiguousarray(value).reshape(wires[name]))
        first = not stream.pulses
        made = server.infer(facts["model"], tensors, sequence_id=sequence, sequence_start=first, sequence_end=last)
        return {o["name"]: made.as_numpy(o["name"]).reshape(o["shape"]) for o in facts["outputs"]}

    stream = Frames(facts, step)
    return stream


def main(source: str, target: str, url: str = "localhost:8001") -> None:
    facts = json.loads((HERE / "stream.json").read_text())
    inputs, statics = read(source, facts)
    write(target, whole(opened(triton.InferenceServerClient(url), facts, statics), inputs))


if __name__ == "__main__":
    command(main, "IN.npy OUT.npz [HOST:PORT]", 3)

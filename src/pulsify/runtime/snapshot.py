"""A stream in a box: states, backlog and counters as safetensors bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from pulsify.core.errors import InvalidState
from pulsify.core.spec import Spec, concrete

Array = np.ndarray[Any, Any]


def fingerprint(spec: Spec) -> str:
    """What a state must match: the source, the pulse and the shapes of all states."""
    return json.dumps([spec.source, spec.pulse, [[s.name, list(s.shape), str(s.dtype)] for s in spec.states]])


def save(states: Mapping[str, Array], backlog: Mapping[str, Array], counts: Mapping[str, int], spec: Spec) -> bytes:
    from safetensors.numpy import save as pack

    tensors = {f"state.{k}": np.ascontiguousarray(v) for k, v in states.items()}
    tensors.update({f"backlog.{k}": np.ascontiguousarray(v) for k, v in backlog.items()})
    return pack(tensors, {"pulsify": fingerprint(spec), "counts": json.dumps(dict(counts), sort_keys=True)})


def load(blob: bytes, spec: Spec, batch: int) -> tuple[dict[str, Array], dict[str, Array], dict[str, int]]:
    """States, backlog and counters of a blob that fits this model; InvalidState if it does not."""
    from safetensors.numpy import load as unpack

    if not isinstance(blob, (bytes, bytearray)):
        raise InvalidState(f"a state is bytes, got {type(blob).__name__}")
    try:
        tensors = unpack(bytes(blob))
        size = int.from_bytes(blob[:8], "little")
        meta = json.loads(bytes(blob[8 : 8 + size])).get("__metadata__", {})
    except Exception as error:
        raise InvalidState(f"this is no state of a stream ({type(error).__name__}); it may be cut short") from error
    if "pulsify" not in meta or meta["pulsify"] != fingerprint(spec):
        raise InvalidState("this state belongs to another model or another pulse; restore it where it was taken")
    counts = json.loads(meta["counts"])
    if counts["batch"] != batch:
        raise InvalidState(
            f"this state holds {counts['batch']} streams, the session {batch}; open it with batch={counts['batch']}"
        )
    states = {s.name: tensors[f"state.{s.name}"] for s in spec.states}
    for s in spec.states:
        if not s.grows and states[s.name].shape != concrete(s.shape, batch):
            raise InvalidState(f"state '{s.name}' has another shape than this model's")
    return states, {i.name: tensors[f"backlog.{i.name}"] for i in spec.inputs}, counts

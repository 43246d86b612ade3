"""A stream in a box: states, backlog and counters as safetensors bytes, with a checksum over every one of them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from pulsify.core.errors import InvalidState
from pulsify.core.spec import Spec, concrete

Array = np.ndarray[Any, Any]
Box = tuple[dict[str, Array], dict[str, Array], dict[str, int]]
BLANK = "0" * 32  # stands where the checksum goes while it is worked out
SUM = re.compile(rb'"checksum":"([0-9a-f]{32})"')


def fingerprint(spec: Spec) -> str:
    """What a state must match: the source, the pulse, the shapes of all states, and how the stream begins."""
    states = [[s.name, list(s.shape), str(s.dtype)] for s in spec.states]
    begins = [*([spec.opening] if spec.opening else []), *([{"phase": spec.phase}] if spec.phase else [])]
    return json.dumps([spec.source, spec.pulse, states, *begins])


def save(states: Mapping[str, Array], backlog: Mapping[str, Array], counts: Mapping[str, int], spec: Spec) -> bytes:
    from safetensors.numpy import save as pack

    tensors = {f"state.{k}": np.ascontiguousarray(v) for k, v in states.items()}
    tensors.update({f"backlog.{k}": np.ascontiguousarray(v) for k, v in backlog.items()})
    meta = {"pulsify": fingerprint(spec), "counts": json.dumps(dict(counts), sort_keys=True), "checksum": BLANK}
    blob = pack(tensors, meta)
    found = _places(blob)
    assert len(found) == 1, "names of ports cannot hold quotes, so there is one such place"
    return blob[: found[0]] + _checksum(blob, found[0]) + blob[found[0] + len(BLANK) :]


def load(blob: bytes, spec: Spec, batch: int) -> Box:
    """States, backlog and counters of a blob that fits this model; InvalidState if it does not."""
    if not isinstance(blob, (bytes, bytearray)):
        raise InvalidState(f"a state is bytes, got {type(blob).__name__}")
    blob = bytes(blob)
    found = _places(blob)
    if len(found) != 1 or _checksum(blob, found[0]) != blob[found[0] : found[0] + len(BLANK)]:
        raise InvalidState(
            "this is no state of a stream, or its bytes are damaged or cut short; take a new state() where it runs"
        )
    try:
        return _opened(blob, spec, batch)
    except InvalidState:
        raise
    except Exception as error:  # whole, but not written by this version of the package
        raise InvalidState(f"this state cannot be read here ({type(error).__name__}: {error})") from error


def _places(blob: bytes) -> list[int]:
    """Where checksums are in the header."""
    size = 8 + int.from_bytes(blob[:8], "little")
    return [m.start(1) for m in SUM.finditer(blob, 8, min(size, len(blob)))]


def _checksum(blob: bytes, at: int) -> bytes:
    digest = hashlib.blake2b(blob[:at], digest_size=len(BLANK) // 2)
    digest.update(BLANK.encode())
    digest.update(memoryview(blob)[at + len(BLANK) :])
    return digest.hexdigest().encode()


def _opened(blob: bytes, spec: Spec, batch: int) -> Box:
    from safetensors.numpy import load as unpack

    tensors = unpack(blob)
    meta = json.loads(blob[8 : 8 + int.from_bytes(blob[:8], "little")])["__metadata__"]
    if meta["pulsify"] != fingerprint(spec):
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

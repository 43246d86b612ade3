"""Triton's sequence batcher in Python, on ONNX Runtime: what the server does with a repository, and no more.

As `sequence_batch_scheduler.cc` and `sequence_state.cc` of triton-inference-server/core have it: a sequence has a slot
from its start to its end, and waits in a backlog where there is none; states belong to the slot, begin anew with the
start flag, and are paired by the order of their names. "direct": a slot is a row, and rows that are not ready are
copies of another request with states that are whatever was in memory. "oldest": requests of different sequences, first
come first served.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb
from tritonclient.utils import triton_to_np_dtype

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]


def parsed(path: Path) -> pb.ModelConfig:
    return text_format.Parse(path.read_text(), pb.ModelConfig())


def numpy_type(kind: int) -> Any:
    return triton_to_np_dtype(pb.DataType.Name(kind).removeprefix("TYPE_"))


@dataclass
class Request:
    sequence: int
    start: bool
    end: bool
    inputs: Arrays
    outputs: Arrays | None = None


@dataclass
class Slot:
    sequence: int = 0
    queue: deque[Request] = field(default_factory=deque)
    states: Arrays = field(default_factory=dict)
    ending: bool = False


class Server:
    """One model of a repository, one instance of it. `infer` queues, `step` computes one batch."""

    def __init__(self, folder: Path) -> None:
        self.config = parsed(folder / "config.pbtxt")
        self.batching = self.config.sequence_batching
        self.runner = ort.InferenceSession(folder / "1" / "model.onnx", providers=["CPUExecutionProvider"])
        self.direct = self.batching.WhichOneof("strategy_choice") == "direct"
        batch = max(1, self.config.max_batch_size)
        self.slots = [Slot() for _ in range(batch if self.direct else self.batching.oldest.max_candidate_sequences)]
        self.batch, self.backlog, self.sizes = batch, deque[Request](), []
        self.order: list[Request] = []
        ins, outs = (sorted(getattr(s, f"{k}_name") for s in self.batching.state) for k in ("input", "output"))
        self.pairs = dict(zip(outs, ins, strict=True))  # not by what the config says: by the order of names
        self.controls = {c.name: c.control[0] for c in self.batching.control_input}
        assert {c.kind for c in self.controls.values()} <= {pb.ModelSequenceBatching.Control.CONTROL_SEQUENCE_READY}
        self._validated()

    def _validated(self) -> None:
        """What the back end checks when it loads: every input of the model is an input or a state, of its shape."""
        lead = ["B"] if self.config.max_batch_size else []
        declared = {t.name: (t, list(t.dims)) for t in (*self.config.input, *self.config.output)}
        for s in self.batching.state:
            declared |= {n: (s, list(s.dims)) for n in (s.input_name, s.output_name)}
            (initial,) = s.initial_state
            assert initial.name and initial.zero_data and initial.data_type == s.data_type
            assert list(initial.dims) == list(s.dims) and -1 not in s.dims
        ports = {p.name: p for p in (*self.runner.get_inputs(), *self.runner.get_outputs())}
        assert set(ports) == set(declared) | set(self.controls)
        assert all(ports.pop(name).shape == [*lead, 1] for name in self.controls)
        for name, port in ports.items():
            tensor, dims = declared[name]
            assert dims, f"{name} has no dimensions"
            kinds = {"float": "float32", "double": "float64"}
            kind = port.type[len("tensor(") : -1]
            assert np.dtype(kinds.get(kind, kind)) == np.dtype(numpy_type(tensor.data_type)), name
            shown = [d for d in port.shape if isinstance(d, int)] if lead else dims
            assert len(port.shape) == len(lead) + len(dims) and shown == dims, (name, port.shape, dims)

    def infer(self, inputs: Arrays, sequence: int, start: bool, end: bool) -> Request:
        request = Request(sequence, start, end, inputs)
        for tensor in self.config.input:
            lead = [1] if self.config.max_batch_size else []
            assert list(inputs[tensor.name].shape) == [*lead, *tensor.dims], tensor.name
        held = next((s for s in self.slots if s.sequence == sequence and not s.ending), None)
        waits = any(r.sequence == sequence for r in self.backlog)
        if not start and held is None and not waits:
            raise ValueError("must specify the START flag on the first request of the sequence")
        if held is None and not waits:
            held = next((s for s in self.slots if not s.sequence), None)
        if held is None:
            self.backlog.append(request)
            return request
        self._enqueue(held, request)
        return request

    def _enqueue(self, slot: Slot, request: Request) -> None:
        slot.sequence, slot.ending = request.sequence, request.end
        slot.queue.append(request)
        self.order.append(request)

    def step(self) -> bool:
        """One call of the model; False: nothing is ready."""
        ready = [s for s in self.slots if s.queue]
        if not ready:
            return False
        if self.direct:
            rows: list[Slot | None] = [s if s.queue else None for s in self.slots[: self.slots.index(ready[-1]) + 1]]
        else:
            first = {id(s.queue[0]): s for s in ready}
            rows = [first[id(r)] for r in self.order if id(r) in first][: self.batch]
        copied = ready[0].queue[0]
        requests = [s.queue.popleft() if s else None for s in rows]
        for slot, request in zip(rows, requests, strict=True):
            if slot is not None and request is not None and (request.start or not slot.states):
                slot.states = {s.input_name: self._begun(s, 0) for s in self.batching.state}
        feeds = [
            {**r.inputs, **s.states, **self._ready(1)} if r and s else {**copied.inputs, **self._left_over()}
            for s, r in zip(rows, requests, strict=True)
        ]
        made = self._run(feeds)
        for slot, request, out in zip(rows, requests, made, strict=True):
            if slot is None or request is None:
                continue
            slot.states = {self.pairs[n]: out[n] for n in self.pairs}
            request.outputs = {t.name: out[t.name] for t in self.config.output}
            self.order.remove(request)
            if request.end:
                self._free(slot)
        self.sizes.append(len(rows))
        return True

    def _free(self, slot: Slot) -> None:
        slot.sequence, slot.ending = 0, False
        if self.backlog:
            following = self.backlog[0].sequence
            for request in [r for r in self.backlog if r.sequence == following]:
                self.backlog.remove(request)
                self._enqueue(slot, request)

    def _begun(self, state: Any, value: float) -> Array:
        lead = [1] if self.config.max_batch_size else []
        return np.full([*lead, *state.dims], value, numpy_type(state.data_type))

    def _left_over(self) -> Arrays:
        """Memory that nobody has written to."""
        bits = {"f": np.nan, "i": -(1 << 30), "u": 255, "b": 1}
        kinds = {s.input_name: np.dtype(numpy_type(s.data_type)).kind for s in self.batching.state}
        states = {s.input_name: self._begun(s, bits[kinds[s.input_name]]) for s in self.batching.state}
        return {**states, **self._ready(0)}

    def _ready(self, which: int) -> Arrays:
        lead = [1] if self.config.max_batch_size else []
        return {n: np.full([*lead, 1], c.int32_false_true[which], np.int32) for n, c in self.controls.items()}

    def _run(self, feeds: list[Arrays]) -> list[Arrays]:
        names = [o.name for o in self.runner.get_outputs()]
        if not self.config.max_batch_size:
            assert len(feeds) == 1
            return [dict(zip(names, self.runner.run(None, feeds[0]), strict=True))]
        together = {n: np.concatenate([f[n] for f in feeds]) for n in feeds[0]}
        made = dict(zip(names, self.runner.run(None, together), strict=True))
        return [{n: v[i : i + 1] for n, v in made.items()} for i in range(len(feeds))]

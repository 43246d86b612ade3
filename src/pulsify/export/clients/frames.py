"""Chunks of any size in, pulses for a step model, frames out: all of a stream that is not the model. NumPy alone.

stream = Frames(facts, step)            facts: stream.json; step: a pulse, (inputs, length or None, last?) -> outputs
stream.push({"x": chunk})               the frames that are ready, by output: delays are left out
stream.flush()                          the last ones, and outputs without frames; after that the stream is over
whole(stream, inputs)                   all of it, for a file that is there
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Step = Callable[[dict[str, Array], "int | None", bool], Mapping[str, Array]]


def evaluated(e: Any, total: int) -> Any:
    """["floor_divide", ["add", "S", 3], 4], S being the stream's length: nested lists of a function of numpy."""
    if isinstance(e, list) and e and isinstance(e[0], str):
        return getattr(np, e[0])(*(evaluated(a, total) for a in e[1:]))
    return total if e == "S" else e


class Frames:
    """One stream."""

    def __init__(self, facts: Mapping[str, Any], step: Step) -> None:
        self.inputs, self.outputs, self.facts, self.step = facts["inputs"], facts["outputs"], facts, step
        self.waiting = {i["name"]: np.zeros(self._shape(i, 0), i["dtype"]) for i in self.inputs}
        self.fed = {i["name"]: np.zeros(self._shape(i, i["frames"]), i["dtype"]) for i in self.inputs}
        self.received, self.pulses = dict.fromkeys(self.waiting, 0), 0

    def push(self, chunks: Mapping[str, Array]) -> dict[str, Array]:
        """The frames that these complete, by output. Inputs may come at their own pace."""
        for i in self.inputs:
            chunk = np.asarray(chunks.get(i["name"], self._none(i)), i["dtype"])
            if self._shape(i, chunk.shape[i["axis"]]) != list(chunk.shape):
                raise ValueError(f"{i['name']} is {i['shape']} but for time, axis {i['axis']}; got {chunk.shape}")
            self.received[i["name"]] += chunk.shape[i["axis"]]
            self.waiting[i["name"]] = np.concatenate([self.waiting[i["name"]], chunk], i["axis"])
        if self._total() > self.facts["most"]:
            raise ValueError(f"no stream may be longer than {self.facts['most']} frames: end this one, begin another")
        return self._run(self._whole(), None)

    def flush(self) -> dict[str, Array]:
        """The rest. The model is told the length, and gets as many pulses of padding as its delays need."""
        total = self._total()
        if any(self.received[i["name"]] != total * i["rate"] for i in self.inputs):
            raise ValueError(f"the inputs have not the same length: {self.received}")
        if total and not evaluated(self.facts["takes"], total):
            raise ValueError(f"{total} frames are no length this model takes: {self.facts['lengths']}")
        whole = self._whole()
        late = [-(-(self._count(o, total) + o["delay"]) // o["frames"]) for o in self.outputs if o["frames"]]
        return self._run(whole + max(1, max(late, default=0) - self.pulses - whole) if total else 0, total)

    def _run(self, pulses: int, total: int | None) -> dict[str, Array]:
        parts: dict[str, list[Array]] = {o["name"]: [] for o in self.outputs}
        for left in range(pulses, 0, -1):
            last = total is not None and left == 1
            made = self.step({i["name"]: self._next(i) for i in self.inputs}, total, last)
            for o in self.outputs:
                value, begin = np.asarray(made[o["name"]]), self.pulses * o["frames"] - o["delay"]
                if o["axis"] is None:
                    parts[o["name"]] = [value] if total is not None else []
                    continue
                end = o["cap"] if total is None else self._count(o, total)
                till = o["frames"] if end is None else min(o["frames"], end - begin)
                parts[o["name"]].append(value.take(range(max(0, -begin), max(till, 0)), o["axis"]))
            self.pulses += 1
        return {o["name"]: self._joined(o, parts[o["name"]]) for o in self.outputs if o["axis"] is not None or total}

    def _next(self, i: Mapping[str, Any]) -> Array:
        """The frames of one pulse; behind the end zeros, or a whole number that was there: it may be an index."""
        name, axis, frames = i["name"], i["axis"], i["frames"]
        head, self.waiting[name] = np.split(self.waiting[name], [frames], axis)
        missing = frames - head.shape[axis]
        if missing:
            last = (head if head.shape[axis] else self.fed[name]).take([-1], axis)
            last = np.zeros_like(last) if last.dtype.kind == "f" else last
            head = np.concatenate([head, np.repeat(last, missing, axis)], axis)
        self.fed[name] = np.ascontiguousarray(head)
        return self.fed[name]

    def _joined(self, o: Mapping[str, Any], parts: list[Array]) -> Array:
        if parts:
            return parts[0] if o["axis"] is None else np.concatenate(parts, o["axis"])
        return np.zeros(self._shape(o, 0), o["dtype"])

    def _whole(self) -> int:
        return min(int(self.waiting[i["name"]].shape[i["axis"]]) // int(i["frames"]) for i in self.inputs)

    def _total(self) -> int:
        return min(int(self.received[i["name"]]) // int(i["rate"]) for i in self.inputs)

    def _none(self, i: Mapping[str, Any]) -> Array:
        return np.zeros(self._shape(i, 0), i["dtype"])

    @staticmethod
    def _count(o: Mapping[str, Any], total: int) -> int:
        return int(evaluated(o["count"], total))

    @staticmethod
    def _shape(port: Mapping[str, Any], frames: int) -> list[int]:
        return [frames if a == port["axis"] else n for a, n in enumerate(port["shape"])]


def whole(stream: Frames, inputs: Mapping[str, Array], chunk: int = 1000) -> dict[str, Array]:
    """All outputs of inputs that are there, pushed in pieces of so many frames (live, any number of them comes)."""
    parts = []
    for at in range(0, max(-(-inputs[i["name"]].shape[i["axis"]] // i["rate"]) for i in stream.inputs), chunk):
        pieces = {}
        for i in stream.inputs:
            begin, end = (n * i["rate"] for n in (at, at + chunk))
            pieces[i["name"]] = inputs[i["name"]][(slice(None),) * i["axis"] + (slice(begin, end),)]
        parts.append(stream.push(pieces))
    parts.append(stream.flush())
    axes = {o["name"]: o["axis"] for o in stream.outputs if o["name"] in parts[-1]}
    return {n: parts[-1][n] if a is None else np.concatenate([p[n] for p in parts], a) for n, a in axes.items()}


def read(source: str, facts: Mapping[str, Any]) -> tuple[dict[str, Array], dict[str, Array]]:
    """The arrays of a file, streamed ones and static ones: .npz has them by name, .npy is the only one."""
    given = np.load(source)
    arrays = {facts["inputs"][0]["name"]: given} if isinstance(given, np.ndarray) else dict(given)
    return {i["name"]: arrays[i["name"]] for i in facts["inputs"]}, {n: arrays[n] for n in facts["statics"]}

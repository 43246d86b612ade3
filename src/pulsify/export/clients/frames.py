"""Chunks of any size in, pulses for a step model, frames out: all of a stream that is not the model. NumPy alone.

stream = Frames(facts, step)            facts: stream.json; step: a pulse, (inputs, length or None, last?) -> outputs
stream.push({"x": chunk})               the frames that are ready, by output: delays are left out
stream.flush()                          the last ones, and outputs without frames; after that the stream is over
whole(stream, inputs)                   all of it, for a file that is there
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pulsify.core.framing import NEVER, Array, Backlog, Framing, Out, left, pad, pad_front, whole_pulses

Step = Callable[[dict[str, Array], "int | None", bool], Mapping[str, Array]]


def evaluated(e: Any, total: int) -> Any:
    """["floor_divide", ["add", "S", 3], 4], S being the stream's length: nested lists of a function of numpy."""
    if isinstance(e, list) and e and isinstance(e[0], str):
        return getattr(np, e[0])(*(evaluated(a, total) for a in e[1:]))
    return total if e == "S" else e


def checked(port: Mapping[str, Any], array: Any) -> Array:
    """The array if the port takes it as it is, or ValueError. A port without an axis of time is static."""
    value, name, axis = np.asarray(array), port["name"], port.get("axis")
    if str(value.dtype) != port["dtype"]:
        raise ValueError(f"{name} takes {port['dtype']}, got {value.dtype}: convert it, and scale sound to -1 to 1")
    wanted = [n if a != axis else None for a, n in enumerate(port["shape"])]
    if value.ndim != len(wanted) or any(w not in (None, n) for w, n in zip(wanted, value.shape)):
        time = "" if axis is None else f" but for time, axis {axis}"
        raise ValueError(f"{name} is {port['shape']}{time}; got {list(value.shape)}")
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        raise ValueError(f"{name} has a number that is not finite; nothing was taken")
    if _beyond(port, value):
        limit = port["limit"]
        raise ValueError(f"{name} has a whole number beyond {limit}: this model takes {-limit} to {limit}")
    return value


def _beyond(port: Mapping[str, Any], value: Array) -> bool:
    limit = port.get("limit")
    return limit is not None and value.size > 0 and (int(value.max()) > limit or int(value.min()) < -limit)


def fixed(facts: Mapping[str, Any], given: Mapping[str, Array]) -> dict[str, Array]:
    """The static inputs, all of them, or ValueError."""
    wanted = facts["statics"]
    if set(given) != set(wanted):
        raise ValueError(f"the static inputs are {sorted(wanted)}; got {sorted(given)}")
    return {name: checked({"name": name, **port}, given[name]) for name, port in wanted.items()}


class Frames:
    """One stream."""

    def __init__(self, facts: Mapping[str, Any], step: Step) -> None:
        self.inputs, self.outputs, self.facts, self.step = facts["inputs"], facts["outputs"], facts, step
        none = [(i, np.zeros(self._shape(i, 0), i["dtype"])) for i in self.inputs]
        self.waiting = {i["name"]: Backlog(nothing, i["axis"], i["frames"]) for i, nothing in none}
        for i in self.inputs:  # in front of the stream: the first pulse takes fewer of its frames
            self.waiting[i["name"]].put(np.zeros(self._shape(i, i["ahead"]), i["dtype"]), i["ahead"])
        outs = [Out(o["frames"], o["delay"], NEVER if o["cap"] is None else o["cap"]) for o in self.outputs]
        ahead = tuple(i["ahead"] for i in self.inputs)
        self.framing = Framing(tuple(i["frames"] for i in self.inputs), tuple(outs), 1, ahead)
        self.fed = {i["name"]: np.zeros(self._shape(i, i["frames"]), i["dtype"]) for i in self.inputs}
        self.received, self.pulses, self.over, self.broken = dict.fromkeys(self.waiting, 0), 0, False, ""

    def push(self, chunks: Mapping[str, Array]) -> dict[str, Array]:
        """The frames that these complete, by output. Inputs may come at their own pace. A refused one takes nothing."""
        self._open()
        ports = {i["name"]: i for i in self.inputs}
        if unknown := sorted(set(chunks) - set(ports)):
            raise ValueError(f"no streamed input is called {unknown}; they are {sorted(ports)}")
        given = {name: checked(ports[name], chunk) for name, chunk in chunks.items()}
        received = {n: c + (given[n].shape[ports[n]["axis"]] if n in given else 0) for n, c in self.received.items()}
        if self._total(received) > self.facts["most"]:
            raise ValueError(f"no stream may be longer than {self.facts['most']} frames: end this one, begin another")
        self.received = received
        for name, chunk in given.items():
            self.waiting[name].put(chunk, chunk.shape[ports[name]["axis"]])
        made = self._run(whole_pulses(self.waiting.values()), None)
        for name in given:
            self.waiting[name].own()
        return made

    def flush(self) -> dict[str, Array]:
        """The rest. The model is told the length, and gets as many pulses of padding as its delays need."""
        self._open()
        total = self._total(self.received)
        if any(self.received[i["name"]] != total * i["rate"] for i in self.inputs):
            raise ValueError(f"the inputs have not the same length: {self.received}")
        if total and not evaluated(self.facts["takes"], total):
            raise ValueError(f"{total} frames are no length this model takes: {self.facts['lengths']}")
        needed = self.framing.needed(self._ends(total))
        made = self._run(left(self.pulses, needed) if total else 0, total)
        self.over = True
        return made

    def _run(self, pulses: int, total: int | None) -> dict[str, Array]:
        """A step that fails leaves states that nobody knows, and frames that nobody got: nothing right can follow."""
        try:
            return self._steps(pulses, total)
        except BaseException as error:
            self.broken = str(error) or type(error).__name__
            raise

    def _steps(self, pulses: int, total: int | None) -> dict[str, Array]:
        parts: dict[str, list[Array]] = {o["name"]: [] for o in self.outputs}
        ends = self._ends(total)
        for more in range(pulses - 1, -1, -1):
            last = total is not None and not more
            made = self.step({i["name"]: self._next(i) for i in self.inputs}, total, last)
            for o, out, end in zip(self.outputs, self.framing.outputs, ends):
                value = np.asarray(made[o["name"]])
                if o["axis"] is None:
                    parts[o["name"]] = [value] if total is not None else []
                else:
                    parts[o["name"]].append(value.take(range(*out.real(self.pulses, 1, end)), o["axis"]))
            self.pulses += 1
        return {o["name"]: self._joined(o, parts[o["name"]]) for o in self.outputs if o["axis"] is not None or total}

    def _next(self, i: Mapping[str, Any]) -> Array:
        """The frames of one pulse; behind the end zeros, or a whole number that was there: it may be an index."""
        fed = self.fed[i["name"]] = self.fed[i["name"]].copy()
        at = self.waiting[i["name"]].load(fed, i["frames"])
        if not self.pulses:
            pad_front(fed, i["axis"], i["ahead"])
        if at < i["frames"]:
            pad(fed, i["axis"], at, 0)
        return fed

    def _joined(self, o: Mapping[str, Any], parts: list[Array]) -> Array:
        if not parts:
            return np.zeros(self._shape(o, 0), o["dtype"])
        made = parts[0] if o["axis"] is None else np.concatenate(parts, o["axis"])
        if _beyond(o, made):
            raise ValueError(f"{o['name']} has come to a whole number beyond {o['limit']}, which may be cut: end here")
        return made

    def _total(self, received: Mapping[str, int]) -> int:
        return min(int(received[i["name"]]) // int(i["rate"]) for i in self.inputs)

    def _open(self) -> None:
        if self.broken:
            raise ValueError(f"this stream broke off ({self.broken}): open another one")
        if self.over:
            raise ValueError("this stream has been flushed: open another one")

    def _ends(self, total: int | None) -> list[int]:
        """How many frames the outputs have, as far as that is known."""
        if total is None:
            return [out.cap for out in self.framing.outputs]
        return [int(evaluated(o["count"], total)) for o in self.outputs]

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
    names = [i["name"] for i in facts["inputs"]]
    try:
        given = np.load(source)
    except (ValueError, EOFError) as error:  # NumPy takes what it does not know for a pickle
        raise ValueError(f"{source} is no .npy or .npz file") from error
    arrays = {names[0]: given} if isinstance(given, np.ndarray) else dict(given)
    if missing := sorted({*names, *facts["statics"]} - set(arrays)):
        raise ValueError(f"{source} has {sorted(arrays)}; {missing} is missing: take an .npz file, by input")
    inputs = {i["name"]: checked(i, arrays[i["name"]]) for i in facts["inputs"]}
    return inputs, fixed(facts, {n: arrays[n] for n in facts["statics"]})


def write(target: str, arrays: Mapping[str, Array]) -> None:
    """An .npz file: what np.savez writes, which has names of its own that an output must not have."""
    with zipfile.ZipFile(target if target.endswith(".npz") else f"{target}.npz", "w") as file:
        for name, array in arrays.items():
            with file.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asanyarray(array), allow_pickle=False)


def command(main: Callable[..., None], usage: str, most: int) -> None:
    """main with what the command line has, between two arguments and this many; what is wrong with them is one line."""
    given = sys.argv[1:]
    if not 2 <= len(given) <= most:
        sys.exit(f"usage: python client.py {usage}")
    try:
        main(*given)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")

"""What a stream is to somebody who has the step model and no pulsify: facts as JSON, and the client that reads them."""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from functools import reduce
from importlib import resources
from pathlib import Path
from typing import Any

import onnx_ir as ir

from pulsify.core.count import expression
from pulsify.core.errors import InvalidArgument, NotSupported
from pulsify.core.spec import Condition, Dims, Spec, concrete

FACTS = "stream.json"
Files = Mapping[str, str | bytes]


def refuse_growing(spec: Spec, target: str) -> None:
    """NotSupported if a state grows with the stream."""
    for state in spec.states:
        if state.grows:
            raise NotSupported(
                f"the cache of '{state.node}' grows with the stream, and {target} has states of one size",
                node=state.node,
                op="cache",
                target=target,
                hint="convert with unbounded=N: the last N frames are kept, which is exact up to a length that is told",
            )


def facts(spec: Spec) -> dict[str, Any]:
    """All that `clients/frames.py` needs, for one stream."""
    return {
        "pulse": spec.pulse,
        "inputs": [
            {"name": i.name, "axis": i.axis, "rate": int(i.rate), "frames": i.frames, "shape": one(i.dims),
             "dtype": str(i.dtype), "ahead": ahead}
            for i, ahead in zip(spec.inputs, spec.ahead, strict=True)
        ],
        "statics": {s.name: {"shape": one(s.dims), "dtype": str(s.dtype)} for s in spec.statics},
        "outputs": [
            {"name": o.name, "axis": o.axis, "rate": str(o.rate), "frames": o.frames, "delay": o.delay,
             "late": float(spec.lateness(o) / o.rate) if o.rate else 0.0,
             "count": expression(o.length) if o.frames else 0, "cap": o.length.cap, "shape": one(o.dims),
             "dtype": str(o.dtype)}
            for o in spec.outputs
        ],
        "length": spec.length,
        "unknown_length": spec.unknown_length,
        "takes": takes(spec),
        "lengths": f"at least {spec.shortest}, a multiple of {spec.step}, and what its nodes need",
        "most": longest(spec),
        "exact_up_to": spec.exact_up_to,
    }  # fmt: skip


def one(dims: Dims) -> list[int]:
    """The shape for one stream."""
    return list(concrete(dims, 1))


def takes(spec: Spec) -> Any:
    """Is a stream of S frames one the model takes? In the same words as `count` (docs/format.md)."""
    out: Any = ["greater_equal", "S", spec.shortest]
    if spec.step > 1:
        out = ["logical_and", out, ["equal", ["mod", "S", spec.step], 0]]
    for condition in spec.conditions:
        out = ["logical_and", out, met(condition)]
    return out


def met(condition: Condition) -> Any:
    """`Condition.met`."""
    return reduce(lambda one, other: ["logical_and", one, other], _wanted(condition))


def _wanted(c: Condition) -> Iterator[Any]:
    n: Any = signed(c.length)
    if c.scaled is not None:
        n = ["int64", ["multiply", ["float32", n], ["float32", c.scaled]]]
    if c.equals is not None:
        yield ["equal", n, signed(c.equals)]
    if c.outside is not None:
        yield ["logical_or", ["less", n, c.outside[0]], ["greater", n, c.outside[1]]]
    if c.multiple != 1:
        yield ["equal", ["mod", n, c.multiple], 0]
    if c.at_most is not None:
        yield ["less_equal", n, c.at_most]
    yield ["greater_equal", n, c.at_least]


def signed(length: Any) -> Any:
    """As `Length.at` has it: `expression` gives no less than nothing."""
    found = expression(length)
    return found if found == "S" else found[1]


def longest(spec: Spec) -> int:
    """Frames after which counters would run over, or a table ends."""
    most = spec.unknown_length - spec.pulse
    if spec.proof.limit is not None:
        most = min(most, spec.proof.limit)
    for c in spec.conditions:
        if c.at_most is not None and c.length.at(most) > c.at_most:
            low, high = 0, most  # lengths never shrink, so the last that fits is found by halving
            while low < high:
                middle = (low + high + 1) // 2
                low, high = (middle, high) if c.length.at(middle) <= c.at_most else (low, middle - 1)
            most = low
    return most


@contextlib.contextmanager
def told_the_length(model: ir.Model, spec: Spec) -> Iterator[None]:
    """For the time being the stream's length is an input like any other: a default is not everywhere one."""
    kept = None if spec.length is None else model.graph.initializers.pop(spec.length, None)
    try:
        yield
    finally:
        if kept is not None:
            model.graph.initializers.add(kept)


def client(name: str) -> dict[str, str]:
    """The files that run the export, by their names there: they find each other in their folder."""
    here, own = (
        resources.files("pulsify.export.clients"),
        r"from pulsify\.(core\.framing|export\.clients\.frames) import",
    )
    text = re.sub(own, "from frames import", (here / f"{name}_client.py").read_text())
    return {"frames.py": _alone((here / "frames.py").read_text()), "client.py": text}


def _alone(text: str) -> str:
    """With what it takes from `core/framing.py`."""
    own = resources.files("pulsify.core").joinpath("framing.py").read_text()
    rules = own.split('"""', 2)[2].replace("from __future__ import annotations\n", "").strip()
    return re.sub(r"^from pulsify\.core\.framing import .*$", lambda _: rules, text, flags=re.MULTILINE)


def as_json(found: Mapping[str, Any], target: str) -> str:
    """The facts as they are written, and whose they are."""
    return json.dumps({"target": target, **found}, indent=1) + "\n"


@contextlib.contextmanager
def folder(path: Path, what: str) -> Iterator[Path]:
    """A place to write to: all of its files come to `path`, or none. What else lies there stays, as it is."""
    if path.exists() and not path.is_dir():
        raise InvalidArgument(f"{path} is a file: {what} takes a folder")
    refuse_other(path, what)
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            place = stack.enter_context(tempfile.TemporaryDirectory(dir=path.parent))
        except OSError as error:  # it names a folder of ours, or one above
            why = "a file is in the way" if isinstance(error, FileExistsError | NotADirectoryError) else error.strerror
            raise InvalidArgument(f"{what} cannot be written to {path}: {why}") from error
        yield Path(place)
        path.mkdir(exist_ok=True)  # not moved here: a temporary folder is for one user only
        for source in sorted(Path(place).rglob("*")):
            to = path / source.relative_to(place)
            if source.is_dir():
                to.mkdir(exist_ok=True)
            else:
                source.replace(to)


def refuse_other(path: Path, target: str) -> None:
    """InvalidArgument if the folder is another target's: files of the same name would be this one's then."""
    try:
        found = json.loads((path / FACTS).read_text()).get("target", target)
    except (OSError, ValueError, AttributeError):
        return
    if found != target:
        raise InvalidArgument(f"{path} holds an export to {found!r}: {target} takes a folder of its own")


def put(place: Path, files: Files) -> None:
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(text if isinstance(text, bytes) else text.encode())

"""Writing a streaming model, its weights where they are: a large model's own file is shared, not copied.

    encoder.onnx        ─┐
    encoder.onnx.data   ◀┤  both read it
    stream.onnx         ─┘  holds what is new: masks, position tables of the window's size

ONNX looks for weights below the model's own folder only. So they are shared if the stream is saved beside the batch
model; elsewhere it gets a file of its own. What each file of weights was is kept in the stream (`pulsify.weights`):
another export over it, or damage, is noticed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import onnx_ir as ir

from pulsify.core.checksum import KEY, file_digest, seal
from pulsify.core.errors import InvalidModel
from pulsify.core.runner import IN_MEMORY
from pulsify.core.spec import OPENING, VERSION

WEIGHTS = "pulsify.weights"
SAMPLES, SAMPLE = 64, 4096  # places in a large file of weights that are compared, and bytes at each
READ = 1 << 24  # bytes: smaller files of weights are always read as a whole
SMALLEST = 256  # bytes: smaller constants stay inside the model
TWICE = 1 << 20  # bytes that two files may both hold
Stamp = tuple[int, int] | None
PRODUCER = "pulsify"  # of a file that has a checksum


def write(models: Mapping[Path, ir.Model], share: bool = True) -> None:
    """Plain ONNX files side by side; weights too large for the first go beside it, unless they lie there already.

    What several of the models hold is written once, if it is much. Each file ends with its checksum; the first, which
    is written last, has those of the others and of all weights.
    """
    with _placed(list(models.values()), next(iter(models)), share) as files:
        folder = next(iter(models)).parent
        weights = json.dumps({name: _facts(folder / name) for name in files}) if files else None
        checksums: dict[str, str] = {}
        for path, model in reversed(list(models.items())):
            with _labelled(model, weights, checksums):
                ir.save(model, path)
            if VERSION in model.metadata_props:
                checksums[path.name] = seal(path)


@contextlib.contextmanager
def _labelled(model: ir.Model, weights: str | None, checksums: Mapping[str, str]) -> Iterator[None]:
    """The model's metadata as it is to be written, for the time being."""
    props = dict(model.metadata_props)
    producer = model.producer_name
    own = {key: value for key, value in props.items() if key not in (WEIGHTS, KEY)}
    if weights is not None:
        own[WEIGHTS] = weights
    if OPENING in own and (file := json.loads(own[OPENING]).get("file")) in checksums:
        own[OPENING] = json.dumps({**json.loads(own[OPENING]), "checksum": checksums[file]})
    model.metadata_props.clear()
    model.metadata_props.update(own)
    model.producer_name = PRODUCER if VERSION in own else producer
    try:
        yield
    finally:
        model.producer_name = producer
        model.metadata_props.clear()
        model.metadata_props.update(props)


def weight_bytes(model: ir.Model) -> int:
    """All constants of the graph together, wherever they lie."""
    return sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)


def check_weights(props: Mapping[str, str], path: Path, full: bool) -> None:
    """Raises InvalidModel if a file of weights is gone, or is not what it was when the stream was saved.

    full: all of it is read; else of a large file only its size and bytes spread over it are compared.
    """
    files: Mapping[str, str | Mapping[str, str]] = json.loads(props.get(WEIGHTS, "{}"))
    for name, facts in files.items():
        file, own = path.parent / name, name.startswith(path.stem)
        if not file.is_file():
            whose = "of this stream" if own else "this stream shares with its batch model"
            raise InvalidModel(f"the weights {whose} are gone: put back {name!r} beside {path.name!r}")
        if isinstance(facts, str):  # before format 4
            same = fingerprint(file) == facts
        elif full or file.stat().st_size <= READ:
            same = file_digest(file) == facts["sha256"]
        else:
            same = fingerprint(file) == facts["sample"]
        if not same:
            fix = "copy it again from where it was saved, or " if own else ""
            raise InvalidModel(
                f"{name!r}, the weights of {path.name!r}, has changed since the stream was saved: "
                f"{fix}convert the model again"
            )


def _facts(file: Path) -> dict[str, str]:
    return {"sample": fingerprint(file), "sha256": file_digest(file)}


def stamps(model: ir.Model, path: Path) -> dict[str, Stamp]:
    """What tells a later version of the model's own file, and of those of its weights, from these."""
    tensors = [v.const_value for graph in model.graphs() for v in graph.initializers.values()]
    files = {os.fspath(path)} | {os.fspath(t.path) for t in tensors if isinstance(t, ir.ExternalTensor)}
    return {file: stamp(file) for file in files}


def stamp(file: str) -> Stamp:
    """Size and time of a file; None if it is gone."""
    try:
        facts = os.stat(file)
    except OSError:
        return None
    return facts.st_size, facts.st_mtime_ns


def check_places(model: ir.Model) -> None:
    """Raises InvalidModel if weights lie outside the model's folder: neither ONNX nor ONNX Runtime opens those."""
    for graph in model.graphs():
        for name, value in graph.initializers.items():
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor) and _below(Path(tensor.base_dir).resolve(), tensor) is None:
                raise InvalidModel(
                    f"the weights of '{name}' lie outside the model's folder ({Path(tensor.location).name!r}): "
                    "ONNX allows files beside or below the model only; move them there, or load them into the model"
                )


def fingerprint(path: Path) -> str:
    """Tells one file of weights from another without reading all of it: its size, and bytes spread over it."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with open(path, "rb") as file:
        for i in range(SAMPLES):
            file.seek(max(size - SAMPLE, 0) * i // (SAMPLES - 1))
            digest.update(file.read(SAMPLE))
    return digest.hexdigest()


@contextlib.contextmanager
def _placed(models: Sequence[ir.Model], path: Path, share: bool) -> Iterator[list[str]]:
    """Weights as they are to be written, for the time being. Yields their files, by name."""
    graphs = [graph for model in models for graph in model.graphs()]
    values = [v for graph in graphs for v in graph.initializers.values() if v.const_value is not None]
    before = [(v, v.const_value) for v in values]
    folder, own = path.parent.resolve(), f"{path.name}.data"
    places = {v: _below(folder, v.const_value) for v in values}
    here = {v: place for v, place in places.items() if place is not None and (share or place == own)}
    apart = [v for v in values if v not in here]
    embedded = sum(v.const_value.nbytes for v in apart if v.const_value is not None)
    again = embedded - sum({_same(v): v.const_value.nbytes for v in apart if v.const_value is not None}.values())
    try:
        for v, place in here.items():
            v.const_value = _at(folder, place, v.const_value)
        if embedded > IN_MEMORY or again > TWICE or any(isinstance(v.const_value, ir.ExternalTensor) for v in apart):
            _write_apart(apart, folder, own if own not in here.values() else f"{path.name}.more.data")
        yield sorted(
            {os.fspath(v.const_value.location) for v in values if isinstance(v.const_value, ir.ExternalTensor)}
        )
    finally:
        for v, tensor in before:
            v.const_value = tensor


def _below(folder: Path, tensor: ir.TensorProtocol | None) -> str | None:
    """Where the file of an external tensor lies below the folder, or None if it does not."""
    if not isinstance(tensor, ir.ExternalTensor):
        return None
    file = Path(tensor.path).resolve()
    return file.relative_to(folder).as_posix() if file.is_relative_to(folder) else None


def _at(folder: Path, place: str, tensor: ir.TensorProtocol | None) -> ir.ExternalTensor:
    """The same tensor, found from this folder."""
    assert isinstance(tensor, ir.ExternalTensor)
    return ir.ExternalTensor(
        place, tensor.offset, tensor.length, tensor.dtype,
        shape=tensor.shape, name=str(tensor.name), base_dir=folder,
    )  # fmt: skip


def _same(value: ir.Value) -> object:
    """Equal for values that are one tensor."""
    tensor = value.const_value
    return (tensor.path, tensor.offset) if isinstance(tensor, ir.ExternalTensor) else id(tensor)


def _write_apart(values: list[ir.Value], folder: Path, name: str) -> None:
    large = {v: _same(v) for v in values if v.const_value is not None and v.const_value.nbytes >= SMALLEST}
    tensors = {key: v.const_value for v, key in large.items() if v.const_value is not None}
    written = ir.external_data.convert_tensors_to_external(list(tensors.values()), folder, name)
    found = dict(zip(tensors, written, strict=True))
    for v, key in large.items():
        v.const_value = found[key]
    for v in values:  # the small ones of another file come along inside
        if isinstance(v.const_value, ir.ExternalTensor) and v not in large:
            v.const_value = ir.Tensor(v.const_value.numpy(), name=v.const_value.name)

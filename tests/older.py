"""Files as versions of pulsify wrote them that kept no checksum."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx

NEW = ("pulsify.checksum",)
Props = dict[str, str]


def rewritten(path: Path, change: Callable[[Props], Props | None]) -> None:
    """The file with other metadata, as another tool writes it."""
    proto = onnx.load(path, load_external_data=False)
    props = {p.key: p.value for p in proto.metadata_props}
    changed = change(props)
    del proto.metadata_props[:]
    for key, value in (props if changed is None else changed).items():
        proto.metadata_props.add(key=key, value=value)
    onnx.save(proto, path)


def as_older(path: Path, version: str = "3", change: Callable[[Props], Props | None] = lambda props: props) -> None:
    """The file as an earlier version wrote it, with changes to its metadata."""

    def older(props: Props) -> Props:
        changed = change(props)
        kept = {k: v for k, v in (props if changed is None else changed).items() if k not in NEW}
        return {**kept, "pulsify.version": version}

    rewritten(path, older)
    proto = onnx.load(path, load_external_data=False)
    proto.ClearField("producer_name")
    onnx.save(proto, path)

"""Which model a stream was made from."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import onnx_ir as ir

if TYPE_CHECKING:
    import onnx


def source_hash(source: str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model) -> str:
    """Identifies the model a stream was made from."""
    if isinstance(source, (str, os.PathLike)):
        with open(source, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest()
    if isinstance(source, ir.Model):
        return _ir_hash(source)
    return hashlib.sha256(source.SerializeToString(deterministic=True)).hexdigest()


def _ir_hash(model: ir.Model) -> str:
    """Node by node and tensor by tensor: a large model is not serialised as a whole."""
    digest = hashlib.sha256()
    for node in model.graph:
        digest.update(ir.to_proto(node).SerializeToString(deterministic=True))
    for name, value in sorted(model.graph.initializers.items()):
        tensor = value.const_value
        if tensor is not None:
            digest.update(f"{name} {tensor.dtype} {tensor.shape}".encode())
            digest.update(tensor.tobytes())
    return digest.hexdigest()

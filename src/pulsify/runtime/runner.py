"""Opening models in ONNX Runtime: one thread, quiet, weights not copied more than needed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

if TYPE_CHECKING:
    import onnx
    import onnxruntime as ort

IN_MEMORY = 1 << 30  # bytes of weights up to which a model is handed over as one string


def options(threads: int = 1) -> ort.SessionOptions:
    import onnxruntime as ort

    out = ort.SessionOptions()
    out.intra_op_num_threads = threads
    out.inter_op_num_threads = 1
    out.log_severity_level = 4
    return out


def open_model(
    source: str | bytes | onnx.ModelProto | ir.Model, threads: int = 1, optimize: bool = True
) -> ort.InferenceSession:
    """A runtime session on a file, bytes or a model in memory."""
    import onnxruntime as ort

    chosen = options(threads)
    if not optimize:
        chosen.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if isinstance(source, ir.Model):
        return _open_ir(source, chosen)
    data: Any = source if isinstance(source, (str, bytes)) else source.SerializeToString()
    return ort.InferenceSession(data, chosen, providers=["CPUExecutionProvider"])


def weight_bytes(model: ir.Model) -> int:
    return sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)


def _open_ir(model: ir.Model, chosen: ort.SessionOptions) -> ort.InferenceSession:
    import onnxruntime as ort

    if weight_bytes(model) <= IN_MEMORY:
        folders = _external_folders(model)
        if not folders:
            return ort.InferenceSession(
                ir.to_proto(model).SerializeToString(), chosen, providers=["CPUExecutionProvider"]
            )
        if len(folders) == 1:
            chosen.add_session_config_entry("session.model_external_initializers_file_folder_path", folders.pop())
            return ort.InferenceSession(
                ir.to_proto(model).SerializeToString(), chosen, providers=["CPUExecutionProvider"]
            )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stream.onnx"
        ir.save(model, path, external_data="stream.onnx.data")
        return ort.InferenceSession(os.fspath(path), chosen, providers=["CPUExecutionProvider"])


def _external_folders(model: ir.Model) -> set[str]:
    tensors = (v.const_value for v in model.graph.initializers.values())
    return {os.path.abspath(t.base_dir) for t in tensors if isinstance(t, ir.ExternalTensor)}

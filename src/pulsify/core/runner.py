"""Opening models in ONNX Runtime: one thread, quiet, weights not copied more than needed."""

from __future__ import annotations

import mmap
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from pulsify.core.arrays import Array, Arrays

if TYPE_CHECKING:
    import onnx
    import onnxruntime as ort

# weights in float32 to int8, between values of any type; and states, from opset 21 on with a type that does not fit
REQUANTISING = ["WeightBiasQuantization", "QDQPropagationTransformer"]
IN_MEMORY = 1 << 30  # bytes of weights up to which a model is handed over as one string


def options(threads: int = 1) -> ort.SessionOptions:
    import onnxruntime as ort

    out = ort.SessionOptions()
    out.intra_op_num_threads = threads
    out.inter_op_num_threads = 1
    out.log_severity_level = 4
    return out


def open_model(
    source: str | bytes | onnx.ModelProto | ir.Model,
    threads: int = 1,
    optimize: bool = True,
    profile: str | None = None,
    as_others: bool = False,
) -> ort.InferenceSession:
    """A runtime session on a file, bytes or a model in memory.

    optimize=False computes every operator as it is written: what the runtime makes of quantised ones rounds otherwise.
    profile: how the file begins that the runtime's profiler writes, until `end_profiling` is called.
    as_others: as whoever opens it without options of their own has it, whatever the optimiser makes of it.
    """
    import onnxruntime as ort

    chosen = options(threads)
    if profile is not None:
        chosen.enable_profiling, chosen.profile_file_prefix = True, profile
    if not optimize:
        chosen.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if isinstance(source, ir.Model):
        return _open_ir(source, chosen, as_others)
    data: Any = source if isinstance(source, (str, bytes)) else source.SerializeToString()
    return _session(data, chosen, as_others)


def _session(source: str | bytes, chosen: ort.SessionOptions, as_others: bool = False) -> ort.InferenceSession:
    """On the CPU. A sum and the norm behind it stay two nodes: the fused one is up to three times as slow there.

    A Pad and the pool behind it stay two nodes as well: fused, zeros no longer count as the largest of a MaxPool's
    window, and a pad as long as the kernel fails. What quantises more than the model does is left out, too.
    """
    import onnxruntime as ort

    left_out = ["SkipLayerNormFusion", *(["Pad_Fusion"] if not as_others and _pools(source) else [])]
    left_out += [] if as_others else REQUANTISING
    return ort.InferenceSession(source, chosen, providers=["CPUExecutionProvider"], disabled_optimizers=left_out)


def _pools(source: str | bytes) -> bool:
    """May there be a pool in a file or its bytes?"""
    if isinstance(source, bytes):
        return b"MaxPool" in source or b"AveragePool" in source
    if not Path(source).is_file() or not Path(source).stat().st_size:
        return False  # the runtime says so
    with open(source, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as held:
        return held.find(b"MaxPool") >= 0 or held.find(b"AveragePool") >= 0


def run_model(runner: ort.InferenceSession, feeds: Mapping[str, Array]) -> Arrays:
    """All outputs by name."""
    return dict(zip(output_names(runner), runner.run(None, dict(feeds)), strict=True))


def output_names(runner: ort.InferenceSession) -> list[str]:
    """The outputs as a stream calls them."""
    inputs = {i.name for i in runner.get_inputs()}
    return [given_out(o.name) if o.name in inputs else o.name for o in runner.get_outputs()]


def given_out(name: str) -> str:
    """What an input that is an output too is called as such."""
    return f"{name}_out"


def quick_call(runner: ort.InferenceSession, binding: ort.IOBinding) -> Callable[[], None]:
    """A run of what is bound. ONNX Runtime's own method looks for things that do not happen on a CPU first."""
    inner, bound = getattr(runner, "_sess", None), getattr(binding, "_iobinding", None)
    if inner is not None and bound is not None and hasattr(inner, "run_with_iobinding"):
        return partial(inner.run_with_iobinding, bound, None)
    return partial(runner.run_with_iobinding, binding)


def error_text(error: Exception) -> str:
    """What ONNX Runtime says is wrong, without codes and the places in its own source."""
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", str(error))
    text = re.sub(r"/\S+:\d+ .*?\) (?=[A-Z])", "", text).strip()
    return re.sub(r"/[^\s\"']*/(?=[^\s\"'/]+)", "", text)[:240]  # files by their names


def _tensors(model: ir.Model) -> list[ir.TensorProtocol]:
    return [v.const_value for v in model.graph.initializers.values() if v.const_value is not None]


def embedded_bytes(model: ir.Model) -> int:
    """Weights that would be part of the serialised model itself."""
    return sum(t.nbytes for t in _tensors(model) if not isinstance(t, ir.ExternalTensor))


def external_folders(model: ir.Model) -> set[str]:
    """Where weights kept outside the model lie."""
    return {os.path.abspath(t.base_dir) for t in _tensors(model) if isinstance(t, ir.ExternalTensor)}


def _open_ir(model: ir.Model, chosen: ort.SessionOptions, as_others: bool) -> ort.InferenceSession:
    folders = external_folders(model)
    if embedded_bytes(model) <= IN_MEMORY and len(folders) <= 1:
        for folder in folders:  # read in place
            chosen.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
        return _session(ir.to_proto(model).SerializeToString(), chosen, as_others)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "stream.onnx"
        ir.save(model, path, external_data="stream.onnx.data")
        return _session(os.fspath(path), chosen, as_others)

"""Torch modules, exported by both exporters."""

# A torch tensor is Any where torch is not typed.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.signal.build import Signal, sinc_kernel
from tests.zoo.manifest import Exporter

FRAME, HOP = 16, 4


def exported(
    function: Callable[[Any], Any], exporter: Exporter, *dims: int | str, opset: int = 17, repair: bool = False
) -> Signal:
    """The function as a module, with a dynamic length only."""
    pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    from tests.zoo.cases import Case, Fn, export

    shape = tuple("S" if d == "T" else d for d in dims)
    made = Case("signal", lambda: Fn(lambda _, x: function(x)), shape, HOP, 20 * HOP, True, "", "signal", opset)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        export(made, path, exporter)
        model = onnx.load(path)
    if repair:
        wide_indices(model)
    return Signal(model, dims)


def wide_indices(model: onnx.ModelProto) -> None:
    """torch.istft comes out with int32 indices, which ScatterND does not take: ONNX Runtime does not load it."""
    nodes = list(model.graph.node)
    del model.graph.node[:]
    for node in nodes:
        if node.op_type == "ScatterND":
            wide = f"{node.name}_wide"
            model.graph.node.append(onnx.helper.make_node("Cast", [node.input[1]], [wide], name=wide, to=7))
            node.input[1] = wide
        model.graph.node.append(node)


def hann() -> Any:
    import torch

    return torch.hann_window(FRAME)


def stft(center: bool, pad_mode: str = "reflect", **options: Any) -> Callable[[Any], Any]:
    """Real and imaginary parts: what the older exporter takes."""

    def run(x: Any) -> Any:
        import torch

        return torch.stft(
            x, FRAME, HOP, window=hann(), center=center, pad_mode=pad_mode, return_complex=False, **options
        )

    return run


def magnitude(x: Any) -> Any:
    import torch

    return torch.stft(x, FRAME, HOP, window=hann(), center=True, return_complex=True).abs()


def istft(x: Any) -> Any:
    """Of spectra [B, K, T, 2]."""
    import torch

    return torch.istft(torch.view_as_complex(x), FRAME, HOP, window=hann(), center=True)


def round_trip(x: Any) -> Any:
    import torch

    spectra = torch.stft(x, FRAME, HOP, window=hann(), center=True, return_complex=True)
    return torch.istft(spectra * 0.5, FRAME, HOP, window=hann(), center=True)


def unfold_rfft(x: Any) -> Any:
    import torch

    return torch.fft.rfft(x.unfold(-1, FRAME, HOP) * hann()).abs()


def unfold2d(x: Any) -> Any:
    from torch.nn import functional as F

    return F.unfold(x[:, None, None], (1, FRAME), stride=(1, HOP))


def strided(x: Any) -> Any:
    return x.as_strided((1, (x.shape[1] - FRAME) // HOP + 1, FRAME), (x.shape[1], HOP, 1)) * hann()


def fold(x: Any) -> Any:
    """Frames [B, N, T], overlap-added."""
    from torch.nn import functional as F

    return F.fold(x, (1, (x.shape[-1] - 1) * HOP + FRAME), (1, FRAME), stride=(1, HOP))[:, 0, 0]


def fold_normalised(x: Any) -> Any:
    """The same, divided by the windows' sum: a fold of ones."""
    import torch

    shape = hann()[None, :, None]
    weight = fold(torch.ones_like(x) * shape**2)
    return fold(x * shape) / torch.clamp(weight, min=1e-3)


def preemphasis(x: Any) -> Any:
    import torch

    return torch.cat([x[:, :1], x[:, 1:] - 0.97 * x[:, :-1]], 1)


def resample(orig: int, new: int) -> Callable[[Any], Any]:
    """torchaudio.functional.resample."""

    def run(x: Any) -> Any:
        import torch
        from torch.nn import functional as F

        kernel, reach = sinc_kernel(orig, new, 6)
        wide = F.pad(x, (reach, reach + orig))
        made = F.conv1d(wide[:, None], torch.tensor(kernel, dtype=torch.float32), stride=orig)
        made = made.transpose(1, 2).reshape(x.shape[0], -1)
        return made[..., : -(-new * x.shape[-1] // orig)]

    return run


def deltas(x: Any) -> Any:
    """torchaudio.functional.compute_deltas of [B, 6, T]."""
    import torch
    from torch.nn import functional as F

    kernel = torch.arange(-2.0, 3.0).repeat(6, 1, 1)
    return F.conv1d(F.pad(x, (2, 2), mode="replicate"), kernel, groups=6) / 10

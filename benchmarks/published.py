"""Published models out of their packages, as streams: the table of docs/gallery.md.

python -m benchmarks.published [--seconds 1] [--only NAME ...] [--write docs/gallery.md]

Each is built from the package named beside it; packages that are not installed are left out and said so. Weights are
the package's own if it ships any, and random otherwise: what streams does not depend on them.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import re
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

import pulsify
from benchmarks.runners import endless, warmed
from benchmarks.turns import Run, measure

HEAD = "| model | package | verdict | delay | latency | error | to convert | a pulse | ONNX Runtime | as C |\n"
RULE = "|---|---|---|---:|---:|---:|---:|---:|---:|---:|\n"
BEGIN, END = "<!-- published: begin -->\n", "<!-- published: end -->\n"
REASON = 150  # characters of a refusal


@dataclass(frozen=True)
class Source:
    """What `pulsify.stream` is called with."""

    model: nn.Module | Path
    arguments: dict[str, Any] = field(default_factory=dict)


MODELS: dict[str, tuple[str, Callable[[], Source]]] = {}


def published(name: str, package: str) -> Callable[[Callable[[], Source]], Callable[[], Source]]:
    """Registers how a model is built from a package."""

    def register(build: Callable[[], Source]) -> Callable[[], Source]:
        MODELS[name] = package, build
        return build

    return register


class Part(nn.Module):
    """One call of a larger module."""

    def __init__(self, module: nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.module, self.call = module, call

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.call(self.module, *inputs)


def _inside(package: str, *parts: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent.joinpath(*parts)


def _example(*shape: int) -> dict[str, Any]:
    return {"example": torch.randn(*shape)}


# ---- files that packages ship


@published("DNSMOS P.808", "speechmos")
def _() -> Source:
    return Source(_inside("speechmos", "dnsmos_models", "model_v8.onnx"), {"time": {"input_1": 1}})


@published("DNSMOS P.835", "speechmos")
def _() -> Source:
    return Source(_inside("speechmos", "dnsmos_models", "sig_bak_ovr.onnx"), {"time": {"input_1": 1}})


@published("Basic Pitch", "basic-pitch")
def _() -> Source:
    file = _inside("basic_pitch", "saved_models", "icassp_2022", "nmp.onnx")
    return Source(file, {"time": {"serving_default_input_2:0": 1}})


# ---- front ends


@published("Mel spectrogram", "nnAudio")
def _() -> Source:
    from nnAudio.features import MelSpectrogram

    return Source(MelSpectrogram(sr=16000, verbose=False), _example(1, 16000))


@published("MFCC", "nnAudio")
def _() -> Source:
    from nnAudio.features import MFCC

    return Source(MFCC(sr=16000, verbose=False), _example(1, 16000))


# ---- vocoders and codecs


@published("Vocos, ISTFT head", "vocos")
def _() -> Source:
    from vocos.heads import ISTFTHead
    from vocos.models import VocosBackbone

    head = ISTFTHead(512, 1024, 256, padding="same")
    return Source(nn.Sequential(VocosBackbone(100, 512, 1536, 8), head), _example(1, 100, 100))


@published("DAC, decoder", "descript-audio-codec")
def _() -> Source:
    from dac.model.dac import Decoder

    return Source(Decoder(64, 256, [8, 8, 4, 2]), _example(1, 64, 20))


@published("SNAC, decoder", "snac")
def _() -> Source:
    from snac import SNAC

    snac = SNAC(encoder_dim=16, decoder_dim=128, attn_window_size=None, depthwise=True, noise=False)
    return Source(snac.decoder, _example(1, snac.latent_dim, 32))


@published("EnCodec 24 kHz, causal", "encodec")
def _() -> Source:
    from encodec import EncodecModel

    model = EncodecModel._get_model([24.0], 24000, 1, causal=True, model_norm="weight_norm", audio_normalize=False)
    return Source(Part(model, lambda m, x: m.decoder(m.encoder(x))), _example(1, 1, 24000))


@published("Mimi", "transformers")
def _() -> Source:
    from transformers import MimiConfig, MimiModel

    sizes = {"hidden_size": 64, "num_filters": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 32,
             "num_key_value_heads": 2, "intermediate_size": 128, "codebook_size": 16, "codebook_dim": 32,
             "vector_quantization_hidden_dimension": 32, "num_quantizers": 4, "upsample_groups": 64}  # fmt: skip
    model = MimiModel(MimiConfig(sliding_window=20, **sizes))
    return Source(Part(model, lambda m, x: m.decode(m.encode(x).audio_codes).audio_values), _example(1, 1, 24000))


# ---- separation


@published("Open-Unmix, one direction", "openunmix")
def _() -> Source:
    from openunmix.model import OpenUnmix

    model = OpenUnmix(nb_bins=513, nb_channels=1, hidden_size=128, unidirectional=True)
    return Source(model, {"example": torch.rand(1, 1, 513, 60)})


@published("Open-Unmix, as published", "openunmix")
def _() -> Source:
    from openunmix.model import OpenUnmix

    return Source(OpenUnmix(nb_bins=513, nb_channels=1, hidden_size=128), {"example": torch.rand(1, 1, 513, 60)})


# ---- recurrences


@published("minGRU", "minGRU-pytorch")
def _() -> Source:
    from minGRU_pytorch import minGRU

    return Source(minGRU(64), _example(1, 64, 64))


@published("Mamba", "transformers")
def _() -> Source:
    from transformers import MambaConfig, MambaModel

    model = MambaModel(MambaConfig(hidden_size=32, num_hidden_layers=2, state_size=8, vocab_size=16))
    whole = Part(model, lambda m, x: m(inputs_embeds=x, use_cache=False).last_hidden_state)
    return Source(whole, _example(1, 40, 32))


# ---- recognisers


@published("HuBERT", "transformers")
def _() -> Source:
    from transformers import HubertConfig, HubertModel

    config = HubertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, conv_dim=(16,) * 7,
        num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=2,
    )  # fmt: skip
    return Source(Part(HubertModel(config), lambda m, x: m(x).last_hidden_state), _example(1, 16000))


# ---- measured


def row(name: str, seconds: float) -> str:
    """One line of the table."""
    package, build = MODELS[name]
    source = build()
    if isinstance(source.model, nn.Module):
        source.model.eval()
    start = time.process_time()
    try:
        stream = pulsify.stream(source.model, **source.arguments)
    except pulsify.PulsifyError as refused:
        took = time.process_time() - start
        return _line(name, package, f"refused: {_short(str(refused))}", "", "", "", f"{took:.1f} s", "", "", "")
    took = time.process_time() - start
    checked = stream.verification
    error = max((d.error for d in checked.outputs.values()), default=0.0) if checked is not None else float("nan")
    out, unit = stream.outputs[0], stream.inputs[0].name
    speed = _speed(stream, seconds)
    return _line(
        name, package, "exact", f"{out.delay}", f"{stream.latency} of `{unit}`", f"{error:.1e}", f"{took:.1f} s",
        f"{stream.pulse}", speed["ort"], speed["native"],
    )  # fmt: skip


def _speed(stream: pulsify.Stream, seconds: float) -> dict[str, str]:
    runs, missing = {}, {}
    for backend in ("ort", "native"):
        try:
            session, chunk = warmed(stream, backend=backend), endless(stream)
            runs[backend] = Run(lambda session=session, chunk=chunk: session.push(chunk()))  # type: ignore[misc]
        except pulsify.PulsifyError:
            missing[backend] = "-"
    return missing | {backend: f"{t.least_us:.0f} µs" for backend, t in measure(runs, seconds).items()}


def _short(text: str) -> str:
    first = " ".join(text.split("\n")[0].split()).replace("|", "/")
    cut = first[: REASON - 1].rsplit(" ", 1)[0]
    return first if len(first) <= REASON else (cut if len(cut) > REASON // 2 else first[: REASON - 1]) + " …"


def _line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |\n"


def _installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--only", nargs="*", default=list(MODELS))
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    lines = []
    for name in given.only:
        torch.manual_seed(0)
        if not _installed(MODELS[name][0]):
            print(f"{name}: the package {MODELS[name][0]} is not installed")
            continue
        lines.append(row(name, given.seconds))
        print(lines[-1], end="", flush=True)
    if given.write is not None:
        text = given.write.read_text()
        table = BEGIN + HEAD + RULE + "".join(lines) + END
        given.write.write_text(re.sub(f"{BEGIN}.*?{END}", lambda _: table, text, flags=re.DOTALL))


if __name__ == "__main__":
    main()

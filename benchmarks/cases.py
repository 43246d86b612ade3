"""What is timed: the models by name, the pulse of each, and a stream written by hand where there is one."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent


@dataclasses.dataclass(frozen=True)
class Case:
    """`pulse`: None is the one pulsify chooses by itself. `model`: the one that is streamed, if it is not named so too.

    `by_hand` and `many` name models as well: steps with states in and out (see `by_hand`), and one for any number of
    streams. `otherwise`: a model that is the same network written in another way, which should take as long.
    """

    name: str
    what: str
    pulse: int | None
    by_hand: tuple[str, ...] = ()
    many: str | None = None
    model: str | None = None
    otherwise: str | None = None

    @property
    def batch(self) -> str:
        return self.model or self.name

    @property
    def models(self) -> list[str]:
        return [self.batch, *self.by_hand, *([self.otherwise] if self.otherwise else [])]


def _amp(form: str, what: str, otherwise: str | None = None) -> list[Case]:
    what = f"amplifier, 2 x 10 dilated layers, {what}"
    return [Case(f"{form}_{pulse}", what, pulse, model=form, otherwise=otherwise) for pulse in (1, 8, 64)]


CASES = (
    Case("conv_4", "4 causal convolutions, 32 channels", 8, many="conv_4_many"),
    Case("wavenet_6x24", "WaveNet, 6 layers of 24 channels", 8),
    Case("wavenet_24x64", "WaveNet, 24 layers of 64 channels", 8),
    Case("tcn", "6 residual blocks of dilated convolutions, 64 channels", 8),
    Case("lstm_64", "LSTM of 64", 8, many="lstm_64_many"),
    Case("gru_2x256", "2 GRUs of 256", 8),
    Case("gtcrn", "denoiser of GTCRN's shape, frame by frame", 1, by_hand=("gtcrn_by_hand",), many="gtcrn_many"),
    Case("attention_chunk", "attention in chunks of 4, two chunks back", 4, many="attention_chunk_many"),
    Case("attention_sliding", "attention to the last 12 frames", 4),
    Case("encoder_8x256", "8 layers of chunked attention, width 256", 8),
    Case("fastconformer_32", "tiny FastConformer, context [28, 3]", 32, by_hand=("fastconformer_32_by_hand",)),
    Case("fastconformer_112", "tiny FastConformer, context [70, 13]", 112, by_hand=("fastconformer_112_by_hand",)),
    Case("logmel_stft", "log-mel frames of 16 kHz sound by STFT, 10 ms", 160),
    Case("logmel_conv", "the same by a convolution, no padding", 160),
    *_amp("amp_once", "padded once", "amp_layers"),
    *_amp("amp_layers", "padded layer by layer"),
    Case("codec_encoder", "codec's encoder, mirrored padding, strides of 320", 320),
    Case(
        "dtln", "denoiser of DTLN's shape, two stages", 128, by_hand=("dtln_spectrum_by_hand", "dtln_learned_by_hand")
    ),
    Case("encoder_12x", "12 layers of chunked attention, width 64, its own pulse", None),
)


def prepare(names: Iterable[str], folder: Path | None = None) -> dict[str, Path]:
    """Paths by name; what is not there yet is written, once for each state of the sources."""
    folder = folder or _cache()
    paths = {name: folder / f"{name}.onnx" for name in names}
    missing = [name for name, path in paths.items() if not path.exists()]
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        print(f"writing {len(missing)} of {len(paths)} models with PyTorch ...", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", "benchmarks.models", str(folder.resolve()), *missing]
        subprocess.run(command, check=True, cwd=REPOSITORY)
    return paths


def _cache() -> Path:
    """A folder that goes by the sources the models are made of."""
    sources = [
        REPOSITORY / "benchmarks" / name for name in ("models.py", "exports.py", "architectures.py", "encoder.py")
    ]
    sources += sorted((REPOSITORY / "examples").rglob("*.py"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser() / "pulsify" / "benchmarks" / digest

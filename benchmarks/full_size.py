"""The flagship at full size (609 million parameters): export, conversion, check against batch; time and memory.

python -m benchmarks.full_size --contexts 70,13 70,6 70,1 70,0

Memory is the process's own peak; conversion never reads the weights, the check opens one model at a time.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHUNKS = 6


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--contexts", nargs="+", default=["70,13", "70,0"], metavar="LEFT,RIGHT")
    parser.add_argument("--size", default="full")
    parser.add_argument("--exporter", default="legacy")
    parser.add_argument("--keep", type=Path, help="folder for the models (default: a temporary one)")
    parser.add_argument("--of", type=Path, help=argparse.SUPPRESS)  # in a process of its own: a model to convert
    args = parser.parse_args(argv)
    if args.of:
        measure(args.of, args.contexts[0])
        return
    with tempfile.TemporaryDirectory() as scratch:
        for context in args.contexts:
            model = (args.keep or Path(scratch)) / f"encoder-{context.replace(',', '-')}.onnx"
            if not model.exists():
                _run("examples.fastconformer.export", "--size", args.size, "--context", context,
                     "--exporter", args.exporter, os.fspath(model))  # fmt: skip
            _run("benchmarks.full_size", "--of", os.fspath(model), "--contexts", context)
            if not args.keep:
                for file in model.parent.glob(f"{model.name}*"):
                    file.unlink()


def _run(*words: str) -> None:
    subprocess.run([sys.executable, "-m", *words], check=True)


def measure(model: Path, context: str) -> None:
    import pulsify

    pulse = 8 * (int(context.split(",")[1]) + 1)
    size = sum(f.stat().st_size for f in model.parent.glob(f"{model.name}*"))
    began = time.perf_counter()
    stream = pulsify.stream(model, pulse=pulse, verify=False)
    converted, peak = time.perf_counter() - began, _peak()
    saved = model.with_name(f"stream-{model.name}")
    stream.save(saved)
    shares = not list(model.parent.glob(f"{saved.name}.*"))
    began = time.perf_counter()
    report = pulsify.verify(
        model, pulsify.load(saved), lengths=[1, CHUNKS * pulse + pulse // 2 + 1, 8 * CHUNKS * pulse]
    )
    checked = time.perf_counter() - began
    print(
        f"[{context}] pulse {pulse}, model {size / 1e9:.2f} GB: converted in {converted:.1f} s at {peak / 1e9:.2f} GB, "
        f"saved as {saved.stat().st_size / 1e6:.1f} MB {'beside shared weights' if shares else 'with weights'}, "
        f"delay {stream.outputs[0].delay}, state {stream.state_bytes / 1e6:.1f} MB\n"
        f"    checked in {checked:.0f} s at {_peak() / 1e9:.2f} GB ({_peak() / size:.2f} x): {report}",
        flush=True,
    )


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()

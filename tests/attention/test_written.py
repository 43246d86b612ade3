"""Attention written in other ways, by both exporters: exact at every short length, cut anyhow, NaN behind the end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest

import pulsify
from pulsify.core.chunks import chunkings
from tests.models import Array
from tests.selection import rotated
from tests.side import Batch, streamed

pytest.importorskip("onnxscript")

from tests.attention.written import BOUNDED, GROWING, JOINED, WIDTH, exported

EXPORTERS = ("legacy", "dynamo")
LENGTHS = (*range(1, 18), 23, 41)


def feeds(proto: onnx.ModelProto, length: int, batch: int) -> dict[str, Array]:
    rng, out = np.random.default_rng(length), {}
    for port in proto.graph.input:
        if port.name == "keep":  # none at all in some rows
            out["keep"] = (rng.random((batch, length)) < 0.4).astype(np.float32)
        else:
            out[port.name] = rng.standard_normal((batch, length, WIDTH)).astype(np.float32)
    return out


def check(
    proto: onnx.ModelProto, pulses: Sequence[int], lengths: Iterable[int] = LENGTHS, batch: int = 2, **options: Any
) -> None:
    """Where batch gives frames the stream gives the same; where it fails (fewer frames than the best so many), so."""
    whole, rng = Batch(proto), np.random.default_rng(0)
    for pulse in pulses:
        stream = pulsify.stream(proto, pulse=pulse, verify=False, **options)
        assert stream.proof.complete
        for length in lengths:
            given = feeds(proto, length, batch)
            wanted = whole.attempt(given)
            for i, cuts in enumerate(chunkings(length, pulse, rng)):
                if wanted is None:
                    with pytest.raises(pulsify.InvalidLength):
                        streamed(stream, given, cuts)
                    break
                same(streamed(stream, given, cuts, portable=i == 0), wanted, f"pulse {pulse} length {length} {cuts}")


def same(got: dict[str, Array], wanted: dict[str, Array], where: str) -> None:
    assert got.keys() == wanted.keys()
    for name, want in wanted.items():
        assert got[name].shape == want.shape and got[name].dtype == want.dtype, where
        if want.dtype.kind == "f":
            np.testing.assert_allclose(got[name], want, rtol=2e-5, atol=2e-5, err_msg=where)
        else:
            np.testing.assert_array_equal(got[name], want, where)


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", rotated([*BOUNDED, *JOINED], 3))
def test_exact(name: str, exporter: str) -> None:
    check(exported(exporter, name), (1, 3, 8) if exporter == "legacy" else (4,))


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", rotated(GROWING, 2))
def test_all_of_the_past(name: str, exporter: str) -> None:
    """At every pulse; without being told so it is refused, at the sum, and the hint is what does it."""
    proto = exported(exporter, name)
    with pytest.raises(pulsify.NotStreamable, match="unbounded look-back") as refused:
        pulsify.stream(proto, pulse=4)
    assert refused.value.node and 'unbounded="grow"' in refused.value.hint
    check(proto, (1, 3, 4, 8) if exporter == "legacy" else (5,), unbounded="grow")


def test_a_band_as_the_difference_of_two_triangles_is_refused() -> None:
    """Written as one triangle of another ("band") it streams."""
    proto = exported("legacy", "difference")
    with pytest.raises(pulsify.NotStreamable, match="unbounded look-back"):
        pulsify.stream(proto, pulse=4)
    with pytest.raises(pulsify.NotStreamable, match="neither constant nor linear") as refused:
        pulsify.stream(proto, pulse=4, unbounded="grow")
    assert refused.value.node.startswith("/Trilu") and "bound the look-back" in refused.value.hint


def test_one_stream_alone_is_the_same() -> None:
    for name in ("folded", "row_best", "gathered", "best_of"):
        check(exported("legacy", name), (3,), (3, 4, 11, 30), batch=1)


# not rusage: it begins with the parent's
LONG = """
import time
import pulsify
from tests.attention.graphs import Case, build
from tests.attention.masks import Mask
pulsify.stream(build(Case(Mask("token", 1, 5))).model, pulse=8, verify=False)  # all is imported
model, start = build(Case(Mask("token", 1, 3000))).model, time.process_time()
stream = pulsify.stream(model, pulse=8, verify=False)
most = next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]
print(time.process_time() - start, int(most) / 1024, stream.state_bytes)
"""


def test_a_mask_of_3000_frames_takes_seconds_and_little_memory() -> None:
    done = subprocess.run([sys.executable, "-c", LONG], capture_output=True, text=True, check=True, timeout=280)
    seconds, megabytes, state = (float(n) for n in done.stdout.split())
    assert seconds < 3 and megabytes < 300 and state == 3000 * 2 * 8 * 4 + 4

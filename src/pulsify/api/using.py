"""`verify` and `export`: what is done with a stream and something beside it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pulsify.api.arguments import check_options
from pulsify.api.making import onnx_of
from pulsify.api.model import Stream
from pulsify.backends.registry import DEFAULT
from pulsify.backends.seam import Own
from pulsify.core.boundary import public
from pulsify.core.chunks import CHUNKINGS, check_seed
from pulsify.core.errors import InvalidArgument
from pulsify.core.report import Report
from pulsify.core.status_line import watched
from pulsify.export.registry import Option

if TYPE_CHECKING:
    from pulsify.api.making import Model


@public
def export(stream: Stream, target: str, path: str | os.PathLike[str], **options: Option) -> None:
    """Write a stream for somebody else to run, as `Stream.export` does: target "onnx" (a file), "c", ... (folders)."""
    _own(stream).export(path, target, **options)


@public
@watched("comparing with the batch model")
def verify(
    source: Model,
    stream: Stream,
    *,
    lengths: Sequence[int] | None = None,
    chunkings: Sequence[str] = CHUNKINGS,
    tolerance: float | None = None,
    seed: int = 0,
    backend: str = DEFAULT,
    options: Mapping[str, Own] | None = None,
    quiet: bool = False,
) -> Report:
    """Run batch and stream on many lengths and chunkings; a report, or Mismatch.

    lengths: those to run, instead of a choice of them. tolerance: the largest error relative to an output's scale,
    instead of what the output's type allows. seed: of the random inputs. backend, options: what runs the stream, as for
    `Stream.session`; where a lower type stands for float32 (`dtype`), the report tells the error against the float32
    batch model and judges it only by a tolerance that is given. quiet: show no progress.
    """
    from pulsify.verify.check import verify as run

    check_options(backend, options or {})
    check_seed(seed)
    return run(
        onnx_of(source), _own(stream), lengths=lengths, chunkings=chunkings, tolerance=tolerance, seed=seed,
        backend=backend, options=options,
    )  # fmt: skip


def _own(stream: Stream) -> Stream:
    if not isinstance(stream, Stream):
        raise InvalidArgument(f"expected a stream made by pulsify.stream or pulsify.load, got {type(stream).__name__}")
    return stream

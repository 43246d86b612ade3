"""pulsify: batch neural networks with a time axis, turned into exactly equivalent streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsify.core.errors import (
    FileFailed,
    InternalError,
    InvalidArgument,
    InvalidChunk,
    InvalidLength,
    InvalidModel,
    InvalidPulse,
    InvalidState,
    Mismatch,
    NotStreamable,
    NotSupported,
    PulsifyError,
    SessionBusy,
    SessionClosed,
)

if TYPE_CHECKING:
    from pulsify.api import Stream, export, load, stream, verify
    from pulsify.core.report import Deviation, NodeDeviation, NodeReport, Report
    from pulsify.frontend.chain import chain
    from pulsify.runtime.pool import Pool
    from pulsify.runtime.session import Session
    from pulsify.verify.nodes import compare_nodes

__version__ = "0.1.0"
__all__ = [
    "Deviation", "FileFailed", "InternalError", "InvalidArgument", "InvalidChunk", "InvalidLength", "InvalidModel",
    "InvalidPulse", "InvalidState", "Mismatch", "NodeDeviation", "NodeReport", "NotStreamable", "NotSupported",
    "Pool", "PulsifyError", "Report", "Session", "SessionBusy", "SessionClosed", "Stream", "chain", "compare_nodes",
    "export", "load", "stream", "verify",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """The working parts are imported when first used: `import pulsify` and `pulsify --help` stay quick."""
    if name in ("stream", "load", "verify", "export", "Stream"):
        from pulsify import api

        return getattr(api, name)
    if name in ("Report", "Deviation", "NodeReport", "NodeDeviation"):
        from pulsify.core import report

        return getattr(report, name)
    if name == "compare_nodes":
        from pulsify.verify.nodes import compare_nodes

        return compare_nodes
    if name == "chain":
        from pulsify.frontend.chain import chain

        return chain
    if name == "Pool":
        from pulsify.runtime.pool import Pool

        return Pool
    if name == "Session":
        from pulsify.runtime.session import Session

        return Session
    raise AttributeError(f"module 'pulsify' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, imported or not: what an editor or a notebook offers."""
    return sorted([*__all__, "__version__"])

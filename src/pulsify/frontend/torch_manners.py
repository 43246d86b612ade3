"""Manners with a user's module, process and terminal: all of it is afterwards as it was."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any, TextIO

from pulsify.core.cache import user_cache

MOST_LOG = 1 << 20  # characters kept of what exporters say


@contextlib.contextmanager
def evaluating(module: Any) -> Iterator[None]:
    """Eval mode; afterwards every submodule's mode, attributes and buffers, and the random state, are as before."""
    import torch

    parts = list(module.modules())
    attributes = [_copied(m) for m in parts]
    buffers = [(b, b.detach().clone()) for b in module.buffers()]
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # one operator for a whole layer, which no exporter knows
    try:
        with torch.random.fork_rng(devices=[]), _no_autocast():
            module.eval()
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for part, saved in zip(parts, attributes, strict=True):
            part.__dict__.clear()
            part.__dict__.update(saved)
        with torch.no_grad():
            for buffer, value in buffers:
                if not torch.equal(buffer, value):
                    buffer.copy_(value)


def _copied(module: Any) -> dict[str, Any]:
    """Its attributes; of a scripted module, the parts are fixed, and what shows them cannot be copied."""
    own = ("_parameters", "_buffers", "_modules")
    return {k: v.copy() if k in own and isinstance(v, dict) else v for k, v in module.__dict__.items()}


@contextlib.contextmanager
def _no_autocast() -> Iterator[None]:
    """In the module's own types."""
    import torch

    with torch.autocast("cpu", enabled=False):
        yield


@contextlib.contextmanager
def masks_kept() -> Iterator[None]:
    """A mask stays a mask: torch looks whether it is the causal one, and an export would hold the answer fixed."""
    from torch.nn.modules import transformer

    detect = getattr(transformer, "_detect_is_causal_mask", None)
    if detect is None:
        yield
        return
    transformer._detect_is_causal_mask = lambda mask, is_causal=None, size=None: bool(is_causal)
    try:
        yield
    finally:
        transformer._detect_is_causal_mask = detect


@contextlib.contextmanager
def packs_in_order() -> Iterator[None]:
    """Streams that end together are packed in the order they come in: exported, sorting them would mix the batch."""
    from torch.nn.utils import rnn

    pack = rnn.pack_padded_sequence  # a module may have it under a name of its own, so the code in it is replaced
    code, pack.__code__ = pack.__code__, _packed.__code__
    try:
        yield
    finally:
        pack.__code__ = code


def _packed(input: Any, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True) -> Any:
    """Runs among the names of torch.nn.utils.rnn."""
    lengths, order = torch.as_tensor(lengths, dtype=torch.int64), None  # type: ignore[name-defined]  # noqa: F821
    if not enforce_sorted and (lengths[1:] > lengths[:-1]).any():
        lengths, order = lengths.sort(descending=True)
        input = input.index_select(0 if batch_first else 1, order)
    data, sizes = _VF._pack_padded_sequence(input, lengths, batch_first)  # type: ignore[name-defined]  # noqa: F821
    return _packed_sequence_init(data, sizes, order, None)  # type: ignore[name-defined]  # noqa: F821


@contextlib.contextmanager
def quiet(log: io.StringIO | None = None, descriptors: bool = False) -> Iterator[None]:
    """What is written to the terminal meanwhile goes to `log`: prints and warnings; with `descriptors`, C++'s too."""
    log = io.StringIO() if log is None else log
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(record=True) as caught,
            contextlib.redirect_stdout(log),
            contextlib.redirect_stderr(log),
            _descriptors(log) if descriptors else contextlib.nullcontext(),
        ):
            warnings.simplefilter("always")
            try:
                yield
            finally:
                for w in caught[:100]:
                    log.write(f"{w.category.__name__}: {w.message} ({w.filename}:{w.lineno})\n")
    finally:
        logging.disable(before)


@contextlib.contextmanager
def _descriptors(log: TextIO) -> Iterator[None]:
    """Files 1 and 2 of the process, into which C++ writes."""
    saved: list[tuple[int, int]] = []
    with tempfile.TemporaryFile() as file:
        try:
            for stream in (sys.__stdout__, sys.__stderr__):
                if stream is not None:
                    stream.flush()
            for number in (1, 2):
                with contextlib.suppress(OSError):  # closed, as of a service
                    saved.append((number, os.dup(number)))
                    os.dup2(file.fileno(), number)
            yield
        finally:
            for number, copy in saved:
                os.dup2(copy, number)
                os.close(copy)
            file.seek(0)
            log.write(file.read(MOST_LOG).decode(errors="replace"))


def keep_log(text: str) -> str:
    """Where it can be read: in the user's cache, until the next one. Empty if it cannot be written there."""
    try:
        path = user_cache() / "export.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text[-MOST_LOG:], "utf-8", errors="replace")
    except (OSError, RuntimeError):  # no room, no rights, no home
        return ""
    return f" (what torch printed is in {path})"


def short(error: BaseException) -> str:
    """The first line of the root cause, without paths."""
    while error.__cause__ is not None:
        error = error.__cause__
    line = str(error).strip().partition("\n")[0]
    line = re.sub(r"(?:/[\w.+-]+){2,}", "...", line)
    return f"{type(error).__name__}: {line[:160]}" if line else type(error).__name__

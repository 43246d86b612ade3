"""A case converts exactly, or is refused with a true reason; the module and the terminal are left as they were."""

from __future__ import annotations

import contextlib
import io
import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import _pytree

import pulsify
from tests.modules.case import Case

CHUNKS = (1, 7, 50)  # units of the first input a push; the last one is random below twice its size


def inputs(case: Case, length: int | None = None, batch: int | None = None) -> Any:
    """The example; along time, as long as is asked for."""
    torch.manual_seed(1)
    if callable(case.example):
        return case.example(length or 0)
    shapes = [list(s) for s in case.example]
    return tuple(torch.randn(s) * 0.5 for s in shapes)


def check(case: Case) -> tuple[float, str]:
    """CPU seconds of the conversion, and what became of it."""
    torch.manual_seed(0)
    module = case.build()
    module = module if case.training else module.eval()
    example = inputs(case)
    before, spoken = _left(module), io.StringIO()
    began = time.process_time()
    try:
        with contextlib.redirect_stdout(spoken), contextlib.redirect_stderr(spoken):
            if case.refused is not None:
                with pytest.raises(pulsify.PulsifyError, match=f"(?s){case.refused}") as error:
                    pulsify.stream(module, example=example, **case.options)
                if not isinstance(error.value, pulsify.InvalidArgument):
                    assert re.search(r"\w+\.py:\d+\b.*: `", str(error.value)), f"names no line: {error.value}"
                return time.process_time() - began, f"refused: {error.value}"
            stream = pulsify.stream(module, example=example, **case.options)
    finally:
        took = time.process_time() - began
        assert _left(module) == before, "the conversion changed the module, or the random state"
        assert not spoken.getvalue(), f"the conversion printed {spoken.getvalue()!r}"
    module.eval()
    error = max(_compared(case, module, stream, example, length) for length in case.lengths)
    delays = [o.delay for o in stream.outputs]
    return took, f"pulse {stream.pulse}, delay {delays}, error {error:.1e}, batch {stream.spec.batch} {stream.notes}"


def _left(module: Any) -> list[Any]:
    """What a conversion must not change."""
    values = [(n, str(t.dtype), t.detach().reshape(-1).tolist()) for n, t in module.state_dict(keep_vars=True).items()]
    modes = [(n, m.training, sorted(m.__dict__)) for n, m in module.named_modules()]
    return [repr(values), modes, torch.get_rng_state().tolist(), str(torch.get_default_dtype())]


def _compared(case: Case, module: Any, stream: Any, example: Any, length: int) -> float:
    """The largest error at one length, over chunkings; relative to the output's scale."""
    batch = 2 if stream.spec.batch is not None and length == case.lengths[-1] else 1
    call, feeds, statics = _feeds(module, stream, example, length, batch)
    with torch.no_grad():
        want = _leaves(call())
    rng, worst = np.random.default_rng(length), 0.0
    for size in CHUNKS if length < 100 else (stream.pulse, int(rng.integers(1, 2 * stream.pulse + 2)), length):
        pushed = size * max(1, stream.pulse // 40 if length < 100 else 1)
        got = _streamed(stream, feeds, statics, pushed, batch, length)
        for a, b, o in zip(got, want, stream.outputs, strict=True):
            b = b.numpy()
            assert a.shape == b.shape, (
                f"output {o.name} has shape {a.shape}, the module's {b.shape}, at length {length}"
            )
            assert a.dtype == b.dtype, f"output {o.name} is {a.dtype}, the module's {b.dtype}"
            if b.dtype.kind != "f":
                np.testing.assert_array_equal(a, b)
            elif b.size:
                scale = float(np.abs(b[np.isfinite(b)]).max(initial=0)) or 1.0
                np.testing.assert_allclose(a, b, rtol=0, atol=case.tolerance * scale)
                worst = max(worst, float(np.nanmax(np.abs(a - b))) / scale)
    return worst


def _feeds(
    module: Any, stream: Any, example: Any, length: int, batch: int
) -> tuple[Callable[[], Any], dict[str, Any], dict[str, Any]]:
    """The module's call on random inputs of that length; what is streamed, and what is given at the start."""
    from pulsify.frontend.torch_call import called

    generator = torch.Generator().manual_seed(length)
    ports = {p.name: p for p in stream.inputs}
    statics = {s.name: s for s in stream.statics}
    leaves, spec = _pytree.tree_flatten(example if isinstance(example, (tuple, dict)) else (example,))
    names = {id(t): n for n, t in called(module, example).tensors.items()}
    values, feeds, fixed = [], {}, {}
    for leaf in leaves:
        name = names.get(id(leaf))
        if name is None:
            values.append(leaf)
            continue
        port, shape = ports.get(name), list(leaf.shape)
        if port is not None:
            shape[port.axis] = int(length * port.rate)
        if name in statics:
            shape = [batch if dim == stream.spec.batch else dim for dim in statics[name].dims]
        elif stream.spec.batch is not None and shape:
            shape[0 if port is None or port.axis else 1] = batch
        if leaf.is_floating_point():
            value = (torch.randn(shape, generator=generator) * 0.5).to(leaf.dtype)
        elif port is None and name not in statics:  # the length
            value = torch.full(shape, length, dtype=leaf.dtype)
        else:
            low, high = min(int(leaf.min()), 0), int(leaf.max())
            value = torch.randint(low, high + 1, shape, generator=generator).to(leaf.dtype)
        values.append(value)
        if name in statics:
            fixed[name] = value.numpy()
        elif port is not None:
            feeds[name] = value.numpy()
    arguments = _pytree.tree_unflatten([v.clone() if isinstance(v, torch.Tensor) else v for v in values], spec)
    return (lambda: module(**arguments) if isinstance(arguments, dict) else module(*arguments)), feeds, fixed


def _streamed(
    stream: Any, feeds: dict[str, Any], statics: dict[str, Any], size: int, batch: int, length: int
) -> list[Any]:
    several = {"batch": batch} if stream.spec.batch is not None else {}
    session = stream.session(padding=float("nan"), statics=statics, **several)
    ports = {p.name: p for p in stream.inputs}
    parts = []
    for start in range(0, length, size):
        chunk = {
            n: np.take(
                a, range(int(start * ports[n].rate), int(min(start + size, length) * ports[n].rate)), ports[n].axis
            )
            for n, a in feeds.items()
        }
        parts.append(session.push(chunk if len(chunk) > 1 else next(iter(chunk.values()))))
    parts.append(session.flush())
    rows = [p if isinstance(p, dict) else {stream.outputs[0].name: p} for p in parts]
    return [
        rows[-1][o.name] if o.axis is None else np.concatenate([r[o.name] for r in rows if o.name in r], o.axis)
        for o in stream.outputs
    ]


def _leaves(result: Any) -> list[Any]:
    return [t for t in _pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]

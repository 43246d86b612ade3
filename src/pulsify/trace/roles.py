"""Inputs that look like the stream's length, or like a mask of its frames: bound where that is what they are.

A name alone decides nothing. An input that is called so is traced as if it were the length, and followed
(`trace/usage.py`):

    something else                        an input like any other
    the length, and called so             bound, and listed (`Spec.bindings`)
    the length, but `max_len` as well     bound if the number of frames must equal it, else asked for
    unclear                               asked for
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from pulsify.core.errors import InvalidArgument, NotStreamable
from pulsify.frontend.model import Model
from pulsify.frontend.time import TimeSpec, find_time, is_called_length
from pulsify.trace.lengths import Tracer, Traces, choose
from pulsify.trace.resolve import resolve
from pulsify.trace.usage import Finding, Use, uses

UNUSED = "nothing depends on it"
Bind = Mapping[str, str | None]


def settle(
    model: Model,
    time: str | Mapping[str, int] | None = None,
    bind: Bind | None = None,
    set: Mapping[str, int | str] | None = None,  # the public contract's name
) -> Tracer:
    """A model with its time axes and the roles of its inputs, ready to be traced.

    Raises:
        InvalidArgument: an input may be the length, or a value of its own; the message has both ways to say so.
    """
    while True:
        spec = find_time(model, time, bind, set)
        bind = dict(bind or {})
        if not spec.guessed:
            return Tracer(resolve(model, spec), spec)
        try:
            tracer = Tracer(resolve(model, spec), spec)
            traces = choose(tracer)
        except NotStreamable as problem:
            return _without(model, time, bind, set, spec, problem)
        reasons = {name: _reason(spec, traces, name) for name in spec.guessed}
        tracer.forget()
        others = [name for name, reason in reasons.items() if reason is None]
        if not others:
            return Tracer(tracer.model, replace(spec, reasons={n: r for n, r in reasons.items() if r is not None}))
        bind |= dict.fromkeys(others)


def _without(
    model: Model,
    time: str | Mapping[str, int] | None,
    bind: Bind,
    set: Mapping[str, int | str] | None,
    spec: TimeSpec,
    problem: NotStreamable,
) -> Tracer:
    """The model with what was guessed as inputs of their own: if it runs then, they are not what they are called."""
    apart = [(name,) for name in spec.guessed] if len(spec.guessed) > 1 else []
    for free in apart:
        with suppress(NotStreamable, InvalidArgument):
            return settle(model, time, {**bind, **dict.fromkeys(free)}, set)
    try:
        other = find_time(model, time, {**bind, **dict.fromkeys(spec.guessed)}, set)
        tracer = Tracer(resolve(model, other), other)
        choose(tracer)
    except (NotStreamable, InvalidArgument) as error:
        clear = all(name in spec.filled or is_called_length(name, spec.streams) for name in spec.guessed)
        raise problem if clear else error from None
    tracer.forget()
    return tracer


def _reason(spec: TimeSpec, traces: Traces, name: str) -> str | None:
    """Why an input is bound, None if it is something else. Raises InvalidArgument if it may be either."""
    found = uses(traces.tracer.model, traces, name, name in spec.filled)
    by = {use: next((f for f in found if f.use is use), None) for use in Use}
    if by[Use.OTHER] is not None:
        return None
    if not found:
        return UNUSED
    clear = name in spec.filled or is_called_length(name, spec.streams)
    if by[Use.UNCLEAR] is not None:
        raise _ask(spec, name, by[Use.UNCLEAR])
    telling = by[Use.SIZE] or by[Use.LENGTH] or by[Use.PLAIN]
    assert telling is not None
    if by[Use.SIZE] is None and not clear:
        raise _ask(spec, name, telling)
    return str(telling)


def _ask(spec: TimeSpec, name: str, finding: Finding | None) -> InvalidArgument:
    mask = name in spec.filled
    value = "ones" if mask else spec.symbol
    what = "a mask that keeps every frame" if mask else f"the stream's length '{spec.symbol}'"
    own = "streamed with the frames" if mask else "given when a session opens"
    return InvalidArgument(
        f"input '{name}' may be {what}, or a value of its own ({finding}): say "
        f'bind={{"{name}": "{value}"}} if it is the former, bind={{"{name}": None}} if it is {own}'
    )

"""What a refusal offers is tried before it is offered: arguments that would be refused as well are left out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from pulsify.core.errors import InvalidArgument, InvalidModel, InvalidPulse, Mismatch, NotStreamable
from pulsify.core.refusal import Remedy

Meaning: TypeAlias = dict[str, Any]  # arguments of `pulsify.stream` that say what a model means
Convert = Callable[[Mapping[str, Any]], object]  # with further ones
LONG = 1.5  # CPU seconds of a refused conversion, above which no other is tried
LIMIT = 2.0  # CPU seconds for all of them, after which no further one is begun


def offer_what_works(refusal: NotStreamable, convert: Convert, seconds: float) -> None:
    """Leave out the remedies that do not help. seconds: of CPU time that the refused conversion took."""
    end = time.process_time() + (LIMIT if seconds <= LONG else 0)
    found: dict[Remedy, None] = {}
    pairs: list[Remedy] = []
    for remedy in refusal.remedies:
        if not remedy.options or remedy.tried:
            found[remedy] = None
        elif time.process_time() >= end:
            found[replace(remedy, text=f"{remedy.text} (not tried)")] = None
        else:
            works, needed = _tried(remedy, convert)
            found |= dict.fromkeys([replace(remedy, tried=True)] if works else [])
            pairs += [both for other in needed if (both := _both(remedy, other)) is not None]
    if not any(r.options for r in found):
        both = next((b for b in pairs if time.process_time() < end and _tried(b, convert)[0]), None)
        found |= dict.fromkeys([replace(both, tried=True)] if both is not None else [])
    if not found and refusal.remedies:
        tried = ", ".join(dict.fromkeys(r.text for r in refusal.remedies))
        found[Remedy(f"change the model at this node (tried without success: {tried})")] = None
    refusal.remedies = tuple(found)


def _tried(remedy: Remedy, convert: Convert) -> tuple[bool, tuple[Remedy, ...]]:
    """Does it help? If not, what is offered then."""
    try:
        convert(remedy.options)
    except InvalidPulse:  # which says the pulse that fits
        return True, ()
    except NotStreamable as problem:
        return False, problem.remedies
    except (InvalidArgument, InvalidModel, Mismatch, AssertionError):  # a bug on that way is not the user's refusal
        return False, ()
    return True, ()


def _both(one: Remedy, other: Remedy) -> Remedy | None:
    """Two remedies as one, if they are arguments that go together."""
    options = joined(one.options, other.options)
    if not other.options or options is None:
        return None
    return Remedy(f"{one.text}, and {other.text}", options)


def with_more(given: Meaning, more: Mapping[str, Any]) -> Meaning:
    """Arguments, and others that go before them."""
    return given | {k: {**(given.get(k) or {}), **v} if k in ("set", "bind") else v for k, v in more.items()}


def joined(given: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments of both; None if they contradict each other."""
    out = dict(given)
    for key, value in more.items():
        old = out.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            if any(k in old and old[k] != v for k, v in value.items()):
                return None
            out[key] = {**old, **value}
        elif key in out and old != value:
            return None
        else:
            out[key] = value
    return out

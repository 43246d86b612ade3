"""What is given to the public functions, looked at before anything is done with it."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping

from pulsify.backends.registry import backend as back_end
from pulsify.backends.seam import Own, own_options
from pulsify.core.errors import InvalidArgument
from pulsify.core.spec import Spec

Frozen = tuple[tuple[str, str | tuple[str, ...] | None], ...]  # options of a back end, as a key
LONGEST_PULSE = 1 << 24  # frames; a longer pulse is no stream


def whole(value: object, complaint: str) -> int:
    """A whole number from 1 on (numpy's too), or InvalidArgument."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidArgument(complaint) from None
    if isinstance(value, bool) or not 1 <= number <= LONGEST_PULSE:
        raise InvalidArgument(complaint)
    return number


def check_options(backend: str, own: Mapping[str, Own]) -> None:
    """Options that the back end has, or InvalidArgument that lists them."""
    takes = own_options(back_end(backend))
    if unknown := sorted(set(own) - set(takes)):
        has = f"there are {', '.join(takes)}" if takes else "it has none of its own"
        raise InvalidArgument(f"options of the back end {backend!r}: unknown {unknown}; {has}")


def frozen(own: Mapping[str, Own]) -> Frozen:
    return tuple(sorted((k, v if v is None or isinstance(v, str) else tuple(v)) for k, v in own.items()))


def check_rate(rate: float | None) -> None:
    if rate is not None and (isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate < math.inf):
        raise InvalidArgument(f"sample_rate={rate!r}: expected frames a second, more than 0")


def check_single(spec: Spec, by_name: object, call: str, independent: bool = False) -> None:
    """Can results be what `by_name` says? call: the method that gives them."""
    if not isinstance(by_name, bool):
        raise InvalidArgument(f"by_name={by_name!r}: expected True, False or None")
    if independent:
        raise InvalidArgument("by_name goes with one stream, or several in step: results of independent ones are lists")
    if not by_name and len(spec.outputs) > 1:
        names = [o.name for o in spec.outputs]
        raise InvalidArgument(f"by_name=False: this stream has several outputs ({', '.join(names)}); use by_name=True")
    if not by_name and call == "push" and spec.outputs[0].axis is None:
        raise InvalidArgument(
            f"by_name=False: '{spec.outputs[0].name}' is known at the end only, so push has no array; use by_name=True"
        )

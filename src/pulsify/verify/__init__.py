"""Batch and stream side by side. `pulsify.verify` is this package, and it is also the function of the same name."""

from __future__ import annotations

from pulsify.core.callable import callable_as_function

callable_as_function(__name__)

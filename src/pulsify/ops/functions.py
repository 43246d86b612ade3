"""Functions of one value, entry by entry: casts, roundings, activations."""

from __future__ import annotations

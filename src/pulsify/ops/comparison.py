"""Comparisons, logic and choices, entry by entry."""

from __future__ import annotations

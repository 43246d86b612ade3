"""Sums, products, extremes and other arithmetic, entry by entry."""

from __future__ import annotations

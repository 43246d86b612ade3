"""Masks as inputs, declared lengths, exports tied to a length, and graphs that are written in other ways."""

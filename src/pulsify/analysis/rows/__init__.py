"""Rows of known tables, followed like frames of a stream: see `walk`."""

"""Attention of a few queries over a window of cached keys, a ring or plain, with relative positions inside."""

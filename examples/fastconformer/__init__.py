"""A cache-aware FastConformer encoder, as a batch model."""

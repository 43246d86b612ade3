"""Facts about the batch model that hold at every pulse."""

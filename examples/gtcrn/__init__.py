"""A GTCRN-shaped speech denoiser, as a batch model, and the stream one would write of it by hand."""

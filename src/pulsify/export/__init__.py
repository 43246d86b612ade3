"""Files a stream is written to: one file here for each target, chosen by name (`registry.py`)."""

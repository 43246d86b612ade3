"""Machines that run pulses: one folder each, behind the seam in `seam.py`, chosen by name (`registry.py`)."""

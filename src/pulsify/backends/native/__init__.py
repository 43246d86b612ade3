"""The step as one C function: for the smallest latency, and for the smallest machines."""

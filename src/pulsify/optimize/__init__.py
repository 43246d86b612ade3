"""Forms of a streaming graph for the runtime at hand: the same function, faster. The saved file stays the plain one."""

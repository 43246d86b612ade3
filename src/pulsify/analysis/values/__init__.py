"""Values that follow from the stream length, followed through the graph."""

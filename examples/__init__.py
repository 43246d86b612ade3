"""Models people stream, each with its own folder."""

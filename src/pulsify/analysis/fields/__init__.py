"""Fields, where every frame meets every other: their operands, what their cells are, which of them are alike."""

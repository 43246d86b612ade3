"""What needs a graphics card. Elsewhere it is skipped."""

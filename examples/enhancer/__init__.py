"""A small speech enhancer, trained on synthetic speech and noises: see README.md."""

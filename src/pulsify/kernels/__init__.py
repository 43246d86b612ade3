"""Kernels: a specification in numpy, cases made from it, implementations by target."""

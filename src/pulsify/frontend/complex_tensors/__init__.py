"""Complex tensors of a torch module as pairs of real ones, while the module is traced."""

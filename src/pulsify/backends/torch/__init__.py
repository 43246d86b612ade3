"""The step as torch source, on the CPU or a graphics card; what torch does not have is left to ONNX Runtime."""

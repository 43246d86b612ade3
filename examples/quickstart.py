"""A batch model becomes a stream; what comes out chunk by chunk is what it gives on the whole input."""

import numpy as np

import pulsify
from pulsify.demo.model import enhancer

model = enhancer()  # any batch model with a time axis: a path, bytes, an onnx or onnx_ir model, a torch module
stream = pulsify.stream(model, pulse=160)
session, x = stream.session(), np.random.default_rng(0).standard_normal((1, 1, 16000), np.float32)
parts = [session.push(chunk) for chunk in np.array_split(x, 77, axis=2)]  # chunks of any size
y = np.concatenate([*parts, session.flush()], axis=2)
print(f"{x.shape[2]} samples in, {y.shape[2]} out, each {stream.outputs[0].delay} late at most")
print(pulsify.verify(model, stream))

"""Weights of RNN, GRU and LSTM as other libraries lay them out, in and out.

``elman.weights.from_arrays(module, arrays, layout="keras")`` gives a module the weights of another
library; ``elman.weights.to_arrays(module, "onnx")`` takes them out.
"""

from elman.interchange.weights.layouts import from_arrays, to_arrays

__all__ = ["from_arrays", "to_arrays"]

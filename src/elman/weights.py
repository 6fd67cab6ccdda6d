"""Convert the weights of RNN, GRU and LSTM from and to the layouts of other libraries.

``elman.weights.from_arrays(module, arrays, layout="keras")`` loads the weights of another library
into a module; ``elman.weights.to_arrays(module, "onnx")`` extracts them.
"""

from elman.interchange.weights.layouts import from_arrays, to_arrays

__all__ = ["from_arrays", "to_arrays"]

"""Models and weights for elsewhere, and from there: C99, ONNX, layouts of other libraries."""

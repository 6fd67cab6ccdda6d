"""Modules as ONNX: standard operators where there is one, else a ``Scan`` of the step."""

"""Weights of RNN, GRU and LSTM as other libraries lay them out, in and out.

``elman.weights.load(module, arrays, layout="keras")``, ``elman.weights.save(module, "onnx")``.
"""

from __future__ import annotations

from elman.weights.moving import load, save

__all__ = ["load", "save"]

"""Trained modules as ONNX: standard operators where there is one, else a ``Scan`` of the step."""

from __future__ import annotations

from elman.export.onnx.model import OnnxModel, to_onnx

__all__ = ["OnnxModel", "to_onnx"]

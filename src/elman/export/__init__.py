"""Trained modules for elsewhere: ``to_c``, ``to_onnx``."""

from elman.export.c import Exported, to_c
from elman.export.onnx.model import OnnxModel, to_onnx

__all__ = ["Exported", "OnnxModel", "to_c", "to_onnx"]

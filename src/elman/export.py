"""Export trained modules as C or ONNX: ``to_c``, ``to_onnx``."""

from elman.interchange.c.export import Exported, to_c
from elman.interchange.onnx import OnnxModel, to_onnx

__all__ = ["Exported", "OnnxModel", "to_c", "to_onnx"]

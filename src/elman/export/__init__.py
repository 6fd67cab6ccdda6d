"""Trained modules for elsewhere: ``to_c``."""

from elman.export.c import Exported, to_c

__all__ = ["Exported", "to_c"]

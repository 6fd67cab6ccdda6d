"""The version, in this place alone: the package's metadata, records of runs and caches read it."""

from __future__ import annotations

__version__ = "0.1.0"

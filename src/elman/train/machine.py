"""Facts about the machine, for a number to mean something later."""

from __future__ import annotations

import platform
from typing import Any

import torch

from elman.tuning.facts import cores, processor
from elman.version import __version__


def machine_facts() -> dict[str, Any]:
    """Return processor, cores, systems and versions."""
    return {
        "processor": processor(),
        "cores": cores(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "elman": __version__,
    }

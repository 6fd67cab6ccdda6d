"""Facts about the machine, for a number to mean something later."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Any

import torch

from elman.version import __version__


def machine_facts() -> dict[str, Any]:
    """Return processor, cores, systems and versions."""
    return {
        "processor": processor(),
        "cores": usable_cores(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "elman": __version__,
    }


def processor() -> str:
    """Return the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def usable_cores() -> int:
    """Return the number of cores this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

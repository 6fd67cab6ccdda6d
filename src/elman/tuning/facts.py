"""What a measurement depends on beside the job: machine, library versions, threads."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path

import torch

from elman.engines.precision import precision
from elman.version import __version__


@cache
def processor() -> str:
    """The CPU's model name."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.lower().startswith(("model name", "cpu part")):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def cores() -> int:
    """How many CPUs this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def verifying_facts() -> dict[str, str | int]:
    """Facts under which a kernel that agreed with the oracle is believed in another process."""
    return {"cpu": processor(), "torch": torch.__version__, "elman": __version__}


def machine_facts(device: str = "cpu") -> dict[str, str | int]:
    """Facts under which a benchmarked choice holds; JSON-able, equal on equal machines."""
    facts: dict[str, str | int] = {
        **verifying_facts(),
        "isa": torch.backends.cpu.get_cpu_capability(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
    }
    if device == "cuda":
        facts["gpu"] = torch.cuda.get_device_name()
        facts["float32"] = precision()
    return facts

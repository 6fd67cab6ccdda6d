"""What a measurement depends on beside the job: machine, library versions, threads."""

from __future__ import annotations

import os
import platform
from functools import cache
from importlib import metadata
from pathlib import Path

import torch

from elman.engines.precision import precision


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


@cache
def _version() -> str:
    """elman's version; a source tree that is not installed has none."""
    try:
        return metadata.version("elman")
    except metadata.PackageNotFoundError:
        return "source"


def cores() -> int:
    """How many CPUs this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def machine_facts(device: str = "cpu") -> dict[str, str | int]:
    """Facts under which a benchmarked choice holds; JSON-able, equal on equal machines."""
    facts: dict[str, str | int] = {
        "cpu": processor(),
        "isa": torch.backends.cpu.get_cpu_capability(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "elman": _version(),
    }
    if device == "cuda":
        facts["gpu"] = torch.cuda.get_device_name()
        facts["float32"] = precision()
    return facts

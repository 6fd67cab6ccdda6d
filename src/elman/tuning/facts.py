"""Facts that measurements depend on besides the job: machine, library versions, threads."""

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
    """The CPU's model name; its numbers where Linux tells those alone, as on ARM."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    return named_in(text) or platform.processor() or platform.machine()


def named_in(cpuinfo: str) -> str:
    """The name of the first processor that ``/proc/cpuinfo`` lists; empty if it has none."""
    facts: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        facts.setdefault(name.strip().lower(), value.strip())
    if "model name" in facts or "cpu part" not in facts:
        return facts.get("model name", "")
    numbers = (facts.get(name, "?") for name in ("cpu implementer", "cpu part", "cpu variant"))
    return "ARM {} part {} variant {}".format(*numbers)


def cores() -> int:
    """Number of CPUs available to this process."""
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

"""Facts that a figure depends on: machine, libraries, threads, compiler and code."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import torch

import elman
from elman.engines.c.compilation.build import Compiler, find_compiler
from elman.engines.c.compilation.isa import detect
from elman.tuning.machine import machine_facts

PACKAGE = Path(elman.__path__[0])
SOURCES = (PACKAGE, Path(__file__).parent)  # of what is measured, and of what measures
OTHER_ROOMS = {"cli", "report", "train", "scripts", "robustness"}  # of neither


def facts() -> dict[str, Any]:
    """The machine and what computes on it, JSON-able; ``load`` is that before the measurement."""
    compiler = find_compiler()
    return {
        **machine_facts(),
        "kernel_isa": detect().name,
        "blas": _blas(),
        "onednn": torch.backends.mkldnn.is_available(),
        "compiler": compiler.version if isinstance(compiler, Compiler) else "none",
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "load": _load(),
    }


def code() -> dict[str, str]:
    """Commit, and digest of the sources."""
    return {"commit": commit(), "code": digest()}


@cache
def commit(package: Path = PACKAGE) -> str:
    """The commit that the package was taken from, ``+`` behind it if files differ; else unknown."""
    top = _git(package, "rev-parse", "--show-toplevel")
    if not top or Path(top).resolve() / "src" / "elman" != package.resolve():
        return "unknown"  # installed inside some other repository
    head = _git(package, "rev-parse", "--short=12", "HEAD")
    changed = _git(package, "status", "--porcelain", "--", ".", ":/benchmarks/*.py")
    return f"{head}{'+' if changed else ''}" if head else "unknown"


@cache
def digest(folders: tuple[Path, ...] = SOURCES) -> str:
    """A digest of the sources that a measurement can depend on."""
    hashed = hashlib.sha256()
    for folder in folders:
        sources = (path for path in folder.rglob("*") if path.suffix in {".py", ".c", ".h"})
        for path in sorted(sources):
            inner = path.relative_to(folder)
            if inner.parts[0] not in OTHER_ROOMS:
                hashed.update(inner.as_posix().encode() + b"\0" + path.read_bytes())
    return hashed.hexdigest()[:12]


def _git(folder: Path, *words: str) -> str:
    try:
        ran = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ran.stdout.strip() if ran.returncode == 0 else ""


def _blas() -> str:
    match = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    return match[1] if match else "unknown"


def _load() -> float:
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else -1.0

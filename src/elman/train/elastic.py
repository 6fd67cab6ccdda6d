"""torchrun starts all processes again when one is gone: then the run that they were in goes on.

The first attempt leaves a mark in its run folder; the next attempts of the same torchrun look for
it. Several machines need a folder for runs that all of them see.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

import torch.distributed as dist

from elman.train.atomic import write_file
from elman.train.folder import list_runs

ANONYMOUS = ("", "none")  # run ids of torchruns that were given none


def begun(out: Path) -> Path | None:
    """Return the run folder that an earlier attempt of this torchrun has begun, if there is one.

    Raises:
        RunError: if the folder of the runs cannot be read.
    """
    mark = mark_of_torchrun()
    if mark is None:
        return None
    marked = [run.path for run in list_runs(out) if (run.path / mark).exists()]
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
        return marked[-1] if marked else None
    if os.environ.get("RANK") == "0":  # an earlier torchrun of the same name
        for path in marked:
            (path / mark).unlink(missing_ok=True)
    return None


def note(run: Path) -> None:
    """Leave the mark for later attempts."""
    mark = mark_of_torchrun()
    if mark is not None:
        write_file(run / mark, b"")


def mark_of_torchrun() -> str | None:
    """Name the file by which the attempts of this torchrun know their run; None without one."""
    if not (dist.is_available() and dist.is_torchelastic_launched()):
        return None
    name = os.environ.get("TORCHELASTIC_RUN_ID", "")
    if name in ANONYMOUS:  # torchrun itself is the parent of all its attempts
        name = f"{socket.gethostname()}-{os.getppid()}"
    return f".torchrun-{''.join(c if c.isalnum() or c in '-_' else '_' for c in name)}"

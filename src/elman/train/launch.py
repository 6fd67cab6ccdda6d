"""Lightning Fabric: device, precision, and one process per device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed
from lightning_fabric import Fabric

from elman.errors import InputError, RunError, diagnostic
from elman.train.config import Config


def launch(config: Config) -> Fabric:
    """Start the processes of a run; each returns from here with its own Fabric.

    Raises:
        InputError: if Fabric does not know the precision or device, or has too few of them.
    """
    try:
        fabric = Fabric(
            accelerator=config.accelerator,
            devices=config.devices,
            precision=config.precision,  # type: ignore[arg-type]
        )
    except (ValueError, RuntimeError) as error:
        details = [
            ("asked", f"{config.devices} x {config.accelerator}, precision {config.precision}"),
            ("said", str(error).splitlines()[0]),
        ]
        hint = "--accelerator cpu --devices 1 --precision 32-true"
        raise InputError(
            diagnostic("this device or precision cannot be had", details, hint)
        ) from error
    fabric.launch()
    torch.set_num_threads(config.threads or max(1, torch.get_num_threads() // config.devices))
    return fabric


@contextmanager
def noticing_loss(path: Path) -> Iterator[None]:
    """Say that another process of a run is gone, in place of the error of torch's connection.

    Args:
        path: folder of the run, to resume it.

    Raises:
        RunError: instead of an error of a collective operation.
    """
    try:
        yield
    except RuntimeError as error:
        if not (isinstance(error, torch.distributed.DistError) or "/gloo/" in str(error)):
            raise
        details = [("said", str(error).splitlines()[0])]
        hint = f"elman train --resume {path}"
        raise RunError(diagnostic("another process of the run is gone", details, hint)) from error


def rows_of(fabric: Fabric, batch: int) -> slice:
    """Return the rows of the batch that this process trains on."""
    each = batch // fabric.world_size
    return slice(fabric.global_rank * each, (fabric.global_rank + 1) * each)

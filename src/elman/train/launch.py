"""Lightning Fabric: device, precision, and one process per device."""

from __future__ import annotations

import torch
from lightning_fabric import Fabric

from elman.errors import InputError, rows
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
        raise InputError(rows("this device or precision cannot be had", details, hint)) from error
    fabric.launch()
    torch.set_num_threads(config.threads or max(1, torch.get_num_threads() // config.devices))
    return fabric


def rows_of(fabric: Fabric, batch: int) -> slice:
    """Return the rows of the batch that this process trains on."""
    each = batch // fabric.world_size
    return slice(fabric.global_rank * each, (fabric.global_rank + 1) * each)

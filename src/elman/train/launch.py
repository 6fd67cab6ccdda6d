"""Lightning Fabric: device, precision, and one process per device."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from lightning_fabric.strategies.strategy import Strategy

from elman.errors import InputError, RunError, diagnostic
from elman.train.averaging import mean
from elman.train.config import Config
from elman.train.connection import joining
from elman.train.elastic import Attempt, started_by_torchrun
from elman.train.sharding import sharding
from elman.train.workers import Workers

Configured = TypeVar("Configured", bound=Config)


def placed(config: Configured, *, resumed: bool = False) -> Configured:
    """Return a configuration with the processes that torchrun has started, if it has.

    Args:
        resumed: whether the configuration is that of a run begun earlier, maybe by other processes.

    Raises:
        InputError: if the configuration asks for others, or they cannot share a batch.
    """
    if not started_by_torchrun():
        return config
    world, here = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if world % here or (config.workers not in (1, world) and not resumed):
        details = [
            ("asked", f"{config.devices} devices on {config.nodes} nodes"),
            ("torchrun", f"{here} processes here, {world} in all"),
        ]
        hint = "leave --devices and --nodes out; as many processes on every node"
        raise InputError(
            diagnostic("torchrun has started other processes than asked for", details, hint)
        )
    return replace(config, devices=here, nodes=world // here)


def launch(config: Config, attempt: Attempt | None = None) -> Fabric:
    """Start the processes of a run; each returns from here with its own Fabric.

    Args:
        attempt: of processes that torchrun has started.

    Raises:
        InputError: if Fabric does not know the precision or device, or has too few of them.
        RunError: if the processes do not find one another.
    """
    check_place(config)
    try:
        fabric = Fabric(
            accelerator=config.accelerator,
            strategy=strategy(config),
            devices=config.devices,
            num_nodes=config.nodes,
            precision=config.precision,  # type: ignore[arg-type]
        )
    except (ValueError, RuntimeError) as error:
        details = [
            ("asked", f"{config.devices} x {config.accelerator}, precision {config.precision}"),
            ("said", str(error).splitlines()[0]),
        ]
        hint = "--accelerator cpu --devices 1 --precision 32-true"
        raise InputError(
            diagnostic("this device or precision is not available", details, hint)
        ) from error
    with joining(config.workers, config.timeout, config.nodes):
        if attempt is not None and attempt.store is not None:
            join(fabric, config, attempt.store)
        fabric.launch()
    torch.set_num_threads(config.threads or max(1, torch.get_num_threads() // config.devices))
    return fabric


def check_place(config: Config) -> None:
    """Refuse a place among several machines, as the environment tells it, that there is not.

    Raises:
        InputError: MASTER_PORT is not a port, or NODE_RANK not the number of a machine.
    """
    if config.nodes == 1:
        return
    for name, highest in (("MASTER_PORT", 65535), ("NODE_RANK", config.nodes - 1)):
        said = os.environ.get(name, "0")
        if not said.isdecimal() or int(said) > highest:
            details = [("said", f"{name}={said}"), ("machines", str(config.nodes))]
            text = f"{name} must be a number from 0 to {highest}"
            raise InputError(
                diagnostic(text, details, f"{name}={min(highest, 29500)} elman train …")
            )


def join(fabric: Fabric, config: Config, store: Any) -> None:
    """Form a group of the processes that have met in a store."""
    timeout, rank = timedelta(seconds=config.timeout), int(os.environ["RANK"])
    backend = "nccl" if fabric.device.type == "cuda" else "gloo"
    size = config.workers
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)


def strategy(config: Config) -> Strategy | str:
    """How processes train together: each a model of its own, or all a part of one."""
    timeout = timedelta(seconds=config.timeout)
    if config.workers == 1:
        return "auto"
    return sharding(config.workers, timeout) if config.shard else Workers(timeout=timeout)


def agreed(fabric: Fabric, *wished: bool) -> list[bool]:
    """Whether any process wishes each of several things; all processes answer alike, by one
    message."""
    if fabric.world_size == 1:
        return list(wished)
    votes = torch.tensor(wished, dtype=torch.float32, device=fabric.device)
    return [share > 0 for share in mean(votes).tolist()]


def rows_of(fabric: Fabric, batch: int) -> slice:
    """Return the rows of the batch that this process trains on."""
    each = batch // fabric.world_size
    return slice(fabric.global_rank * each, (fabric.global_rank + 1) * each)


def check_same_everywhere(fabric: Fabric, facts: Mapping[str, Any]) -> None:
    """Refuse to train together on different data, or by different configurations.

    Args:
        facts: what must be the same in every process, by name.

    Raises:
        RunError: in every process, if something differs.
    """
    if fabric.world_size == 1:
        return
    answers: list[dict[str, str]] = [{}] * fabric.world_size
    dist.all_gather_object(answers, {name: str(value) for name, value in facts.items()})
    for name, value in answers[0].items():
        for rank, theirs in enumerate(answers):
            if theirs.get(name) != value:
                details = [("process 0", value), (f"process {rank}", str(theirs.get(name)))]
                raise RunError(diagnostic(f"the processes differ in {name}", details))

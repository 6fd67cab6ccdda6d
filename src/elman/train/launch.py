"""Lightning Fabric: device, precision, and one process per device."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from lightning_fabric.strategies.strategy import Strategy
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from elman.errors import InputError, RunError, diagnostic
from elman.train.config import Config
from elman.train.sharding import sharding

Configured = TypeVar("Configured", bound=Config)


def placed(config: Configured, *, resumed: bool = False) -> Configured:
    """Return a configuration with the processes that torchrun has started, if it has.

    Args:
        resumed: whether the configuration is that of a run begun earlier, maybe by other processes.

    Raises:
        InputError: if the configuration asks for others, or they cannot share a batch.
    """
    if not (dist.is_available() and dist.is_torchelastic_launched()):
        return config
    world, here = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if (world % here or config.workers not in (1, world)) and not resumed:
        details = [
            ("asked", f"{config.devices} devices on {config.nodes} nodes"),
            ("torchrun", f"{here} processes here, {world} in all"),
        ]
        hint = "leave --devices and --nodes out; as many processes on every node"
        raise InputError(
            diagnostic("torchrun has started other processes than asked for", details, hint)
        )
    return replace(config, devices=here, nodes=world // here)


def launch(config: Config) -> Fabric:
    """Start the processes of a run; each returns from here with its own Fabric.

    Raises:
        InputError: if Fabric does not know the precision or device, or has too few of them.
        RunError: if the processes do not find one another.
    """
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
            diagnostic("this device or precision cannot be had", details, hint)
        ) from error
    try:
        join_attempt(fabric, config)
        fabric.launch()
    except RuntimeError as error:
        if not of_connection(error):
            raise
        details = [("said", str(error).splitlines()[0])]
        hint = (
            f"start all {config.workers} within --timeout {config.timeout:g} s; a free MASTER_PORT"
        )
        text = "the processes of the run have not found one another"
        raise RunError(diagnostic(text, details, hint)) from error
    torch.set_num_threads(config.threads or max(1, torch.get_num_threads() // config.devices))
    return fabric


def strategy(config: Config) -> Strategy | str:
    """How processes train together: each a model of its own, or all a part of one."""
    timeout = timedelta(seconds=config.timeout)
    if config.workers == 1:
        return "auto"
    return sharding(config.workers, timeout) if config.shard else DDPStrategy(timeout=timeout)


def agreed(fabric: Fabric, *wished: bool) -> list[bool]:
    """Whether any process wishes each of several things; all processes answer alike, by one
    message."""
    if fabric.world_size == 1:
        return list(wished)
    votes = torch.tensor(wished, dtype=torch.float32, device=fabric.device)
    counted = fabric.all_reduce(votes, reduce_op="sum")
    assert isinstance(counted, torch.Tensor), "the sum of a tensor is one"
    return [count > 0 for count in counted.tolist()]


def join_attempt(fabric: Fabric, config: Config) -> None:
    """Meet the other processes of this attempt of torchrun, if it has started them.

    Its attempts share one store, in which processes would find the addresses of those that are
    gone: each attempt gets a corner of its own.
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT")
    if attempt is None or config.workers == 1:
        return
    timeout = timedelta(seconds=config.timeout)
    store, rank, world = next(rendezvous("env://", timeout=timeout))
    own = PrefixStore(f"attempt {attempt}", store)
    backend = "nccl" if fabric.device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=own, rank=rank, world_size=world, timeout=timeout)


def of_connection(error: RuntimeError) -> bool:
    """Whether an error is of the connection between processes."""
    return isinstance(error, dist.DistError) or "gloo" in str(error).lower()


@contextmanager
def noticing_loss(hint: str) -> Iterator[None]:
    """Say that another process of a run is gone, in place of the error of torch's connection.

    Args:
        hint: what to do then.

    Raises:
        RunError: instead of an error of a collective operation.
    """
    try:
        yield
    except RuntimeError as error:
        if not of_connection(error):
            raise
        details = [("said", str(error).splitlines()[0])]
        raise RunError(diagnostic("another process of the run is gone", details, hint)) from error


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
    told: list[dict[str, str]] = [{}] * fabric.world_size
    dist.all_gather_object(told, {name: str(value) for name, value in facts.items()})
    for name, value in told[0].items():
        for rank, theirs in enumerate(told):
            if theirs.get(name) != value:
                details = [("process 0", value), (f"process {rank}", str(theirs.get(name)))]
                raise RunError(diagnostic(f"the processes differ in {name}", details))

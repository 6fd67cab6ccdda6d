"""Processes of a run, one per device: start, rendezvous, and detection of lost processes.

Lightning Fabric starts them, or torchrun, which restarts all of them when one dies. The first
attempt leaves a mark with the name of torchrun's launch in its run folder; a later attempt looks
for the mark and resumes that run. Several machines need a folder for runs that all can access.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
from lightning_fabric.strategies.strategy import Strategy
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from elman.errors import InputError, RunError, diagnostic
from elman.files import write_atomically
from elman.train.distributed.gradients import Workers, mean, shard
from elman.train.loop.config import Config
from elman.train.run.folder import list_runs

LOOPBACK = ("127.", "::1]")  # how addresses of this machine itself begin


def is_connection_error(error: RuntimeError) -> bool:
    """Whether an error is of the connection between processes."""
    return isinstance(error, dist.DistError) or "gloo" in str(error).lower()


@contextmanager
def translate_connection_errors(text: str, hint: str, loopback_hint: str = "") -> Iterator[None]:
    """Raise RunError in place of errors of the connection between processes.

    Args:
        loopback_hint: what to do if the connection was to this machine itself.
    """
    try:
        yield
    except RuntimeError as error:
        if not is_connection_error(error):
            raise
        first_line = str(error).splitlines()[0]
        if loopback_hint and any(f"[{address}" in first_line for address in LOOPBACK):
            hint = loopback_hint
        raise RunError(text, hint, said=first_line) from error


def check_rendezvous(workers: int, timeout: float, nodes: int = 1) -> AbstractContextManager[None]:
    """Raise RunError if the processes of a run do not find one another within so many seconds.

    Gloo takes the address that a machine's name has there, which may be one that leads no further
    than the machine.
    """
    text = "the processes of the run have not found one another"
    hint = f"start all {workers} within --timeout {timeout:g} s; a free MASTER_PORT"
    variable = "GLOO_SOCKET_IFNAME=eth0 on each machine, as its interface to the others is called"
    return translate_connection_errors(text, hint, variable if nodes > 1 else "")


def detect_lost_process(hint: str) -> AbstractContextManager[None]:
    """Raise RunError, with what to do then, if another process of a run is gone."""
    return translate_connection_errors("another process of the run is gone", hint)


@dataclass(frozen=True)
class Attempt:
    """One attempt of torchrun, before its processes form a group.

    Attributes:
        launch: torchrun's ``--rdzv-id``, else a name in its store; empty without torchrun.
        earlier_run: run folder of an earlier attempt; None for the first attempt.
        store: the part of torchrun's store that belongs to this attempt; None without torchrun.
    """

    launch: str = ""
    earlier_run: Path | None = None
    store: Any = None

    def mark_run(self, run: Path) -> None:
        """Leave a mark in a run folder, so that later attempts find it."""
        if self.launch:
            write_atomically(run / mark(self.launch), b"", durable=True)


def started_by_torchrun() -> bool:
    """Whether torchrun has started this process."""
    return dist.is_available() and dist.is_torchelastic_launched()


def find_attempt(timeout: float, out: Path | None = None) -> Attempt:
    """Connect to torchrun's store and find the run of an earlier attempt, if torchrun has started
    this process.

    torch 2.13 keeps one store for all attempts on a machine, with addresses of processes that are
    gone; the number of restarts tells attempts apart. Several machines count restarts differently,
    so they need a store per attempt (TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1).

    Args:
        timeout: of each wait (s).
        out: folder of runs, searched for that of an earlier attempt.

    Raises:
        RunError: the store or the first process does not answer, or the folder of the runs cannot
            be read.
    """
    if not started_by_torchrun():
        return Attempt()
    with check_rendezvous(int(os.environ["WORLD_SIZE"]), timeout):
        tcp_store, rank, _ = next(rendezvous("env://", timeout=timedelta(seconds=timeout)))
        restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = PrefixStore(f"attempt {restarts}", tcp_store) if uses_agent_store() else tcp_store
        launch = os.environ["TORCHELASTIC_RUN_ID"]
        if launch == "none":  # torchrun was started without --rdzv-id
            launch = tcp_store.compare_set("elman launch", "", uuid.uuid4().hex).decode()
        if rank == 0:
            store.set("earlier run", str(run_of_launch(out, launch) or ""))
        folder = store.get("earlier run").decode()
    return Attempt(launch, Path(folder) if folder else None, store)


def uses_agent_store() -> bool:
    """Whether all attempts share the store of torchrun's agent."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def run_of_launch(out: Path | None, launch: str) -> Path | None:
    """The last run folder that carries the mark of a launch, or None. Raises RunError: the folder
    of the runs cannot be read."""
    runs = [] if out is None else [run.path for run in list_runs(out)]
    marked = [path for path in runs if (path / mark(launch)).exists()]
    return marked[-1] if marked else None


def mark(launch: str) -> str:
    """Name of the file that a launch leaves in its run folder."""
    return f".torchrun-{''.join(c if c.isalnum() or c in '-_' else '_' for c in launch)}"


AnyConfig = TypeVar("AnyConfig", bound=Config)


def with_processes(config: AnyConfig, *, resumed: bool = False) -> AnyConfig:
    """Return a configuration with the processes that torchrun has started, if it has.

    Args:
        resumed: whether the configuration is that of a run begun earlier, maybe by other processes.

    Raises:
        InputError: if the configuration asks for others, or they cannot share a batch.
    """
    if not started_by_torchrun():
        return config
    world, local = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if world % local or (config.workers not in (1, world) and not resumed):
        hint = "leave --devices and --nodes out; as many processes on every node"
        raise InputError(
            "torchrun has started other processes than asked for",
            hint,
            asked=f"{config.devices} devices on {config.nodes} nodes",
            torchrun=f"{local} processes here, {world} in all",
        )
    return replace(config, devices=local, nodes=world // local)


def check_copies(config: Config) -> None:
    """Raise InputError if the copies of a model are to be averaged, and there are none. (A run that
    is resumed by one process may go on.)"""
    if config.average_every > 1 and (config.workers == 1 or config.shard):
        why = "--shard keeps one" if config.workers > 1 else "there is one process"
        raise InputError(f"--average-every averages copies of a model: {why}", "leave it out")


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
        hint = "--accelerator cpu --devices 1 --precision 32-true"
        raise InputError(
            "this device or precision is not available",
            hint,
            asked=f"{config.devices} x {config.accelerator}, precision {config.precision}",
            said=str(error).splitlines()[0],
        ) from error
    with check_rendezvous(config.workers, config.timeout, config.nodes):
        if attempt is not None and attempt.store is not None:
            dist.init_process_group(
                "nccl" if fabric.device.type == "cuda" else "gloo",
                store=attempt.store,
                rank=int(os.environ["RANK"]),
                world_size=config.workers,
                timeout=timedelta(seconds=config.timeout),
            )
        fabric.launch()
    torch.set_num_threads(config.threads or max(1, torch.get_num_threads() // config.devices))
    return fabric


def check_place(config: Config) -> None:
    """Check rank and port of this machine in the environment. Raises
    InputError: MASTER_PORT is not a port, or NODE_RANK not the number of a machine."""
    if config.nodes == 1:
        return
    for name, highest in (("MASTER_PORT", 65535), ("NODE_RANK", config.nodes - 1)):
        text_value = os.environ.get(name, "0")
        if not text_value.isdecimal() or int(text_value) > highest:
            text = f"{name} must be a number from 0 to {highest}"
            raise InputError(
                text,
                f"{name}={min(highest, 29500)} elman train …",
                said=f"{name}={text_value}",
                machines=config.nodes,
            )


def strategy(config: Config) -> Strategy | str:
    """Choose Fabric's strategy: one process, a copy of the model in each, or shards of one."""
    timeout = timedelta(seconds=config.timeout)
    if config.workers == 1:
        return "auto"
    if config.shard:
        return ModelParallelStrategy(shard, config.workers, 1, timeout=timeout)
    return Workers(local_sgd=config.average_every > 1, timeout=timeout)


def vote(fabric: Fabric, *flags: bool) -> list[bool]:
    """Logical OR of several flags over all processes, in one message (collective)."""
    if fabric.world_size == 1:
        return list(flags)
    votes = torch.tensor(flags, dtype=torch.float32, device=fabric.device)
    return [share > 0 for share in mean(votes).tolist()]


def rows_of(fabric: Fabric, batch: int) -> slice:
    """Return the rows of the batch that this process trains on."""
    size = batch // fabric.world_size
    return slice(fabric.global_rank * size, (fabric.global_rank + 1) * size)


def check_agreement(fabric: Fabric, facts: Mapping[str, Any]) -> None:
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
        for rank, answer in enumerate(answers):
            if answer.get(name) != value:
                details = [("process 0", value), (f"process {rank}", str(answer.get(name)))]
                raise RunError(diagnostic(f"the processes differ in {name}", details))

"""Restarts by torchrun: its processes go on with the run that an earlier attempt of theirs began.

torchrun starts all processes anew when one is gone or others join. The first attempt leaves a mark
with the name of torchrun's launch in its run folder, and the processes of a later attempt look for
it. Several machines need a folder for runs that all see.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from elman.files import write_atomically
from elman.train.connection import joining
from elman.train.folder import list_runs

PAUSE_S = 0.01  # between looks at which processes have come


@dataclass(frozen=True)
class Attempt:
    """The processes of one attempt of torchrun, before they form a group.

    Attributes:
        launch: torchrun's ``--rdzv-id``, else a name in its store; empty without torchrun.
        earlier_run: the run folder that an earlier attempt began; None if there is none.
        store: a part of torchrun's store that no other attempt uses; None without torchrun.
    """

    launch: str = ""
    earlier_run: Path | None = None
    store: Any = None

    def mark_run(self, run: Path) -> None:
        """Leave a mark in a run folder, by which later attempts know it."""
        if self.launch:
            write_atomically(run / mark(self.launch), b"", durable=True)


def started_by_torchrun() -> bool:
    """Whether torchrun has started this process."""
    return dist.is_available() and dist.is_torchelastic_launched()


def meet(timeout: float, out: Path | None = None) -> Attempt:
    """Wait for the other processes of this attempt, if torchrun has started them.

    Args:
        timeout: how long, for all waits together (s).
        out: folder of runs, where that of an earlier attempt is looked for.

    Raises:
        RunError: if they do not come, or the folder of the runs cannot be read.
    """
    if not started_by_torchrun():
        return Attempt()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    deadline = time.monotonic() + timeout
    with joining(world, timeout):
        if rank or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            await_store(deadline)
        shared, _, _ = next(rendezvous("env://", timeout=time_left(deadline)))
        shared.set_timeout(time_left(deadline))
        store = attempt_store(shared, rank, world, deadline)
        launch = os.environ["TORCHELASTIC_RUN_ID"]
        if launch == "none":  # torchrun was given no --rdzv-id
            launch = shared.compare_set("elman launch", "", uuid.uuid4().hex).decode()
        if rank == 0:
            path = run_of_launch(out, launch)
            store.set("earlier run", "" if path is None else str(path))
        folder = store.get("earlier run").decode()
        shared.set_timeout(timedelta(seconds=timeout))
    return Attempt(launch, Path(folder) if folder else None, store)


def time_left(deadline: float) -> timedelta:
    """The time to a deadline (monotonic clock); never zero, which torch takes for no limit."""
    return timedelta(seconds=max(PAUSE_S, deadline - time.monotonic()))


def await_store(deadline: float) -> None:
    """Wait until somebody listens where the store should be: torch's own attempts to connect take
    up to twice their timeout where nobody does, as behind a torchrun that was killed.

    Raises:
        DistNetworkError: if nobody does before the deadline (monotonic clock).
    """
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    while True:
        try:
            socket.create_connection(place, timeout=time_left(deadline).total_seconds()).close()
        except OSError as error:
            if time.monotonic() + PAUSE_S > deadline:
                text = f"no store at {place[0]}:{place[1]}: {error.strerror or error}"
                raise dist.DistNetworkError(text) from error
            time.sleep(PAUSE_S)
        else:
            return


def run_of_launch(out: Path | None, launch: str) -> Path | None:
    """The last run folder that carries the mark of a launch, or None.

    Raises:
        RunError: if the folder of the runs cannot be read.
    """
    runs = [] if out is None else [run.path for run in list_runs(out)]
    marked = [path for path in runs if (path / mark(launch)).exists()]
    return marked[-1] if marked else None


def attempt_store(store: Any, rank: int, world: int, deadline: float) -> Any:
    """A part of torchrun's store that only the processes of this attempt use.

    torch 2.13 keeps one store for all attempts: processes would find addresses of those that are
    gone. Nothing tells attempts apart, for each agent counts restarts by itself, and none when a
    machine joins. So each process leaves a name that is new, and the first one, which cannot know
    an old name from a new one, answers all until every process has said that it heard.

    Raises:
        DistError: if they do not come before the deadline (monotonic clock).
    """
    name = uuid.uuid4().hex
    if rank:
        store.set(f"came {rank}", name)
        prefix = store.get(f"part of {name}").decode()
        store.add(f"heard of {prefix}", 1)
        return PrefixStore(prefix, store)
    while (heard := store.add(f"heard of {name}", 0)) < world - 1:
        if time.monotonic() > deadline:
            raise dist.DistStoreError(f"{heard + 1} of {world} processes came")
        for key in (f"came {other}" for other in range(1, world)):
            if store.check([key]):
                store.set(f"part of {store.get(key).decode()}", name)
        time.sleep(PAUSE_S)
    return PrefixStore(name, store)


def mark(launch: str) -> str:
    """Name of the file that a launch leaves in its run folder."""
    return f".torchrun-{''.join(c if c.isalnum() or c in '-_' else '_' for c in launch)}"

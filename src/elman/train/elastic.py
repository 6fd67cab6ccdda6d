"""torchrun starts all processes anew when one is gone or others join: the run goes on with them.

Each process that torchrun starts is a child of the torchrun of its machine, its *agent*. The first
attempt leaves a mark of every agent in its run folder; the processes of a later attempt look for a
run that one of theirs took part in. Several machines need a folder for runs that all of them see.
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from elman.train.atomic import write_file
from elman.train.connection import joining
from elman.train.folder import list_runs

PAUSE_S = 0.01  # between looks at who has come


@dataclass(frozen=True)
class Attempt:
    """The processes of one attempt of torchrun, before they are a group; of none without it.

    Attributes:
        agents: their torchruns, one per machine.
        begun: the run folder that one of these took part in; None if they begin one.
        store: a part of torchrun's store that no other attempt uses; None for a single process.
    """

    agents: list[str] = field(default_factory=list)
    begun: Path | None = None
    store: Any = None

    def note(self, run: Path) -> None:
        """Leave marks in a run folder, by which later attempts know it."""
        for agent in self.agents:
            write_file(run / mark(agent), b"")


def started() -> bool:
    """Whether torchrun has started this process."""
    return dist.is_available() and dist.is_torchelastic_launched()


def meet(timeout: float, out: Path | None = None) -> Attempt:
    """Wait for the other processes of this one's attempt, if torchrun has started them.

    Args:
        timeout: how long (s).
        out: folder of runs, where one is looked for that an earlier attempt has begun.

    Raises:
        RunError: if they do not come, or the folder of the runs cannot be read.
    """
    if not started():
        return Attempt()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world == 1:
        return Attempt([agent()], begun(out, [agent()]))
    end = time.monotonic() + timeout
    with joining(world, timeout):
        if rank or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            await_store(end)
        shared, _, _ = next(rendezvous("env://", timeout=left(end)))
        shared.set_timeout(left(end))
        store = own_part(shared, rank, world, end)
        store.set(f"agent {rank}", agent())
        if rank == 0:
            agents = sorted({store.get(f"agent {one}").decode() for one in range(world)})
            store.set("agents", json.dumps(agents))
            path = begun(out, agents)
            store.set("begun", "" if path is None else str(path))
        agents, folder = json.loads(store.get("agents")), store.get("begun").decode()
        shared.set_timeout(timedelta(seconds=timeout))
    return Attempt(agents, Path(folder) if folder else None, store)


def left(end: float) -> timedelta:
    """The time to a moment of the monotonic clock; never none, which torch takes for no limit."""
    return timedelta(seconds=max(PAUSE_S, end - time.monotonic()))


def await_store(end: float) -> None:
    """Wait until somebody listens where the store should be: torch's own attempts to connect take
    up to twice their timeout where nobody does, as behind a torchrun that was killed.

    Raises:
        DistNetworkError: if nobody does until then.
    """
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    while True:
        try:
            socket.create_connection(place, timeout=left(end).total_seconds()).close()
        except OSError as error:
            if time.monotonic() + PAUSE_S > end:
                text = f"no store at {place[0]}:{place[1]}: {error.strerror or error}"
                raise dist.DistNetworkError(text) from error
            time.sleep(PAUSE_S)
        else:
            return


def begun(out: Path | None, agents: list[str]) -> Path | None:
    """Return the last run folder that one of these agents took part in, if there is one.

    Raises:
        RunError: if the folder of the runs cannot be read.
    """
    marks = [mark(one) for one in agents]
    runs = [] if out is None else [run.path for run in list_runs(out)]
    marked = [path for path in runs if any((path / name).exists() for name in marks)]
    return marked[-1] if marked else None


def own_part(store: Any, rank: int, world: int, end: float) -> Any:
    """Return a part of a store that only these processes use.

    Attempts of torchrun share one store, in which processes would find addresses of those that are
    gone, and nothing tells attempts apart: where a machine joins, restarts are not counted. So each
    process leaves a name that nobody had before, and the first one, which cannot know an old name
    from a new one, answers all until every process has said that it heard.

    Args:
        end: of the wait (monotonic clock).

    Raises:
        DistError: if they do not come in time.
    """
    own = uuid.uuid4().hex
    if rank:
        store.set(f"came {rank}", own)
        part = store.get(f"part of {own}").decode()
        store.add(f"heard of {part}", 1)
        return PrefixStore(part, store)
    while (heard := store.add(f"heard of {own}", 0)) < world - 1:
        if time.monotonic() > end:
            raise dist.DistStoreError(f"{heard + 1} of {world} processes came")
        for name in (f"came {other}" for other in range(1, world)):
            if store.check([name]):
                store.set(f"part of {store.get(name).decode()}", own)
        time.sleep(PAUSE_S)
    return PrefixStore(own, store)


def mark(agent: str) -> str:
    """Name the file that an agent leaves in its run folder."""
    return f".torchrun-{''.join(c if c.isalnum() or c in '-_' else '_' for c in agent)}"


def agent() -> str:
    """Name the torchrun that has started this process: the same for all that it starts."""
    pid = os.getppid()
    try:  # when it began, for process numbers come again
        began = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        began = ""
    return f"{socket.gethostname()}-{pid}-{began}"

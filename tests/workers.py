"""`elman train` and `resume` in processes of their own, one or several, and what they left."""

from __future__ import annotations

import shutil
import socket
from hashlib import sha256
from pathlib import Path

import pytest
from filelock import FileLock

from elman.cli import main
from elman.train.loop.metrics import read_metrics
from elman.train.run import checkpoint
from elman.train.run.folder import RunFolder, list_runs
from forked import Forked
from scripts import begin, finished

ELMAN = ("-m", "elman_command")
TRAIN, RESUME = (*ELMAN, "train"), (*ELMAN, "resume")
OPTIONS = (
    *("--layers=1", "--hidden=8", "--embedding=8", "--batch=8", "--bptt=16", "--log-every=1"),
    *("--validate-every=1000", "--checkpoint-every=4", "--validation-chars=300"),
    *("--accelerator=cpu", "--engine=aten", "--threads=1", "--no-compare", "--timeout=60"),
)


def torchrun(processes: int, *words: str) -> Forked:
    """Start `elman train` by torchrun, which starts anew once what was killed."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--max-restarts=1")
    return begin(*launcher, f"--nproc-per-node={processes}", *TRAIN, *words)


def as_torchrun(processes: int, *words: str) -> list[Forked]:
    """Start the processes of a command as torchrun does, which looks after none of them."""
    world = str(processes)
    told = {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "TORCHELASTIC_RUN_ID": "tests"}
    told |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]
    return [begin(*words, **told, **rank) for rank in ranks]


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def only_run(out: Path) -> RunFolder:
    """The one run folder below a folder."""
    (run,) = list_runs(out)
    return run


def losses(out: Path) -> list[float]:
    """The training losses of the one run below a folder, by step."""
    return [row.train_loss for row in read_metrics(only_run(out).metrics)]


def cut_short(run: RunFolder, step: int) -> None:
    """Make a run that has ended one that was stopped after a step, at a checkpoint."""
    (run.path / "result.json").unlink()
    for path in checkpoint.list_checkpoints(run.checkpoints):
        if int(path.name.removeprefix("step-")) > step:
            shutil.rmtree(path)


class Common:
    """Runs that several tests begin with: each is trained once for all processes of pytest."""

    def __init__(self, shared: Path, data: Path, own: Path) -> None:
        self._shared, self._data, self._own = shared, data, own

    def __call__(self, *words: str, processes: int = 1) -> Path:
        """A folder with a copy of the run of these options, of a test's own.

        Args:
            words: options of `elman train` beside OPTIONS.
            processes: as many; one is this one, and several are started as torchrun does.
        """
        name = sha256("\0".join((*words, str(processes))).encode()).hexdigest()[:12]
        kept, copy = self._shared / name, self._own / name
        with FileLock(kept.with_suffix(".lock")):
            if not kept.exists():
                made = kept.with_suffix(".made")
                options = (f"--data={self._data}", f"--out={made}", *OPTIONS, *words)
                if processes == 1:
                    with pytest.raises(SystemExit, match="0"):
                        main(("train", *options))
                else:
                    finished(*as_torchrun(processes, *TRAIN, *options))
                made.rename(kept)
        if not copy.exists():
            shutil.copytree(kept, copy)
        return copy

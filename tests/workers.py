"""`elman train` in processes of its own, one or several, and what they left."""

from __future__ import annotations

import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

from filelock import FileLock

from elman.train import checkpoint
from elman.train.folder import RunFolder, list_runs
from elman.train.metrics import read_metrics
from runs import environment

ELMAN = ("-m", "elman", "train")
OPTIONS = (
    *("--layers=1", "--hidden=8", "--embedding=8", "--batch=8", "--bptt=16", "--log-every=1"),
    *("--validate-every=1000", "--checkpoint-every=4", "--validation-chars=300"),
    *("--accelerator=cpu", "--engine=aten", "--threads=1", "--no-compare", "--timeout=60"),
)
PATIENCE_S = 150.0


def begin(*words: str, **more: str) -> subprocess.Popen[str]:
    """Start Python in a process of its own."""
    pipe = subprocess.PIPE
    command = [sys.executable, *words]
    return subprocess.Popen(command, env=environment() | more, stdout=pipe, stderr=pipe, text=True)


def torchrun(processes: int, *words: str) -> subprocess.Popen[str]:
    """Start `elman train` by torchrun, which starts anew once what was killed."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--max-restarts=1")
    return begin(*launcher, f"--nproc-per-node={processes}", *ELMAN, *words)


def finished(process: subprocess.Popen[str], status: int = 0) -> str:
    """Wait for a process; what it said."""
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == status, out + err
    return out + err


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
    for path in checkpoint.listed(run.checkpoints):
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
            processes: as many of Fabric's, or of torchrun from four on.
        """
        name = sha256("\0".join((*words, str(processes))).encode()).hexdigest()[:12]
        kept, copy = self._shared / name, self._own / name
        with FileLock(kept.with_suffix(".lock")):
            if not kept.exists():
                made = kept.with_suffix(".made")
                options = (f"--data={self._data}", f"--out={made}", *OPTIONS, *words)
                if processes > 2:
                    finished(torchrun(processes, *options))
                else:
                    finished(begin(*ELMAN, *options, f"--devices={processes}"))
                made.rename(kept)
        if not copy.exists():
            shutil.copytree(kept, copy)
        return copy

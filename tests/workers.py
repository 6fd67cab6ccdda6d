"""`elman train` in processes of its own, one or several, and what they left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from elman.train.folder import RunFolder, list_runs
from elman.train.metrics import read_metrics
from runs import environment

ELMAN = ("-m", "elman", "train")
OPTIONS = (
    *("--layers=1", "--hidden=8", "--embedding=6", "--batch=8", "--bptt=16", "--log-every=1"),
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

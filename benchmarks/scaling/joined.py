"""Program: processes of this machine that compute at once, and sum their gradients as runs do.

``python -m benchmarks.scaling.joined`` reads what to do as a JSON object and prints what the first
process found.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.programs import program
from benchmarks.scaling.links import Memory
from benchmarks.scaling.times import Stack, alone
from elman.measuring.process import ProcessError, run_program
from elman.measuring.timing import time_side_by_side
from elman.train.distributed.gradients import average_gradients
from elman.train.run.stored import filled
from elman.tuning.decisions import sending_after_backward

PAIR = 2
MESSAGES = (1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 22, 1 << 24)  # bytes
MESSAGE_ROUNDS, LEAST_STEPS, WARM_UP = 25, 5, 4
STEP_S = 6.0  # for the steps of a run
LIMIT_S = 120.0  # of a program
WAIT = timedelta(seconds=60)  # of a process for another


def measure_memory() -> Memory:
    """What two processes of this machine sum gradients through.

    Raises:
        ProcessError: they failed or took too long.
    """
    sums = _ran({"work": "sums", "processes": PAIR, "threads": 1, "messages": MESSAGES})
    return fitted(sums["seconds"])


def fitted(seconds: dict[str, float]) -> Memory:
    """The memory through which two processes take such times for sums.

    A line in the bytes of a sum, each time weighted by its inverse, so that errors are relative
    ones: each process writes its own values, and reads those of both.

    Args:
        seconds: by bytes of a sum.
    """
    sizes = torch.tensor([float(size) for size in seconds], dtype=torch.float64)
    times = torch.tensor(list(seconds.values()), dtype=torch.float64)
    lines = torch.stack([torch.ones_like(sizes), sizes], 1) / times[:, None]
    fixed, per_byte = torch.linalg.lstsq(lines, torch.ones_like(times)).solution.tolist()
    return Memory(max(fixed, 0.0), (PAIR + 1) / max(per_byte, 1e-15))


def measure_sharing(stack: Stack, seconds: float = STEP_S) -> float:
    """What DistributedDataParallel adds to a training step without another process (s).

    Args:
        stack: what is computed; one sample of it, where the difference is most of the step.
        seconds: for all steps, starting aside (s).

    Raises:
        ProcessError: it failed or took too long.
    """
    what = {"work": "sharing", "processes": 1, "threads": stack.threads}
    return float(_ran(what | _of(stack, seconds))["sharing_s"])


@dataclass(frozen=True)
class Ran:
    """Training steps of processes on one machine.

    Attributes:
        step_s: the median step (s).
        core_s: what a step takes of cores, in each process (s).
    """

    step_s: float
    core_s: float


def measure_joined(
    stack: Stack, minibatch: int, processes: int, seconds: float = STEP_S, work: str = "steps"
) -> Ran:
    """Training steps of a stack by processes that sum their gradients.

    Args:
        stack: what each process computes, with its threads.
        minibatch: of each.
        processes: how many.
        seconds: for all steps, starting aside (s).
        work: "contention" if each has a model of its own, and they sum nothing.

    Raises:
        ProcessError: they failed or took too long.
    """
    what = {"work": work, "processes": processes, "threads": stack.threads}
    return Ran(**_ran({**what, **_of(stack, seconds), "minibatch": minibatch}))


def measure_contention(
    stack: Stack, minibatch: int, processes: int, seconds: float = STEP_S
) -> float:
    """A step while so many processes take theirs, each with a model of its own (s)."""
    return measure_joined(stack, minibatch, processes, seconds, "contention").step_s


def _of(stack: Stack, seconds: float) -> dict[str, Any]:
    return {"stack": vars(stack), "seconds": seconds}


def _ran(what: dict[str, Any]) -> Any:
    if not dist.is_available():
        raise ProcessError("this torch was built without torch.distributed")
    child = program("scaling.joined", threads=what["threads"], text=json.dumps(what))
    return json.loads(run_program(child, LIMIT_S))


def _sums(what: dict[str, Any]) -> dict[str, Any]:
    """Time sums of gradients, one size after another in each round."""
    weights = [nn.Parameter(torch.ones(size // 4)) for size in what["messages"]]
    given = [weight.detach().clone() for weight in weights]
    taken: list[list[float]] = [[] for _ in weights]
    for _ in range(MESSAGE_ROUNDS + WARM_UP):
        for weight, own, times in zip(weights, given, taken, strict=True):
            weight.grad = own
            dist.barrier()
            start = time.perf_counter()
            average_gradients([weight], torch.empty(0))
            times.append(time.perf_counter() - start)
    steady = [median(times[WARM_UP:]) for times in taken]
    return {"seconds": dict(zip(map(str, what["messages"]), steady, strict=True))}


def _contention(what: dict[str, Any]) -> dict[str, Any]:
    """Time training steps of processes that have nothing to do with one another."""
    return _trained(what, lambda net: None)


def _steps(what: dict[str, Any]) -> dict[str, Any]:
    """Time training steps of processes that share one model."""
    none = torch.empty(0, dtype=getattr(torch, what["stack"]["dtype"]))
    return _trained(what, lambda net: average_gradients(net.parameters(), none))


def _trained(what: dict[str, Any], after: Callable[[nn.Module], object]) -> dict[str, Any]:
    """Time training steps, and what follows each."""
    stack: Stack = filled(Stack, what["stack"])
    net = stack.module()
    step = alone(stack, net, what["minibatch"])

    def run() -> None:
        with sending_after_backward():
            step()
        after(net)

    return _timed(run, what["seconds"])


def _timed(run: Callable[[], None], seconds: float) -> dict[str, Any]:
    """Time steps of all processes, as many in each, until they have taken so long (s)."""
    for _ in range(WARM_UP):
        run()
    start = time.perf_counter()
    run()
    rounds = torch.tensor([seconds / (time.perf_counter() - start)])
    dist.all_reduce(rounds, dist.ReduceOp.MIN)
    taken, used = [], time.process_time()
    for _ in range(max(LEAST_STEPS, math.ceil(rounds.item()))):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    core_s = (time.process_time() - used) / len(taken)
    return {"step_s": median(taken), "core_s": core_s}


def _sharing(what: dict[str, Any]) -> dict[str, Any]:
    """Time steps of one sample with and without the wrapper, in alternating rounds."""
    stack: Stack = filled(Stack, what["stack"])
    module = stack.module()
    plain = alone(stack, module, 1)
    plain()
    net = DistributedDataParallel(stack.module())
    wrapped = stack.step(net, 1)

    def run() -> None:
        net.zero_grad()
        wrapped()

    samples = time_side_by_side({"alone": plain, "wrapped": run}, what["seconds"], 3)
    both = zip(samples["wrapped"].steady, samples["alone"].steady, strict=True)
    return {"sharing_s": max(0.0, median(more - less for more, less in both))}


WORK: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "sums": _sums,
    "steps": _steps,
    "sharing": _sharing,
    "contention": _contention,
}


def join(rank: int, what: dict[str, Any], folder: str) -> None:
    """One of the processes: the first one leaves what it found in the folder."""
    torch.set_num_threads(what["threads"])
    size, place = what["processes"], f"file://{folder}/store"
    dist.init_process_group("gloo", place, world_size=size, rank=rank, timeout=WAIT)
    found = WORK[what["work"]](what)
    if rank == 0:
        Path(folder, "found.json").write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Read, start the processes, print."""
    what = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as folder:
        spawn(join, (what, folder), nprocs=what["processes"])
        found = json.loads(Path(folder, "found.json").read_text(encoding="utf-8"))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()

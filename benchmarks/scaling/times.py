"""Training steps of a stack over its minibatch: measured here, or stored by another machine."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.machine import facts
from benchmarks.scaling.forecast import Times, powers
from elman.errors import RunError, diagnostic
from elman.files import write_atomically
from elman.measuring.timing import WARM_UP, quartiles, time_side_by_side
from elman.train.loop.config import Config
from elman.train.loop.layers import recurrent
from elman.train.run.stored import DamageError, Positive, Range, Share, filled, read_object
from elman.tuning.waiting import Waiting

BUDGET_S = 30.0  # for all minibatches
SHARING_S = 6.0  # for what sharing costs beside sums
LEAST_ROUNDS = 3
BEFORE = 2 + WARM_UP  # calls of each minibatch before the rounds begin


@dataclass(frozen=True)
class Stack:
    """What is computed: layers of a cell, each as wide as its input.

    Attributes:
        cell: a name of ``elman.cells``, or file.py:cell.
        hidden: units per layer.
        layers: of the stack.
        steps: T.
        dtype: of the computation.
        threads: of the process.
    """

    cell: str
    hidden: int
    layers: int
    steps: int
    dtype: str
    threads: int

    def __str__(self) -> str:
        return (
            f"{self.layers} layers of {self.cell}, {self.hidden} units, T={self.steps}, "
            f"{self.dtype}"
        )

    def module(self) -> nn.Module:
        """The layers, their weights drawn from a generator of their own."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            config = Config(cell=self.cell, hidden=self.hidden)
            module = recurrent(config, self.hidden, self.layers)
        return module.to(getattr(torch, self.dtype))

    def step(self, module: nn.Module, minibatch: int) -> Callable[[], None]:
        """A forward and backward of the stack on random data [T, B, H], without gradients before.

        Args:
            module: of :meth:`module`, or what wraps it.
            minibatch: B.
        """
        source, dtype = torch.Generator().manual_seed(minibatch), getattr(torch, self.dtype)
        shape = (self.steps, minibatch, self.hidden)
        x = torch.randn(shape, generator=source).to(dtype)
        with torch.no_grad():
            dy = torch.randn(module(x)[0].shape, generator=source).to(dtype)

        def run() -> None:
            module.zero_grad()
            torch.autograd.backward(module(x)[0], dy)

        return run


@dataclass(frozen=True)
class Measured:
    """Steps of a stack by its minibatch, on the machine that measured them.

    Attributes:
        stack: what was computed.
        gradients: bytes of each layer's gradients, the first layer first.
        seconds: medians of forward and backward, by minibatch.
        machine: where.
        sharing_s: what each of several workers does beside that, sums aside: see `Times`.
        waited: share of the time for which threads wanted a core and had none.
    """

    stack: Stack
    gradients: list[Positive]
    seconds: dict[str, Positive]
    machine: dict[str, Any]
    sharing_s: Annotated[float, Range(0, 1e9)] = 0.0
    waited: Share = 0.0

    def __post_init__(self) -> None:
        wrong = [size for size in self.seconds if not (size.isdecimal() and int(size))]
        if wrong or not self.seconds:
            raise ValueError(f'seconds: by minibatch, as in "1", not {", ".join(wrong) or "{}"}')

    @property
    def times(self) -> Times:
        """As a forecast takes them."""
        by_size = {int(size): seconds for size, seconds in self.seconds.items()}
        return Times(by_size, tuple(self.gradients), self.sharing_s)


def read_times(path: Path) -> Measured:
    """The times that another call has stored.

    Raises:
        RunError: there is no such file, or it is another one.
    """
    try:
        content = read_object(path)
        if content is None:
            raise DamageError("there is no such file")
        measured: Measured = filled(Measured, content)
    except DamageError as error:
        details = [("path", str(path)), ("found", str(error))]
        hint = "times.json of a call of python -m benchmarks.scaling without --times"
        raise RunError(diagnostic("times cannot be read", details, hint)) from error
    return measured


def write_times(path: Path, measured: Measured) -> None:
    """Store times for calls on other machines.

    Raises:
        RunError: the disk does not take them.
    """
    try:
        text = json.dumps(asdict(measured), indent=1)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode() + b"\n", durable=True)
    except OSError as error:
        details = [("path", str(path)), ("error", str(error.strerror))]
        raise RunError(diagnostic("times cannot be written", details)) from error


def measure_times(stack: Stack, batch: int, seconds: float = BUDGET_S) -> Measured:
    """Time steps of minibatches 1, 2, 4, … in alternating rounds; the median of each counts.

    A minibatch whose step would take more than its share of the time ends the row.

    Args:
        stack: what is computed.
        batch: the largest minibatch.
        seconds: for all of them, compiling aside (s).
    """
    module = stack.module()
    runs: dict[str, Callable[[], object]] = {}
    round_s = 0.0
    for minibatch in powers(batch):
        runs[str(minibatch)] = run = stack.step(module, minibatch)
        run()
        start = time.perf_counter()
        run()
        took = time.perf_counter() - start
        round_s += took
        # The next one takes twice as long, or less.
        if (round_s + 2 * took) * (BEFORE + LEAST_ROUNDS) > seconds:
            break
    waiting = Waiting()
    samples = time_side_by_side(runs, max(0.0, seconds - BEFORE * round_s), LEAST_ROUNDS)
    waited = waiting.share()
    medians = {size: quartiles(sample.steady).median for size, sample in samples.items()}
    gradients = gradient_bytes(module, stack.layers)
    return Measured(stack, gradients, medians, facts(), measure_sharing(stack), waited)


def measure_sharing(stack: Stack, seconds: float = SHARING_S) -> float:
    """What DistributedDataParallel adds to a training step without another process (s): steps of
    one sample, of which the difference is most, with and without the wrapper by turns.

    Args:
        seconds: for all steps (s).
    """
    if not dist.is_available():  # nor would its workers share anything
        return 0.0
    store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group("gloo", store=store, world_size=1, rank=0)
    try:
        modules = {"alone": stack.module(), "wrapped": DistributedDataParallel(stack.module())}
        runs = {name: stack.step(module, 1) for name, module in modules.items()}
        samples = time_side_by_side(runs, seconds, LEAST_ROUNDS)
    finally:
        dist.destroy_process_group()
    pairs = zip(samples["wrapped"].steady, samples["alone"].steady, strict=True)
    return max(0.0, median(wrapped - alone for wrapped, alone in pairs))


def gradient_bytes(module: nn.Module, layers: int) -> list[float]:
    """Bytes of each layer's parameters, the first layer first."""
    sizes = [0.0] * layers
    for name, parameter in module.named_parameters():
        sizes[int(name.rpartition("_l")[2])] += parameter.nbytes
    return sizes

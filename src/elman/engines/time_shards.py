"""Time-sharded sequences: each process of ``torch.distributed`` has some of the steps.

A linear recurrence over all steps takes three phases: each process composes the map of its own
steps, all maps are gathered, and each process scans its steps from the state that the maps before
it give. Only these maps, of a few states each, are sent.

Source: Blelloch 1990, "Prefix sums and their applications", sec. 1.4 (blocks of a scan).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.autograd import Function

from elman.errors import EngineError
from elman.torch_internals import constant

CUT = "time-sharded sequences"  # the beginning of messages
Scan = Callable[[Any, Tensor, Tensor, Tensor], Tensor]
# the processes over which ``over_time`` shards sequences
CURRENT: ContextVar[TimeShards | None] = ContextVar("elman_time_shards", default=None)


class TimeShards:
    """The processes that share a sequence, in the order of its steps.

    Args:
        group: of ``torch.distributed``; None for all processes.
        backwards: whether the last process has the first steps.
    """

    def __init__(self, group: Any = None, *, backwards: bool = False) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise EngineError(
                "shard_time: there is no group of processes",
                'torch.distributed.init_process_group("gloo"), in processes that torchrun starts',
            )
        self.group, self.backwards = group, backwards
        self.size, rank = dist.get_world_size(group), dist.get_rank(group)
        if rank < 0:
            raise EngineError("shard_time: this process is not in the group")
        self.place = self.size - 1 - rank if backwards else rank

    def reversed(self) -> TimeShards:
        """The same processes, with time in the other direction."""
        return TimeShards(self.group, backwards=not self.backwards)

    def gather(self, values: Sequence[Tensor]) -> list[list[Tensor]]:
        """The values of all processes, in the order of their steps; they must agree in shape."""
        packed = torch.cat([value.reshape(-1) for value in values])
        parts = [torch.empty_like(packed) for _ in range(self.size)]
        dist.all_gather(parts, packed, group=self.group)
        if self.backwards:
            parts.reverse()
        sizes = [value.numel() for value in values]
        return [
            [piece.view(value.shape) for piece, value in zip(part.split(sizes), values)]
            for part in parts
        ]

    def largest(self, values: Sequence[float]) -> list[float]:
        """The largest of all processes, number by number; infinity for a NaN."""
        numbers = [math.inf if math.isnan(value) else value for value in values]
        device = "cuda" if dist.get_backend(self.group) == "nccl" else "cpu"
        packed = torch.tensor(numbers, dtype=torch.float64, device=device)
        largest: list[float] = (
            torch.stack([part for (part,) in self.gather([packed])]).amax(0).tolist()
        )
        return largest

    def starts(self, start: Sequence[Tensor], ends: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """States before this process's steps.

        Args:
            start: the states before all steps; only the first process's are read.
            ends: the states after this process's steps.
        """
        if not ends:
            return ()
        parts = self.gather(ends)
        return tuple(parts[self.place - 1]) if self.place else tuple(start)

    def one_after_another(
        self, start: Sequence[Tensor], run: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]]
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Run the processes one after another, each from the last states of its predecessor.

        Args:
            start: the states before all steps.
            run: takes the states before this process's steps, returns those after each [T, …].

        Returns:
            The states before this process's steps, and what ``run`` returns.
        """
        before, result = tuple(start), tuple[Tensor, ...]()
        for place in range(self.size):
            if place == self.place:
                result = run(before)
            ends = [part[-1] for part in result] or [torch.zeros_like(part) for part in start]
            parts = self.gather(ends)  # waits until the process whose turn it is has run
            if place == self.place - 1:
                before = tuple(parts[place])
        return before, result

    def scan(
        self, scan: Scan, algebra: Any, A: Tensor, b: Tensor, y0: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """All y[t] = A[t] y[t-1] + b[t] of this process's steps.

        Args:
            scan: computes all y from y[-1].
            algebra: layout of A and b (``elman.engines.deer.scans``).
            A, b: of this process's steps.
            y0: y before all steps; only the first process's is read; zero if None.

        Returns:
            y, and the state before this process's steps.
        """
        start = self.start_of(algebra, *compose(algebra, A, b), y0)
        return scan(algebra, A, b, start), start

    def start_of(
        self, algebra: Any, factor: Tensor, rest: Tensor, y0: Tensor | None = None
    ) -> Tensor:
        """y before this process's steps.

        Args:
            algebra: see :meth:`scan`.
            factor, rest: the map y -> factor y + rest of all its steps.
            y0: see :meth:`scan`.
        """
        maps = self.gather([factor, rest] if y0 is None else [factor, rest, y0])
        start = None if y0 is None else maps[0][2]
        for factor, rest, *_ in maps[: self.place]:
            if start is None:
                start = rest  # the initial state is 0, and 0 times infinity would be NaN
            else:
                start = (algebra.of_vector(factor.unsqueeze(0), start.unsqueeze(0)) + rest)[0]
        return torch.zeros_like(rest) if start is None else start

    def linear(self, scan: Scan, algebra: Any, A: Tensor, b: Tensor, y0: Tensor) -> Tensor:
        """The y of :meth:`scan`, once differentiable; gradients are those of the sum of all
        processes' losses."""
        return _Linear.apply(self, scan, algebra, A, b, y0)  # type: ignore[no-any-return]


class _Linear(Function):
    """A linear recurrence over the steps of several processes."""

    @staticmethod
    def forward(
        ctx: Any,
        shards: TimeShards,
        scan: Scan,
        algebra: Any,
        A: Tensor,
        b: Tensor,
        y0: Tensor,
    ) -> Tensor:
        y, start = shards.scan(scan, algebra, A, b, y0)
        ctx.shards, ctx.scan, ctx.algebra = shards, scan, algebra
        ctx.save_for_backward(A, y, start)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise EngineError(f"{CUT} have no second derivatives")
        A, y, start = ctx.saved_tensors
        algebra, shards = ctx.algebra, ctx.shards
        factors = algebra.transposed(A)
        rests = algebra.of_vector(factors, dy)
        d_before, d_end = shards.reversed().scan(ctx.scan, algebra, factors.flip(0), rests.flip(0))
        d_before = d_before.flip(0)  # cotangents of the states before each step
        d_b = dy + torch.cat((d_before[1:], d_end.unsqueeze(0)))
        before = torch.cat((start.unsqueeze(0), y[:-1]))
        d_y0 = d_before[0] if shards.place == 0 else torch.zeros_like(start)
        d_A = algebra.outer(d_b, before) if ctx.needs_input_grad[3] else None
        return None, None, None, d_A, d_b, d_y0


def compose(algebra: Any, A: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The map y -> A y + b of all steps together: neighbours are joined until one map is left."""
    if not A.shape[0]:
        raise EngineError(f"{CUT} need a step in each process")
    ends: list[tuple[Tensor, Tensor]] = []
    while A.shape[0] > 1:
        if A.shape[0] % 2:  # the last map has no neighbour, and is joined after the loop
            ends.append((A[-1:], b[-1:]))
            A, b = A[:-1], b[:-1]
        later = A[1::2]
        A, b = algebra.of_matrix(later, A[0::2]), algebra.of_vector(later, b[0::2]) + b[1::2]
    for factor, rest in reversed(ends):
        A, b = algebra.of_matrix(factor, A), algebra.of_vector(factor, b) + rest
    return A[0], b[0]


def then(algebra: Any, first: tuple[Tensor, Tensor] | None, A: Tensor, b: Tensor) -> Any:
    """The map of some steps after another one, if there is one."""
    later = compose(algebra, A, b)
    if first is None:
        return later
    return compose(algebra, *(torch.stack(pair) for pair in zip(first, later, strict=True)))


@constant
def shards_time() -> bool:
    """Whether :func:`over_time` surrounds a call; a constant under torch's compiler, which cannot
    trace a context variable."""
    return CURRENT.get() is not None


def current() -> TimeShards | None:
    """The processes that share sequences inside :func:`over_time`; None outside."""
    return CURRENT.get() if shards_time() else None


@contextmanager
def over_time(shards: TimeShards) -> Iterator[None]:
    """Shard sequences over processes inside the ``with`` block."""
    token = CURRENT.set(shards)
    try:
        yield
    finally:
        CURRENT.reset(token)

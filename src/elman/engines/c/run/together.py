"""Layers and directions side by side, each on a team of threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from torch import Tensor

from elman.engines.base import Arrangement, Kernel
from elman.engines.c.process.threads import workers
from elman.engines.c.run.kernel import CKernel
from elman.engines.c.run.launches import ConcurrentLaunches
from elman.engines.call import Call, Cotangents, Gradients, Result
from elman.engines.together import Together
from elman.plan.forecast import load_of, ranked, step_seconds

_MIN_CHUNKS = 8  # chunks of time of a layer: the next layer starts after the first of them


class CTogether(Together):
    """Concurrent :class:`Together`: each layer runs a chunk of time behind the one below."""

    def __init__(self, kernels: Sequence[CKernel], arrangement: Arrangement, threads: int) -> None:
        super().__init__(kernels, arrangement)
        self._threads = threads

    @contextmanager
    def _launched(self) -> Iterator[Callable[[Kernel], Kernel]]:
        chained = not self.arrangement.directions
        launches = ConcurrentLaunches(chained, min(self._threads, workers()))
        yield lambda kernel: _DeferredKernel(kernel, launches)
        launches.run()


class _DeferredKernel(Kernel):
    """A kernel whose calls are added to concurrent launches, which run them later."""

    engine = "c"

    def __init__(self, kernel: Kernel, launches: ConcurrentLaunches) -> None:
        assert isinstance(kernel, CKernel), "side_by_side combines kernels of this engine only"
        self._kernel, self._launches = kernel, launches

    def forward(self, call: Call) -> Result:
        return self._kernel.begin_forward(call, self._launches)

    def backward(
        self, call: Call, saved: Sequence[Tensor], cotangents: Cotangents, keep: bool
    ) -> Gradients:
        return self._kernel.begin_backward(call, saved, cotangents, keep, self._launches)


@dataclass(frozen=True)
class Teams:
    """How threads are shared among calls.

    Attributes:
        size: threads of each team.
        count: teams.
    """

    size: int
    count: int

    @staticmethod
    def of(calls: int, threads: int) -> Teams:
        """A team for each call if there are enough threads, else teams of one."""
        size = max(1, threads // calls)
        return Teams(size, min(calls, threads // size))


def side_by_side(
    kernels: Sequence[CKernel], arrangement: Arrangement, batch: int, threads: int
) -> tuple[CTogether, float]:
    """All kernels concurrently, and their forecast time as a share of that one after another."""
    teams = Teams.of(len(kernels), threads)
    alone = shared = 0.0
    members: list[CKernel] = []
    for kernel in kernels:
        load = load_of(kernel.program)
        best = ranked(kernel.program, batch, threads)[0]
        alone += step_seconds(load, best, batch, threads)
        division_of_team = ranked(kernel.program, batch, teams.size)[0]
        shared += step_seconds(load, division_of_team, batch, teams.size)
        division = (
            division_of_team
            if arrangement.directions
            else replace(division_of_team, min_chunks=_MIN_CHUNKS)
        )
        members.append(kernel.scheduled(division, teams.size))
    # each further team starts a chunk of time later, and the last ends as much later
    delay = 1.0 if arrangement.directions else 1.0 + (teams.count - 1) / _MIN_CHUNKS
    combined = CTogether(members, arrangement, teams.size * teams.count)
    return combined, shared * delay / teams.count / alone if alone else 1.0

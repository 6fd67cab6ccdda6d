"""All steps one by one: products and kernels of each, recorded where the same shapes come again.

On a GPU a step of small kernels costs more to launch than to run. A CUDA graph launches all of
them at once; it works on arrays of its own: what a call is given is copied there, results back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from elman.engines.packed import Packed
from elman.engines.precision import precision
from elman.engines.triton.batched_phase import BatchedPhase
from elman.engines.triton.launch import Arrays, fresh

_RECORDS = 8  # shapes that are kept recorded
_LATE = 64  # calls for which a record stays where there is no room for another
_SEEN = 64  # shapes of one call that are remembered
_LONGEST = 4096  # steps of a record at most
_LARGEST = 256 << 20  # (bytes) of all records at most: larger steps keep a GPU busy as they are


@dataclass(frozen=True, eq=False)
class StepArrays:
    """Arrays of the steps of one direction.

    Attributes:
        T, B: steps and samples.
        vec, weights: of weight rate.
        rows: arrays [.., T·B, n] that are read, or written, a step's rows at a time.
        sequences: of the states [.., T + 1, B, n], or [.., 2, B, n] where they are not kept, and
            [.., 1, B, n] where they only hold a value.
        carries: ``ca`` and ``cn`` [.., B, n], which change places after each step; or none.
        written: names of rows that are results.
        packed: how packed rows lie; sequences that are kept are [.., 1, B + N, n] then.
    """

    T: int
    B: int
    vec: Tensor
    weights: Sequence[Tensor]
    rows: Arrays
    sequences: Sequence[Tensor]
    carries: Arrays
    written: frozenset[str]
    packed: Packed | None = None

    def at(self, t: int) -> tuple[int, int]:
        """The first row of a step, and how many it has."""
        if self.packed is None:
            return t * self.B, self.B
        return self.packed.offsets[t], self.packed.sizes[t]

    def states(self, sequence: Tensor, t: int) -> tuple[Tensor, Tensor]:
        """A state [.., rows, n] before and after a step; where it is not kept, two alternate."""
        _, size = self.at(t)
        if self.packed is not None and sequence.shape[-2] > self.B:
            first = 0 if not t else self.B + self.at(t - 1)[0]
            flat = sequence.select(-3, 0)
            return flat.narrow(-2, first, size), flat.narrow(-2, self.B + self.at(t)[0], size)
        count = sequence.shape[-3]
        before, after = sequence.select(-3, t % count), sequence.select(-3, (t + 1) % count)
        return before.narrow(-2, 0, size), after.narrow(-2, 0, size)

    def tensors(self) -> list[Tensor]:
        """All of them, in an order that depends on their shapes alone."""
        arrays = (*self.rows.values(), *self.sequences, *self.carries.values())
        return [self.vec, *self.weights, *arrays]

    def inputs(self, forward: bool) -> list[Tensor]:
        """Arrays read before they are written: in the forward, of states only the initial ones."""
        states = [s[..., :1, :, :] for s in self.sequences] if forward else self.sequences
        return [self.vec, *self.weights, *self.rows.values(), *states, *self.carries.values()]

    def copied(self) -> StepArrays:
        """The same with memory of its own."""
        return replace(
            self,
            vec=self.vec.clone(),
            weights=[_alike(value) for value in self.weights],
            rows={name: _alike(value) for name, value in self.rows.items()},
            sequences=[_alike(value) for value in self.sequences],
            carries={name: _alike(value) for name, value in self.carries.items()},
        )


def _alike(value: Tensor) -> Tensor:
    """A copy of the same strides, as far as memory has no overlaps."""
    return torch.empty_like(value).copy_(value)


class StepGraph:
    """Runs a phase for one step after another.

    Args:
        runner: of the phase.
        forward: in which order.
        wide: whether states go from step to step in float32, beside the sequences that are kept.
    """

    def __init__(self, runner: BatchedPhase, *, forward: bool, wide: bool) -> None:
        self.runner, self.forward, self.wide = runner, forward, wide
        self._single_calls: OrderedDict[Any, None] = OrderedDict()  # shapes of one call so far
        self._records: OrderedDict[Any, _Record] = OrderedDict()  # used last comes last
        self._calls = 0

    def run(self, work: StepArrays) -> Tensor | None:
        """Run all steps; what is carried at the end, if anything is."""
        alone = not work.vec.is_cuda or work.packed is not None  # whose lengths hardly come again
        if alone or torch.cuda.is_current_stream_capturing():
            return self.each(work)
        return self.recorded(work)

    def recorded(self, work: StepArrays) -> Tensor | None:
        """The same by a record, from the second call of these shapes on."""
        tensors = work.tensors()
        size = sum(tensor.nbytes for tensor in tensors)
        if work.T > _LONGEST or size > _LARGEST:
            return self.each(work)
        shapes = [(t.shape, t.stride(), t.dtype, t.device) for t in tensors]
        key = (_stream(work.vec), work.T, work.B, precision(), *shapes)
        self._calls += 1
        record = self._records.get(key)
        if record is None:
            if key not in self._single_calls or not self._makes_room(size):
                self._single_calls[key] = None
                if len(self._single_calls) > _SEEN:
                    self._single_calls.popitem(last=False)
                return self.each(work)
            del self._single_calls[key]
            record = self._records[key] = _Record(self.each, work, size, forward=self.forward)
        self._records.move_to_end(key)
        record.used = self._calls
        return record(work)

    def _makes_room(self, size: int) -> bool:
        """Whether there is memory for another record, without one that was used of late: shapes
        that come alternately would be recorded again and again."""
        while self._records:
            in_use = sum(record.size for record in self._records.values())
            if len(self._records) < _RECORDS and in_use + size <= _LARGEST:
                break
            oldest = next(iter(self._records))
            if self._calls - self._records[oldest].used < _LATE:
                return False
            del self._records[oldest]
        return True

    def each(self, work: StepArrays) -> Tensor | None:
        """The same, launched step by step."""
        runner, B = self.runner, work.B
        heads = work.vec.shape[:-1]
        workspace = {
            "sr": fresh(work.vec, *heads, B, max(1, runner.scratch[1]), dtype=torch.float32),
            "sc": fresh(work.vec, *heads, B, max(1, runner.scalars), dtype=torch.float32),
        }
        starts = [s[..., :1, :B, :] for s in work.sequences]
        wide = [start.float().expand(*heads, 2, -1, -1).clone() for start in starts]
        carries = work.carries
        for t in range(work.T) if self.forward else reversed(range(work.T)):
            first, size = work.at(t)
            now = {name: a.narrow(-2, first, size) for name, a in work.rows.items()}
            now |= {
                name: a.narrow(-2, 0, size) for name, a in (*workspace.items(), *carries.items())
            }
            for k, sequence in enumerate(work.sequences):
                before, after = work.states(sequence, t)
                now |= {f"st{k}": before, f"nx{k}": after}
                if self.wide:
                    now |= {f"sp{k}": before, f"sq{k}": after}
                    own_before, own_after = work.states(wide[k], t)
                    now |= {f"st{k}": own_before, f"nx{k}": own_after}
            runner.run(now, work.weights, work.vec, size)
            if carries:
                carries = {"ca": carries["cn"], "cn": carries["ca"]}
        return carries.get("ca")


def _stream(like: Tensor) -> int:
    """Who uses a record: the other direction of a layer runs on another stream, with another."""
    return torch.cuda.current_stream(like.device).cuda_stream if like.is_cuda else 0


@lru_cache(maxsize=64)
def _aside(device: torch.device, stream: int) -> Any:
    """The stream on which records are made for another one: it has workspaces of its own, which
    graphs use for ever."""
    return torch.cuda.Stream(device)


class _Record:
    """One run of all steps on memory of its own, as a CUDA graph; run again where there is none.

    Args:
        run: the steps.
        work: of the shapes that are recorded.
        size: of its arrays (bytes).
        forward: whether states are results; in the backward they are given.

    Attributes:
        used: number of the call that used it last.
    """

    def __init__(
        self,
        run: Callable[[StepArrays], Tensor | None],
        work: StepArrays,
        size: int,
        *,
        forward: bool,
    ) -> None:
        self.run, self.arrays, self.size, self.forward = run, work.copied(), size, forward
        self.used = 0
        self.graph: Any = None
        self.end: Tensor | None = None
        if not work.vec.is_cuda:
            return
        aside = _aside(work.vec.device, _stream(work.vec))
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # what is made once (kernels, workspaces) is made here
            run(self.arrays)
        torch.cuda.current_stream().wait_stream(aside)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=aside, capture_error_mode="thread_local"):
            self.end = run(self.arrays)

    def __call__(self, work: StepArrays) -> Tensor | None:
        """Copy in, run, copy out."""
        arrays = self.arrays
        for target, value in zip(
            arrays.inputs(self.forward), work.inputs(self.forward), strict=True
        ):
            target.copy_(value)
        if self.graph is None:
            self.end = self.run(arrays)
        else:
            self.graph.replay()
        for name in work.written:
            work.rows[name].copy_(arrays.rows[name])
        if self.forward:
            for target, value in zip(work.sequences, arrays.sequences, strict=True):
                target.copy_(value)
        return None if self.end is None else self.end.clone()

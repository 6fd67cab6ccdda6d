"""Kernels of slices of a sample: columns, or rows, of its matrices as samples of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from elman.engines.base import Job, Kernel, WrappedKernel
from elman.engines.call import Call, Cotangents, Gradients, Result
from elman.ir.graph import Node
from elman.ir.types import gate_block_size, is_matrix, sample_axes

SLICE_BYTES = 1 << 17  # of a slice at most: 256 by 128 numbers of float32 stay in a second cache
_FEWEST = 32  # units of a slice


def slice_count(job: Job) -> int:
    """Into how many slices the matrices of a job's samples are cut; 1 where they are small, or
    cannot be."""
    if job.slices is None:
        return 1
    sizes, item = job.spec.sizes, 8 if job.spec.dtype == "float64" else 4
    elements = sum(
        gate_block_size(leaf.shape[0][0], sizes)
        for leaf in job.pair.step.states
        if is_matrix(leaf) and job.slices in sample_axes(leaf)
    )
    units = sizes[job.slices]
    while units % 2 == 0 and units > _FEWEST and elements * item > SLICE_BYTES:
        units, elements = units // 2, elements // 2
    return sizes[job.slices] // units


def sliced_job(job: Job, count: int) -> Job:
    """The job of so many slices of each sample."""
    assert job.slices is not None
    several = None if job.several is None else _sliced(job.several, job.slices, count)
    return replace(_sliced(job, job.slices, count), several=several, slices=None)


def _sliced(job: Job, dim: str, count: int) -> Job:
    dims = tuple((name, size // count if name == dim else size) for name, size in job.spec.dims)
    inputs = job.pair.step.inputs
    whole = frozenset(leaf.data[0] for leaf in inputs if dim not in sample_axes(leaf))
    return replace(job, spec=replace(job.spec, dims=dims, slices=count, whole=whole))


class _Place(NamedTuple):
    """How an array of a call is cut.

    Attributes:
        batch: the axis of samples, from behind.
        rows: elements of a sample before its dim, in steps of which it lies; None without it.
    """

    batch: int
    rows: int | None


def _place(job: Job, value: Node) -> _Place:
    axes = sample_axes(value)
    if job.slices not in axes:
        return _Place(-2 if axes else -1, None)
    before = axes[: axes.index(job.slices)]
    return _Place(-2, prod(gate_block_size(axis, job.spec.sizes) for axis in before))


def _places(job: Job, leaves: Sequence[Node]) -> list[_Place]:
    """The places of arrays, of which those with the dim have one leaf."""
    return [_place(job, leaf) for leaf in {leaf.data[0]: leaf for leaf in leaves}.values()]


class SampleSlices(WrappedKernel):
    """Runs every sample as slices, which read the same rows of inputs without the dim.

    Args:
        kernel: of whole samples; runs packed rows by itself.
        slices: of slices.
        job: of whole samples.
        count: slices of a sample.
    """

    def __init__(self, kernel: Kernel, slices: Kernel, job: Job, count: int) -> None:
        super().__init__(kernel)
        self._slices, self._count = slices, count
        self.packs, self.spec = kernel.packs, job.spec
        self._job, step = job, job.pair.step
        self._inputs, self._states = _places(job, step.inputs), _places(job, step.states)
        self._output = _place(job, step.output)

    def forward(self, call: Call) -> Result:
        if call.packed is not None:
            return self.kernel.forward(call)
        result = self._slices.forward(self._cut_call(call))
        ends = zip(result.last, self._states, strict=True)
        return result._replace(
            output=self._join(result.output, self._output),
            last=tuple([self._join(end, place) for end, place in ends]),
        )

    def backward(
        self, call: Call, saved: Sequence[Tensor], cotangents: Cotangents, keep: bool
    ) -> Gradients:
        if call.packed is not None:
            return self.kernel.backward(call, saved, cotangents, keep)
        d, d_last = cotangents.output, zip(cotangents.last, self._states, strict=True)
        cut = Cotangents(
            None if d is None else self._cut(d, self._output),
            tuple([None if end is None else self._cut(end, at, zeros=True) for end, at in d_last]),
        )
        gradients = self._slices.backward(self._cut_call(call), saved, cut, keep)
        inputs = zip(gradients.inputs, self._inputs, strict=True)
        states = zip(gradients.states, self._states, strict=True)
        return gradients._replace(
            inputs=tuple(
                [d if d is None or at.rows is None else self._join(d, at) for d, at in inputs]
            ),
            states=tuple(
                [None if d is None else self._join(d, at, summed=True) for d, at in states]
            ),
        )

    def discard(self, saved: Sequence[Tensor]) -> None:
        self._slices.discard(saved)

    def fingerprint(self) -> str | None:
        return f"{self._slices.fingerprint()} {self.kernel.fingerprint()}"

    def tape_bytes(self, T: int, B: int) -> int | None:
        return self._slices.tape_bytes(T, self._count * B)

    def workspace_bytes(self, T: int, B: int) -> int:
        return self._slices.workspace_bytes(T, self._count * B)

    def stressed(self) -> tuple[SampleSlices, ...]:
        return tuple(
            SampleSlices(self.kernel, slices, self._job, self._count)
            for slices in self._slices.stressed()
        )

    def describe(self) -> dict[str, Any]:
        """See :meth:`Kernel.describe`: the facts of the slices."""
        facts = self._slices.describe()
        return facts | {"schedule": f"{self._count}-slices/{facts['schedule']}"}

    def _cut_call(self, call: Call) -> Call:
        """The call of all slices."""
        inputs = zip(call.inputs, self._inputs, strict=True)
        states = zip(call.states, self._states, strict=True)
        return call._replace(
            inputs=tuple([x if at.rows is None else self._cut(x, at) for x, at in inputs]),
            states=tuple([self._cut(state, at) for state, at in states]),
            samples=call.sizes[1] * self._count,
        )

    def _cut(self, x: Tensor, place: _Place, *, zeros: bool = False) -> Tensor:
        """The slices of an array [.., B, ·] as samples. What has no such dim is repeated, or (with
        ``zeros``) the first slice's alone."""
        if place.rows is None:
            batch = x.dim() + place.batch
            slices = x.unsqueeze(batch + 1)
            if zeros:
                shape = [*slices.shape]
                shape[batch + 1] = self._count - 1
                slices = torch.cat((slices, x.new_zeros(shape)), batch + 1)
            else:
                slices = slices.expand(
                    *slices.shape[: batch + 1], self._count, *x.shape[batch + 1 :]
                )
            return slices.flatten(batch, batch + 1)
        x = x.unflatten(-1, (place.rows, self._count, -1))
        return x.transpose(-3, -2).flatten(-2).flatten(-3, -2)

    def _join(self, x: Tensor, place: _Place, *, summed: bool = False) -> Tensor:
        """The inverse of :meth:`_cut`: of what has no such dim the first slice's, or the sum."""
        batch = x.dim() + place.batch
        x = x.unflatten(batch, (-1, self._count))
        if place.rows is None:
            return x.sum(batch + 1) if summed else x.select(batch + 1, 0)
        return x.unflatten(-1, (place.rows, -1)).transpose(-3, -2).flatten(-3)

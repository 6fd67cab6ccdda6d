"""Kernels of several steps at once (:mod:`elman.passes.merge`), and of the steps that are left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from torch import Tensor

from elman import compiler
from elman.engines.base import Job, WrappedKernel
from elman.engines.c.kernel import CKernel
from elman.engines.call import Call, Cotangents, Gradients, Result
from elman.passes.merge import merged, step_input


@lru_cache(maxsize=256)
def merged_job(job: Job, steps: int) -> Job | None:
    """The job of so many steps at once; None if they cannot be merged."""
    graph = merged(job.graph, steps)
    if graph is None:
        return None
    inputs = {leaf.name for leaf in job.graph.inputs}
    wants = {
        wanted
        for name in job.spec.wants
        for wanted in ([step_input(name, k) for k in range(steps)] if name in inputs else [name])
    }
    spec = replace(job.spec, wants=frozenset(wants))
    return Job(f"{job.name}_{steps}_steps", graph, compiler.build_pair(graph), spec)


class MergedSteps(WrappedKernel):
    """Runs whole groups of steps by a kernel of their merged step, the rest by that of one.

    Args:
        kernel: of one step; runs packed rows and calls of few steps by itself.
        several: of the merged step.
        steps: of a group.
        scalar: whether the output is a scalar per sample.
    """

    def __init__(self, kernel: CKernel, several: CKernel, steps: int, *, scalar: bool) -> None:
        super().__init__(kernel)
        self._plain, self.spec = kernel, kernel.spec
        self.packs = kernel.packs
        self._several, self._steps, self._scalar = several, steps, scalar
        self._states = len(
            kernel.results.rings
        )  # as many sequences of states are saved, and a tape

    def forward(self, call: Call) -> Result:
        """See :meth:`Kernel.forward`. What is saved: of the groups, the states behind them, of the
        rest."""
        T = call.sizes[0]
        whole = self._whole(call)
        if not whole:
            return self.kernel.forward(call)
        first = self._several.forward(self._grouped(call, whole))
        output = self._in_steps(first.output).flatten(0, 1)
        if whole == T:
            output = output.contiguous()
            return Result(output[..., 0] if self._scalar else output, first.last, first.saved)
        rest = self.kernel.forward(self._behind(call, whole, first.last))
        joined = output.new_empty((T, *output.shape[1:]))
        joined[:whole] = output
        joined[whole:] = rest.output.unsqueeze(-1) if self._scalar else rest.output
        saved = (*first.saved, *first.last, *rest.saved) if first.saved else ()
        return Result(joined[..., 0] if self._scalar else joined, rest.last, saved)

    def backward(
        self, call: Call, saved: Sequence[Tensor], cotangents: Cotangents, keep: bool
    ) -> Gradients:
        """See :meth:`Kernel.backward`."""
        whole = self._whole(call)
        if not whole:
            return self.kernel.backward(call, saved, cotangents, keep)
        d, d_last, rest = cotangents.output, cotangents.last, None
        mine, between, others = self._parts(saved)
        if whole < call.sizes[0]:
            behind = self._behind(call, whole, between)
            d_rest = None if d is None else d[whole:]
            rest = self.kernel.backward(behind, others, Cotangents(d_rest, d_last), keep)
            d_last = rest.states
        d_groups = None if d is None else self._in_groups(d[:whole])
        grouped = self._grouped(call, whole)
        groups = self._several.backward(grouped, mine, Cotangents(d_groups, d_last), keep)
        return Gradients(
            self._d_inputs(call, groups.inputs, whole, rest),
            groups.states,
            groups.weights if rest is None else tuple(map(_added, groups.weights, rest.weights)),
        )

    def discard(self, saved: Sequence[Tensor]) -> None:
        """See :meth:`Kernel.discard`."""
        first, _, rest = self._parts(saved)
        self._several.discard(first)
        self.kernel.discard(rest)

    def fingerprint(self) -> str | None:
        """See :meth:`Kernel.fingerprint`."""
        return f"{self._several.fingerprint()} {self.kernel.fingerprint()}"

    def tape_bytes(self, T: int, B: int) -> int | None:
        """See :meth:`Kernel.tape_bytes`."""
        parts = (
            self._several.tape_bytes(T // self._steps, B),
            self.kernel.tape_bytes(self._steps, B),
        )
        return None if None in parts else sum(part or 0 for part in parts)

    def workspace_bytes(self, T: int, B: int) -> int:
        """See :meth:`Kernel.workspace_bytes`."""
        return self._several.workspace_bytes(T // self._steps, B)

    def stressed(self) -> tuple[MergedSteps, ...]:
        """See :meth:`Kernel.stressed`."""
        return tuple(
            MergedSteps(self._plain, several, self._steps, scalar=self._scalar)
            for several in self._several.stressed()
        )

    def describe(self) -> dict[str, Any]:
        """See :meth:`Kernel.describe`: the facts of the merged step."""
        facts = self._several.describe()
        return facts | {"schedule": f"{self._steps}-steps/{facts['schedule']}"}

    def _whole(self, call: Call) -> int:
        """Steps in whole groups."""
        return 0 if call.packed is not None else call.sizes[0] // self._steps * self._steps

    def _grouped(self, call: Call, whole: int) -> Call:
        """The call of the merged step: of each input that of every step of a group."""
        # each step's rows lie behind one another, as batched phases read them
        each = [x[:whole].unflatten(0, (-1, self._steps)).transpose(0, 1) for x in call.inputs]
        rows = [x.contiguous() for x in each]
        inputs = [x[k] for k in range(self._steps) for x in rows]
        return call._replace(inputs=tuple(inputs))

    def _behind(self, call: Call, whole: int, states: Sequence[Tensor]) -> Call:
        """The call of the steps that are left."""
        inputs = tuple([x[whole:] for x in call.inputs])
        return call._replace(inputs=inputs, states=tuple(states))

    def _in_steps(self, output: Tensor) -> Tensor:
        """Outputs of groups [T / k, B, k · n] as [T / k, k, B, n]."""
        return output.unflatten(-1, (self._steps, -1)).transpose(1, 2)

    def _in_groups(self, d_output: Tensor) -> Tensor:
        """Cotangents of outputs [T, B, n] or [T, B] as [T / k, B, k · n]."""
        wide = d_output.unsqueeze(-1) if self._scalar else d_output
        return wide.unflatten(0, (-1, self._steps)).transpose(1, 2).flatten(2)

    def _parts(
        self, saved: Sequence[Tensor]
    ) -> tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]]:
        """What was saved of the groups, the states behind these, what was saved of the rest."""
        end = self._states + 1
        return saved[:end], saved[end : end + self._states], saved[end + self._states :]

    def _d_inputs(
        self,
        call: Call,
        groups: Sequence[Tensor | None],
        whole: int,
        rest: Gradients | None,
    ) -> tuple[Tensor | None, ...]:
        """The gradients of the inputs, of all steps."""
        count = len(call.inputs)
        gradients: list[Tensor | None] = []
        for index, x in enumerate(call.inputs):
            parts = groups[index::count]
            if parts[0] is None:
                gradients.append(None)
                continue
            d = x.new_empty(x.shape)
            steps = d[:whole].unflatten(0, (-1, self._steps))
            for k, part in enumerate(parts):
                assert part is not None, "steps want the same"
                steps[:, k] = part
            if rest is not None:
                d_rest = rest.inputs[index]
                assert d_rest is not None, "it wants the same"
                d[whole:] = d_rest
            gradients.append(d)
        return tuple(gradients)


def _added(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return None if a is None or b is None else a + b

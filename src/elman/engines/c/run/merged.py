"""Kernels of merged steps (:mod:`elman.passes.merge`), and of the steps after the last group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from elman.engines.base import WrappedKernel
from elman.engines.c.run.kernel import CKernel
from elman.engines.call import Call, Cotangents, Gradients, Result


class MergedSteps(WrappedKernel):
    """Runs whole groups of steps by the kernel of the merged step, the rest by that of one step.

    Args:
        kernel: kernel of one step; it also runs packed rows and calls without a whole group.
        several: kernel of the merged step.
        steps: number of steps of a group.
    """

    def __init__(self, kernel: CKernel, several: CKernel, steps: int) -> None:
        super().__init__(kernel)
        self._plain, self.spec = kernel, kernel.spec
        self.packs = kernel.packs
        self._several, self._steps = several, steps
        self._states = len(kernel.results.rings)

    def forward(self, call: Call) -> Result:
        """See :meth:`Kernel.forward`. The groups' saved tensors come first, then the states after
        them and the saved tensors of the rest."""
        whole = self._steps_in_groups(call)
        if not whole:
            return self.kernel.forward(call)
        first = self._several.forward(self._grouped(call, whole))
        steps = (whole, call.sizes[1])  # merged kernels write the output step by step
        if whole == call.sizes[0]:
            return first._replace(output=self._shaped(first.output, steps))
        rest = self.kernel.forward(self._behind(call, whole, first.last))
        saved = (*first.saved, *first.last, *rest.saved) if first.saved else ()
        output = torch.cat((self._shaped(first.output, steps), rest.output))
        return Result(output, rest.last, saved)

    def backward(
        self, call: Call, saved: Sequence[Tensor], cotangents: Cotangents, keep: bool
    ) -> Gradients:
        whole = self._steps_in_groups(call)
        if not whole:
            return self.kernel.backward(call, saved, cotangents, keep)
        d, d_last, rest = cotangents.output, cotangents.last, None
        first, between, last = self._split_saved(saved)
        if whole < call.sizes[0]:
            behind = self._behind(call, whole, between)
            d_rest = None if d is None else d[whole:]
            rest = self.kernel.backward(behind, last, Cotangents(d_rest, d_last), keep)
            d_last = rest.states
        d_groups = Cotangents(None if d is None else d[:whole], d_last)
        groups = self._several.backward(self._grouped(call, whole), first, d_groups, keep)
        inputs = self._d_inputs(call, groups.inputs, whole, rest)
        return groups._replace(inputs=inputs, weights=_sums(groups.weights, rest))

    def discard(self, saved: Sequence[Tensor]) -> None:
        first, _, rest = self._split_saved(saved)
        self._several.discard(first)
        self.kernel.discard(rest)

    def fingerprint(self) -> str | None:
        return f"{self._several.fingerprint()} {self.kernel.fingerprint()}"

    def tape_bytes(self, T: int, B: int) -> int:
        groups, rest = divmod(T, self._steps)
        return self._several.tape_bytes(groups, B) + self._plain.tape_bytes(rest, B)

    def workspace_bytes(self, T: int, B: int) -> int:
        groups, rest = divmod(T, self._steps)
        return max(self._several.workspace_bytes(groups, B), self._plain.workspace_bytes(rest, B))

    def stressed(self) -> tuple[MergedSteps, ...]:
        return tuple(
            MergedSteps(self._plain, several, self._steps) for several in self._several.stressed()
        )

    def describe(self) -> dict[str, Any]:
        """See :meth:`Kernel.describe`: the facts of the merged step."""
        facts = self._several.describe()
        return facts | {"schedule": f"{self._steps}-steps/{facts['schedule']}"}

    def _steps_in_groups(self, call: Call) -> int:
        """Number of steps that make up whole groups."""
        return 0 if call.packed is not None else call.sizes[0] // self._steps * self._steps

    def _grouped(self, call: Call, whole: int) -> Call:
        """The call of the merged step, whose inputs are those of every step of a group."""
        inputs = [x[k : whole : self._steps] for k in range(self._steps) for x in call.inputs]
        return call._replace(inputs=tuple(inputs))

    def _behind(self, call: Call, whole: int, states: Sequence[Tensor]) -> Call:
        """The call of the steps after the last group."""
        inputs = tuple([x[whole:] for x in call.inputs])
        return call._replace(inputs=inputs, states=tuple(states))

    def _shaped(self, output: Tensor, steps: tuple[int, int]) -> Tensor:
        """The output of groups, which lies step by step, in the shape of single steps."""
        results = self._plain.results
        return output.view(steps if results.scalar_output else (*steps, results.output_width))

    def _split_saved(
        self, saved: Sequence[Tensor]
    ) -> tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]]:
        """Saved tensors of the groups, the states after them, and saved tensors of the rest. A
        kernel saves a sequence of each state and a tape."""
        end = self._states + 1
        return saved[:end], saved[end : end + self._states], saved[end + self._states :]

    def _d_inputs(
        self, call: Call, groups: Sequence[Tensor | None], whole: int, rest: Gradients | None
    ) -> tuple[Tensor | None, ...]:
        """The gradients of the inputs, which lie step by step."""
        gradients: list[Tensor | None] = []
        for index, x in enumerate(call.inputs):
            d = groups[index]  # rows of the first step of each group; the others lie between them
            if d is not None:
                step, *inner = d.stride()
                size, strides = (whole, *x.shape[1:]), (step // self._steps, *inner)
                d = d.as_strided(size, strides, d.storage_offset())
                d_rest = None if rest is None else rest.inputs[index]
                d = d if d_rest is None else torch.cat((d, d_rest))
            gradients.append(d)
        return tuple(gradients)


def _sums(groups: Sequence[Tensor | None], rest: Gradients | None) -> tuple[Tensor | None, ...]:
    """The weights' gradients of all steps: of the groups and of the rest."""
    if rest is None:
        return tuple(groups)
    pairs = zip(groups, rest.weights, strict=True)
    return tuple(None if d is None or d_rest is None else d + d_rest for d, d_rest in pairs)

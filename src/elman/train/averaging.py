"""Means over the processes of a run: of gradients, of models, of a few numbers.

Local SGD: each process trains by itself, and now and then all average their models.

S. U. Stich, "Local SGD converges fast and communicates little", ICLR 2019, Algorithm 1; what the
optimizer remembers (momentum, AdamW's moments) is averaged too, so that between two averages all
processes start alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from elman.train.shared import SharedMemory

if TYPE_CHECKING:  # what measures sums does without it: it takes as long to import as torch
    from lightning_fabric import Fabric


def mean(values: Tensor) -> Tensor:
    """Replace values by their means over all processes: one message."""
    dist.all_reduce(values)
    return values.div_(dist.get_world_size())


def mean_of(parts: list[Tensor], memory: SharedMemory | None, out: Tensor | None = None) -> Tensor:
    """Return the means of tensors of one dtype, joined, [N]: in shared memory, or one message.

    Args:
        memory: of the processes, where they may share some.
        out [N]: where the means go; None: to a new tensor.
    """
    found = None if memory is None else memory.mean(parts, out)
    if found is not None:
        return found
    return mean(torch.cat([part.flatten() for part in parts], out=out))


class Gradients:
    """The mean gradients of a model over all processes, joined to one vector of each dtype.

    What autograd leaves in ``.grad`` is taken from there; afterwards ``.grad`` are views of these
    vectors, which the next means overwrite: until then ``.grad`` has to be set to None.

    Args:
        parameters: in one order in all processes.
        memory: of the processes, where they may share some.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], memory: SharedMemory | None = None
    ) -> None:
        self._learnt = [one for one in parameters if one.requires_grad]
        self._memory = memory
        self._joined: dict[torch.dtype, Tensor] = {}
        self._views: list[Tensor] = []  # of each parameter's gradient
        self._told = torch.empty(0)  # the view of what else is averaged

    @torch.no_grad()
    def average(self, numbers: Sequence[float], dtype: torch.dtype) -> list[float]:
        """Give all processes the mean gradients.

        A parameter that has no gradient in any of them has none then; in some only, theirs count as
        zero.

        Args:
            numbers [N]: what else is averaged; as many each time.
            dtype: in which they are.

        Returns:
            The means of the numbers, [N].
        """
        found = [one.grad for one in self._learnt]
        told = torch.tensor([*numbers, *[one is not None for one in found]], dtype=dtype)
        gradients = [
            torch.zeros_like(one) if own is None else own for one, own in zip(self._learnt, found)
        ]
        tensors = [told, *gradients]
        if not self._views:
            self._lay_out(tensors)
        for parts in alike(tensors):
            mean_of(parts, self._memory, self._joined[parts[0].dtype])
        means = self._told.tolist()
        for one, view, share in zip(self._learnt, self._views, means[len(numbers) :], strict=True):
            one.grad = view if share else None
        return means[: len(numbers)]

    def clip(self, most: float) -> float:
        """Scale the means so that the norm of all together is at most so much.

        Returns:
            The norm before, as of ``torch.nn.utils.clip_grad_norm_``.
        """
        vectors = [joined for joined in self._joined.values() if joined.numel()]
        own = self._told.numel()
        parts = [v[own:] if v.dtype is self._told.dtype else v for v in vectors]
        norm = math.hypot(*[torch.linalg.vector_norm(part).item() for part in parts])
        share = most / (norm + 1e-6)
        if share < 1:
            for part in parts:
                part.mul_(share)
        return norm

    def _lay_out(self, tensors: list[Tensor]) -> None:
        """Make the vectors, and find the place of each tensor in them."""
        views: dict[int, Tensor] = {}
        for parts in alike(tensors):
            joined = torch.cat([part.flatten() for part in parts])
            pieces = joined.split([part.numel() for part in parts])
            self._joined[joined.dtype] = joined
            views |= {id(p): piece.view_as(p) for p, piece in zip(parts, pieces, strict=True)}
        self._told, *self._views = [views[id(one)] for one in tensors]


@torch.no_grad()
def average(fabric: Fabric, model: Any, optimizer: Any, memory: SharedMemory | None = None) -> None:
    """Give all processes the mean of their weights and of what their optimizers remember.

    Args:
        memory: of the processes, where they may share some.
    """
    if fabric.world_size == 1:
        return
    tensors = [parameter.detach() for parameter in model.parameters()]
    tensors += list(remembered(optimizer))
    for parts in alike(tensors):
        take_apart(mean_of(parts, memory), parts)


def remembered(optimizer: Any) -> Iterator[Tensor]:
    """The optimizer's averages, not its counters, which are the same in every process."""
    for values in optimizer.state_dict()["state"].values():
        for value in values.values():
            if isinstance(value, Tensor) and value.dim():
                yield value


def alike(tensors: list[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors of each dtype, which are sent together: one message instead of many."""
    for dtype in {tensor.dtype: None for tensor in tensors}:
        yield [tensor for tensor in tensors if tensor.dtype is dtype]


def take_apart(flat: Tensor, parts: list[Tensor]) -> None:
    """Copy the values of a joined tensor [N] back to where they came from."""
    for part, value in zip(parts, flat.split([part.numel() for part in parts]), strict=True):
        part.copy_(value.view_as(part))

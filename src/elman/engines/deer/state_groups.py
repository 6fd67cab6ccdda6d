"""Groups of recurrent states of one kind, and their layout in a trajectory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from elman.autodiff.structure import JacobianPattern, Structure
from elman.engines.deer.scans import Algebra, Dense, Units
from elman.ir.pair import Step
from elman.plan.prices import width


@dataclass(frozen=True)
class StateGroups:
    """Groups of states of one size and pattern.

    Attributes:
        groups: indices of state gate blocks; each group depends on itself alone.
        widths: sizes of the gate blocks of a group.
        algebra: layout of its arrays: ``Units`` [T, k, B·groups·U] for groups of k states whose
            units do not mix, ``Dense`` [T, B·groups, n].
    """

    groups: tuple[tuple[int, ...], ...]
    widths: tuple[int, ...]
    algebra: Algebra

    @property
    def rows(self) -> int:
        """Rows of a Jacobian."""
        return self.algebra.n

    def packed(self, states: Mapping[int, Tensor]) -> Tensor:
        """States [T, B, n] (scalars [T, B, 1]) as one array of the bundle."""
        if isinstance(self.algebra, Units):
            each = [torch.stack([states[k] for k in group], 1) for group in self.groups]
            return torch.stack(each, 3).flatten(2)  # [T, k, B, groups, U]
        joined = [torch.cat([states[k] for k in group], -1) for group in self.groups]
        return torch.stack(joined, 2).flatten(1, 2)  # [T, B, groups, n]

    def unpacked(self, packed: Tensor, batch: int) -> dict[int, Tensor]:
        """The reverse of :meth:`packed`."""
        count = len(self.groups)
        states: dict[int, Tensor] = {}
        if isinstance(self.algebra, Units):
            views = packed.unflatten(2, (batch, count, self.widths[0]))
            for g, group in enumerate(self.groups):
                for place, k in enumerate(group):
                    states[k] = views[:, place, :, g]
            return states
        views = packed.unflatten(1, (batch, count))
        for g, group in enumerate(self.groups):
            states.update(zip(group, views[:, :, g].split(self.widths, -1), strict=True))
        return states

    def seeded(self, like: Tensor) -> dict[int, Tensor]:
        """Cotangents [states of a group, 1, 1, n]: seed k is 1 in all units of state k, else 0."""
        cotangents: dict[int, Tensor] = {}
        for place, units in enumerate(self.widths):
            seed = like.new_zeros(len(self.widths), 1, 1, units)
            seed[place] = 1
            cotangents.update({group[place]: seed for group in self.groups})
        return cotangents


def state_groups_of(
    step: Step, recurrence: Structure, sizes: Mapping[str, int]
) -> tuple[StateGroups, ...]:
    """The recurrent states of a step, groups of one kind together."""
    kinds: dict[tuple[bool, tuple[int, ...]], list[tuple[int, ...]]] = {}
    for group in recurrence.groups:
        widths = tuple(width(step.states[k], sizes) for k in group)
        patterns = [kind for (a, _), kind in recurrence.kinds.items() if a in group]
        units = JacobianPattern.DENSE not in patterns and len(set(widths)) == 1
        kinds.setdefault((units, widths), []).append(group)
    return tuple(
        StateGroups(tuple(groups), widths, Units(len(widths)) if units else Dense(sum(widths)))
        for (units, widths), groups in kinds.items()
    )


def unitwise(state_groups: Sequence[StateGroups]) -> tuple[StateGroups, ...] | None:
    """The groups with ``Units`` layout; None if all have it, or if the states of a group differ in
    size."""
    if all(isinstance(group.algebra, Units) for group in state_groups):
        return None
    if any(len(set(group.widths)) > 1 for group in state_groups):
        return None
    return tuple(replace(group, algebra=Units(len(group.widths))) for group in state_groups)


def jacobian_width(state_groups: Sequence[StateGroups]) -> int:
    """Elements of the Jacobians of one step of one sample."""
    return sum(group.rows * sum(group.widths) * len(group.groups) for group in state_groups)

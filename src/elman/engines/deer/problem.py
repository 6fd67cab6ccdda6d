"""A cell as T equations: next states and Jacobians of all steps at once, by torch ops.

A trajectory is a tuple of arrays, one per *bundle*: groups of recurrent states with the same
pattern of dependence, in the layouts of the scans (``scans.Units``, ``scans.Dense``).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from elman.autodiff.structure import structure
from elman.engines import registry
from elman.engines.arrays import Arrays
from elman.engines.base import Job
from elman.engines.call import Call
from elman.engines.deer.equations import Equations, Rows
from elman.engines.deer.iterations import Iterations, Trajectory
from elman.engines.deer.jacobians import JacobianRows
from elman.engines.deer.partial_evaluation import (
    until_units_mix,
    with_zero_cotangents,
    within_units,
)
from elman.engines.deer.scans import Units
from elman.engines.deer.state_groups import (
    StateGroups,
    jacobian_width,
    state_groups_of,
    unitwise,
)
from elman.engines.gate_blocks import GateBlockViews
from elman.engines.group_step import GroupStep
from elman.engines.weights import WeightRate
from elman.ir.build import Builder
from elman.ir.evaluate import evaluate
from elman.ir.graph import Node, walk
from elman.ir.pair import loop_invariant
from elman.plan.prices import width

# Arrays of a window's Jacobian: three count against a budget (it, its transpose, its reverse); two
# live at once, since a backward frees it once it is transposed and reversed.
COPIES, LIVE = 3, 2


class Formula:
    """Properties of a job that do not depend on arguments: structure, bundles, pruned adjoints."""

    def __init__(self, job: Job) -> None:
        self.job, self.pair, self.sizes = job, job.pair, dict(job.spec.dims)
        step = job.pair.step
        self.structure = structure(job.pair.source)
        self.state_groups = state_groups_of(step, self.structure, self.sizes)
        self.recurrent = self.structure.recurrent
        self.held = tuple(leaf for leaf in step.states if leaf in step.held)
        self.next = tuple(step.next_states[k] for k in self.recurrent)
        zeros = {
            *self.pair.d_outputs,
            *(d for k, d in enumerate(self.pair.d_next) if k not in self.recurrent),
        }
        roots = [self.pair.d_states[k] for k in self.recurrent]
        self.jacobian_rows = with_zero_cotangents(roots, zeros, Builder())
        cotangents = [self.pair.d_next[k] for k in self.recurrent]
        self.rows_within_units, self.diagonals = within_units(
            self.jacobian_rows, cotangents, Builder()
        )
        self.mixing = until_units_mix(self.jacobian_rows, cotangents)
        self.unitwise = unitwise(self.state_groups)
        leaves = (*step.inputs, *step.states, *step.weights)
        views = GateBlockViews(job.graph.leaves, leaves, self.sizes)
        self.gate_blocks, self.joined = views.gate_blocks, views.joined
        self.weights = WeightRate(job)
        self._newtons: dict[Any, Any] = {}
        self.jacobian_width = jacobian_width(self.state_groups)
        self.values_width = self._values_width()

    def state_of(self, leaf: Node, like: Tensor, blocks: Mapping[Node, Tensor]) -> Tensor:
        """A state, or its gradient, from its gate blocks, in the shape of a call's state
        (``like``)."""
        flat = like.reshape(like.shape[-1 - len(leaf.shape) :])
        return self.argument_of(leaf, flat, blocks).reshape(like.shape)

    def argument_of(self, leaf: Node, like: Tensor, blocks: Mapping[Node, Tensor]) -> Tensor:
        """An input or state [.., B, n] from its gate blocks, in the shape of ``like``."""
        mine = {block: value for block, value in blocks.items() if block.name == leaf.name}
        return self.joined([*mine], [*mine.values()], like)

    def _values_width(self) -> int:
        """Elements that one step of one sample computes, including the backward in training."""
        pair = self.pair
        ends: list[Node | None] = [*pair.step.roots]
        if self.job.spec.training:
            ends += [*pair.d_states, *pair.d_inputs]
            ends += [end for term in pair.sums for end in (term.left, term.right)]
        computed = walk([end for end in ends if end is not None])
        return sum(width(v, self.sizes) for v in computed if v.args and not loop_invariant(v))

    def row_bytes(self, batch: int, item_bytes: int) -> int:
        """Memory of the Jacobians of one step (bytes)."""
        return COPIES * batch * self.jacobian_width * item_bytes

    def newton(self, device: str, dtype: torch.dtype) -> tuple[Any, ...] | str:
        """Kernels of a whole iteration for each bundle of states; or why there are none."""
        key = (device, dtype)
        if key not in self._newtons:
            make = registry.newton(device)
            self._newtons[key] = (
                f"no engine has kernels of it for {device}"
                if make is None
                else self._iterations(make, dtype)
            )
        return self._newtons[key]

    def _iterations(self, make: Any, dtype: torch.dtype) -> tuple[Any, ...] | str:
        kernels: list[Any] = []
        for state_group in self.state_groups:
            kernel = make(
                [self._group_step(group) for group in state_group.groups],
                self.sizes,
                n=state_group.algebra.n,
                units=isinstance(state_group.algebra, Units),
                passthrough=frozenset(self.held),
                dtype=dtype,
            )
            if isinstance(kernel, str):
                return kernel
            kernels.append(kernel)
        return tuple(kernels)

    def _group_step(self, group: Sequence[int]) -> GroupStep:
        step, places = self.pair.step, [self.recurrent.index(k) for k in group]
        return GroupStep(
            [step.states[k] for k in group],
            [self.next[place] for place in places],
            [self.pair.d_next[k] for k in group],
            [self.jacobian_rows[place] for place in places],
        )


class Problem(Equations):
    """The equations of one call: y[t] = f(y[t-1], x[t]) for all t.

    Args:
        formula: of the cell.
        inputs [T, B, n], states [B, n], weights: by name.
    """

    def __init__(
        self,
        formula: Formula,
        inputs: Mapping[str, Tensor],
        states: Mapping[str, Tensor],
        weights: Mapping[str, Tensor],
    ) -> None:
        step = formula.pair.step
        self.formula = formula
        first = next(iter(inputs.values()))
        self.steps, self.batch = first.shape[:2]
        self.dtype, self.device = first.dtype, first.device
        self._arrays = Arrays(self.dtype, self.device)
        self._sizes = formula.sizes
        self._inputs = formula.gate_blocks(step.inputs, inputs)
        self._states = formula.gate_blocks(step.states, states)
        self._weights = formula.gate_blocks(step.weights, weights)
        self._invariants: dict[Node, Tensor] = dict(self._weights)
        self.evaluate([value for value in step.walk() if loop_invariant(value)], self._invariants)
        self._lay_out(formula.state_groups, formula.jacobian_rows)
        kernels = formula.newton(self.device.type, self.dtype)
        self.iterations = None if isinstance(kernels, str) else Iterations(self, kernels)

    def _lay_out(self, groups: tuple[StateGroups, ...], rows: Sequence[Node | None]) -> None:
        """Set the layout of state groups and the rows of their Jacobians."""
        formula = self.formula
        self.state_groups, self._rows = groups, rows
        below = {
            k: self._column(formula.pair.step.states[k], self._states) for k in formula.recurrent
        }
        one_step = {k: value.unsqueeze(0) for k, value in below.items()}
        self.start: Trajectory = tuple(b.packed(one_step)[0] for b in groups)
        self.algebras = tuple(state_group.algebra for state_group in groups)
        self.row_bytes = COPIES * self.batch * jacobian_width(groups) * self.dtype.itemsize

    def states(self, call: Call) -> tuple[Tensor, ...]:
        """The states of a call, with those that are recurrent from ``start``."""
        blocks, step = dict(self._states), self.formula.pair.step
        for state_group, packed in zip(self.state_groups, self.start, strict=True):
            for k, value in state_group.unpacked(packed.unsqueeze(0), self.batch).items():
                blocks[step.states[k]] = self.bare(value, step.states[k])[0]
        leaves = zip(self.formula.job.graph.states, call.states, strict=True)
        return tuple(self.formula.state_of(leaf, state, blocks) for leaf, state in leaves)

    def unitwise(self) -> Problem | None:
        formula = self.formula
        if formula.unitwise is None:
            return None
        view = copy.copy(self)
        view._invariants = dict(self._invariants)
        for matrix, leaf in formula.diagonals.items():
            (values,) = self.evaluate([matrix], self._invariants)
            view._invariants[leaf] = values.diagonal(dim1=-2, dim2=-1)
        view._lay_out(formula.unitwise, formula.rows_within_units)
        view.iterations = None  # the kernels are made for dense Jacobians
        return view

    def repacked(self, y: Trajectory) -> Trajectory:
        states: dict[int, Tensor] = {}
        for state_group, packed in zip(self.formula.unitwise or (), y, strict=True):
            states.update(state_group.unpacked(packed, self.batch))
        return tuple(state_group.packed(states) for state_group in self.state_groups)

    def _column(self, leaf: Node, values: Mapping[Node, Tensor]) -> Tensor:
        return values[leaf] if leaf.shape else values[leaf].unsqueeze(-1)

    def leaves_of_rows(self, rows: Rows) -> dict[Node, Tensor]:
        """Values of non-recurrent leaves for some steps, and loop-invariant values."""
        values = dict(self._invariants)
        values.update((leaf, value[rows]) for leaf, value in self._inputs.items())
        values.update((leaf, self._states[leaf].unsqueeze(0)) for leaf in self.formula.held)
        return values

    def leaves(self, before: Trajectory, rows: Rows) -> dict[Node, Tensor]:
        """Values of all leaves for some steps; ``before`` holds the states they start from."""
        step = self.formula.pair.step
        values = self.leaves_of_rows(rows)
        for state_group, packed in zip(self.state_groups, before, strict=True):
            for k, state in state_group.unpacked(packed, self.batch).items():
                leaf = step.states[k]
                values[leaf] = state if leaf.shape else state.squeeze(-1)
        return values

    def evaluate(self, roots: Sequence[Node], values: dict[Node, Tensor]) -> tuple[Tensor, ...]:
        """Values of some nodes."""
        return evaluate(self._arrays, tuple(roots), values, self._sizes)

    def values(self, before: Trajectory, rows: Rows) -> Trajectory:
        """f for some steps, from any states before them."""
        return self._next(self.leaves(before, rows))

    def _next(self, leaves: dict[Node, Tensor]) -> Trajectory:
        formula = self.formula
        count = next(leaves[leaf].shape[0] for leaf in formula.pair.step.inputs)
        values = self.evaluate(formula.next, leaves)
        wide = {
            k: self.broadcast(value, formula.pair.step.states[k], count)
            for k, value in zip(formula.recurrent, values, strict=True)
        }
        return tuple(state_group.packed(wide) for state_group in self.state_groups)

    def next_values(self, f: Trajectory) -> dict[Node, Tensor]:
        """Next states by the nodes that compute them, of a trajectory of next states."""
        step, values = self.formula.pair.step, dict[Node, Tensor]()
        for state_group, packed in zip(self.state_groups, f, strict=True):
            for k, state in state_group.unpacked(packed, self.batch).items():
                leaf, node = step.states[k], step.next_states[k]
                if bool(leaf.shape) == bool(node.shape):
                    values[node] = self.bare(state, leaf)
        return values

    def width(self, value: Node) -> int:
        """Units of a gate block; 1 for a scalar."""
        return width(value, self._sizes)

    def broadcast(self, value: Tensor, leaf: Node, *lead: int) -> Tensor:
        """A value of every step, sample and unit, scalars as columns."""
        if not leaf.shape:
            value = value.unsqueeze(-1)
        return value.expand(*lead, self.batch, self.width(leaf))

    def constant(self, value: float) -> Tensor:
        """A number as a tensor []."""
        return self._arrays.constant(value)

    def zeros(self, leaf: Node, *lead: int) -> Tensor:
        """Zeros in the form of :meth:`broadcast`; not to be written to."""
        return self.constant(0.0).expand(*lead, self.batch, self.width(leaf))

    def bare(self, column: Tensor, leaf: Node) -> Tensor:
        """The reverse of :meth:`broadcast`: scalars without their axis of units."""
        return column if leaf.shape else column.squeeze(-1)

    def linearised(self, before: Trajectory, rows: Rows) -> tuple[Trajectory, Trajectory]:
        """f and its Jacobian by the states for some steps."""
        leaves = self.leaves(before, rows)
        values = self._next(leaves)
        count = values[0].shape[0] if values else 0
        return values, self.jacobian(leaves, count)

    def jacobian(self, leaves: dict[Node, Tensor], count: int) -> Trajectory:
        """The Jacobian of ``count`` steps from their leaves, which are not changed."""
        step, pair = self.formula.pair.step, self.formula.pair
        jacobians: list[Tensor] = []
        some = next(iter(self._inputs.values()))
        for state_group in self.state_groups:
            seeds = state_group.seeded(some)  # all at once, along a leading axis
            states, values = len(state_group.widths), dict(leaves)
            for k in self.formula.recurrent:
                leaf = step.states[k]
                seed = seeds.get(k)
                if seed is None:
                    seed = some.new_zeros(states, 1, 1, width(leaf, self._sizes))
                values[pair.d_next[k]] = self.bare(seed, leaf)
            units = isinstance(state_group.algebra, Units)
            jacobian_of = self._units_jacobian if units else self._rows_jacobian
            jacobians.append(jacobian_of(state_group, values, count))
        return tuple(jacobians)

    def _units_jacobian(
        self, state_group: StateGroups, values: dict[Node, Tensor], count: int
    ) -> Tensor:
        """[T, k, k, B·groups·U], of units that do not mix."""
        states, recurrent = self.formula.pair.step.states, self.formula.recurrent
        lead = len(state_group.widths), count
        rows: dict[int, Tensor] = {}
        for k in (k for group in state_group.groups for k in group):
            root = self._rows[recurrent.index(k)]
            rows[k] = self.zeros(states[k], *lead)
            if root is not None:
                rows[k] = self.broadcast(self.evaluate((root,), values)[0], states[k], *lead)
        each = [torch.stack([rows[k] for k in group], 1) for group in state_group.groups]
        return torch.stack(each, 4).movedim(2, 0).flatten(3)  # from [k, k, T, B, groups, U]

    def _rows_jacobian(
        self, state_group: StateGroups, values: dict[Node, Tensor], count: int
    ) -> Tensor:
        """[T, B·groups, n, n], of states whose units mix."""
        formula, n, groups = self.formula, state_group.rows, state_group.groups
        ends = list(accumulate(state_group.widths))
        spans = [slice(*ends) for ends in zip((0, *ends), ends)]
        like = next(iter(self._inputs.values()))
        jacobian = like.new_empty(count, self.batch, len(groups), n, n)
        for g, group in enumerate(groups):
            places = {formula.pair.d_next[k]: (p, spans[p]) for p, k in enumerate(group)}
            rows = JacobianRows(self, formula.mixing, values, places, count, n)
            for place, k in enumerate(group):
                root = formula.mixing.roots[formula.recurrent.index(k)]
                rows.write(jacobian[:, :, g, :, spans[place]], root)
        return jacobian.flatten(1, 2)

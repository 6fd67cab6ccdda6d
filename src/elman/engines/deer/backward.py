"""Gradients along a trajectory: one reverse scan, then all rows in one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from elman.engines.call import Call, Gradients
from elman.engines.deer.equations import before
from elman.engines.deer.iterations import Trajectory
from elman.engines.deer.problem import Problem
from elman.engines.deer.scans import scan
from elman.engines.time_shards import TimeShards, then
from elman.ir.graph import Node


class _Linearised(NamedTuple):
    """The backward of some steps as a linear recurrence.

    Attributes:
        values: values of the leaves and of the step.
        ends: the caller's cotangents of each state after each step.
        maps: A and b of each bundle of states, back in time.
    """

    values: dict[Node, Tensor]
    ends: list[Tensor]
    maps: list[tuple[Tensor, Tensor]]


class Backward:
    """Backward over windows of steps, last to first, with cotangents carried between them."""

    def __init__(
        self,
        problem: Problem,
        y: Trajectory,
        d_output: Tensor | None,
        d_last: dict[str, Tensor | None],
        wants: frozenset[str],
    ) -> None:
        self.problem, self.formula, self.y, self.d_output = problem, problem.formula, y, d_output
        step = self.formula.pair.step
        d_last_states = {name: d for name, d in d_last.items() if d is not None}
        leaves = [leaf for leaf in step.states if leaf.name in d_last_states]
        self.d_last = self.formula.gate_blocks(leaves, d_last_states)
        self.carry: Trajectory = tuple(torch.zeros_like(part) for part in problem.start)
        self._known: _Linearised | None = None  # of the next window, if it was computed before
        self.d_states: dict[Node, Tensor] = {}
        self.d_held = dict.fromkeys(problem.formula.held, problem.constant(0.0))
        self.d_inputs: dict[Node, list[Tensor]] = {
            leaf: [] for leaf in step.inputs if leaf.name in wants
        }
        self.sums: list[Tensor | None] = [None] * len(self.formula.pair.sums)

    def _linearised(self, rows: slice) -> _Linearised:
        """The linear recurrence of the cotangents of some steps, back in time, and the values it
        was computed from."""
        problem, formula = self.problem, self.formula
        pair, step = formula.pair, formula.pair.step
        count = rows.stop - rows.start
        final = rows.stop == problem.steps
        first = problem.start if not rows.start else tuple(part[rows.start - 1] for part in self.y)
        along = tuple(part[rows] for part in self.y)
        previous = before(first, along)
        values = problem.leaves(previous, rows)
        problem.evaluate(step.roots, values)  # computed once for all evaluations below
        values.update(self._d_outputs(rows))
        ends = [self._ends(leaf, count, final) for leaf in step.states]
        for leaf, end, state in zip(pair.d_next, ends, step.states, strict=True):
            values[leaf] = problem.bare(end, state)
        roots = [pair.d_states[k] for k in formula.recurrent]
        cotangents = {
            k: problem.broadcast(value, step.states[k], count)
            for k, value in zip(
                formula.recurrent, problem.evaluate(roots, dict(values)), strict=True
            )
        }
        if problem.iterations is None:
            jacobians = problem.jacobian(values, count)
        else:
            jacobians = problem.iterations.jacobian(along, first, rows, values)
        maps = [
            (group.algebra.transposed(J).flip(0), group.packed(cotangents).flip(0))
            for group, J in zip(formula.state_groups, jacobians, strict=True)
        ]
        return _Linearised(values, ends, maps)

    def begin_after(self, later: TimeShards, windows: Sequence[slice]) -> None:
        """Set the carry from the processes with later steps; each computes the map of all its
        steps first.

        Args:
            later: the processes, with time in the other direction.
            windows: of this process's steps, the last first.
        """
        algebras = [group.algebra for group in self.formula.state_groups]
        maps: list[Any] = [None] * len(algebras)
        for rows in windows:
            linearised = self._linearised(rows)
            self._known = linearised if len(windows) == 1 else None
            parts = zip(algebras, maps, linearised.maps, strict=True)
            maps = [then(algebra, last, *pair) for algebra, last, pair in parts]
        self.carry = tuple(
            later.start_of(algebra, factor, rest)
            for algebra, (factor, rest) in zip(algebras, maps, strict=True)
        )

    def window(self, rows: slice) -> None:
        """Process a window of steps; all later windows have been processed."""
        problem, formula = self.problem, self.formula
        pair, step = formula.pair, formula.pair.step
        count = rows.stop - rows.start
        values, ends, maps = self._known or self._linearised(rows)
        self._known = None
        totals: dict[int, Tensor] = {}
        carries: list[Tensor] = []
        for state_group, pair_of, start in zip(formula.state_groups, maps, self.carry, strict=True):
            u = scan(state_group.algebra, *pair_of, start).flip(0)
            later = torch.cat((u[1:], start.unsqueeze(0)))
            totals.update(state_group.unpacked(later, problem.batch))
            carries.append(u[0])
        self.carry = tuple(carries)
        for k, total in totals.items():
            values[pair.d_next[k]] = problem.bare(total + ends[k], step.states[k])
        self._collect(values, count)
        self._sum_passthrough(values, count)
        if not rows.start:
            self._initial(values, count)

    def _d_outputs(self, rows: slice) -> dict[Node, Tensor]:
        """Cotangents of the output's gate blocks."""
        problem, formula = self.problem, self.formula
        step, pair = formula.pair.step, formula.pair
        count = rows.stop - rows.start
        d_outputs: dict[Node, Tensor] = {}
        at = 0
        for leaf, root in zip(pair.d_outputs, step.outputs, strict=True):
            width = problem.width(root)
            if self.d_output is None:
                d_outputs[leaf] = problem.bare(problem.zeros(root, count), root)
            elif root.shape:
                d_outputs[leaf] = self.d_output[rows, :, at : at + width]
            elif len(step.outputs) > 1:
                d_outputs[leaf] = self.d_output[rows, :, at]
            else:
                d_outputs[leaf] = self.d_output[rows]
            at += width
        return d_outputs

    def _ends(self, leaf: Node, count: int, final: bool) -> Tensor:
        """The caller's cotangent of a last state, in the last row of the last window."""
        d = self.d_last.get(leaf)
        ends = self.problem.zeros(leaf, count)
        if d is None or not final:
            return ends
        ends = ends.clone()
        ends[-1] = d if leaf.shape else d.unsqueeze(-1)
        return ends

    def _collect(self, values: dict[Node, Tensor], count: int) -> None:
        """Accumulate gradients of inputs, and sums over rows for those of the weights."""
        problem, pair = self.problem, self.formula.pair
        for leaf, root in zip(pair.step.inputs, pair.d_inputs, strict=True):
            if root is not None and leaf in self.d_inputs:
                d_input = problem.evaluate((root,), values)[0]
                wide = problem.broadcast(d_input, leaf, count)
                self.d_inputs[leaf].append(problem.bare(wide, leaf))
        for index, term in enumerate(pair.sums):
            d_rows = problem.broadcast(problem.evaluate((term.left,), values)[0], term.left, count)
            if term.right is None:
                gradient = d_rows.sum((0, 1))
                gradient = gradient if term.left.shape else gradient[0]
            else:
                operand = problem.evaluate((term.right,), values)[0]
                wide = problem.broadcast(operand, term.right, count)
                gradient = d_rows.flatten(0, 1).T @ wide.flatten(0, 1)
            total = self.sums[index]
            self.sums[index] = gradient if total is None else total + gradient

    def _sum_passthrough(self, values: dict[Node, Tensor], count: int) -> None:
        """Accumulate gradients of pass-through states, which have no recurrence."""
        problem, pair = self.problem, self.formula.pair
        for leaf, root in zip(pair.step.states, pair.d_states, strict=True):
            if leaf in self.d_held:
                (d_state,) = problem.evaluate((root,), values)
                self.d_held[leaf] = self.d_held[leaf] + problem.broadcast(d_state, leaf, count).sum(
                    0
                )

    def _initial(self, values: dict[Node, Tensor], count: int) -> None:
        problem, pair = self.problem, self.formula.pair
        step = pair.step
        for leaf, root in zip(step.states, pair.d_states, strict=True):
            if leaf in self.d_held:
                self.d_states[leaf] = problem.bare(self.d_held[leaf], leaf)
                continue
            d_state = problem.broadcast(problem.evaluate((root,), values)[0], leaf, count)
            d_state = problem.bare(d_state, leaf)[0]
            first = problem.shards is None or problem.shards.place == 0
            self.d_states[leaf] = d_state if first else torch.zeros_like(d_state)

    def gradients(self, call: Call) -> Gradients:
        """As :meth:`Kernel.backward` returns them."""
        formula = self.formula
        pair, graph = formula.pair, formula.job.graph
        totals: dict[Node, Tensor] = {}
        for term, value in zip(pair.sums, self.sums, strict=True):
            if value is not None:
                total = totals.get(term.target)
                totals[term.target] = value if total is None else total + value

        zero = self.problem.constant(0.0)
        d_inputs = {
            gate_block: torch.cat(rows[::-1]) if rows else zero
            for gate_block, rows in self.d_inputs.items()
        }
        wanted = {gate_block.name for gate_block in d_inputs}
        found_inputs = [
            formula.argument_of(leaf, value, d_inputs) if leaf.name in wanted else None
            for leaf, value in zip(graph.inputs, call.inputs, strict=True)
        ]
        found_weights = formula.weights.gradients(totals, call.weights)
        found_states = [
            formula.state_of(leaf, state, self.d_states)
            for leaf, state in zip(graph.states, call.states, strict=True)
        ]
        return Gradients(tuple(found_inputs), tuple(found_states), tuple(found_weights))

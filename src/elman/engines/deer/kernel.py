"""A cell over all steps at once: states by a solver, outputs and gradients in one batch of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from elman.engines import registry
from elman.engines.base import Job, Kernel
from elman.engines.call import Call, Cotangents, Gradients, Result
from elman.engines.deer import sequential
from elman.engines.deer.backward import Backward
from elman.engines.deer.convergence import finite
from elman.engines.deer.equations import Trajectory, before_window, windows
from elman.engines.deer.problem import COPIES, Formula, Problem
from elman.engines.deer.solvers import BUDGET, CHAIN, IN_CACHE, Solution, solve
from elman.engines.precision import multiplying
from elman.errors import warn_once
from elman.ir.graph import Node
from elman.ir.types import Shape
from elman.plan.cost import item_bytes
from elman.plan.prices import width


class DeerKernel(Kernel):
    """Forward by Newton's iteration (or sequentially), backward by one reverse scan.

    Attributes:
        calls, fallbacks: forward calls, and those of them whose steps were run sequentially because
            no solver's result was accepted.
        last: how the last call was solved.
    """

    def __init__(self, job: Job, engine: str, solvers: tuple[str, ...] = CHAIN) -> None:
        self.engine, self.solvers = engine, solvers
        self.formula = Formula(job)
        self._job = job
        self._sequential: Kernel | None = None
        self._looked = False
        self.calls = self.fallbacks = 0
        self.last = Solution()
        self.budget = IN_CACHE if job.spec.device == "cpu" else BUDGET

    def describe(self) -> dict[str, Any]:
        """Engine, and solvers in the order in which they are tried; where a device has kernels of
        Newton's iteration, whether these run it, or why not."""
        facts = {"engine": self.engine, "schedule": "+".join(self.solvers)}
        spec = self._job.spec
        if self.solvers and registry.newton(spec.device) is not None:
            kernels = self.formula.newton(spec.device, getattr(torch, spec.dtype))
            why = f"by torch's operations ({kernels})" if isinstance(kernels, str) else "in kernels"
            facts["iterations"] = why
        return facts

    def counters(self) -> dict[str, int]:
        """Forward calls, and how many of them fell back to sequential steps."""
        return {"calls": self.calls, "fallbacks": self.fallbacks} if self.solvers else {}

    def tape_bytes(self, T: int, B: int) -> int:
        """Memory of the trajectory and the initial states (bytes)."""
        sizes = self.formula.sizes
        states = sum(width(leaf, sizes) for leaf in self._job.graph.states)
        return item_bytes(self._job.spec) * B * (states + T * self._recurrent())

    def workspace_bytes(self, T: int, B: int) -> int:
        """Jacobians and values of a window, iterates, output (bytes); of a trajectory that is
        found, not of steps that are run sequentially."""
        formula, each = self.formula, item_bytes(self._job.spec) * B
        jacobians = COPIES * formula.jacobian_width
        steps = min(T, max(1, self.budget // max(1, each * jacobians)))
        output = sum(width(value, formula.sizes) for value in self._job.graph.outputs)
        window = steps * (jacobians + formula.values_width)
        return each * (window + T * (self._recurrent() + output))

    def _recurrent(self) -> int:
        """Elements of the recurrent states of one sample."""
        return sum(
            sum(state_group.widths) * len(state_group.groups)
            for state_group in self.formula.state_groups
        )

    def _problem(self, call: Call) -> Problem:
        graph = self._job.graph

        def by_name(leaves: Sequence[Node], values: Sequence[Tensor]) -> dict[str, Tensor]:
            return {leaf.name: value for leaf, value in zip(leaves, values, strict=True)}

        flat = [
            state.reshape(state.shape[-1 - len(leaf.shape) :])
            for leaf, state in zip(graph.states, call.states, strict=True)
        ]
        return Problem(
            self.formula,
            by_name(graph.inputs, call.inputs),
            by_name(graph.states, flat),
            by_name(graph.weights, call.weights),
        )

    def forward(self, call: Call) -> Result:
        """See :meth:`Kernel.forward`."""
        problem = self._problem(call)
        y = self._trajectory(problem, call)
        step, graph = self.formula.pair.step, self._job.graph
        outputs: list[Tensor] = []
        computed: dict[Node, Tensor] = {}
        T = 0
        for rows in windows(problem, self.budget):
            values = problem.leaves(before_window(problem.start, y, rows), rows)
            computed = dict(zip(step.roots, problem.evaluate(step.roots, values), strict=True))
            T = rows.stop - rows.start
            pieces = [problem.broadcast(computed[root], root, T) for root in step.outputs]
            outputs.append(_concat_blocks(pieces, graph.output_shape))
        output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        last: list[Tensor] = []
        for leaf, state in zip(graph.states, call.states, strict=True):
            gate_blocks = [
                k for k, gate_block in enumerate(step.states) if gate_block.name == leaf.name
            ]
            ends = [
                problem.broadcast(computed[step.next_states[k]], step.states[k], T)[-1:]
                for k in gate_blocks
            ]
            last.append(_concat_blocks(ends, leaf.shape).reshape(state.shape))
        if not self._job.spec.training:
            return Result(output, tuple(last))
        return Result(output, tuple(last), y or (output.new_empty(0),))  # what is empty has none

    def _trajectory(self, problem: Problem, call: Call) -> Trajectory:
        """The recurrent states of all steps."""
        self.calls += 1
        if not problem.start:
            return ()
        if self.solvers:
            with multiplying(call.states[0], "ieee"):  # the convergence checks demand all bits
                solution = solve(problem, self.solvers, budget=self.budget)
            self.last = solution
            if solution.y is not None:
                return solution.y
            if finite(call.tensors):
                self.fallbacks += 1
                self._warn_fallback(solution)
        if not self._looked:
            self._sequential, self._looked = sequential.sequential_kernel(self._job), True
        if self._sequential is None:
            return sequential.run_sequentially(problem)
        leaves = self._job.graph.states
        rows = sequential.rows_by_kernel(self._sequential, call, leaves)
        step = self.formula.pair.step
        named = {leaf.name: part[1:] for leaf, part in zip(leaves, rows)}
        read = [step.states[k] for k in self.formula.recurrent]
        gate_blocks = self.formula.gate_blocks(read, named)
        columns = {
            k: gate_blocks[step.states[k]]
            if step.states[k].shape
            else gate_blocks[step.states[k]].unsqueeze(-1)
            for k in self.formula.recurrent
        }
        return tuple(state_group.packed(columns) for state_group in self.formula.state_groups)

    def _warn_fallback(self, solution: Solution) -> None:
        """One warning per cell and process."""
        warn_once(
            f"engine deer ran {self._job.name} step by step, because no solver's result was "
            f"accepted ({solution.attempts}). The results are correct, only slower to compute. "
            f"This warning is shown once.",
            f"deer {self._job.name}",
        )

    def backward(
        self, call: Call, saved: Sequence[Tensor], cotangents: Cotangents, keep: bool
    ) -> Gradients:
        """Exact gradients along the trajectory: one reverse scan, then one batch of all rows."""
        problem = self._problem(call)
        y = tuple(saved) if problem.start else ()
        d_last, wants = self._ends(cotangents.last), self._job.spec.wants
        back = Backward(problem, y, cotangents.output, d_last, wants)
        size = max(1, self.budget // max(1, problem.row_bytes)) if problem.start else problem.steps
        for stop in range(problem.steps, 0, -size):
            back.window(slice(max(0, stop - size), stop))
        return back.gradients(call)

    def _ends(self, d_last: Sequence[Tensor | None]) -> dict[str, Tensor | None]:
        return {
            leaf.name: d if d is None else d.reshape(d.shape[-1 - len(leaf.shape) :])
            for leaf, d in zip(self._job.graph.states, d_last, strict=True)
        }


def _concat_blocks(gate_blocks: list[Tensor], shape: Shape) -> Tensor:
    """The gate blocks of a value [rows, B, n] as one array; a scalar's as [rows, B]."""
    return torch.cat(gate_blocks, -1) if shape else gate_blocks[0].squeeze(-1)

"""A cell over all steps at once: states by a solver, outputs and gradients in one batch of rows."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from elman.engines import deadline, registry
from elman.engines.base import Job, Kernel
from elman.engines.call import Call, Cotangents, Gradients, Result
from elman.engines.deer import sequential
from elman.engines.deer.backward import Backward
from elman.engines.deer.convergence import (
    TOLERANCES,
    errors_noted,
    finite,
    note_errors,
    refusal_of_errors,
)
from elman.engines.deer.equations import before_window, windows
from elman.engines.deer.iterations import Trajectory
from elman.engines.deer.problem import COPIES, LIVE, Formula, Problem
from elman.engines.deer.solvers import (
    BUDGET,
    BURST,
    CHAIN,
    IN_CACHE,
    Solution,
    first_near,
    solve,
)
from elman.engines.precision import multiplying
from elman.engines.time_shards import TimeShards
from elman.errors import warn_once
from elman.ir.graph import Node
from elman.ir.types import Shape
from elman.plan.cost import item_bytes
from elman.plan.prices import width

# (bytes) most arguments and results of a direction's captured calls; graphs keep the memory of all
# intermediate values, some twenty times as much
GRAPHS = 16 << 20


class DeerKernel(Kernel):
    """Forward by Newton's iteration (or sequentially), backward by one reverse scan.

    Attributes:
        calls, fallbacks: numbers of forward calls, and of calls that ran sequentially because no
            solver's result was accepted.
        last: solution of the last call.
    """

    def __init__(self, job: Job, engine: str, solvers: tuple[str, ...] = CHAIN) -> None:
        self.engine, self.solvers = engine, solvers
        self.formula = Formula(job)
        self.job = job
        self._sequential: list[Kernel | None] = []  # shared by all copies, filled on first use
        self.calls = self.fallbacks = 0
        self.last = Solution()
        self.budget = IN_CACHE if job.spec.device == "cpu" else BUDGET
        self._burst = BURST  # iterations that a forward launches before the host reads the notes
        self._graphs: tuple[Any, Any] | None = None  # of both directions
        self.shards: TimeShards | None = None

    def over_time(self, shards: TimeShards) -> Kernel:
        kernel = copy.copy(self)
        kernel.shards, kernel._graphs = shards, None
        return kernel

    def describe(self) -> dict[str, Any]:
        """Engine, and solvers in the order in which they are tried; on devices with kernels of
        Newton's iteration, whether these run, or why not."""
        facts = {"engine": self.engine, "schedule": "+".join(self.solvers)}
        spec = self.job.spec
        if self.solvers and registry.newton(spec.device) is not None:
            kernels = self._kernels()
            why = f"by torch's operations ({kernels})" if isinstance(kernels, str) else "in kernels"
            facts["iterations"] = why
        return facts

    def counters(self) -> dict[str, int]:
        """Forward calls, and how many of them fell back to sequential steps."""
        return {"calls": self.calls, "fallbacks": self.fallbacks} if self.solvers else {}

    def tape_bytes(self, T: int, B: int) -> int:
        """Memory of the trajectory and the initial states (bytes)."""
        sizes = self.formula.sizes
        states = sum(width(leaf, sizes) for leaf in self.job.graph.states)
        return item_bytes(self.job.spec) * B * (states + T * self._recurrent())

    def workspace_bytes(self, T: int, B: int) -> int:
        """Jacobians and values of a window, iterates, output (bytes), if a solver succeeds; a
        sequential run takes less."""
        formula, each = self.formula, item_bytes(self.job.spec) * B
        jacobians = formula.jacobian_width
        steps = min(T, max(1, self.budget // max(1, each * COPIES * jacobians)))
        output = sum(width(value, formula.sizes) for value in self.job.graph.outputs)
        window = steps * (LIVE * jacobians + formula.values_width)
        return each * (window + T * (self._recurrent() + output))

    def _recurrent(self) -> int:
        """Elements of the recurrent states of one sample."""
        return sum(
            sum(state_group.widths) * len(state_group.groups)
            for state_group in self.formula.state_groups
        )

    def _problem(self, call: Call) -> Problem:
        graph = self.job.graph

        def by_name(leaves: Sequence[Node], values: Sequence[Tensor]) -> dict[str, Tensor]:
            return {leaf.name: value for leaf, value in zip(leaves, values, strict=True)}

        flat = [
            state.reshape(state.shape[-1 - len(leaf.shape) :])
            for leaf, state in zip(graph.states, call.states, strict=True)
        ]
        problem = Problem(
            self.formula,
            by_name(graph.inputs, call.inputs),
            by_name(graph.states, flat),
            by_name(graph.weights, call.weights),
        )
        if self.shards is not None:
            problem.shards, problem.iterations = self.shards, None
        return problem

    def forward(self, call: Call) -> Result:
        self.calls += 1
        result = self._forward_at_once(call) if self._runs_at_once(call) else None
        if result is not None:
            return result
        problem = self._problem(call)
        y = self._trajectory(problem, call)
        outputs: list[Tensor] = []
        last: tuple[Tensor, ...] = ()
        for rows in windows(problem, self.budget):
            output, last = self._ends(problem, call, rows, self._values(problem, y, rows, {}))
            outputs.append(output)
        output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        if not self.job.spec.training:
            return Result(output, last)
        saved = y if self.shards is None else (*y, *problem.start)
        # a cell without recurrent states saves one empty tensor: empty means no backward
        return Result(output, last, saved or (output.new_empty(0),))

    def _values(
        self, problem: Problem, y: Trajectory, rows: slice, known: dict[Node, Tensor]
    ) -> dict[Node, Tensor]:
        """Outputs and next states of some steps of a trajectory; ``known`` has some of them."""
        roots = self.formula.pair.step.roots
        if all(root in known for root in roots):
            return known
        values = problem.leaves(before_window(problem.start, y, rows), rows) | known
        return dict(zip(roots, problem.evaluate(roots, values), strict=True))

    def _ends(
        self, problem: Problem, call: Call, rows: slice, values: dict[Node, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The output of some steps, and the states after the last of them."""
        step, graph, T = self.formula.pair.step, self.job.graph, rows.stop - rows.start
        pieces = [problem.broadcast(values[root], root, T) for root in step.outputs]
        last: list[Tensor] = []
        for leaf, state in zip(graph.states, call.states, strict=True):
            gate_blocks = [
                k for k, gate_block in enumerate(step.states) if gate_block.name == leaf.name
            ]
            ends = [
                problem.broadcast(values[step.next_states[k]], step.states[k], T)[-1:]
                for k in gate_blocks
            ]
            last.append(_concat_blocks(ends, leaf.shape).reshape(state.shape))
        return _concat_blocks(pieces, graph.output_shape), tuple(last)

    def _runs_at_once(self, call: Call) -> bool:
        """Whether a forward is kernels alone: iterations, convergence checks, output."""
        spec, formula = self.job.spec, self.formula
        if not self.solvers or self.solvers[0] != "newton" or not formula.state_groups:
            return False
        if self.shards is not None or isinstance(self._kernels(), str):
            return False
        T, B, _ = call.sizes
        return 0 < T * formula.row_bytes(B, item_bytes(spec)) <= self.budget

    def _forward_at_once(self, call: Call) -> Result | None:
        """A forward that synchronises with the host once, at the end; None if its result is not
        accepted."""
        deadline.check()
        form, burst, dtype = call.form, self._burst, call.states[0].dtype
        demanded = TOLERANCES[dtype].residual

        def compute(tensors: Sequence[Tensor]) -> tuple[Any, ...]:
            call = form.call(tensors)
            problem = self._problem(call)
            kernels, rows = problem.iterations, slice(0, problem.steps)
            assert kernels is not None, "_runs_at_once asked for kernels"
            notes = kernels.notes(burst + 2)
            y = kernels.iterated(kernels.guess(rows), problem.start, rows, notes[:burst], demanded)
            f = note_errors(kernels, y, rows, notes[burst:])
            values = self._values(problem, y, rows, problem.next_values(f))
            return *self._ends(problem, call, rows, values), y, notes

        with multiplying(call.states[0], "ieee"):  # tf32 would not pass the convergence checks
            output, last, y, notes = self._run(0, compute, call.tensors, (form, burst))
        noted = notes.tolist()
        k = first_near(noted[:burst], demanded)
        if k is None:
            return None
        errors = errors_noted(noted[burst:], call.sizes[0])
        if refusal_of_errors(errors, dtype) is not None:
            return None
        self.last = Solution(y, "newton", k)
        return Result(output, last, y if self.job.spec.training else ())

    def _trajectory(self, problem: Problem, call: Call) -> Trajectory:
        """The recurrent states of all steps."""
        if not problem.start:
            return ()
        if self.solvers:
            with multiplying(call.states[0], "ieee"):  # tf32 would not pass the convergence checks
                solution = solve(problem, self.solvers, budget=self.budget)
            self.last = solution
            if solution.y is not None:
                # later calls launch as many iterations as this one needed
                if solution.solver == "newton" and solution.iterations >= self._burst:
                    self._burst = -(-(solution.iterations + 1) // BURST) * BURST
                return solution.y
            if problem.largest_of_all(not finite(call.tensors)) == [0]:
                self.fallbacks += 1
                self._warn_fallback(solution)
        if self.shards is None:
            return self._sequential_trajectory(problem, call)

        def run(start: Trajectory) -> Trajectory:
            problem.start = start
            return self._sequential_trajectory(problem, call._replace(states=problem.states(call)))

        problem.start, y = self.shards.one_after_another(problem.start, run)
        return y

    def _sequential_trajectory(self, problem: Problem, call: Call) -> Trajectory:
        """The recurrent states of all steps, one step after another."""
        if not self._sequential:
            self._sequential.append(sequential.sequential_kernel(self.job))
        (kernel,) = self._sequential
        if kernel is None:
            return sequential.run_sequentially(problem)
        leaves = self.job.graph.states
        rows = sequential.rows_by_kernel(kernel, call, leaves)
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
            f"engine deer ran {self.job.name} step by step, because no solver's result was "
            f"accepted ({solution.attempts}). The results are correct, only slower to compute. "
            f"This warning is shown once.",
            f"deer {self.job.name}",
        )

    def backward(
        self, call: Call, saved: Sequence[Tensor], cotangents: Cotangents, keep: bool
    ) -> Gradients:
        """Exact gradients along the trajectory: one reverse scan, then one batch of all rows."""
        form, first, last = call.form, len(call.tensors), len(call.tensors) + len(saved)

        def compute(tensors: Sequence[Any]) -> Gradients:
            d_output, *d_last = tensors[last:]
            ends = Cotangents(d_output, tuple(d_last))
            return self._gradients(form.call(tensors[:first]), tensors[first:last], ends)

        tensors = (*call.tensors, *saved, cotangents.output, *cotangents.last)
        with multiplying(call.states[0], "ieee"):
            return self._run(1, compute, tensors, form)

    def _run(
        self, way: int, compute: Callable[[Any], Any], tensors: Sequence[Any], facts: Any
    ) -> Any:
        """The result of a function of tensors; with kernels, repeated calls replay as graphs."""
        kernels = self._kernels()
        if isinstance(kernels, str) or not kernels or self.shards is not None:
            return compute(tensors)
        if self._graphs is None:
            graphs = kernels[0].graphs
            self._graphs = graphs(GRAPHS), graphs(GRAPHS)
        return self._graphs[way].run(compute, tensors, facts)

    def _kernels(self) -> tuple[Any, ...] | str:
        """Kernels of Newton's iteration on the job's device; or why there are none."""
        spec = self.job.spec
        return self.formula.newton(spec.device, getattr(torch, spec.dtype))

    def _gradients(self, call: Call, saved: Sequence[Tensor], cotangents: Cotangents) -> Gradients:
        problem = self._problem(call)
        count = len(problem.start)
        y = tuple(saved[:count])
        if self.shards is not None:
            problem.start = tuple(saved[count : 2 * count])
        d_last, wants = self._cotangents_by_name(cotangents.last), self.job.spec.wants
        back = Backward(problem, y, cotangents.output, d_last, wants)
        slices = [*windows(problem, self.budget)][::-1]
        if self.shards is not None:
            back.begin_after(self.shards.reversed(), slices)
        for rows in slices:
            back.window(rows)
        return back.gradients(call)

    def _cotangents_by_name(self, d_last: Sequence[Tensor | None]) -> dict[str, Tensor | None]:
        return {
            leaf.name: d if d is None else d.reshape(d.shape[-1 - len(leaf.shape) :])
            for leaf, d in zip(self.job.graph.states, d_last, strict=True)
        }


def _concat_blocks(gate_blocks: list[Tensor], shape: Shape) -> Tensor:
    """The gate blocks of a value [rows, B, n] as one array; a scalar's as [rows, B]."""
    return torch.cat(gate_blocks, -1) if shape else gate_blocks[0].squeeze(-1)

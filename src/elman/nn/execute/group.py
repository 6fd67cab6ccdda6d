"""Groups of layers or directions that run together: requests, kernels and calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from elman import compiler
from elman.engines.base import Arrangement, Job, Kernel
from elman.engines.call import Call, Result
from elman.engines.checkpoint import all_checkpointed
from elman.engines.packed import reversed_in_time
from elman.engines.time_shards import CUT, TimeShards, current
from elman.engines.together import Together
from elman.errors import EngineError
from elman.nn.autograd.function import BoundKernel
from elman.nn.engine_choice import traces_onnx
from elman.nn.execute.layer import BENCHMARKED, Rules, Runner, sizes_for_choosing
from elman.nn.options.bound import StepValues
from elman.nn.options.outputs import Outputs, rules_for
from elman.nn.options.registry import STEP_OPTIONS, rules_of
from elman.plan.build import program
from elman.plan.checkpoint import Checkpoint, Sizes, fitting
from elman.plan.cost import state_bytes, tape_bytes
from elman.tuning.choose import Choice
from elman.tuning.kernels import engine_for, first_engine, kernel_of
from elman.tuning.request import Request, StackRequest, bucket, nearest
from elman.tuning.together import APART, AT_ONCE, choose_together, sends_by_layer

States = tuple[Tensor, ...]


class BoundGroup(NamedTuple):
    """The kernels that run calls of one kind of a group.

    Attributes:
        kernels: one for all layers and directions, or one for each.
        rules: how the step of each changes.
        arrangement: which arguments of all are whose.
    """

    kernels: tuple[BoundKernel, ...]
    rules: tuple[Rules, ...]
    arrangement: Arrangement


class Group:
    """Layers that follow one another with nothing in between, the directions of one, or one alone.

    Where every layer runs on a kernel with its own backward, all of them are one kernel and one
    node of autograd; whether they run at once is benchmarked.

    Args:
        runners: lowest layer first; or forward and reverse.
        directions: whether they are directions.
    """

    def __init__(self, runners: Sequence[Runner], directions: bool) -> None:
        self.runners, self.directions = list(runners), directions
        self._chosen: dict[StackRequest, Choice | None] = {}
        self._pinned: dict[str, Mapping[str, Any]] = {}
        self._oracles: dict[tuple[Rules, ...], Kernel] = {}
        self._arrangements: dict[tuple[Rules, ...], Arrangement] = {}
        self.name: str | None = None  # by which compiled programs find it

    def rules(
        self, steps: Sequence[StepValues], last: bool = True, outputs: Outputs = None
    ) -> tuple[Rules, ...]:
        """Rules that change the step of each layer: for its outputs, then for the options in use.

        Args:
            steps: of the options.
            last: whether no group is above.
            outputs: of the last layer, as of a call.
        """
        further, top = rules_of(steps), self.runners if self.directions else self.runners[-1:]
        return tuple(
            [rules_for(r.cell, last and r in top, outputs) + further for r in self.runners]
        )

    def calls(
        self,
        plain: Sequence[Call],
        steps: Sequence[StepValues],
        rules: Sequence[Rules],
        compute: bool = True,
    ) -> list[Call]:
        """The calls of all layers and directions, with options; the first layer's input stands for
        the inputs of those above.

        Args:
            plain: as the cells take them.
            steps: the values of options.
            rules: of :meth:`rules`.
            compute: as of :meth:`Runner.precompute_static`.
        """
        calls = list(plain)
        for values in steps:
            option = STEP_OPTIONS[values.option]
            for index, call in enumerate(calls):
                calls[index] = option.extend(values, call, self.directions and index == 1, index)
        trio = zip(self.runners, calls, rules, strict=True)
        return [r.precompute_static(call, rule, compute) for r, call, rule in trio]

    def requests(
        self,
        calls: Sequence[Call],
        flows: bool,
        engine: str,
        rules: Sequence[Rules],
        checkpoint: Checkpoint,
    ) -> tuple[tuple[Request, ...], int]:
        """Build the requests of calls; a layer's input has a gradient if anything below it has one.

        Args:
            calls: of :meth:`calls`.
            flows: whether the input of the lowest has a gradient.
            engine: a name, or `.`auto`.`.
            rules: of :meth:`rules`.
            checkpoint: of the call.

        Returns:
            The requests of each layer and direction, and how many steps lie between two kept
            states; 0: everything is kept.

        Raises:
            InputError: the budget is less than any way needs.
        """
        members: list[Request] = []
        below = flows
        for runner, call, rule in zip(self.runners, calls, rules, strict=True):
            wants = [below, *[x.requires_grad for x in call.inputs[1:]]]
            member = runner.request(call, wants, engine, rule)
            members.append(member)
            below = below or (not self.directions and member.training)
        between = 0
        if checkpoint and any(member.training for member in members):
            members, between = in_spans(self.runners, members, calls[0].sizes, checkpoint)
        return tuple(members), between

    def bind(
        self,
        calls: Sequence[Call],
        engine: str | None,
        rules: tuple[Rules, ...],
        checkpoint: Checkpoint,
    ) -> BoundGroup:
        """The kernels of such calls; arguments as of :meth:`requests`.

        Args:
            engine: None: so that every transform goes through.
        """
        arrangement = self.arrangement(rules)
        if engine is None:
            if current() is not None:
                raise EngineError(f"{CUT} go through no transform")
            oracle = self.oracle(rules)
            return BoundGroup((BoundKernel(oracle, lambda: oracle, False),), rules, arrangement)
        flows = calls[0].inputs[0].requires_grad
        members, between = self.requests(calls, flows, engine, rules, checkpoint)
        shards = current()
        if shards is not None:
            return self._bind_shards(shards, calls, members, between, rules)
        if len(members) > 1:
            steps, batch = sizes_for_choosing(calls[0])
            choice = self._choice(StackRequest(members), min(steps, between or steps), batch)
            if choice is not None and not (between and choice.kernel.differentiable):
                kernel, training = choice.kernel, [member.training for member in members]
                if between and isinstance(kernel, Together):
                    kernel = all_checkpointed(kernel, between, training)
                bound = BoundKernel(kernel, lambda: self.oracle(rules), any(training))
                return BoundGroup((bound,), rules, arrangement)
        trio = zip(self.runners, calls, members, strict=True)
        return BoundGroup(
            tuple([runner.bind(call, member, between) for runner, call, member in trio]),
            rules,
            arrangement,
        )

    def _bind_shards(
        self,
        shards: TimeShards,
        calls: Sequence[Call],
        members: Sequence[Request],
        between: int,
        rules: tuple[Rules, ...],
    ) -> BoundGroup:
        """:meth:`bind` of sequences that are cut in time over processes."""
        if between:
            raise EngineError(f"{CUT} have no checkpoints")
        if calls[0].packed is not None:
            raise EngineError(f"{CUT} have no lengths of their own")
        kernels: list[BoundKernel] = []
        trio = zip(self.runners, calls, members, strict=True)
        for index, (runner, call, member) in enumerate(trio):
            bound = runner.bind(call, member)
            order = shards.reversed() if self.directions and index else shards
            kernel = bound.kernel.over_time(order)
            kernels.append(bound._replace(kernel=kernel, oracle=_refuse_second_derivatives))
        return BoundGroup(tuple(kernels), rules, self.arrangement(rules))

    def run(self, bound: BoundGroup, calls: Sequence[Call]) -> Result:
        """Run all steps.

        Args:
            bound: of such calls.
            calls: of :meth:`calls`.

        Returns:
            The output, of both directions joined; the last states of all layers and directions.
        """
        kernels = bound.kernels
        if len(calls) == 1:
            result = kernels[0].run(calls[0])
        elif len(kernels) == 1:
            result = kernels[0].run(bound.arrangement.joined(calls))
        else:
            result = self._run_sequentially(bound, calls)
        if len(result.last) == sum(len(runner.cell.states) for runner in self.runners):
            return result
        last: list[Tensor] = []
        at = 0
        for runner, count in zip(self.runners, bound.arrangement.states):
            last += result.last[at : at + len(runner.cell.states)]
            at += count
        return result._replace(last=tuple(last))

    def _run_sequentially(self, bound: BoundGroup, calls: Sequence[Call]) -> Result:
        """Run one after another, each as a node of autograd."""
        results: list[Result] = []
        for index, (kernel, call) in enumerate(zip(bound.kernels, calls, strict=True)):
            count = len(call.inputs) - bound.arrangement.private
            if index and self.directions:
                time_reversed = [reversed_in_time(x, call.packed) for x in call.inputs[:count]]
                call = call._replace(inputs=(*time_reversed, *call.inputs[count:]))
            elif index:
                call = call._replace(inputs=(results[-1].output, *call.inputs[1:]))
            results.append(kernel.run(call))
        output = results[-1].output
        if self.directions:
            output = torch.cat((results[0].output, reversed_in_time(output, calls[0].packed)), -1)
        return Result(output, tuple(end for result in results for end in result.last))

    def arrangement(self, rules: tuple[Rules, ...]) -> Arrangement:
        """The assignment of arguments to layers."""
        if rules not in self._arrangements:
            graphs = [compiler.graph_of(r.cell, rule) for r, rule in zip(self.runners, rules)]
            rule = len(graphs[0].inputs) - len(compiler.graph_of(self.runners[0].cell).inputs)
            self._arrangements[rules] = Arrangement(
                tuple(len(graph.states) for graph in graphs),
                tuple(len(graph.weights) for graph in graphs),
                self.directions,
                rule,
            )
        return self._arrangements[rules]

    def oracle(self, rules: tuple[Rules, ...]) -> Kernel:
        """A differentiable kernel of all layers, for every transform."""
        if len(rules) == 1:
            return self.runners[0].oracle(rules[0])
        exported = traces_onnx()
        oracle = None if exported else self._oracles.get(rules)
        if oracle is None:
            oracles = [runner.oracle(rule) for runner, rule in zip(self.runners, rules)]
            oracle = Together(oracles, self.arrangement(rules))
            if not exported:
                self._oracles[rules] = oracle
        return oracle

    @property
    def choices(self) -> dict[str, Choice]:
        """Choices made among several candidates, by :meth:`show`; for records."""
        pairs = [(self.show(request), choice) for request, choice in self._chosen.items()]
        return {text: choice for text, choice in pairs if choice and choice.why != "only"}

    @property
    def pending_records(self) -> dict[str, Mapping[str, Any]]:
        """Pinned records whose requests have not occurred yet."""
        ran = set(map(self.show, self._chosen))
        return {text: record for text, record in self._pinned.items() if text not in ran}

    def show(self, request: StackRequest) -> str:
        """Format the request of all layers."""
        return " | ".join(r.show(member) for r, member in zip(self.runners, request.members))

    def pin(self, request_text: str, record: Mapping[str, Any]) -> str | None:
        """Use the schedule of a record of :func:`elman.nn.choices`; else return why not."""
        schedule = record.get("schedule")
        if schedule not in (APART, AT_ONCE):
            return f"{request_text}: no such schedule of a group: {schedule!r}"
        self._pinned[request_text] = record
        self._chosen.clear()
        return None

    def _choice(self, request: StackRequest, steps: int, batch: int) -> Choice | None:
        """The choice for such calls, made at the first one; None: each layer runs by itself."""
        if request in self._chosen:
            return self._chosen[request]
        members = list(zip(self.runners, request.members))
        jobs: list[Job] = [runner.job(member) for runner, member in members]
        if not self.directions and sends_by_layer(jobs):
            self._chosen[request] = None
            return None
        choices = [runner.choice(member, steps, batch) for runner, member in members]
        record = self._pinned.get(self.show(request))
        benchmarked = {r: c for r, c in self._chosen.items() if c and c.why in BENCHMARKED}
        near = nearest(benchmarked, request)
        pinned = record["schedule"] if record is not None else near and near.schedule
        arrangement = self.arrangement(tuple(member.rules for member in request.members))
        choice = choose_together(jobs, choices, steps, batch, arrangement, pinned)
        self._chosen[request] = choice
        return choice


def _refuse_second_derivatives() -> Kernel:
    raise EngineError(f"{CUT} have no second derivatives")


def in_spans(
    runners: Sequence[Runner],
    requests: Sequence[Request],
    sizes: tuple[int, int, int],
    checkpoint: Checkpoint,
) -> tuple[list[Request], int]:
    """Cut requests into spans, if the forward does not keep everything.

    Args:
        runners, requests: of each layer and direction.
        sizes: of the call.
        checkpoint: of the call.

    Returns:
        The requests of one span, and how many steps that has; 0: everything is kept.

    Raises:
        EngineError: no engine says how many bytes a step keeps, or the named one does not.
        InputError: the budget is less than any way needs.
    """
    steps, batch, _ = sizes
    members, between = list(requests), checkpoint.steps
    if not between:
        jobs = [runner.job(member) for runner, member in zip(runners, members, strict=True)]
        engines = [_telling(job, member.engine) for job, member in zip(jobs, members, strict=True)]
        spans = [
            _sizes(job, engine_names, batch)
            for job, engine_names in zip(jobs, engines, strict=True)
        ]
        of_all = Sizes(sum(member.state for member in spans), sum(member.step for member in spans))
        between = fitting(of_all, steps, checkpoint)
        members = [
            member._replace(engine=engine_names)
            for member, engine_names in zip(members, engines, strict=True)
        ]
    if between:
        members = [member._replace(steps=bucket(min(steps, between))) for member in members]
    return members, between


def _telling(job: Job, engine_name: str) -> str:
    """The engine by name, if it follows the program, whose size is known; for ``auto`` the first
    that does.

    Raises:
        EngineError: there is none.
    """
    by_name = engine_name != "auto"
    name = first_engine(job, lambda engine: engine.fuses)
    if by_name:
        engine = engine_for(engine_name, job)
        name = engine_name if isinstance(engine, str) or engine.fuses else None
    if name is None:
        engine_names = f"engine {engine_name} does" if by_name else "engines that can run this do"
        raise EngineError(
            f"{job.name}: {engine_names} not say how many bytes a step keeps, which "
            f'checkpoint="auto" has to know',
            "plan=elman.PlanOptions(checkpoint=100)",
        )
    return name


def _sizes(job: Job, engine: str, batch: int) -> Sizes:
    """Bytes that a step of so many samples keeps for its backward."""
    if not job.spec.training:
        return Sizes(0, 0)
    kernel = kernel_of(job, engine)
    state, first = kernel.tape_bytes(0, batch), kernel.tape_bytes(1, batch)
    if state is None or first is None:
        of = program(job.pair, job.spec)
        state = batch * state_bytes(of)
        first = 2 * state + batch * tape_bytes(of)
    return Sizes(state, first - state)

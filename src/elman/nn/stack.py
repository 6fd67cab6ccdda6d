"""Layers and directions of a module: the one layer loop, and which layers run together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from elman import compiler
from elman.engines.base import Job, Kernel
from elman.engines.call import Call, Result
from elman.engines.checkpoint import all_checkpointed
from elman.engines.packed import Packed, reversed_in_time
from elman.engines.together import Arrangement, Together
from elman.nn.autograd.function import run, through
from elman.nn.dispatch import BENCHMARKED, Rules, Runner, Settled, sizes_for_choosing
from elman.nn.options import Option, extended, rules_of
from elman.nn.outputs import OutputLayout, Outputs, RunSettings, rules_for, run_layers
from elman.nn.spans import in_spans
from elman.nn.states import StateForm
from elman.plan.checkpoint import EVERYTHING, Checkpoint
from elman.tuning.choose import Choice
from elman.tuning.request import Request, StackRequest, nearest
from elman.tuning.together import APART, AT_ONCE, choose_together, released

States = tuple[Tensor, ...]
_UNASKED = "not asked for yet"


class Group:
    """Layers that follow one another with nothing in between, or the directions of one.

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

    def run(
        self,
        inputs: tuple[Tensor, ...],
        states: Sequence[States],
        weights: Sequence[Sequence[Tensor]],
        engine: str | None,
        packed: Packed | None = None,
        options: Sequence[Option] = (),
        checkpoint: Checkpoint = EVERYTHING,
        last: bool = True,
        outputs: Outputs = None,
    ) -> Result:
        """Run all steps.

        Args:
            inputs: [T, B, n] each; packed: [N, n]; then static ones [B, n].
            states: [B, n] each, a tuple per runner.
            weights: per runner, in declared order and shape.
            engine: a name, ``auto``, or None: so that every transform goes through.
            packed: how packed sequences lie.
            options: those in use.
            checkpoint: of the call.
            last: whether no group is above.
            outputs: what the last layer hands out, as of a call.

        Returns:
            The output, of both directions joined; the last states of all runners.

        Raises:
            InputError: the budget is less than any way needs.
        """
        calls = [
            Call(inputs, own, tuple(matrices), packed) for own, matrices in zip(states, weights)
        ]
        rules = self.rules(options, last, outputs)
        if options:
            calls = [
                extended(call, options, self.directions and index == 1, index)
                for index, call in enumerate(calls)
            ]
        calls = [r.held(call, own) for r, call, own in zip(self.runners, calls, rules)]
        if len(self.runners) == 1:
            result = self.runners[0].run(calls[0], engine, rules[0], checkpoint)
        else:
            result = self._run(calls, engine, rules, checkpoint)
        return result._replace(last=self._shown(result.last, rules))

    def _shown(self, last: States, rules: tuple[Rules, ...]) -> States:
        """The last states of all runners without those that hold what depends on static inputs."""
        shown: list[Tensor] = []
        at = 0
        for runner, count in zip(self.runners, self.arrangement(rules).states):
            shown += last[at : at + len(runner.cell.states)]
            at += count
        return tuple(shown)

    def _run(
        self,
        calls: Sequence[Call],
        engine: str | None,
        rules: tuple[Rules, ...],
        checkpoint: Checkpoint,
    ) -> Result:
        """:meth:`run` of several runners, on the call of each."""
        arrangement = self.arrangement(rules)
        if engine is None:
            return through(self.oracle(rules), arrangement.joined(calls))
        request = self._request(calls, engine, rules)
        training = any(member.training for member in request.members)
        steps, batch = sizes_for_choosing(calls[0])
        between = 0
        if checkpoint and training:
            members, between = in_spans(self.runners, request.members, calls[0].sizes, checkpoint)
            request, steps = StackRequest(tuple(members)), min(steps, between or steps)
        choice = self._choice(request, steps, batch)
        if choice is None or (between and choice.kernel.differentiable):
            return self._one_by_one(calls, arrangement.own, engine, rules, Checkpoint(between))
        kernel, joined = choice.kernel, arrangement.joined(calls)
        if between and isinstance(kernel, Together):
            flags = [member.training for member in request.members]
            kernel = all_checkpointed(kernel, between, flags)
        return run(kernel, lambda: self.oracle(rules), joined, training)

    def settled(
        self, calls: Sequence[Call], engine: str, rules: tuple[Rules, ...]
    ) -> Settled | None:
        """What several runners run such calls on; None if each runs by itself."""
        request = self._request(calls, engine, rules)
        choice = self._choice(request, *sizes_for_choosing(calls[0]))
        if choice is None:
            return None
        training = any(member.training for member in request.members)
        return choice.kernel, lambda: self.oracle(rules), training

    def _choice(self, request: StackRequest, steps: int, batch: int) -> Choice | None:
        """What runs such a call: chosen when it is first asked for."""
        choice = self._chosen.get(request, _UNASKED)
        if isinstance(choice, str):
            choice = self._chosen[request] = self._choose(request, steps, batch)
        return choice

    def rules(
        self, options: Sequence[Option], last: bool = True, outputs: Outputs = None
    ) -> tuple[Rules, ...]:
        """How the step of each runner changes: for what it hands out, then for the options."""
        more, top = rules_of(options), self.runners if self.directions else self.runners[-1:]
        return tuple([rules_for(r.cell, last and r in top, outputs) + more for r in self.runners])

    def _request(self, calls: Sequence[Call], engine: str, rules: Sequence[Rules]) -> StackRequest:
        """What is asked of each: a layer's input has a gradient if anything below it has."""
        members: list[Request] = []
        below = calls[0].inputs[0].requires_grad
        for runner, call, own in zip(self.runners, calls, rules):
            flows = [below, *[x.requires_grad for x in call.inputs[1:]]]
            member = runner.request(call, flows, engine, own)
            members.append(member)
            below = below or (not self.directions and member.training)
        return StackRequest(tuple(members))

    def arrangement(self, rules: tuple[Rules, ...]) -> Arrangement:
        """Which arguments of all layers are whose."""
        if rules not in self._arrangements:
            graphs = [compiler.graph_of(r.cell, own) for r, own in zip(self.runners, rules)]
            own = len(graphs[0].inputs) - len(compiler.graph_of(self.runners[0].cell).inputs)
            self._arrangements[rules] = Arrangement(
                tuple(len(graph.states) for graph in graphs),
                tuple(len(graph.weights) for graph in graphs),
                self.directions,
                own,
            )
        return self._arrangements[rules]

    def oracle(self, rules: tuple[Rules, ...]) -> Kernel:
        """All layers as every transform goes through them."""
        if rules not in self._oracles:
            oracles = [runner.oracle(own) for runner, own in zip(self.runners, rules)]
            self._oracles[rules] = Together(oracles, self.arrangement(rules))
        return self._oracles[rules]

    @property
    def choices(self) -> dict[str, Choice]:
        """What was chosen so far among several, by what :meth:`show` calls it; for records."""
        chosen = {self.show(request): choice for request, choice in self._chosen.items() if choice}
        return {shown: choice for shown, choice in chosen.items() if choice.why != "only"}

    @property
    def awaited(self) -> dict[str, Mapping[str, Any]]:
        """Pinned records of requests that have not come since."""
        ran = {self.show(request) for request in self._chosen}
        return {shown: record for shown, record in self._pinned.items() if shown not in ran}

    def show(self, request: StackRequest) -> str:
        """What is asked of all layers as text."""
        members = zip(self.runners, request.members)
        return " | ".join(runner.show(member) for runner, member in members)

    def pin(self, shown: str, record: Mapping[str, Any]) -> str | None:
        """Use the schedule of a record of :func:`elman.nn.choices`; else return why not."""
        schedule = record.get("schedule")
        if schedule not in (APART, AT_ONCE):
            return f"{shown}: no such schedule of a group: {schedule!r}"
        self._pinned[shown] = record
        self._chosen.clear()
        return None

    def _choose(self, request: StackRequest, steps: int, batch: int) -> Choice | None:
        members = list(zip(self.runners, request.members))
        choices = [runner.choice(member, steps, batch) for runner, member in members]
        jobs: list[Job] = [runner.job(member) for runner, member in members]
        record = self._pinned.get(self.show(request))
        benchmarked = {r: c for r, c in self._chosen.items() if c and c.why in BENCHMARKED}
        near = nearest(benchmarked, request)
        pinned = record["schedule"] if record is not None else near and near.schedule
        arrangement = self.arrangement(tuple(member.rules for member in request.members))
        choice = choose_together(jobs, choices, steps, batch, arrangement, pinned)
        if choice is not None and not self.directions and released(choice, jobs, steps):
            return None
        return choice

    def _one_by_one(
        self,
        calls: Sequence[Call],
        own: int,
        engine: str,
        rules: Sequence[Rules],
        checkpoint: Checkpoint,
    ) -> Result:
        """One after another, each a node of autograd."""
        results: list[Result] = []
        for index, (runner, call) in enumerate(zip(self.runners, calls)):
            count = len(call.inputs) - own
            if index and self.directions:
                time_reversed = [reversed_in_time(x, call.packed) for x in call.inputs[:count]]
                call = call._replace(inputs=(*time_reversed, *call.inputs[count:]))
            elif index:
                call = call._replace(inputs=(results[-1].output, *call.inputs[1:]))
            results.append(runner.run(call, engine, rules[index], checkpoint))
        output = results[-1].output
        if self.directions:
            output = torch.cat((results[0].output, reversed_in_time(output, calls[0].packed)), -1)
        return Result(output, tuple(end for result in results for end in result.last))


class Stack:
    """All layers of a module.

    Args:
        runners: one per layer and direction, in the order of their weights.
        directions: 1 or 2.
        joined: whether nothing ever stands between one layer and the next.
        form: how their states lie.
        takes: which of the inputs each reads.
    """

    def __init__(
        self,
        runners: Sequence[Runner],
        directions: int,
        joined: bool,
        form: StateForm,
        takes: Sequence[tuple[int, ...]],
    ) -> None:
        self.runners, self.directions = list(runners), directions
        self.form, self.takes = form, list(takes)
        self._single = self._cut(directions)
        same = form.alike and all(runner.cell is self.runners[0].cell for runner in self.runners)
        whole = directions == 1 and joined and same and len(self.runners) > 1
        self._groups = self._cut(len(self.runners)) if whole else self._single
        last = self.runners[-1]
        self._output_layouts = OutputLayout.of(last.cell, dict(last.dims), directions)

    def __reduce__(self) -> Any:
        joined = self._groups is not self._single
        return Stack, (self.runners, self.directions, joined, self.form, self.takes)

    def _cut(self, size: int) -> list[tuple[Group, int]]:
        return [
            (Group(self.runners[at : at + size], self.directions == 2), size)
            for at in range(0, len(self.runners), size)
        ]

    @property
    def groups(self) -> dict[str, Group]:
        """Those of several members, by a name for records."""
        return {
            f"layer {at}" if group.directions else "layers": group
            for at, (group, count) in enumerate(self._groups)
            if count > 1
        }

    def output_layout(self, outputs: Outputs = None) -> OutputLayout:
        """What the last layer hands out, if a call asks for these outputs."""
        return self._output_layouts[outputs == "states"]

    def groups_for(self, between: bool) -> list[tuple[Group, int]]:
        """What runs one after another, and how many members each has; ``between``: whether
        something stands between layers."""
        return self._single if between else self._groups

    def run(
        self,
        inputs: tuple[Tensor, ...],
        states: tuple[Tensor, ...],
        weights: Sequence[Sequence[Tensor]],
        settings: RunSettings,
        packed: Packed | None = None,
        options: Sequence[Option] = (),
    ) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        """Run all layers.

        Args:
            inputs: [T, B, n] each (packed [N, n]); the first goes to the lowest layer; then static
                ones [B, n].
            states: as of :class:`StateForm`.
            weights: per runner, in declared order and shape.
            settings: of the call.
            packed: how packed sequences lie.
            options: those in use.

        Returns:
            Every value that the last layer returns [T, B, n · directions], and the last states,
            as ``states``.
        """
        engine, _, _, checkpoint, outputs = settings
        layout = self.output_layout(outputs)
        if len(self.runners) == 1 and packed is None:
            call = Call(inputs, states, tuple(weights[0]), None, True)
            call = extended(call, options) if options else call
            runner = self.runners[0]
            rules = rules_for(runner.cell, True, outputs) + rules_of(options)
            output, last, _ = runner.run(runner.held(call, rules), engine, rules, checkpoint)
            return layout.parts(output), last[: len(states)]
        groups = self.groups_for(settings.dropout > 0.0 or settings.residual)
        starts = self.form.rows(states)
        checkpoint = checkpoint._replace(groups=len(groups))

        def run_group(
            group: Group, given: tuple[Tensor, ...], first: int, end: int
        ) -> tuple[Tensor, Sequence[Tensor]]:
            own, cell = slice(first, end), group.runners[0].cell
            seen = [o for option in options if (o := option.above(first, cell)) is not None]
            given = tuple([given[k] for k in self.takes[first]])
            last = end == len(self.runners)
            result = group.run(
                given, starts[own], weights[own], engine, packed, seen, checkpoint, last, outputs
            )
            return result.output, result.last

        made, ends = run_layers(groups, run_group, inputs, settings, layout)
        return made, self.form.joined(ends)

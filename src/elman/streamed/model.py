"""A model of whole sequences as a module of one step, with states."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node

from elman.errors import InputError
from elman.streamed.rules import RULES
from elman.streamed.running import NOW, Findings, RowsError, Step, refuse_zeros
from elman.streamed.sequence import Flow, SequenceGraph, call, describe
from elman.torch_internals import pytree

# that are compared with the model: as many more as it reads at once, and as its result is late
_STEPS = 16
_LONG = 512  # that are compared with what torch.export has traced: a branch may be for more steps
_MOST_CUT = 4  # rows at the end of a sequence that a model leaves out
_TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-3, torch.float16: 1e-1, torch.bfloat16: 1e-1}


class _Plan:
    """Runs the steps of a traced model. Callable, so that a tracer of steps looks not inside.

    Args:
        graph: of the model.

    Attributes:
        rows: of the inputs in each step.
        late, keeps: see :class:`StreamedStep`.
        shapes: of a row of each input of one sample.
        starts: the states before the first step, by name, of as many samples as the traced call
            has.
        kinds: how the value of each node changes in time.
        paths: of parameters and buffers of the :class:`StreamedStep`, by placeholder.
        constants: further buffers.
    """

    def __init__(self, graph: SequenceGraph) -> None:
        self.graph, self.rows, self.late, self.keeps = graph, 1, 0, False
        self.shapes = [
            tuple([n for k, n in enumerate(x.shape) if k not in (axis, graph.batch_axis)])
            for x, axis in zip(graph.inputs, graph.axes, strict=True)
        ]
        self.starts: dict[str, Tensor] = {}
        self.kinds: dict[Node, Any] = {}
        self.paths: dict[str, str] = {}
        self.constants: dict[str, Tensor] = {}
        self.findings = Findings({}, set(), set())
        for name, value in graph.constants.items():
            if isinstance(value, Tensor):
                self.paths[name] = f"constant{len(self.constants)}"
                self.constants[self.paths[name]] = value
            else:
                self.paths[name] = value

    def __deepcopy__(self, memo: dict[int, Any]) -> _Plan:
        return self

    def __call__(
        self,
        inputs: Sequence[list[Tensor]],
        carry: Sequence[Tensor] | None,
        tensor: Callable[[str], Tensor],
        exact: bool = False,
    ) -> Step:
        """Run a step; arguments as of :class:`Step`."""
        states = None if carry is None else dict(zip(self.starts, carry, strict=True))
        return Step(
            self.graph,
            RULES,
            self.rows,
            inputs,
            states,
            self.findings,
            lambda name: tensor(self.paths[name]) if name in self.paths else None,
            exact,
        )

    def fold(self, step: Step) -> None:
        """Keep what is computed of parameters alone, as normed weights, as constants."""
        fixed = {n for n in self.graph.nodes if n.op == "placeholder"} - {*self.graph.places}
        for node in self.graph.nodes:
            if node.op == "call_function" and isinstance(step.values[node], Tensor):
                if node.all_input_nodes and fixed.issuperset(node.all_input_nodes):
                    fixed.add(node)
        for node in fixed:
            if node.op == "call_function":
                self.findings.folded.add(node.name)
                if not fixed.issuperset(node.users):
                    self.paths[node.name] = f"constant{len(self.constants)}"
                    self.constants[self.paths[node.name]] = step.values[node]

    @torch.no_grad()
    def begin(self, tensor: Callable[[str], Tensor]) -> None:
        """Find out the states, and how many rows make a step."""
        while True:
            inputs = [
                [torch.zeros_like(x.narrow(axis, 0, 1))] * self.rows
                for x, axis in zip(self.graph.inputs, self.graph.axes, strict=True)
            ]
            try:
                step = self(inputs, None, tensor)
                flows = [f for n in _nodes(step.result) if isinstance(f := step.kinds[n], Flow)]
                self.late = max((-(f.shift // f.rows) for f in flows), default=0)
                self.results(step)
                break
            except RowsError as error:
                self.rows *= error.factor
                self.findings.rows.clear()
        self.fold(step)
        self.starts, self.kinds, self.keeps = step.starts, step.kinds, bool(step.starts)
        if not self.keeps:  # a loop has a state
            self.starts["steps"] = torch.zeros(self.graph.inputs[0].shape[self.graph.batch_axis])

    def results(self, step: Step) -> Any:
        """What the model returns, of one step; results wait for the latest one."""

        def result(node: Node) -> Tensor:
            flow = step.kinds[node]
            if flow == NOW:
                return step.values[node]
            if not isinstance(flow, Flow):
                raise InputError(f"{describe(node)} is the same in every step: it is no result")
            refuse_zeros(node, flow)
            # as late as the others, in whole steps
            rows = step.rows_of(node, flow.shift + self.late * flow.rows)[: flow.rows]
            return rows[0] if flow.rows == 1 else torch.stack(rows, 1)

        results = pytree.tree_map_only(Node, result, step.result)
        return results[0] if len(results) == 1 else results

    @property
    def reach(self) -> int:
        """About how many steps before a result depends on, apart from the states of layers."""
        return self.late + -(-sum(self.findings.rows.values()) // self.rows)

    def states_behind(self, step: Step, carry: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The states behind a step."""
        states = dict(zip(self.starts, carry, strict=True)) | step.after
        return tuple([states[name] for name in self.starts])


class StreamedStep(nn.Module):
    """One step of a model of sequences: ``step(carry, x) -> (carry, y)``.

    Convolutions keep the rows that they will read again, recurrent layers their states, means over
    steps run. Every operation's values are compared with the model's, in float64, on random
    numbers: what does not run step by step is refused by its name.

    Args:
        model: a module of sequences, with any layers.
        example: its inputs, with axes of samples and steps.

    Attributes:
        rows: steps of the inputs that one step takes: the product of all strides.
        late: the result of a step is that of so many steps before: the model looks ahead.
        keeps: whether anything goes from one step to the next.

    Raises:
        InputError: the model cannot be traced, or does not run step by step.
    """

    def __init__(self, model: nn.Module, example: Sequence[Tensor]) -> None:
        super().__init__()
        self._plan = _Plan(SequenceGraph(model, example))
        graph = self._plan.graph
        self.model = graph.model
        self._register()
        self._plan.begin(self._tensor)
        self._register()  # what was folded, too
        self.rows, self.late, self.keeps = self._plan.rows, self._plan.late, self._plan.keeps
        self._verify()

    def _register(self) -> None:
        for name, value in self._plan.constants.items():
            self.register_buffer(name, value)

    def _tensor(self, place: str) -> Tensor:
        """A parameter or buffer by its path."""
        owner, _, name = place.rpartition(".")
        return getattr(self.get_submodule(owner), name)

    def first(self, batch: int) -> tuple[Tensor, ...]:
        """The states before the first step, zeros [batch, ..]."""
        plan = self._plan
        traced = plan.graph.inputs[0].shape[plan.graph.batch_axis]
        return tuple(
            [
                value.new_zeros(value.shape[0] * batch // traced, *value.shape[1:])
                for value in plan.starts.values()
            ]
        )

    @property
    def inputs(self) -> list[Tensor]:
        """The example, of a few samples."""
        return self._plan.graph.inputs

    def cut(self, inputs: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
        """The arguments of each step, from inputs as the model takes them."""
        steps = inputs[0].shape[self._plan.graph.axes[0]] // self.rows
        return [
            tuple(
                [
                    _leave(x.narrow(axis, t * self.rows, self.rows), axis, self.rows)
                    for x, axis in zip(inputs, self._plan.graph.axes, strict=True)
                ]
            )
            for t in range(steps)
        ]

    def forward(self, carry: Sequence[Tensor], x: Any) -> tuple[tuple[Tensor, ...], Any]:
        """One step.

        Args:
            carry: states [B, ..].
            x: an input [B, n] without its axis of steps, or [B, rows, n]; of an input with further
                axes, these as one. A tuple of several.

        Returns:
            The states behind the step, and what the model returns, of this step alone.
        """
        xs = x if isinstance(x, (tuple, list)) else (x,)
        inputs: list[list[Tensor]] = []
        for value, axis, shape in zip(xs, self._plan.graph.axes, self._plan.shapes, strict=True):
            rows = value.unbind(1) if self.rows > 1 else (value,)
            if len(shape) > 1:
                rows = value.reshape(-1, self.rows, *shape).unbind(1)
            inputs.append([row.unsqueeze(axis) for row in rows])
        step = self._plan(inputs, carry, self._tensor)
        y = self._plan.results(step)
        return self._plan.states_behind(step, carry), y

    # ---- comparison with the model

    @torch.no_grad()
    def _verify(self) -> None:
        """Compare every value of some steps with those of the whole sequence.

        Raises:
            InputError: an operation computes something else step by step.
        """
        exact = copy.deepcopy(self).double()
        source = torch.Generator().manual_seed(0)
        graph = self._plan.graph
        reach = min(self._plan.reach, 512)
        long = [
            _drawn(x, axis, max(_LONG, 2 * reach) * self.rows, source, like_example=False)
            for x, axis in zip(graph.inputs, graph.axes, strict=True)
        ]
        self._compare_whole(long)
        for count in (_STEPS + reach, _STEPS // 2 + reach):  # what is the newest differs
            for like_example in (False, True):
                inputs = [
                    _drawn(x, axis, count * self.rows, source, like_example)
                    for x, axis in zip(graph.inputs, graph.axes, strict=True)
                ]
                exact._compare(inputs, count)
                self._compare_whole(inputs)

    def _compare_whole(self, inputs: Sequence[Tensor]) -> None:
        """Compare what was traced with the model, for one sample: branches on sizes are gone."""
        one = [x.narrow(self._plan.graph.batch_axis, 0, 1) for x in inputs]
        inputs = [x.float() if x.is_floating_point() else x for x in one]
        values = self._values_of_all_steps(inputs, exact=False)
        output = next(node for node in self._plan.graph.nodes if node.op == "output")
        got = [values[node] for node in _nodes(output.args[0])]
        want = [v for v in pytree.tree_leaves(self.model(*inputs)) if isinstance(v, Tensor)]
        if len(got) != len(want) or not all(map(_equal, got, want)):
            raise InputError(
                "the model computes something else for other numbers of steps, or for one sample"
            )

    def _compare(self, inputs: Sequence[Tensor], count: int) -> None:
        whole = self._values_of_all_steps(inputs, exact=True)
        carry: Sequence[Tensor] = [
            value.double() for value in self.first(inputs[0].shape[self._plan.graph.batch_axis])
        ]
        wrong: set[Node] = set()
        for t in range(count):
            rows = [
                [*x.narrow(axis, t * self.rows, self.rows).split(1, axis)]
                for x, axis in zip(inputs, self._plan.graph.axes, strict=True)
            ]
            step = self._plan(rows, carry, self._tensor, exact=True)
            self._plan.results(step)
            carry = self._plan.states_behind(step, carry)
            for node, kind in step.kinds.items():
                if not _agrees(step.values[node], kind, whole[node], t, t == count - 1):
                    wrong.add(node)
        first = next((node for node in self._plan.graph.nodes if node in wrong), None)
        if first is not None:
            raise _differs(first, self._plan.kinds)

    def _values_of_all_steps(self, inputs: Sequence[Tensor], *, exact: bool) -> dict[Node, Any]:
        graph = self._plan.graph
        values: dict[Node, Any] = dict(zip(graph.places, inputs, strict=True))
        for node in graph.nodes:
            if node.op == "placeholder" and node not in values:
                values[node] = self._tensor(self._plan.paths[node.name])
            elif node.op == "call_function":
                given = pytree.tree_map_only(Node, values.__getitem__, (node.args, node.kwargs))
                target: Any = node.target
                values[node] = call(target, given[0], given[1], exact)
        return values


def _differs(node: Node, kinds: Mapping[Node, Any]) -> InputError:
    """The error for an operation that computes something else step by step."""
    flows = [kind for n in node.all_input_nodes if isinstance(kind := kinds[n], Flow)]
    subject = f"{describe(node)} computes something else step by step"
    if any(flow.shift < 0 for flow in flows):
        return InputError(
            f"{subject}: what a convolution pads behind the sequence reaches into its last steps",
            "pad in front: functional.pad(x, (dilation * (kernel_size - 1), 0))",
        )
    return InputError(subject, "export the part of the model that runs step by step")


def _leave(value: Tensor, axis: int, rows: int) -> Tensor:
    """The rows of a step as :meth:`StreamedStep.forward` takes them."""
    value = value.squeeze(axis) if rows == 1 else value.movedim(axis, 1)
    return value.flatten(1) if value.dim() > 2 + (rows > 1) else value


def _nodes(tree: Any) -> list[Node]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Node)]


def _drawn(
    like: Tensor, axis: int, steps: int, source: torch.Generator, like_example: bool
) -> Tensor:
    """Random numbers of so many steps: normal ones, or spread as those of an example."""
    shape = [steps if k == axis else size for k, size in enumerate(like.shape)]
    if not like.is_floating_point():
        most = 2 if like.dtype is torch.bool else int(like.max()) + 1
        return torch.randint(0, most, shape, generator=source).to(like.dtype)
    drawn = torch.randn(shape, generator=source, dtype=torch.float64)
    numbers = like.double()
    if like_example and bool(numbers.isfinite().all()):
        drawn = numbers.mean() + 2.0 * numbers.std().nan_to_num(1.0) * drawn
    return drawn


def _agrees(value: Any, kind: Any, whole: Any, t: int, is_last: bool) -> bool:
    """Whether a step's value is that of the whole sequence."""
    if isinstance(kind, tuple) and not isinstance(kind, Flow):
        return True  # its items are compared
    if kind == NOW:
        return not is_last or _equal(value, whole)
    if not isinstance(kind, Flow):
        return True
    for at, row in enumerate(value):
        number = kind.rows * t + at + kind.shift
        place = number + kind.zeros
        left = whole.shape[kind.axis] - place
        if left < -_MOST_CUT:  # rows that the whole sequence lacks: their number depends on T
            return False
        if number >= 0 and left > 0 and not _equal(row, whole.narrow(kind.axis, place, 1)):
            return False
    return True


def _equal(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor):
        return bool(a == b)
    if a.shape != b.shape:
        return False
    if not b.is_floating_point():
        return bool((a == b).all())
    limit = _TOLERANCE[b.dtype]
    return bool(torch.isclose(a, b, limit, limit, equal_nan=True).all())

"""One step of a traced model: its operations in order, and the states that they need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import gcd
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Node

from elman.errors import ElmanError, InputError
from elman.streamed.sequence import Flow, SequenceGraph, call, describe
from elman.torch_internals import pytree, schema_of

NOW = "now"  # of a value without an axis of time that changes with each step
# operations whose ``dim`` says where an axis lies, not over what they run
_OF_SHAPES = ("permute", "unsqueeze", "squeeze", "movedim", "stack", "sym_size", "unflatten")
MOST_ROWS = 1024  # rows of one value that are kept for later steps


class RowsError(Exception):
    """A stride needs more rows in each step."""

    def __init__(self, stride: int, rows: int) -> None:
        super().__init__(stride)
        self.factor = stride // gcd(stride, rows)


class Findings(NamedTuple):
    """Facts about all steps that the first step finds out.

    Attributes:
        rows: how many rows of a value are kept for later steps, by the name of its node.
        learned: names of the layers whose first states are not zeros.
        folded: names of nodes that are computed of parameters alone: constants, or only read by
            others.
    """

    rows: dict[str, int]
    learned: set[str]
    folded: set[str]


class Step:
    """The values of one step.

    Args:
        graph: the model.
        rules: how operations that look at several steps run, by what they call.
        rows: of the inputs in each step.
        inputs: the rows of each input.
        carry: the states, by a name; None: they are found out, and begin with zeros.
        findings: of the first step, which adds to them.
        constant: the parameter, buffer or constant of a node; None where nothing reads it.
        exact: whether constants are computed again, in float64.

    Attributes:
        values: of each node; of a :class:`Flow` a list of its rows, each with an axis of time of
            size 1.
        kinds: of each node how its value changes in time: a :class:`Flow`, :data:`NOW`, or None if
            it is the same in every step.
        starts, after: the states before the first step, once they have been found out, and those
            behind this one.
        result: what the model returns, a tree of nodes.
    """

    def __init__(
        self,
        graph: SequenceGraph,
        rules: Mapping[Any, Callable[[Step, Node], tuple[Any, Any]]],
        rows: int,
        inputs: Sequence[list[Tensor]],
        carry: Mapping[str, Tensor] | None,
        findings: Findings,
        constant: Callable[[str], Tensor | None],
        exact: bool,
    ) -> None:
        self.graph, self.rules, self.rows = graph, rules, rows
        # so is a step that is judged: its states are in float64
        self._double = any(v.dtype is torch.float64 for v in (carry or {}).values())
        self.carry = carry
        self.starts: dict[str, Tensor] = {}
        self.after: dict[str, Tensor] = {}
        self.values: dict[Node, Any] = {}
        self.kinds: dict[Node, Any] = {}
        self.findings, self._needed = findings, findings.rows
        given = dict(zip(graph.places, zip(inputs, graph.axes, strict=True), strict=True))
        self.result: Any = None
        for node in graph.nodes:
            if node.op == "output":
                self.result = node.args[0]
            elif node in given:
                value, axis = given[node]
                self._set(node, value, Flow(axis, rows))
            elif node.op == "placeholder" or (
                node.name in findings.folded and carry is not None and not exact
            ):
                self._set(node, constant(node.name), None)
            else:
                rule = rules.get(node.target, Step.run_locally)
                try:
                    value, kind = rule(self, node)
                except ElmanError:
                    raise
                except (RuntimeError, IndexError, TypeError, ValueError) as error:
                    text = str(error).partition("\n")[0]
                    message = f"{describe(node)} does not run step by step: {text}"
                    raise InputError(message) from error
                self._set(node, value, kind)

    def _set(self, node: Node, value: Any, kind: Any) -> None:
        self.values[node], self.kinds[node] = value, kind
        if node.name in self._needed and isinstance(kind, Flow):
            self._keep_rows(node, [row.squeeze(kind.axis) for row in value])

    # ---- values of arguments

    def kind(self, argument: Any) -> Any:
        """How an argument changes in time."""
        return self.kinds[argument] if isinstance(argument, Node) else None

    def flow(self, argument: Any) -> Flow | None:
        """How an argument arrives, if it has an axis of time."""
        kind = self.kind(argument)
        return kind if isinstance(kind, Flow) else None

    def rank(self, argument: Node) -> int:
        """How many axes an argument has."""
        value = self.values[argument]
        return (value[0] if self.flow(argument) else value).dim()

    def of(self, argument: Any) -> Any:
        """The value of an argument, or of all in a tree."""
        if isinstance(argument, Node):
            return self.values[argument]
        return pytree.tree_map_only(Node, self.values.__getitem__, argument)

    def arguments(self, node: Node) -> dict[str, Any]:
        """The arguments of an operation by name, defaults included."""
        schema = schema_of(node.target).arguments
        named = {a.name: a.default_value for a in schema if a.has_default_value()}
        named.update(zip([a.name for a in schema], node.args))
        return named | node.kwargs

    # ---- states

    def state(self, name: str, like: Tensor) -> Tensor:
        """A state, which is zero before the first step, of the shape of a row."""
        if self.carry is None:
            self.starts.setdefault(name, torch.zeros_like(like))
            return self.starts[name]
        return self.carry[name].reshape(like.shape)

    def keep(self, name: str, value: Tensor) -> None:
        """Set a state behind the step."""
        self.after[name] = value

    def count(self, like: Tensor) -> Tensor:
        """How many steps came before this one, up to many [B]."""
        count = self.state("steps", like)
        self.keep("steps", torch.clamp(count + 1.0, max=float(1 << 20)))
        return count

    # ---- rows of values

    def rows_of(self, node: Node, before: int = 0, *, only_valid: bool = False) -> list[Tensor]:
        """The rows of a value in this step, without their axis of time, and some before them.

        Args:
            node: whose value it is.
            before: how many more.
            only_valid: whether rows before the first one of the sequence are zeros.
        """
        flow = self.flow(node)
        assert flow is not None
        chunk = [row.squeeze(flow.axis) for row in self.values[node]]
        if before > MOST_ROWS:
            raise InputError(f"{describe(node)}: {before} rows would be kept, {MOST_ROWS} at most")
        if before and self._needed.get(node.name, 0) < before:
            self._needed[node.name] = before
        kept = [self.state(f"{node.name}:{k}", chunk[0]) for k in range(before, 0, -1)]
        if before:
            self._keep_rows(node, chunk)
        rows = [*kept, *chunk]
        if only_valid:
            pairs = enumerate(rows)
            rows = [self.if_valid(v, torch.zeros_like(v), flow, at - before) for at, v in pairs]
        return rows

    def _keep_rows(self, node: Node, chunk: Sequence[Tensor]) -> None:
        most = self._needed[node.name]
        kept = [self.state(f"{node.name}:{k}", chunk[0]) for k in range(most, 0, -1)]
        rows = [*kept, *chunk]
        for k in range(1, most + 1):
            self.keep(f"{node.name}:{k}", rows[-k])

    def if_valid(self, value: Tensor, otherwise: Tensor, flow: Flow, at: int) -> Tensor:
        """A value [B, ..], or another one where row ``at`` of this step is none of the sequence."""
        if flow.shift >= 0:
            return value
        return torch.where(self.is_valid(value, flow, at), value, otherwise)

    def is_valid(self, row: Tensor, flow: Flow, at: int) -> Tensor:
        """Whether row ``at`` of this step (negative: of an earlier one) is one of the sequence:
        [B, 1 ..]."""
        # its number is rows · steps + at + shift
        count = self.count(row.new_zeros(row.shape[0]))
        least = -(-(-flow.shift - at) // flow.rows)  # steps that must have come before
        return (count >= float(least)).reshape(-1, *[1] * (row.dim() - 1))

    # ---- operations that look at one row at a time

    def run_locally(
        self, node: Node, function: Callable[..., Any] | None = None
    ) -> tuple[Any, Any]:
        """Run an operation on the rows of the step, as torch runs it on those of all steps. Whether
        it is one that does so is found out by numbers (:mod:`elman.streamed.model`).

        Args:
            node: of the operation.
            function: computes the same, in other operations.
        """
        target: Any = function or node.target
        nodes = list(dict.fromkeys(node.all_input_nodes))
        flows = {n: f for n in nodes if (f := self.flow(n)) is not None}
        if not flows:
            kind = NOW if any(self.kinds[n] == NOW for n in nodes) else None
            return self.call(node, target, {n: self.values[n] for n in nodes}), kind
        self._refuse_over_time(node, flows)
        shift, counts = min(f.shift for f in flows.values()), {f.rows for f in flows.values()}
        if len(counts) > 1:
            raise InputError(f"{describe(node)} joins sequences of {sorted(counts)} rows a step")
        (count,) = counts
        given: dict[Node, Any] = {n: [self.values[n]] * count for n in nodes}
        for n, f in flows.items():
            refuse_zeros(node, f)
            given[n] = self.values[n]
            if late := f.shift - shift:  # it waits for the others
                given[n] = [row.unsqueeze(f.axis) for row in self.rows_of(n, late)[:count]]
        results = [self.call(node, target, {n: given[n][at] for n in nodes}) for at in range(count)]
        axis = self.graph.time_axes[node.name]
        if isinstance(results[0], (tuple, list)):
            kinds = tuple(
                [_kind_of_result(node, v, a, count, shift) for v, a in zip(results[0], axis)]
            )
            return [*map(list, zip(*results, strict=True))], kinds
        kind = _kind_of_result(node, results[0], axis, count, shift)
        return results if kind is not None else results[0], kind

    def _refuse_over_time(self, node: Node, flows: Mapping[Node, Flow]) -> None:
        """Refuse an operation along the axis of time that has no rule."""
        if schema_of(node.target).name.partition("::")[2] in _OF_SHAPES:
            return
        named = self.arguments(node)
        for name in ("dim", "dims", "axis"):
            dims = named.get(name)
            dims = [dims] if isinstance(dims, int) else dims if isinstance(dims, list) else []
            for n, flow in flows.items():
                rank = self.rank(n)
                if any(isinstance(dim, int) and dim % rank == flow.axis for dim in dims):
                    raise InputError(f"{describe(node)} runs over steps, which has no rule here")

    def call(self, node: Node, function: Any, values: Mapping[Node, Any]) -> Any:
        """Call a function with the arguments of a node, given the values of its inputs."""
        args, kwargs = pytree.tree_map_only(Node, values.__getitem__, (node.args, node.kwargs))
        return call(function, args, kwargs, self._double)


def _kind_of_result(node: Node, value: Any, axis: int | None, rows: int, shift: int) -> Any:
    if not isinstance(value, Tensor):
        return None  # a size
    if axis is None:
        raise InputError(
            f"{describe(node)} reads all steps at once",
            "the mean, the sum or the largest over steps, or the last step",
        )
    return Flow(axis, rows, shift)


def refuse_zeros(node: Node, flow: Flow) -> None:
    """Refuse to read what a model pads in time.

    Raises:
        InputError: it does.
    """
    if flow.zeros:
        raise InputError(
            f"{describe(node)} reads what was padded in time",
            "pad in front of a convolution, or by its padding=",
        )

"""One layer in one direction as a ``Scan``: what the loop does not need is computed before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from elman.errors import InputError
from elman.interchange.onnx.ops import REASONS, SPELL
from elman.interchange.onnx.writer import BOOL, Slot, Writer
from elman.ir.graph import Graph, Node, Rate, walk, with_args
from elman.ir.ops import OPS, STAND_INS
from elman.ir.types import dim_size
from elman.passes import rewritten
from elman.passes.draws import expected


def step_of(graph: Graph) -> Graph:
    """The formula as it runs in inference, simplified as for any engine."""
    graph = rewritten(expected(graph))
    return graph.rebuilt(lambda old, args: args[0] if old.op in STAND_INS else with_args(old, args))


class ValueNames:
    """Values of a step by their names in a graph. Before its own axes a value has as many others as
    its rank says: none if it is of weights alone, [B] in a loop or if it is static, else [T, B].

    Args:
        writer: of the graph.
        dims: sizes of the cell's dims.
        shape: [B] or [T, B] as a value of the graph.
        rank: how many these are.
        cell: its name.
    """

    def __init__(
        self, writer: Writer, dims: Mapping[str, int], shape: str, rank: int, cell: str
    ) -> None:
        self.writer, self.dims, self.shape, self.rank, self.cell = writer, dims, shape, rank, cell
        self.names: dict[Node, str] = {}
        self.ranks: dict[Node, int] = {}
        self._transposed: dict[Node, str] = {}

    def bind(self, value: Node, name: str, rank: int) -> None:
        """Set the name of a value, and how many leading axes it has."""
        self.names[value], self.ranks[value] = name, rank

    def emit_values(self, roots: Sequence[Node]) -> None:
        """Emit the nodes of values and of all that they are computed from."""
        for value in walk(roots, stop=lambda node: node in self.names):
            if value not in self.names:
                rank = max((self.ranks[arg] for arg in value.args), default=0)
                self.bind(value, self._emit_value(value, rank), rank)

    def _emit_value(self, value: Node, rank: int) -> str:
        w, args = self.writer, [self.names[arg] for arg in value.args]
        if value.op == "const":
            return w.constant(value.number)
        if value.op == "count":
            return w.constant(float(dim_size(value.data, self.dims)))
        if value.op == "split":
            return self._slice(value)
        if value.op == "concat":
            axis = 0 if len(value.shape) == 2 else -1
            return self._concatenate(value.args, rank, axis)
        if value.op == "matmul":
            return w.emit("MatMul", args[1], self.transposed(value.args[0]))
        kind = OPS[value.op].kind
        if kind == "reduce":
            args = [self._group_units(value, rank)]
        if kind == "spread":
            args = self._spread_groups(value, rank)
        if value.op not in SPELL:
            raise InputError(
                f"{self.cell} uses {value.op}, which ONNX has no text for: "
                f"{REASONS.get(value.op, 'it has no row')}",
                at=value.where,
            )
        name = SPELL[value.op](w, value, args)
        scalars = value.args and not any(arg.shape for arg in value.args)
        if value.shape and scalars and kind == "pointwise":
            return self.expand(name, value, rank)
        return name

    def expand(self, name: str, value: Node, rank: int) -> str:
        """Expand a value to its full shape and leading axes."""
        w, size = self.writer, units_of(value, self.dims)
        sizes = w.integers(*size)
        if not rank:
            return w.emit("Expand", name, sizes)
        lead = self.shape
        if rank < self.rank:
            lead = w.emit("Slice", lead, w.integers(self.rank - rank), w.integers(self.rank))
        return w.emit("Expand", name, w.emit("Concat", lead, sizes, axis=0))

    def transposed(self, matrix: Node) -> str:
        """Emit the transpose of a matrix of weights, once."""
        if matrix.op == "transpose":
            return self.names[matrix.args[0]]
        if matrix not in self._transposed:
            at = self.writer.root
            self._transposed[matrix] = at.emit("Transpose", self.names[matrix], perm=[1, 0])
        return self._transposed[matrix]

    def _slice(self, value: Node) -> str:
        w, (start, stop) = self.writer, (int(str(d)) for d in value.data)
        (source,) = value.args
        dim = source.shape[0]
        first, last = dim_size(dim[:start], self.dims), dim_size(dim[:stop], self.dims)
        axis = 0 if len(value.shape) == 2 else -1
        bounds = [w.integers(number) for number in (first, last, axis)]
        return w.emit("Slice", self.names[source], *bounds)

    def _group_units(self, value: Node, rank: int) -> str:
        """Concatenate the units that a reduction reads on the last axis; with groups, [groups,
        units]."""
        units = self._concatenate(value.args, rank, -1)
        if not value.shape:
            return units
        groups = dim_size(value.shape[0], self.dims)
        return self.writer.emit("Reshape", units, self.writer.integers(*[0] * rank, groups, -1))

    def _spread_groups(self, value: Node, rank: int) -> list[str]:
        """Spread a number per group, or one for all, over the units; for ``one_hot`` with the index
        of each unit, in its group or among all."""
        w, (source,) = self.writer, value.args
        (size,), (groups,) = units_of(value, self.dims), units_of(source, self.dims)
        width = size // groups
        expanded = w.emit("Unsqueeze", self.names[source], w.integers(-1))
        expanded = w.emit("Expand", expanded, w.integers(*[1] * rank, groups, width))
        wide = w.emit("Reshape", expanded, w.integers(*[0] * rank, size))
        if value.op == "spread":
            return [wide]
        units = np.arange(size) + dim_size(value.data, self.dims)
        return [wide, w.array("units", (units % width if source.shape else units).astype(float))]

    def _concatenate(self, parts: Sequence[Node], rank: int, axis: int) -> str:
        """Concatenate the units of several values, or the rows of several matrices."""
        names: list[str] = []
        for part in parts:
            name = self.names[part]
            if self.ranks[part] < rank and len(parts) > 1:
                name = self.expand(name, part, rank)
            names.append(name)
        return names[0] if len(names) == 1 else self.writer.emit("Concat", *names, axis=axis)


def units_of(value: Node, dims: Mapping[str, int]) -> list[int]:
    """Sizes of a value's own axes; a scalar has one unit."""
    return [dim_size(dim, dims) for dim in value.shape] or [1]


class Scan(NamedTuple):
    """Outputs and last states of a layer.

    Attributes:
        outputs: [T, B, n] each.
        last: states [B, n] after the last step.
    """

    outputs: list[str]
    last: list[str]


def emit_scan(
    before: ValueNames,
    graph: Graph,
    states: Sequence[str],
    outputs: int,
    reverse: bool,
    within: str | None = None,
) -> Scan:
    """Emit a layer in one direction as a ``Scan``.

    Args:
        before: of the graph outside of the loop, with the names of all inputs and weights.
        graph: of :func:`step_of`.
        states: initial ones [B, n].
        outputs: how many of the outputs the layer returns.
        reverse: whether it runs from the last step to the first.
        within [T, B, 1]: whether a step is one of its sequence's; None: all are. Behind its end a
            sequence keeps its states, and its outputs are zero.
    """
    results = graph.outputs[:outputs]
    roots = [*graph.next_states, *results]
    loop = list(walk(roots, stop=lambda value: value.rate < Rate.STATE))
    edge = [value for value in loop if value.rate < Rate.STATE]
    before.emit_values(edge)
    w = before.writer
    body = Writer(w.onnx, w)
    dims = before.dims
    moving = [value for value in edge if before.ranks[value] == 2] or [graph.inputs[0]]
    starts = [body.name(leaf.name) for leaf in graph.states]
    rows = [body.name(value.name) for value in moving]
    sizes = [units_of(leaf, dims) for leaf in graph.states]
    body.inputs += [Slot(n, ("B", *size)) for n, size in zip(starts, sizes, strict=True)]
    body.inputs += [Slot(n, ("B", *units_of(v, dims))) for n, v in zip(rows, moving, strict=True)]
    shape = body.emit("Shape", starts[0], start=0, end=1)
    inside = ValueNames(body, dims, shape, 1, before.cell)
    inside._transposed = before._transposed
    for value in before.names:
        inside.bind(value, before.names[value], before.ranks[value])
    for name, leaf in zip([*starts, *rows], [*graph.states, *moving], strict=True):
        inside.bind(leaf, name, 1)
    inside.emit_values(roots)
    for value in roots:
        name = inside.names[value]
        complete = inside.ranks[value] == 1 and value.rate == Rate.STATE
        output = body.emit("Identity", name) if complete else inside.expand(name, value, 1)
        body.outputs.append(Slot(output, ("B", *units_of(value, dims))))
    scans = [before.names[value] for value in moving]
    if within is not None:
        _mask_states(body, starts, len(results))
        scans.append(within)
    names = [w.name(f"Scan_{leaf.name}") for leaf in graph.states]
    names += [w.name("Scan_out") for _ in results]
    way = int(reverse)
    w.emit_node(
        "Scan",
        [*states, *scans],
        names,
        body=body,
        num_scan_inputs=len(scans),
        scan_input_directions=[way] * len(scans),
        scan_output_directions=[way] * len(results),
    )
    count = len(graph.states)
    return Scan(names[count:], names[:count])


def _mask_states(body: Writer, starts: Sequence[str], count: int) -> None:
    """Keep states and zero outputs where a further input of the body, the mask, is false."""
    within = body.name("within")
    body.inputs.append(Slot(within, ("B", 1), BOOL))
    defaults = [*starts, *[body.constant(0.0)] * count]
    unmasked, body.outputs = body.outputs, []
    for (name, shape, _), default in zip(unmasked, defaults, strict=True):
        body.outputs.append(Slot(body.emit("Where", within, name, default), shape))

"""A phase over many rows at once: products by torch, everything between them in one kernel each.

Batched phases run so over all T·B rows; a step of any size does over its B.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from elman.engines.triton import limits
from elman.engines.triton.body import LIVE, Body
from elman.engines.triton.launch import arguments
from elman.engines.triton.layout import ColumnRange, TritonLayout, merged, padded
from elman.engines.triton.source import function
from elman.engines.triton.statements import Code, Var, assign, code, free, kernel, with_heads
from elman.ir.graph import Node
from elman.plan.program import Buffer, Bundle, Phase, Segment

ROW = Var("r")


class Place(NamedTuple):
    """Where a buffer lies.

    Attributes:
        array: its name, of rows.
        offset: in each row.
        narrow: the array of the same rows in the sequence's own type, which products read: beside
            states that are float32; else the same array.
    """

    array: str
    offset: int
    narrow: str


Locate = Callable[[Buffer], Place]


class _SegmentKernel(Body):
    """One segment: values of other segments lie in memory.

    Attributes:
        products: the bundles that torch multiplies first, and the names of their arrays.
        arguments: names of the kernel's arguments.
    """

    def __init__(self, layout: TritonLayout, phase: Phase, places: Locate, *, heads: bool) -> None:
        super().__init__(layout, phase)
        self.places, self.heads = places, heads
        self.products: list[tuple[Bundle, str]] = []
        self.arguments: list[str] = []

    def address(self, buffer: Buffer) -> Code:
        """See :meth:`Body.address`."""
        place = self.places(buffer)
        return self._at(place.array, place.offset)

    def _at(self, array: str, offset: int) -> Code:
        return code("{} + {} * {} + {}", Var(array), ROW, Var(f"{array}_r"), offset)

    def store(self, buffer: Buffer, value: Node) -> None:
        """See :meth:`Body.store`; a state in float32 is kept in the sequence's type as well; one
        that only holds a value stays where it lies."""
        if buffer.where == "next" and self.layout.column(buffer).array in self.layout.held:
            return
        super().store(buffer, value)
        place = self.places(buffer)
        if place.narrow != place.array:
            self.statements.append(self.stored(self._at(place.narrow, place.offset), value))

    def accumulated(self, bundle: Bundle) -> list[Var]:
        """See :meth:`Body.accumulated`: what torch multiplied, side by side."""
        array = f"pb{len(self.products)}"
        self.products.append((bundle, array))
        loads: list[Var] = []
        for index, acc in enumerate(bundle.accs):
            size = self.layout.width(acc.into)
            at = code("{} + {}", self._at(array, index * size), self.units(size))
            load = "tl.load({}, mask={}, other=0.0).to(tl.float32)"
            loads.append(self.define(load, at, self.inside(size), letter="a"))
        return loads

    def segment(self, segment: Segment) -> None:
        """See :meth:`Body.segment`; scalars that a later segment may read are stored."""
        for value in segment.scalars:
            self._compute(value)
            if len(self.phase.segments) > 1:
                self.store(self.phase.buffers[value], value)
        super().segment(Segment(segment.sync, (), segment.scalar_writes, segment.parts))

    def text(self) -> str:
        """The kernel, called ``rows``."""
        body = [
            assign(ROW, "(tl.program_id(0) * N + tl.arange(0, N)).to(tl.int64)[None, :]"),
            assign(LIVE, "{} < count", ROW),
            *self.before,
            *self.statements,
        ]
        arrays = free(body)
        self.arguments, heads = with_heads(arrays, 1) if self.heads else (arrays, [])
        self.arguments = [*self.arguments, "count"]
        return kernel("rows", [*self.arguments, "N: tl.constexpr"], [*heads, *body], ["count"])

    @property
    def block(self) -> int:
        """Rows that a program takes."""
        widest = max(map(padded, self._units), default=1)
        return max(1, min(limits.ROWS_MOST, limits.ROWS_BLOCK // widest))


@dataclass(frozen=True, eq=False)
class _JoinedOperands:
    """Operands of a bundle that lie side by side: one product.

    Attributes:
        columns: where.
        places: which of the bundle's operands they are.
    """

    columns: ColumnRange
    places: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class _Compiled:
    """One segment: products, each into an array of its own, then a kernel."""

    products: tuple[tuple[Bundle, str, tuple[_JoinedOperands, ...]], ...]
    kernel: Any
    arguments: list[str]
    block: int


class BatchedPhase:
    """Runs a phase on arrays of rows.

    Args:
        layout: of the program.
        phase: what to run.
        places: where its buffers lie.
        heads: whether several heads run side by side, with arrays and weights of their own.
    """

    def __init__(
        self,
        layout: TritonLayout,
        phase: Phase,
        places: Locate,
        *,
        heads: bool = False,
    ) -> None:
        self.layout, self.phase, self._places, self.heads = layout, phase, places, heads
        self.texts: list[str] = []
        self.scalars = sum(1 for buffer in phase.buffers.values() if buffer.where == "scalar")
        self.scratch = layout.slots(phase.scratch)
        self.segments = [self._compiled(segment) for segment in phase.segments]

    @property
    def arrays(self) -> set[str]:
        """Names of the arrays of rows that it reads or writes."""
        names = {name for segment in self.segments for name in segment.arguments}
        products = [runs for segment in self.segments for *_, runs in segment.products]
        return names | {run.columns.base for runs in products for run in runs}

    def places(self, buffer: Buffer) -> Place:
        """The place of a buffer."""
        if buffer.where == "scratch":
            return Place("sr", self.scratch[0][buffer.index], "sr")
        return self._places(buffer)

    def _compiled(self, segment: Segment) -> _Compiled:
        body = _SegmentKernel(self.layout, self.phase, self.places, heads=self.heads)
        body.segment(segment)
        text = body.text()
        self.texts.append(text)
        compiled = function("rows", text) if body.statements else None
        products = tuple((bundle, name, self._runs(bundle)) for bundle, name in body.products)
        return _Compiled(products, compiled, body.arguments, body.block)

    def _runs(self, bundle: Bundle) -> tuple[_JoinedOperands, ...]:
        """A bundle's operands, those side by side together."""
        placed: list[tuple[ColumnRange, int]] = []
        for index, operand in enumerate(bundle.operands):
            place = self.places(self.phase.buffers[operand])
            width = self.layout.width(operand)
            placed.append((ColumnRange(place.narrow, place.offset, width), index))
        runs: list[_JoinedOperands] = []
        for place, index in sorted(placed):
            if runs and runs[-1].columns.is_contiguous_with(place):
                last = runs.pop()
                (joined_range,) = merged([last.columns, place])
                runs.append(_JoinedOperands(joined_range, (*last.places, index)))
            else:
                runs.append(_JoinedOperands(place, (index,)))
        return tuple(runs)

    def matrices(self) -> list[Node]:
        """Matrices of its products."""
        matrices = [
            term.args[0]
            for segment in self.segments
            for bundle, *_ in segment.products
            for acc in bundle.accs
            for term in acc.terms
        ]
        return list(dict.fromkeys(matrices))

    def weights(self, matrices: Mapping[Node, Tensor]) -> list[Tensor]:
        """Weights of its products, one per run of joined operands, in order.

        Args:
            matrices: values of :meth:`matrices` [.., m, n].
        """
        operands: list[Tensor] = []
        for segment in self.segments:
            for bundle, _, runs in segment.products:
                for run in runs:
                    below: list[Tensor] = []
                    for place in run.places:
                        terms = [acc.terms[place] for acc in bundle.accs]
                        blocks = [transposed_if(matrices[t.args[0]], t.transposed) for t in terms]
                        below.append(joined(blocks).mT)
                    operands.append(joined(below))
        return operands

    def run(
        self, arrays: Mapping[str, Tensor], weights: Sequence[Tensor], vec: Tensor, count: int
    ) -> None:
        """Run all segments on ``count`` rows.

        Args:
            arrays: by the names of ``places``: [.., rows, n], contiguous along n; the dots are
                heads, if there are any.
            weights: of :meth:`weights`.
            vec: all loop-invariant vectors [.., n].
            count: rows.
        """
        heads = vec.shape[0] if self.heads else 1
        rest = iter(weights)
        for segment in self.segments:
            named = {**arrays, "vec": vec}
            for _, name, runs in segment.products:
                named[name] = _multiplied(runs, arrays, rest)
            if segment.kernel is None:
                continue
            values = arguments(segment.arguments, named, {"count": count})
            grid = (-(-count // segment.block), heads)
            segment.kernel[grid](*values, N=segment.block)


def _multiplied(
    runs: Sequence[_JoinedOperands], arrays: Mapping[str, Tensor], weights: Iterator[Tensor]
) -> Tensor:
    """The sums of a bundle, side by side: [.., rows, Σ units]."""
    total: Tensor | None = None
    for run in runs:
        product = multiplied(run.columns.view(arrays), next(weights))
        total = product if total is None else total.add_(product)
    assert total is not None, "a product has operands"
    return total


def multiplied(rows: Tensor, matrix: Tensor) -> Tensor:
    """A product in float32, of what is multiplied in the type of the right side; or one for each
    head."""
    rows = rows.to(matrix.dtype)
    product = torch.bmm if rows.dim() == 3 else torch.mm
    if rows.dtype == torch.float32:
        return product(rows, matrix)
    if rows.is_cuda:
        return product(rows, matrix, out_dtype=torch.float32)
    return product(rows.float(), matrix.float())


def transposed_if(matrix: Tensor, transposed: bool) -> Tensor:
    """A matrix, or its transpose."""
    return matrix.mT if transposed else matrix


def joined(blocks: list[Tensor]) -> Tensor:
    """Blocks concatenated along rows; a view where they are adjacent in memory."""
    first = blocks[0]
    rows = 0
    for block in blocks:
        place = first.data_ptr() + rows * first.stride(-2) * first.element_size()
        apart = block.untyped_storage().data_ptr() != first.untyped_storage().data_ptr()
        if apart or block.data_ptr() != place or block.stride() != first.stride():
            return torch.cat(blocks, -2)
        rows += block.shape[-2]
    return first.as_strided((*first.shape[:-2], rows, first.shape[-1]), first.stride())

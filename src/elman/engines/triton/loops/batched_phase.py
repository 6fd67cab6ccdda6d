"""A phase over many rows at once: products by torch, one kernel for each segment between them.

Batched phases run on all T·B rows; schedule ``steps`` runs each step on its B.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from elman.engines.triton.device import limits
from elman.engines.triton.device.launch import arguments
from elman.engines.triton.device.source import function, kernel
from elman.engines.triton.text.layout import ColumnRange, TritonLayout, array_of, merged, padded
from elman.engines.triton.text.printer import Printer, with_heads
from elman.ir.graph import Node
from elman.lowered.types import Access, Phase, Product, Segment, Space

_NARROW = {"st": "sp", "nx": "sq"}  # arrays of states in the sequence's own type


class _SegmentKernel(Printer):
    """One segment; values of other segments are in memory.

    Attributes:
        products: products that torch computes first, and the names of their arrays.
    """

    def __init__(self, layout: TritonLayout, phase: Phase, *, wide: bool) -> None:
        super().__init__(layout)
        self._wide, self._several = wide, len(phase.segments) > 1
        self.products: list[tuple[Product, str]] = []

    def address(self, access: Access) -> str:
        return self._at(array_of(access), access)

    def _at(self, array: str, access: Access) -> str:
        return f"{self.array(array)} + r * {self.array(f'{array}_r')} + {access.offset}"

    def in_memory(self, access: Access) -> bool:
        """See :meth:`Printer.in_memory`: scalars only if a later segment may read them."""
        return self._several or access.region.space is not Space.SCALAR

    def store(self, access: Access, name: str) -> None:
        """See :meth:`Printer.store`: states in both types."""
        super().store(access, name)
        if self._wide and access.region.space is Space.STATE:
            self.lines.append(self.stored(self._at(narrow_array(access), access), access, name))

    def product(self, product: Product) -> list[str]:
        """See :meth:`Printer.product`: torch's results, side by side."""
        array = self.array(f"pb{len(self.products)}")
        self.products.append((product, array))
        size = self.layout.size(product.gate_block)
        start = f"{array} + r * {self.array(f'{array}_r')} + {self.units(size)}"
        mask = self.inside(size)
        return [
            self.define(f"tl.load({start} + {k * size}, mask={mask}, other=0.0)", "a")
            for k in range(len(product.accs))
        ]

    def text(self, *, heads: bool) -> tuple[str, list[str]]:
        """The kernel, called ``rows``, and its arguments."""
        lines = [
            "r = (tl.program_id(0) * N + tl.arange(0, N)).to(tl.int64)[None, :]",
            "live = r < count",
            *self.before,
            *self.lines,
        ]
        arrays, to_head = with_heads(self.arrays, 1) if heads else ([*self.arrays], [])
        names = [*arrays, "count"]
        return kernel("rows", [*names, "N: tl.constexpr"], [*to_head, *lines], ["count"]), names

    @property
    def block(self) -> int:
        """Rows of a program."""
        widest = max(map(padded, self._sizes), default=1)
        return max(1, min(limits.ROWS_MOST, limits.ROWS_BLOCK // widest))


def narrow_array(access: Access) -> str:
    """The array with a state's rows in the type of its sequence, not in float32."""
    name = array_of(access)
    return f"{_NARROW[name[:2]]}{name[2:]}"


@dataclass(frozen=True, eq=False)
class _JoinedOperands:
    """Adjacent operands of a product, which are one operand.

    Attributes:
        columns: their columns.
        places: their indices among the product's operands.
    """

    columns: ColumnRange
    places: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class _Compiled:
    """One segment: products, each into an array of its own, then a kernel."""

    products: tuple[tuple[Product, str, tuple[_JoinedOperands, ...]], ...]
    kernel: Any
    arguments: list[str]
    block: int


class BatchedPhase:
    """Runs a phase on arrays of rows.

    Args:
        layout: of the program.
        phase: the phase.
        wide: whether its states are float32, in addition to their sequences.
        heads: whether several heads run side by side, with arrays and weights of their own.
    """

    def __init__(
        self, layout: TritonLayout, phase: Phase, *, wide: bool = False, heads: bool = False
    ) -> None:
        self.layout, self.phase, self.wide, self.heads = layout, phase, wide, heads
        self.texts: list[str] = []
        self.segments = [self._compiled(segment) for segment in phase.segments]

    @property
    def arrays(self) -> set[str]:
        """Names of the arrays of rows that it reads or writes."""
        names = {name for segment in self.segments for name in segment.arguments}
        products = [runs for segment in self.segments for *_, runs in segment.products]
        return names | {run.columns.base for runs in products for run in runs}

    def _compiled(self, segment: Segment) -> _Compiled:
        printer = _SegmentKernel(self.layout, self.phase, wide=self.wide)
        printer.segment(segment)
        text, names = printer.text(heads=self.heads)
        self.texts.append(text)
        compiled = function("rows", text) if printer.lines else None
        products = tuple((product, name, self._runs(product)) for product, name in printer.products)
        return _Compiled(products, compiled, names, printer.block)

    def _runs(self, product: Product) -> tuple[_JoinedOperands, ...]:
        """A product's operands, adjacent ones joined."""
        placed: list[tuple[ColumnRange, int]] = []
        for index, operand in enumerate(product.operands):
            columns = ColumnRange.of(operand)
            if self.wide and operand.region.space is Space.STATE:
                columns = columns._replace(base=narrow_array(operand))
            placed.append((columns, index))
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
        terms = (
            term
            for segment in self.segments
            for product, *_ in segment.products
            for acc in product.accs
            for term in acc
        )
        return list(dict.fromkeys(self.layout.memory.values[term.matrix] for term in terms))

    def weights(self, matrices: Mapping[Node, Tensor]) -> list[Tensor]:
        """Weights of its products, one per run of joined operands, in order.

        Args:
            matrices: values of :meth:`matrices` [.., m, n].
        """
        node_of, operands = self.layout.memory.values, list[Tensor]()
        for segment in self.segments:
            for product, _, runs in segment.products:
                for run in runs:
                    below: list[Tensor] = []
                    for place in run.places:
                        terms = [acc[place] for acc in product.accs]
                        blocks = [
                            transposed_if(matrices[node_of[t.matrix]], t.transposed) for t in terms
                        ]
                        below.append(joined(blocks).mT)
                    operands.append(joined(below))
        return operands

    def run(
        self, arrays: Mapping[str, Tensor], weights: Sequence[Tensor], vec: Tensor, count: int
    ) -> None:
        """Run all segments on ``count`` rows.

        Args:
            arrays: by name, see :func:`array_of`: [.., rows, n], contiguous along n; the dots are
                heads, if there are any.
            weights: result of :meth:`weights`.
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
    """The sums of a product, side by side: [.., rows, Σ units]."""
    total: Tensor | None = None
    for run in runs:
        product = multiplied(run.columns.view(arrays), next(weights))
        total = product if total is None else total.add_(product)
    assert total is not None, "a product has operands"
    return total


def multiplied(rows: Tensor, matrix: Tensor) -> Tensor:
    """A product, or one for each head, of operands in the type of the matrix; the result is
    float32."""
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

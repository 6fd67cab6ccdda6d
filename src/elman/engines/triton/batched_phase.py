"""A phase over many rows at once: products by torch, everything between them in one kernel each.

Batched phases run so over all T·B rows; a step of any size does over its B.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from elman.engines.triton.body import Body
from elman.engines.triton.launch import arguments
from elman.engines.triton.layout import ColumnRange, TritonLayout, merged, padded
from elman.engines.triton.source import function
from elman.ir.graph import Node
from elman.plan.program import Buffer, Bundle, Phase, Segment

_BLOCK = 1024  # elements of a block at most
_WIDEST = 64  # rows of a block at most
Locate = Callable[[Buffer], tuple[str, int]]  # the name of an array of rows, and an offset in it


class _SegmentKernel(Body):
    """One segment: values of other segments lie in memory."""

    def __init__(
        self, layout: TritonLayout, phase: Phase, places: Locate, *, wide: bool, heads: bool
    ) -> None:
        super().__init__(layout, phase)
        self.places, self.wide, self.heads = places, wide, heads
        self.bases: dict[str, None] = {}
        self.products: list[tuple[Bundle, str]] = []
        self._widest = 1

    def address(self, buffer: Buffer, value: Node) -> str:
        """See :meth:`Body.address`."""
        base, offset = self.places(buffer)
        self.bases[base] = None
        return f"{base} + r * {base}_r + {offset}"

    def store(self, buffer: Buffer, value: Node) -> None:
        """See :meth:`Body.store`; a state in float32 is kept in the sequence's type as well; one
        that only holds a value stays where it lies."""
        if buffer.where == "next" and self.layout.column(buffer).array in self.layout.held:
            return
        super().store(buffer, value)
        if self.wide and buffer.where == "next":
            base, offset = self.places(buffer)
            base = base.replace("nx", "sq")
            self.bases[base] = None
            at, mask = f"{base} + r * {base}_r + {offset}", "live"
            if value.shape:
                size = self.layout.width(value)
                at, mask = f"{at} + {self.units(size)}", self.inside(size)
            self.lines.append(f"lib.put({at}, {self.broadcast(self.use(value), value)}, {mask})")

    def units(self, size: int) -> str:
        """See :meth:`Body.units`."""
        self._widest = max(self._widest, padded(size))
        return super().units(size)

    def accumulated(self, bundle: Bundle) -> list[str]:
        """See :meth:`Body.accumulated`: what torch multiplied, side by side."""
        base = f"pb{len(self.products)}"
        self.products.append((bundle, base))
        self.bases[base] = None
        names: list[str] = []
        for index, acc in enumerate(bundle.accs):
            size = self.layout.width(acc.into)
            name = self.fresh("a")
            names.append(name)
            self.lines.append(
                f"{name} = tl.load({base} + r * {base}_r + {index * size} + {self.units(size)}, "
                f"mask={self.inside(size)}, other=0.0).to(tl.float32)"
            )
        return names

    def segment(self, segment: Segment) -> None:
        """See :meth:`Body.segment`; scalars that a later segment may read are stored."""
        for value in segment.scalars:
            self._compute(value)
            if len(self.phase.segments) > 1:
                self.store(self.phase.buffers[value], value)
        super().segment(Segment(segment.sync, (), segment.scalar_writes, segment.parts))

    def text(self) -> str:
        """The kernel, called ``rows``."""
        of_heads: list[str] = []
        if self.heads:
            of_heads = [
                f"    {base} += tl.program_id(1).to(tl.int64) * {base}_h"
                for base in (*self.bases, "vec")
            ]
        lines = [
            '@triton.jit(do_not_specialize=["count"])',
            f"def rows({', '.join(self.arguments)}, N: tl.constexpr):",
            *of_heads,
            "    r = (tl.program_id(0) * N + tl.arange(0, N)).to(tl.int64)[None, :]",
            "    live = r < count",
            *("    " + line for line in (*self.before, *self.lines)),
            "",
        ]
        return "\n".join(lines)

    @property
    def arguments(self) -> list[str]:
        """Names of the kernel's arguments."""
        names = [name for base in self.bases for name in (base, f"{base}_r")]
        heads = [f"{base}_h" for base in (*self.bases, "vec")] if self.heads else []
        return [*names, "vec", *heads, "count"]

    @property
    def block(self) -> int:
        """Rows that a program takes."""
        return max(1, min(_WIDEST, _BLOCK // self._widest))


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
        wide: whether states go from step to step in float32, beside the sequences that are kept.
        heads: whether several heads run side by side, with arrays and weights of their own.
    """

    def __init__(
        self,
        layout: TritonLayout,
        phase: Phase,
        places: Locate,
        *,
        wide: bool = False,
        heads: bool = False,
    ) -> None:
        self.layout, self.phase, self._places = layout, phase, places
        self.wide, self.heads = wide, heads
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

    def places(self, buffer: Buffer) -> tuple[str, int]:
        """Array and offset of a buffer."""
        if buffer.where == "scratch":
            return "sr", self.scratch[0][buffer.index]
        return self._places(buffer)

    def _compiled(self, segment: Segment) -> _Compiled:
        body = _SegmentKernel(
            self.layout, self.phase, self.places, wide=self.wide, heads=self.heads
        )
        body.segment(segment)
        text = body.text()
        self.texts.append(text)
        kernel = function("rows", text) if body.lines else None
        products = tuple((bundle, name, self._runs(bundle)) for bundle, name in body.products)
        return _Compiled(products, kernel, body.arguments, body.block)

    def _runs(self, bundle: Bundle) -> tuple[_JoinedOperands, ...]:
        """A bundle's operands, those side by side together."""
        placed: list[tuple[ColumnRange, int]] = []
        for index, operand in enumerate(bundle.operands):
            base, offset = self.places(self.phase.buffers[operand])
            if self.wide:  # what is multiplied is read in the sequence's own type
                base = base.replace("st", "sp").replace("nx", "sq")
            placed.append((ColumnRange(base, offset, self.layout.width(operand)), index))
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

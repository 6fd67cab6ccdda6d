"""Sparse products with spikes: sums of the weights' rows where the operand is 1."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from elman.engines.c.compilation.isa import Isa
from elman.lowered.types import Access, Product
from elman.plan.schedule import Blocks

# A block of rows gathers if every element of the operand is 0 or 1, at most a quarter are 1, and no
# weight is infinite or NaN, which 0 would make NaN; else it is multiplied in tiles.


def gathered_operands(product: Product, units: int, blocks: Blocks) -> list[Access]:
    """Operands, of a product into ``units`` units, that are scanned for ones."""
    if units * len(product.accs) < blocks.gathered_columns:
        return []
    return [
        access
        for access, spikes in zip(product.operands, product.spikes, strict=True)
        if spikes and blocks.gathered_inner <= access.units <= blocks.gathered_most
    ]


def gathered_sum(right: Access, spikes: bool, lefts: Iterable[Access], blocks: Blocks) -> bool:
    """Whether a right operand is scanned for ones in sums over rows with these left operands."""
    large = min(a.units for a in lefts) >= blocks.gathered_columns
    return spikes and large and right.units >= blocks.gathered_inner


@dataclass(frozen=True)
class Ones:
    """The lists of ones of one operand, in a segment's C text.

    Attributes:
        number: index of the operand in the segment.
        inner: units of the operand.
        rows: rows of a block.
        picked: the C function that adds up rows of a panel, without its number of vectors.
    """

    number: int
    inner: int
    rows: int
    picked: str

    def declared(self) -> list[str]:
        """C lines before the loop over blocks."""
        n = self.number
        return [f"unsigned short at{n}[FEW({self.rows} * {self.inner})]; int ends{n}[{self.rows}];"]

    def sought(self, address: str, stride: str) -> str:
        """C line that fills the lists for the block's m rows."""
        n = self.number
        return (
            f"const int few{n} = finite && ones_of(m, {address}, {stride}, {self.inner},"
            f" at{n}, ends{n});"
        )

    def added(self, count: int, panel: str, target: str, row: str, acc: int) -> str:
        """C line that multiplies by ``count`` vectors of a panel, as ``rows{count}`` does."""
        n = self.number
        return f"{self.picked}{count}(m, at{n}, 0, ends{n}, {panel}, {target}, {row}, {acc});"


def picked_rows(isa: Isa, vectors: int) -> str:
    """``picked{vectors}``: C[m, :] (+)= the sum of the panel's rows that are listed, from
    the list's place i on."""
    del isa  # the number of chains below hides an addition's latency on every instruction set
    row = f"const T *p = P + at[i + {{}}] * {vectors}L * VL;"
    return _picked("picked", vectors, row, "ld(p + {} * VL)")


def picked_halves(isa: Isa, vectors: int) -> str:
    """``halves{vectors}``: ``picked{vectors}`` for a panel of pairs of bfloat16."""
    del isa
    row = f"const long k = at[i + {{}}]; const T *p = P + k / 2 * {vectors}L * VL;"
    return _picked("halves", vectors, row, "half(ld(p + {} * VL), k & 1)")


def _picked(name: str, vectors: int, row: str, vector: str) -> str:
    """The C function; ``row`` and ``vector`` are C text of a chain's row, and of its vectors."""
    chains = min(4, 8 // vectors)  # independent sums, at most eight in registers
    sums = [[f"c{v}_{q}" for v in range(vectors)] for q in range(chains)]

    def added(chain: int) -> str:
        lines = "".join(f" {c} += {vector.format(v)};" for v, c in enumerate(sums[chain]))
        return f"{{ {row.format(chain)}{lines} }}"

    rounds = " ".join(added(chain) for chain in range(chains))
    totals = [" + ".join(sums[q][v] for q in range(chains)) for v in range(vectors)]
    stores = " ".join(
        f"st(C + {v} * VL, acc ? ld(C + {v} * VL) + ({total}) : {total});"
        for v, total in enumerate(totals)
    )
    zeros = ", ".join(f"{c} = {{0}}" for chain in sums for c in chain)
    return f"""SHARED void {name}{vectors}(long m, const unsigned short *at, long i,
                          const int *ends, const T *P, T *C, long ldc, int acc) {{
    for (long r = 0; r < m; r++, C += ldc) {{
        V {zeros};
        long end = ends[r];
        for (; i + {chains} <= end; i += {chains}) {{ {rounds} }}
        for (; i < end; i++) {added(0)}
        {stores}
    }}
}}"""

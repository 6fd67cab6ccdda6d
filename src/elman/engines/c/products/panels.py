"""Matrix products: packed weight panels of a group of products, and the C calls that read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from elman.engines.c.products.gathering import Ones, gathered_operands
from elman.engines.c.products.tiles import WIDEST
from elman.lowered.layout import Layout
from elman.lowered.types import Access, Matrix, Phase, Product
from elman.plan.schedule import Blocks


@dataclass(frozen=True, eq=False)
class Panels:
    """The packed weights of a group of products.

    A panel covers ``width`` neighbouring vectors of units (the last panel the remainder). Order of
    elements within a panel: groups of at most ``WIDEST`` vector columns, operands, k, columns.

    Attributes:
        product: the products of the group.
        units: units of the whole gate block.
        vectors: vectors of units in the whole gate block.
        width: vectors of units per panel.
        offset: start in the pack area (elements).
        groups: groups of the part; each has panels of its own, one after another.
        pairs: whether an element holds a pair of neighbours along k (:attr:`Isa.pairs`).
    """

    product: Product
    units: int
    vectors: int
    width: int
    offset: int
    lanes: int
    groups: int = 1
    pairs: bool = False

    @property
    def inner(self) -> tuple[int, ...]:
        """k per operand, or pairs of k."""
        units = [operand.units for operand in self.product.operands]
        return tuple([(k + 1) // 2 for k in units] if self.pairs else units)

    @property
    def picked(self) -> str:
        """The C function that adds up rows of a panel (:class:`Ones`)."""
        return "halves" if self.pairs else "picked"

    @property
    def accs(self) -> int:
        """Accumulated products per unit."""
        return len(self.product.accs)

    @property
    def total(self) -> int:
        """k over all operands."""
        return sum(self.inner)

    @property
    def elements(self) -> int:
        """Size in the pack area, of one group (elements)."""
        return self.vectors * self.total * self.accs * self.lanes

    @property
    def start(self) -> str:
        """C text of the first panel's address."""
        group = f" + g * {self.elements}" if self.groups > 1 else ""
        return f"c->pack + {self.offset}{group}"

    @property
    def widths(self) -> tuple[int, ...]:
        """The panel widths that occur: full panels, and the remainder."""
        rest = self.vectors % self.width
        full = (self.width,) if self.vectors >= self.width else ()
        return full + ((rest,) if rest else ())

    def tiles(self, width: int) -> list[tuple[int, int]]:
        """(first column, columns) of each tile of a panel ``width`` vectors wide."""
        columns = self.accs * width
        return [(first, min(WIDEST, columns - first)) for first in range(0, columns, WIDEST)]


def panel_width(accs: int, vectors: int) -> int:
    """Vectors of units per panel: as many as fill a tile, if that leaves at least two panels."""
    width = 4
    while width > 1 and (accs * width > WIDEST or width * 2 > vectors):
        width //= 2
    return width


def plan_panels(layout: Layout, phases: Iterable[Phase], pairs: bool) -> dict[Product, Panels]:
    """Give every product of some phases its panels, one after another in the pack area.

    Products of one part share the panels' width, since one loop over panels serves them all.
    ``pairs``: see :class:`Panels`.
    """
    panels: dict[Product, Panels] = {}
    offset = 0
    for part in (part for phase in phases for s in phase.segments for part in s.parts):
        units = layout.size(part.gate_block)
        vectors = layout.padded(part.gate_block) // layout.lanes
        widths = [panel_width(len(product.accs), vectors) for product in part.products]
        for product in part.products:
            panels[product] = Panels(
                product,
                units,
                vectors,
                min(widths),
                offset,
                layout.lanes,
                part.groups,
                pairs,
            )
            offset += panels[product].elements * part.groups
    return panels


def tiles_of(panels: Iterable[Panels], blocks: Blocks) -> set[str]:
    """Names of the tiles that products of packed panels call."""
    names: set[str] = set()
    for panel in panels:
        if panel.total:
            listed = bool(gathered_operands(panel.product, panel.units, blocks))
            counts = {count for width in panel.widths for _, count in panel.tiles(width)}
            names.update(f"rows{count}" for count in counts)
            names.update(f"{panel.picked}{count}" for count in counts if listed)
    return names


Place = Callable[[Matrix], tuple[str, str]]  # C text of its first element, and of its row length
Operand = Callable[[Access], tuple[str, str]]  # … of its address at a block's first row, and stride


def pack_code(panels: Panels, matrix: Place) -> list[str]:
    """C lines that pack this worker's share of the panels."""
    lines: list[str] = []
    pack = "pack_pairs" if panels.pairs else "pack_block"
    for number, acc in enumerate(panels.product.accs):
        packed_k = 0
        operands = panels.product.operands
        for term, operand, inner in zip(acc, operands, panels.inner, strict=True):
            base, row = matrix(term.matrix)
            unit, along = ("1", row) if term.transposed else (row, "1")
            lines.append(
                f"{pack}(w, {panels.start}, {panels.vectors}, {panels.width},"
                f" {panels.accs}, {number}, {panels.total}, {packed_k}, {base}, {unit}, {along},"
                f" {panels.units}, {operand.units});"
            )
            packed_k += inner
    return lines


def product_code(
    panels: Panels,
    first: int,
    operand: Operand,
    k_block: int,
    base: str = "buf",
    row: str = "LDB",
    ones: Mapping[Access, Ones] | None = None,
) -> list[str]:
    """C lines that fill ``base`` with one panel's products for the rows of the current block.

    Args:
        panels: of the product; ``v`` is the panel's first vector, ``nv`` its width, ``m`` the rows.
        first: the product's first column in ``base``, in vectors.
        operand: addresses and strides of operands.
        k_block: length along k of one pass over the rows.
        base, row: C text of the address of the block's first row, and of the distance of rows.
        ones: operands that have been scanned for ones, with their lists.
    """
    lines = [f"{{ const T *P = {panels.start} + v * {panels.total * panels.accs} * VL;"]
    for index, width in enumerate(panels.widths):
        test = "else " if index else ""
        last = index == len(panels.widths) - 1
        lines.append(f"  {test}{{" if last else f"  {test}if (nv == {width}) {{")
        for column, count in panels.tiles(width):
            start = column * panels.total
            multiplied_k = 0
            target = f"{base} + {first + column} * VL"
            if not panels.total:
                lines.append(
                    f"    for (long r = 0; r < m; r++) for (long i = 0; i < {count}; i++)"
                    f" st({target} + r * {row} + i * VL, (V){{0}});"
                )
            for value, inner in zip(panels.product.operands, panels.inner, strict=True):
                address, stride = operand(value)
                tiles: list[str] = []
                for k in range(0, inner, k_block):
                    part = min(k_block, inner - k)
                    acc = int(multiplied_k + k > 0)
                    tiles.append(
                        f"    rows{count}(m, {address} + {k}, {stride},"
                        f" P + {start + (multiplied_k + k) * count} * VL, {part}, {target},"
                        f" {row}, {acc});"
                    )
                lists = ones.get(value) if ones else None
                if lists:
                    panel, acc = f"P + {start + multiplied_k * count} * VL", int(multiplied_k > 0)
                    added = lists.added(count, panel, target, row, acc)
                    tiles = [f"    if (few{lists.number}) {added}", "    else {", *tiles, "    }"]
                lines.extend(tiles)
                multiplied_k += inner
        lines.append("  }")
    lines.append("}")
    return lines


def direct_code(
    panels: Panels, first: int, operand: Operand, matrix: Place, dots: str, buf: str = "buf"
) -> list[str]:
    """C lines of the same products as :func:`product_code`, reading unpacked weights.

    Args:
        panels: of the product; only its sizes are used.
        first, operand: see :func:`product_code`.
        matrix: addresses and row lengths of weights.
        dots: the C function that multiplies by rows of weights.
        buf: C text of the address of the block's first row.
    """
    lines = ["for (long j = 0; j < nv; j++) {", f"    long units = {panels.units} - (v + j) * VL;"]
    for number, acc in enumerate(panels.product.accs):
        target = f"{buf} + ({first} + {number} * nv + j) * VL"
        if not panels.total:
            lines.append(f"    for (long r = 0; r < m; r++) st({target} + r * LDB, (V){{0}});")
        multiplied_k = 0
        for term, access in zip(acc, panels.product.operands, strict=True):
            address, stride = operand(access)
            base, row = matrix(term.matrix)
            scaled = "paired_scaled_rows" if panels.pairs else "scaled_rows"
            name, unit = (scaled, "1") if term.transposed else (dots, row)
            lines.append(
                f"    {name}(m, {address}, {stride}, {base} + (v + j) * VL * ({unit}), {row},"
                f" units, {access.units}, {target}, LDB, {int(multiplied_k > 0)});"
            )
            multiplied_k += access.units
    return [*lines, "}"]

"""Matrix products: packed weight panels of a group of products, and the C calls that read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from elman.engines.c.gathering import Ones
from elman.engines.c.layout import CLayout
from elman.engines.c.tiles import WIDEST
from elman.ir.graph import Node
from elman.ir.types import GateBlock
from elman.plan.program import Bundle, Part


@dataclass(frozen=True, eq=False)
class Panels:
    """The packed weights of a group of products.

    A panel covers ``width`` neighbouring vectors of units (the last panel the remainder). Order of
    elements within a panel: groups of at most ``WIDEST`` vector columns, operands, k, columns.

    Attributes:
        bundle: what is multiplied.
        vectors: vectors of units in the whole gate block.
        width: vectors of units per panel.
        inner: k per operand.
        offset: start in the pack area (elements).
    """

    gate_block: GateBlock
    bundle: Bundle
    vectors: int
    width: int
    inner: tuple[int, ...]
    offset: int
    lanes: int

    @property
    def accs(self) -> int:
        """Accumulated products per unit."""
        return len(self.bundle.accs)

    @property
    def total(self) -> int:
        """k over all operands."""
        return sum(self.inner)

    @property
    def elements(self) -> int:
        """Size in the pack area (elements)."""
        return self.vectors * self.total * self.accs * self.lanes

    @property
    def widths(self) -> tuple[int, ...]:
        """The panel widths that occur: full panels, and the remainder."""
        rest = self.vectors % self.width
        full = (self.width,) if self.vectors >= self.width else ()
        return full + ((rest,) if rest else ())

    def groups(self, width: int) -> list[tuple[int, int]]:
        """(first column, columns) of each group of a panel ``width`` vectors wide."""
        columns = self.accs * width
        return [(first, min(WIDEST, columns - first)) for first in range(0, columns, WIDEST)]


def panel_width(accs: int, vectors: int) -> int:
    """Vectors of units per panel: as many as fill a tile, if that leaves at least two panels."""
    width = 4
    while width > 1 and (accs * width > WIDEST or width * 2 > vectors):
        width //= 2
    return width


def plan_panels(layout: CLayout, parts: list[Part]) -> dict[Bundle, Panels]:
    """Give every bundle of a sweep its panels, one after another in the pack area.

    Bundles of one part share the panels' width, since one loop over panels serves them all.
    """
    by_bundle: dict[Bundle, Panels] = {}
    offset = 0
    for part in parts:
        vectors = layout.padded(part.gate_block) // layout.lanes
        width = min(panel_width(len(bundle.accs), vectors) for bundle in part.bundles)
        for bundle in part.bundles:
            inner = tuple(layout.size(operand.shape[0][0]) for operand in bundle.operands)
            panels = Panels(part.gate_block, bundle, vectors, width, inner, offset, layout.lanes)
            by_bundle[bundle] = panels
            offset += panels.elements
    return by_bundle


Matrix = Callable[[Node], tuple[str, str]]


@dataclass(frozen=True)
class Weights:
    """Unpacked weights that products read in the caller's arrays.

    Attributes:
        matrix: C text of a block's address and of its row length.
        dots: the C function that multiplies by their rows.
    """

    matrix: Matrix
    dots: str = "dots"


def pack_code(panels: Panels, size: int, matrix: Matrix) -> list[str]:
    """C lines that pack this worker's share of the panels.

    Args:
        panels: the bundle.
        size: units of the gate block.
        matrix: C text of a block's address and of its row length.
    """
    lines: list[str] = []
    for number, acc in enumerate(panels.bundle.accs):
        packed_k = 0
        for term, inner in zip(acc.terms, panels.inner, strict=True):
            base, row = matrix(term.args[0])
            unit, along = ("1", row) if term.transposed else (row, "1")
            lines.append(
                f"pack_block(w, c->pack + {panels.offset}, {panels.vectors}, {panels.width},"
                f" {panels.accs}, {number}, {panels.total}, {packed_k}, {base}, {unit}, {along},"
                f" {size}, {inner});"
            )
            packed_k += inner
    return lines


def product_code(
    panels: Panels,
    first: int,
    operand: Callable[[Node], tuple[str, str]],
    k_block: int,
    base: str = "buf",
    row: str = "LDB",
    ones: Mapping[Node, Ones] | None = None,
) -> list[str]:
    """C lines that fill ``base`` with one panel's products for the rows of the current block.

    Args:
        panels: the bundle; ``v`` is the panel's first vector, ``nv`` its width, ``m`` the rows.
        first: the bundle's first column in ``base``, in vectors.
        operand: C text of an operand's address at the block's first row, and of its row stride.
        k_block: how much of k is used before the next rows are taken.
        base, row: C text of where the block's first row is stored, and of the distance of rows.
        ones: operands of which lists are at hand where few elements are 1.
    """
    lines = [f"{{ const T *P = c->pack + {panels.offset} + v * {panels.total * panels.accs} * VL;"]
    for index, width in enumerate(panels.widths):
        test = "else " if index else ""
        last = index == len(panels.widths) - 1
        lines.append(f"  {test}{{" if last else f"  {test}if (nv == {width}) {{")
        for column, count in panels.groups(width):
            start = column * panels.total
            multiplied_k = 0
            target = f"{base} + {first + column} * VL"
            if not panels.total:
                lines.append(
                    f"    for (long r = 0; r < m; r++) for (long i = 0; i < {count}; i++)"
                    f" st({target} + r * {row} + i * VL, (V){{0}});"
                )
            for value, inner in zip(panels.bundle.operands, panels.inner, strict=True):
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
    panels: Panels,
    first: int,
    size: int,
    operand: Callable[[Node], tuple[str, str]],
    weights: Weights,
) -> list[str]:
    """C lines of the same products as :func:`product_code`, reading unpacked weights.

    Args:
        panels: the bundle; nothing of it is packed.
        first, operand: as for :func:`product_code`.
        size: units of the gate block.
        weights: where they lie, and how they are multiplied.
    """
    lines = ["for (long j = 0; j < nv; j++) {", f"    long units = {size} - (v + j) * VL;"]
    for number, acc in enumerate(panels.bundle.accs):
        target = f"buf + ({first} + {number} * nv + j) * VL"
        if not panels.total:
            lines.append(f"    for (long r = 0; r < m; r++) st({target} + r * LDB, (V){{0}});")
        multiplied_k = 0
        for term, value, inner in zip(acc.terms, panels.bundle.operands, panels.inner, strict=True):
            address, stride = operand(value)
            base, row = weights.matrix(term.args[0])
            name, unit = ("scaled_rows", "1") if term.transposed else (weights.dots, row)
            lines.append(
                f"    {name}(m, {address}, {stride}, {base} + (v + j) * VL * ({unit}), {row},"
                f" units, {inner}, {target}, LDB, {int(multiplied_k > 0)});"
            )
            multiplied_k += inner
    return [*lines, "}"]

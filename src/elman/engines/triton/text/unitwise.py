"""A small cell written unit by unit: each unit of a value is a block [steps, channels]."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from elman.engines.triton.text.ops import FOLDS, block, number, spell, spell_sum
from elman.ir.graph import Node, Rate, walk
from elman.ir.ops import OPS
from elman.ir.pair import loop_invariant
from elman.ir.types import dim_size, shape_size

Entry = str | float  # one unit of a value: a variable, or a number that is known


class Line(NamedTuple):
    """A variable's definition, and the entries that it reads."""

    name: str
    text: str
    reads: tuple[Entry, ...]


def live(lines: Sequence[Line], read: set[Entry]) -> list[str]:
    """Text of the definitions that are read. ``read`` holds the entries read after them; the
    entries that they read are added to it."""
    texts: list[str] = []
    for line in reversed(lines):
        if line.name in read:
            texts.append(f"{line.name} = {line.text}")
            read.update(line.reads)
    return texts[::-1]


class Writer:
    """Lines that compute values unit by unit.

    Values that do not depend on the state are loaded: values of rows from planes ``X``, values of
    weight rate from ``vec``. Constants are folded, above all zeros and ones, which seeds consist
    of.

    Args:
        sizes: of the named dims.
        units: whether units are channels, so that every value is one block.
        groups: number of groups of states; each channel belongs to one (``group``), and ``vec`` has
            each value of weight rate for every group.
        passthrough: held states, which are loaded like values of rows.
    """

    def __init__(
        self,
        sizes: Mapping[str, int],
        *,
        units: bool,
        groups: int = 1,
        passthrough: frozenset[Node] = frozenset(),
    ) -> None:
        self.sizes, self.units, self.groups, self._passthrough = sizes, units, groups, passthrough
        self.entries: dict[Node, list[Entry]] = {}
        self._lines: list[Line] = []
        self.invariants: dict[Node, int] = {}  # offsets among all values of weight rate
        self.rows: dict[Node, int] = {}  # indices among all values of rows
        self._count = 0

    def place(self, roots: Iterable[Node | None]) -> None:
        """Lay out the loads of some values, before the lines of any are written."""
        for node in walk([root for root in roots if root is not None], stop=self._is_end):
            if self._is_loaded(node):
                places = self.invariants if loop_invariant(node) else self.rows
                places.setdefault(node, self._used(places))

    def _used(self, places: dict[Node, int]) -> int:
        """The end of the layout so far."""
        if not places:
            return 0
        last = next(reversed(places))
        return places[last] + (self.size(last) if loop_invariant(last) else self.count(last))

    def size(self, value: Node) -> int:
        """Units of a value; rows times columns of a matrix."""
        total = 1
        for size in shape_size(value.shape, self.sizes):
            total *= size
        return total

    def count(self, value: Node) -> int:
        """Entries of a value."""
        return 1 if self.units else self.size(value)

    def _named(self, text: str, reads: Iterable[Entry] = ()) -> str:
        self._count += 1
        self._lines.append(Line(f"x{self._count}", text, tuple(reads)))
        return self._lines[-1].name

    def value(self, root: Node) -> list[Entry]:
        """The entries of a value, computed if they are not known."""
        for node in walk([root], stop=self._is_end):
            if node not in self.entries:
                self.entries[node] = (
                    self._loaded(node) if self._is_loaded(node) else self._compute(node)
                )
        return self.entries[root]

    def forget(self, rate: Rate) -> None:
        """Forget values of at least a rate."""
        self.entries = {node: entry for node, entry in self.entries.items() if node.rate < rate}

    def forget_invariants(self) -> None:
        """Forget values of weight rate, so that their next readers load them again."""
        self.entries = {
            node: entry for node, entry in self.entries.items() if not loop_invariant(node)
        }

    def take(self) -> list[Line]:
        """The lines since the last call."""
        lines, self._lines = self._lines, []
        return lines

    def _is_end(self, node: Node) -> bool:
        return node in self.entries or self._is_loaded(node)

    def _is_loaded(self, node: Node) -> bool:
        changes = node.rate > Rate.INPUT and node not in self._passthrough
        return not changes and node.op not in ("const", "count")

    def _loaded(self, node: Node) -> list[Entry]:
        """Load a value computed by the caller, per row or once per call."""
        if loop_invariant(node):
            at = self.invariants[node]
            if self.units and node.shape:
                return [self._named(self._invariant(f"{at} + unit"))]
            return [self._named(self._invariant(str(at + k))) for k in range(self.count(node))]
        places = range(self.rows[node], self.rows[node] + self.count(node))
        load = "tl.load(X + {} * plane + at, mask=inside, other=0.0)"
        return [self._named(load.format(place)) for place in places]

    def _invariant(self, at: str) -> str:
        if self.groups == 1:
            return f"tl.load(vec + {at})"
        return f"tl.load(vec + ({at}) * {self.groups} + group)"

    def _compute(self, node: Node) -> list[Entry]:
        if node.op == "const":
            return [node.number]
        if node.op == "count":
            return [float(dim_size(node.data, self.sizes))]
        args = [self.entries[arg] for arg in node.args]
        if node.op == "matmul":
            return self._product(node, args[0], args[1])
        if OPS[node.op].kind == "reduce":
            pairs = zip(node.args, args, strict=True)
            entries = [e for arg, of_arg in pairs for e in self._wide(arg, of_arg)]
            groups = self.size(node)
            width = len(entries) // groups
            each = [entries[k * width : (k + 1) * width] for k in range(groups)]
            return [self._reduced(node, group) for group in each]
        if OPS[node.op].kind in ("spread", "scan"):
            return self._over_units(node, self._wide(node.args[0], args[0]))
        count = max([self.count(node), *map(len, args)])
        each = zip(
            *(of_arg if len(of_arg) == count else of_arg * count for of_arg in args), strict=True
        )
        return [self._pointwise(node, list(entries)) for entries in each]

    def _wide(self, value: Node, entries: list[Entry]) -> list[Entry]:
        return entries if len(entries) == self.count(value) else entries * self.count(value)

    def _over_units(self, node: Node, entries: list[Entry]) -> list[Entry]:
        size = self.size(node)
        if node.op == "cumsum":
            sums: list[Entry] = []
            for entry in entries[::-1] if node.backward_in_units else entries:
                sums.append(self._sum([(1.0, before) for before in (*sums[-1:], entry)]))
            return sums[::-1] if node.backward_in_units else sums
        width = size // len(entries)
        wide = [entry for entry in entries for _ in range(width)]
        if node.op == "spread":
            return wide
        assert node.op == "one_hot", node.op
        before = dim_size(node.data, self.sizes)
        return [
            self._named(
                f"({operand(entry, wide=True)} == {before + k % width}.0).to(tl.float32)", (entry,)
            )
            for k, entry in enumerate(wide)
        ]

    def _product(self, node: Node, matrix: list[Entry], vector: list[Entry]) -> list[Entry]:
        rows, columns = shape_size(node.args[0].shape, self.sizes)
        vector = self._wide(node.args[1], vector)
        out, inner = (columns, rows) if node.transposed else (rows, columns)
        products: list[Entry] = []
        for o in range(out):
            places = [
                (i * columns + o if node.transposed else o * columns + i) for i in range(inner)
            ]
            pairs = [(matrix[place], vector[i]) for i, place in enumerate(places)]
            products.append(self._sum([(1.0, self._times(a, b)) for a, b in pairs]))
        return products

    def _times(self, a: Entry, b: Entry) -> Entry:
        """A product; a constant zero times anything is zero, as without a cotangent."""
        if 0.0 in (a, b):
            return 0.0
        if a == 1.0:
            return b
        if b == 1.0:
            return a
        return self._named(f"{operand(a)} * {operand(b)}", (a, b))

    def _sum(self, terms: Sequence[tuple[float, Entry]], bias: float = 0.0) -> Entry:
        bias += sum(coef * entry for coef, entry in terms if isinstance(entry, float))
        named = [(coef, entry) for coef, entry in terms if isinstance(entry, str)]
        if not named:
            return bias
        if len(named) == 1 and named[0][0] == 1.0 and not bias:
            return named[0][1]
        coefs, entries = zip(*named, strict=True)
        return self._named(spell_sum(coefs, bias, entries), entries)

    def _pointwise(self, node: Node, args: list[Entry]) -> Entry:
        if node.op == "lin":
            return self._sum(list(zip(node.coefs, args, strict=True)), node.bias)
        if node.op == "mul":
            return self._times(args[0], args[1])
        if node.op == "div" and args[0] == 0.0:
            return 0.0
        if node.op == "where" and args[1] == args[2]:
            return args[1]
        if node.op == "stop":
            return args[0]
        return self._named(spell(node.op, [operand(arg, wide=True) for arg in args]), args)

    def _reduced(self, node: Node, entries: list[Entry]) -> Entry:
        if node.op == "argmax":
            return self._first(entries)
        if node.op not in ("sum", "mean", "var"):
            joined = FOLDS[node.op].join([operand(entry, wide=True) for entry in entries])
            return self._named(joined, entries)
        share = 1.0 if node.op == "sum" else 1.0 / len(entries)
        total = self._sum([(share, entry) for entry in entries])
        if node.op != "var":
            return total
        off = [self._sum([(1.0, entry), (-1.0, total)]) for entry in entries]
        return self._sum([(share, self._times(difference, difference)) for difference in off])

    def _first(self, entries: Sequence[Entry]) -> Entry:
        """The index of the first maximum; NaN is the largest."""
        best, place = self._named(operand(entries[0], wide=True), entries[:1]), block(0.0)
        for k, entry in enumerate(entries[1:], 1):
            unit = operand(entry, wide=True)
            larger = f"({unit} > {best}) | (({unit} != {unit}) & ({best} == {best}))"
            is_larger = self._named(larger, (entry, best))
            best = self._named(f"tl.where({is_larger}, {unit}, {best})", (is_larger, entry, best))
            place = self._named(f"tl.where({is_larger}, {k}.0, {place})", (is_larger, place))
        return place if len(entries) > 1 else 0.0


def operand(entry: Entry, *, wide: bool = False) -> str:
    """An entry in an expression; ``wide``: a number as a block."""
    if isinstance(entry, str):
        return entry
    return block(entry) if wide else number(entry)

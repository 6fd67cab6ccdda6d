"""C code that runs once per call: loop-invariant values, and weight gradients from their sums."""

from __future__ import annotations

from elman.engines.c.layout import CLayout
from elman.engines.c.ops import number, spell, spell_over_units, spell_reduce, spell_sum
from elman.ir.graph import Node, walk
from elman.ir.ops import OPS
from elman.ir.pair import Pair
from elman.ir.types import dim_size

_CONSTANTS = ("const", "count")


class WeightArrays:
    """Layout of the caller's weights: array, offset and row length of each block."""

    def __init__(self, layout: CLayout, pair: Pair) -> None:
        self.layout = layout
        names = list(dict.fromkeys(leaf.data[0] for leaf in pair.step.weights))
        self.names = [str(name) for name in names]
        self.array = {leaf: names.index(leaf.data[0]) for leaf in pair.step.weights}
        self.offset: dict[Node, int] = {}
        self.row: dict[Node, int] = {}
        for leaf in pair.step.weights:
            siblings = [block for block in pair.step.weights if block.data[0] == leaf.data[0]]
            if len(leaf.shape) == 2:
                row, column = leaf.row, leaf.column
                first = [block for block in siblings if block.row == 0]
                width = sum(self.size(block, 1) for block in first)
                above = sum(
                    self.size(block, 0)
                    for block in siblings
                    if block.column == 0 and block.row < row
                )
                before_columns = sum(self.size(o, 1) for o in first if o.column < column)
                self.offset[leaf], self.row[leaf] = above * width + before_columns, width
            else:
                before = [o for o in siblings if o.row < leaf.row]
                self.offset[leaf] = sum(self.size(block, 0) for block in before)
                self.row[leaf] = 1

    def size(self, leaf: Node, axis: int) -> int:
        """Units of a leaf along one axis (1 for a scalar)."""
        return self.layout.size(leaf.shape[axis][0]) if len(leaf.shape) > axis else 1

    def address(self, leaf: Node, table: str = "c->w") -> str:
        """C text of a block's first element in the caller's array (``c->dw`` for gradients)."""
        return f"({table}[{self.array[leaf]}] + {self.offset[leaf]})"


class WeightCode:
    """Writes the code of loop-invariant values in the vector or matrix area of the workspace."""

    def __init__(self, layout: CLayout, arrays: WeightArrays) -> None:
        self.layout, self.arrays = layout, arrays
        self.matrices: dict[Node, int] = {}
        self.matrix_area = 0

    def _row(self, value: Node) -> int:
        return self.layout.padded(value.shape[1][0])

    def area(self, value: Node) -> int:
        """Offset of a computed matrix (or of a matrix's finished sum) in the matrix area."""
        if value not in self.matrices:
            self.matrices[value] = self.matrix_area
            self.matrix_area += self.layout.size(value.shape[0][0]) * self._row(value)
        return self.matrices[value]

    def matrix(self, value: Node) -> tuple[str, str]:
        """C text of a matrix's address and of its row length."""
        if value.op == "weight":
            return self.arrays.address(value), str(self.arrays.row[value])
        return f"(c->mat + {self.area(value)})", str(self._row(value))

    def _use(self, value: Node) -> str:
        """C text of an argument at row r, unit u of a loop over vectors."""
        if value.op == "const":
            return f"bc({number(value.number)})"
        if value.op == "count":
            return f"bc({number(float(dim_size(value.data, self.layout.sizes)))})"
        if len(value.shape) == 2:
            base, row = self.matrix(value)
            return f"ldn({base} + r * {row}, u, {self.layout.size(value.shape[1][0])})"
        offset = self.layout.vector(value)
        return f"ld(c->vec + {offset} + u)" if value.shape else f"bc(c->vec[{offset}])"

    def _target(self, value: Node) -> str:
        if len(value.shape) == 2:
            return f"c->mat + {self.area(value)} + r * {self._row(value)} + u"
        return f"c->vec + {self.layout.vector(value)} + u"

    def _loops(self, value: Node) -> str:
        rows = self.layout.size(value.shape[0][0]) if len(value.shape) == 2 else 1
        last = value.shape[-1][0] if value.shape else None
        units = self.layout.padded(last) if last is not None else self.layout.lanes
        return f"for (long r = 0; r < {rows}; r++) for (long u = 0; u < {units}; u += VL)"

    def _element(self, value: Node, row: str, column: str) -> str:
        base, stride = self.matrix(value)
        return f"{base}[({row}) * {stride} + ({column})]"

    def _product(self, value: Node) -> list[str]:
        """matmul and outer of weights: plain loops, once per call."""
        if value.op == "outer":
            left, right = (self.layout.vector(arg) for arg in value.args)
            return [
                f"{self._loops(value)} st({self._target(value)},"
                f" c->vec[{left} + r] * ld(c->vec + {right} + u));"
            ]
        matrix, vector = value.args
        rows = self.layout.size(value.shape[0][0])
        inner = self.layout.size(vector.shape[0][0])
        element = (
            self._element(matrix, "k", "r") if value.transposed else self._element(matrix, "r", "k")
        )
        out, source = self.layout.vector(value), self.layout.vector(vector)
        return [
            f"for (long r = 0; r < {rows}; r++) {{ T s = 0;"
            f" for (long k = 0; k < {inner}; k++) s += {element} * c->vec[{source} + k];"
            f" c->vec[{out} + r] = s; }}"
        ]

    def _reduce(self, value: Node) -> list[str]:
        reads: list[tuple[str, int]] = []
        for arg in value.args:
            if len(arg.shape) == 2:
                base, row = self.matrix(arg)
                units = self.layout.size(arg.shape[1][0])
                reads.extend(
                    (f"{base} + {r} * {row}", units)
                    for r in range(self.layout.size(arg.shape[0][0]))
                )
            else:
                reads.append(
                    (f"c->vec + {self.layout.vector(arg)}", self.layout.size(arg.shape[0][0]))
                )
        text = spell_reduce(value.op, reads)
        return [f"{{ {text} c->vec[{self.layout.vector(value)}] = s; }}"]

    def _leaf(self, leaf: Node) -> list[str]:
        """Copy a weight vector or scalar where whole vectors can be read."""
        size = self.arrays.size(leaf, 0)
        source = self.arrays.address(leaf)
        if not leaf.shape:
            return [f"c->vec[{self.layout.vector(leaf)}] = {source}[0];"]
        return [f"copy_in(c->vec + {self.layout.vector(leaf)}, {source}, {size});"]

    def compute(self, roots: list[Node]) -> list[str]:
        """C lines that compute the roots and everything below them."""
        lines: list[str] = []
        for value in walk(roots):
            kind = OPS[value.op].kind
            if value.op in _CONSTANTS or value.op == "cotangent":
                continue
            if value.op == "weight":
                if len(value.shape) < 2:
                    lines.extend(self._leaf(value))
            elif kind == "product":
                lines.extend(self._product(value))
            elif value.over_units:
                address = f"c->vec + {self.layout.vector(value.args[0])}"
                text = spell_over_units(value, address, self.layout.size)
                lines.append(f"{self._loops(value)} st({self._target(value)}, {text});")
            elif kind == "reduce":
                lines.extend(self._reduce(value))
            elif value.op == "transpose":
                lines.append(
                    f"for (long r = 0; r < {self.layout.size(value.shape[0][0])}; r++)"
                    f" for (long u = 0; u < {self.layout.size(value.shape[1][0])}; u++)"
                    f" {self._element(value, 'r', 'u')} = {self._element(value.args[0], 'u', 'r')};"
                )
            else:
                args = [self._use(arg) for arg in value.args]
                if value.op == "lin":
                    text = spell_sum(value.coefs, value.bias, args)
                else:
                    text = spell(value, args)
                lines.append(f"{self._loops(value)} st({self._target(value)}, {text});")
        return lines

    def gradient(self, leaf: Node, d: Node | None) -> list[str]:
        """C lines that write a block's gradient into the caller's array."""
        target, row = self.arrays.address(leaf, "c->dw"), self.arrays.row[leaf]
        rows = self.arrays.size(leaf, 0) if len(leaf.shape) == 2 else 1
        units = self.arrays.size(leaf, len(leaf.shape) - 1) if leaf.shape else 1
        if d is not None and len(d.shape) == 1 and d.op not in _CONSTANTS:
            return [f"memcpy({target}, c->vec + {self.layout.vector(d)}, sizeof(T) * {units});"]
        text = self._use(d) if d is not None else "(V){0}"
        return [
            f"for (long r = 0; r < {rows}; r++) for (long u = 0; u < {units}; u += VL)"
            f" {{ const V x = {text}; stn({target} + r * {row}, u, {units}, x); }}"
        ]

"""C code that runs once per call: loop-invariant values, and gradients of weights from their
sums."""

from __future__ import annotations

from elman.engines.c.spelling.ops import spell_reduce
from elman.engines.c.spelling.values import Spelling
from elman.lowered.types import (
    Access,
    Copy,
    MatVec,
    Once,
    Outer,
    Reduce,
    Space,
    Transpose,
    WeightRate,
)


class InvariantPrinter(Spelling):
    """Prints values of weight rate."""

    def lines(self, computed: WeightRate) -> str:
        """The C statement that computes one value."""
        match computed:
            case Copy(target, source):
                return self._copy(target, source)
            case MatVec(target, matrix, vector, transposed):
                inner, rows = vector.units, target.units
                base, row = self.matrix(matrix)
                element = f"(k) * {row} + (r)" if transposed else f"(r) * {row} + (k)"
                return (
                    f"for (long r = 0; r < {rows}; r++) {{ T s = 0;"
                    f" for (long k = 0; k < {inner}; k++)"
                    f" s += {base}[{element}] * c->vec[{vector.offset} + k];"
                    f" c->vec[{target.offset} + r] = s; }}"
                )
            case Outer(target, left, right):
                base, row = self.matrix(target)
                return (
                    f"{_loops(target.rows, int(row))} st({base} + r * {row} + u,"
                    f" c->vec[{left.offset} + r] * ld(c->vec + {right.offset} + u));"
                )
            case Transpose(target, source):
                (base, row), (read, across) = self.matrix(target), self.matrix(source)
                return (
                    f"for (long r = 0; r < {target.rows}; r++)"
                    f" for (long u = 0; u < {target.columns}; u++)"
                    f" {base}[(r) * {row} + (u)] = {read}[(u) * {across} + (r)];"
                )
            case Once():
                return self._once(computed)

    def _copy(self, target: Access, source: Access) -> str:
        to, of = self.start(target), self.start(source)
        if target.region.space is Space.D_WEIGHT:
            return f"memcpy({to}, {of}, sizeof(T) * {target.units});"
        if target.scalar:
            return f"{self.element(target)} = {of}[0];"
        return f"copy_in({to}, {of}, {source.units});"

    def _once(self, once: Once) -> str:
        access, value = once.store.access, once.store.value
        if isinstance(value, Reduce):
            # each row of a matrix is reduced as a column of its own
            arrays = [(f"({self.at(column, '0')})", column.units) for column in value.columns]
            text = spell_reduce(value.name, arrays)
            return f"{{ T s = {text}; {self.element(access)} = s; }}"
        loops, text = _loops(once.rows, once.units), self.value(value)
        if access.region.space is Space.D_WEIGHT:
            return (
                f"{loops} {{ const V x = {text}; stn({self.at(access)}, u, {access.units}, x); }}"
            )
        return f"{loops} st({self.at(access)} + u, {text});"


def _loops(rows: int, units: int) -> str:
    return f"for (long r = 0; r < {rows}; r++) for (long u = 0; u < {units}; u += VL)"

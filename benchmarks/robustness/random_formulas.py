"""Formulas drawn at random from a seed, and the cell that some of them make side by side."""

from __future__ import annotations

import linecache
import random
from dataclasses import dataclass, field
from typing import Any

from elman import cell, ops
from elman.errors import ShapeError, TraceError
from elman.frontend.cell import Cell

NUMBERS = ("0.0", "-0.0", "inf", "-inf", "nan", "1.0", "-1.0", "0.5", "-2.0", "0", "3")


@dataclass
class Formula:
    """A formula, its leaves and its lines.

    Attributes:
        number: what its names end in.
        special: whether its arguments are zeros, infinities, NaN … too.
        leaves: what it reads -> dims.
        lines: Python; the last line's name is its output ``y``.
        after: its next state.
    """

    number: int
    special: bool = False
    leaves: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    after: str = ""

    def leaf(self, name: str) -> str:
        """A leaf: input ``x`` or ``k``, state ``h``, weight ``g`` [H], ``s`` or ``A``."""
        text = f"{name}{self.number}"
        self.leaves[text] = {"s": "", "A": "H, H"}.get(name, "H")
        return text

    def let(self, text: str) -> str:
        """Give a value a name."""
        name = f"v{self.number}_{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        return name

    @property
    def last(self) -> str:
        """The name of the last line's value."""
        return self.lines[-1].split(" = ")[0]

    @property
    def text(self) -> str:
        """The formula's text on one line."""
        return "; ".join([*self.lines, f"h{self.number} = {self.after}"])


class Draw:
    """Draws formulas from a seed."""

    def __init__(self, seed: int) -> None:
        self.source = random.Random(seed)

    def formula(self, number: int) -> Formula:
        """A formula of any kind, drawn again where it is none: of numbers alone, of unlike
        shapes."""
        kinds = (self._elementwise, self._rates)
        while True:
            drawing = Formula(number)
            drawing.leaf("h")
            self.source.choice(kinds)(drawing)
            try:
                cell_of([drawing])
            except (TraceError, ShapeError, ArithmeticError):
                continue
            return drawing

    def _elementwise(self, f: Formula) -> None:
        """Functions of one, two and three values, on special numbers."""
        f.special = True
        for _ in range(self.source.randint(1, 3)):
            f.let(self._special(f, self.source.randint(1, 3)))
        y = f.let(f"where({f.leaf('x')} > -1.5, {f.last}, {f.leaf('k')})")
        h = f.leaf("h")
        f.after = self.source.choice((y, f.leaf("x"), h, f"where({h} > 0, {y}, 0.5)"))

    def _special(self, f: Formula, depth: int) -> str:
        """An expression on special numbers."""
        if not depth:
            names = [line.split(" = ")[0] for line in f.lines]
            kind = self.source.choice(("x", "x", "k", "h", "g", "s", "number", "number", "name"))
            if kind == "number":
                return self.source.choice(NUMBERS)
            if kind == "name":
                return self.source.choice(names) if names else f.leaf("x")
            return f.leaf(kind)

        def part() -> str:
            return self._special(f, self.source.randint(0, depth - 1))

        form = self.source.choice(_ELEMENTWISE)
        return "(" + form.format(*(part() for _ in range(3))) + ")"

    def _rates(self, f: Formula) -> None:
        """A value with another derivative, of any pair of rates, read in any way."""

        def of_rate(rate: str) -> str:
            name = {"weight": "g", "scalar": "s", "input": "x", "state": "h"}.get(rate)
            if name is None:
                return self.source.choice(("0.5", "-1.0", "0.0"))
            forms = ("{}", "{}", "tanh({})", "({} > 0.1234)", "round({} + 0.1234)", "(2 * {})")
            return self.source.choice(forms).format(f.leaf(name))

        rates = ("number", "weight", "scalar", "input", "state")
        hard, soft = of_rate(self.source.choice(rates)), of_rate(self.source.choice(rates))
        if self.source.random() < 0.2:
            soft = f"(0.5 * {soft} + {of_rate(self.source.choice(rates))})"
        value = f.let(self.source.choice(_DERIVATIVES).format(hard, soft))
        if self.source.random() < 0.3:
            value = f.let(f"{value} + 0 * {f.leaf('x')}")
        A, wide = f.leaf("A"), f"({value} + 0.5 * {f.leaf('k')})"
        uses = (
            f"{A} @ {value}",
            f"{A} @ {value}",
            f"{A} @ ({value} * {f.leaf('h')})",
            f"{A}.T @ {wide} + {value}",
            f"{value} * {f.leaf('h')}",
            f"tanh({value}) + {f.leaf('x')}",
            f"sum({wide}) * {f.leaf('h')}",
            f"where({value} > 0.1234, {f.leaf('x')}, {value})",
            f"spread(mean({wide}, groups=2), {f.leaf('h')})",
            f"{A} @ {value} + {A} @ {f.leaf('h')} + {value}",
        )
        f.let(self.source.choice(uses))
        f.let(
            self.source.choice(
                (f"{f.last} + 0 * {f.leaf('x')}", f"where({f.leaf('x')} > 9, 0, {f.last})")
            )
        )
        f.after = f"0.5 * {f.leaf('h')} + 0.5 * tanh({f.last})"


_ELEMENTWISE = (
    *("{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} / {1}", "-{0}", "1.0 / {0}", "{0} - {0}"),
    *("{0} * 0.0", "{0} * -0.0", "{0} + 0.0", "{0} - 0.0", "0.0 - {0}", "-0.0 - {0}", "-(-{0})"),
    *("{0} + -0.0", "{0} * 1.0", "{0} / {0}", "{0} + {0}", "0.0 / {0}", "{0} * -1.0", "{0} / -0.0"),
    *("where({0} > 0, {1}, {2})", "where({0}, {1}, {1})", "where({0} == {1}, {1}, {0})"),
    *("where({0} > 0, 0.0, {1})", "where({0} > 0, -0.0, {1})", "where({0} < 0, {1}, nan)"),
    *("where({0} >= 0, -0.0, 0.0)", "where({0} != {0}, 1.0, {0})", "where({0} <= {1}, inf, {2})"),
    *("0.0 + minimum({0}, {1})", "0.0 + maximum({0}, {1})", "0.0 + relu({0})"),
    *("0.0 + minimum({0}, 0.0)", "0.0 + maximum({0}, -0.0)", "0.0 + clip({0}, -1.0, 2.0)"),
    *("0.0 + hardtanh({0})", "elu({0})", "leaky_relu({0}, 0.1)", "abs({0})", "tanh({0})"),
    *("sigmoid({0})", "straight_through(floor({0}), {0})", "sqrt({0})", "exp({0})", "{0} ** 2"),
    "stop_gradient({0})",
    *("straight_through({0}, {1})", "straight_through(round({0}), {0})", "spike({0})"),
    *("clip_gradient({0}, 1.0)", "sin({0})", "atan({0})", "expm1({0})", "erf({0})"),
)
_DERIVATIVES = (
    *("straight_through({0}, {1})", "straight_through({0}, {1})", "straight_through({0}, {1})"),
    *("straight_through({0}, {0} * {1})", "spike({0} - {1}, 'triangular')", "spike({0} * {1})"),
    *("stop_gradient({0}) + {1}", "stop_gradient({0}) * {1}", "{1} - stop_gradient({0} * {1})"),
)


def cell_of(formulas: list[Formula]) -> Cell:
    """The cell that formulas make, side by side."""

    def declared(*kinds: str) -> str:
        leaves = [(n, d) for f in formulas for n, d in f.leaves.items() if n[0] in kinds]
        return ", ".join(f"{name}[{dims}]" if dims else name for name, dims in leaves)

    outputs = {f"y{f.number}": f.last for f in formulas}
    inputs, states, weights = declared("x", "k"), declared("h"), declared("g", "s", "A")
    names = [n for kinds in ("xk", "h", "gsA") for f in formulas for n in f.leaves if n[0] in kinds]
    lines = [
        f'@cell(input="{inputs}", state="{states}", weights="{weights}",',
        f'      output="{", ".join(f"{name}[H]" for name in outputs)}")',
        f"def drawn({', '.join(names)}):",
        *(f"    {line}" for f in formulas for line in f.lines),
        f"    return {', '.join([*outputs.values(), *(f.after for f in formulas)])}",
        "",
    ]
    text, file = "\n".join(lines), "<drawn>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope: dict[str, Any] = {name: getattr(ops, name) for name in ops.__all__}
    scope |= {"cell": cell, "inf": float("inf"), "nan": float("nan")}
    exec(compile(text, file, "exec"), scope)
    return scope["drawn"]

"""The picture of a cell: shapes for values, lines for reads, forward and backward."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from elman.autodiff.rules import VJP
from elman.ir.build import Builder
from elman.ir.graph import Node, Rate, walk
from elman.ir.ops import OPS
from elman.ir.pair import Pair, loop_invariant
from elman.ir.printer import Names
from elman.plan.cost import phase_nodes
from elman.plan.program import Program

End = Literal["input", "output", "parameter", "state", "next"]
BoxKind = End | Literal["product", "function", "sum", "times"]
BEFORE, STEP, AFTER = 0, 1, 2

_BEFORE_OPS = re.compile(r"\b(sigmoid|minimum|maximum)\b")
_SIGNS = {"mul": "×", "div": "÷", "lin": "+"}
_REDUCED = {  # what flows back through a reduction; of others it says their name
    "sum": "broadcast",
    "fold": "to every row",
    "mean": "÷ n",
    "var": "× 2·(v - mean) ÷ n",
    "amax": "to the largest",
    "argmax": "no gradient",
}
_SPOKEN = {
    "sigmoid": "σ",
    "minimum": "min",
    "maximum": "max",
    "matmul": "@",
    "bmm": "@",
    "swapaxes": "ᵀ",
    "fold": "sum of rows",
    "tile": "columns",
}


@dataclass
class Mark:
    """A shape, and the one that mirrors it in the backward.

    Attributes:
        key: unique name, stable.
        kind: what shape it is.
        label, back: text inside, forward and backward.
        name, back_name: the value's own name, beside the shape.
        tag, back_tag: weights (and their gradients) that hang on the shape.
        needed: whether the backward reads the value (an activation).
        taped: whether it is kept from forward to backward; what is needed and not kept is there
            anyway (inputs, states) or computed again.
        reads: whether the backward's factor inside reads an activation.
        zone: before, in or after the time loop.
    """

    key: str
    kind: BoxKind
    label: str
    back: str
    name: str = ""
    back_name: str = ""
    tag: str = ""
    back_tag: str = ""
    needed: bool = False
    taped: bool = False
    reads: bool = False
    zone: int = STEP


@dataclass(frozen=True)
class Line:
    """``head`` reads ``tail``; the backward runs the other way, times ``back``.

    ``red``: the factor reads an activation.
    """

    tail: str
    head: str
    label: str = ""
    back: str = ""
    red: bool = False


@dataclass
class Picture:
    """Everything to be drawn, before anything has a place.

    Attributes:
        title, subtitle: written above.
        marks: by key, each behind those that it reads.
        lines: between them.
    """

    title: str
    subtitle: str
    marks: dict[str, Mark] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)


def _slope(of: Node, slope: Node) -> tuple[Node, Node]:
    """A value, and the derivative by it that a surrogate has.

    A torch.autograd.Function of one value v is read as a surrogate of stop(derivative) * v.
    """
    if of.op == "mul" and slope.op == "const" and slope.data == (1.0,):
        for factor, value in (of.args, of.args[::-1]):
            if factor.op == "stop":
                return value, factor.args[0]
    return of, slope


def _chain(value: Node, of: Node, reads: Mapping[Node, int]) -> list[Node]:
    """A value and those behind it, each of which the one before it alone reads, and nothing else,
    down to a function of ``of``; empty: there is no such chain."""
    chain = [value]
    while of not in chain[-1].args:
        args = [arg for arg in chain[-1].args if not loop_invariant(arg)]
        if len(args) != 1 or reads[args[0]] > 1:
            return []
        chain += args
    return chain


def picture(title: str, subtitle: str, program: Program, names: Names) -> Picture:
    """Collect shapes and lines of a step and its adjoint.

    Args:
        title, subtitle: written above.
        program: says what is kept and what runs outside the loop.
        names: of the pair's values.
    """
    return _Collector(Picture(title, subtitle), program, names).collect()


class _Collector:
    def __init__(self, canvas: Picture, program: Program, names: Names) -> None:
        self.canvas, self.names, self.program = canvas, names, program
        self.pair: Pair = program.pair
        self.slopes = {value: _slope(*pair) for value, pair in self.pair.slopes.items()}
        step = self.pair.step
        reads = Counter([*step.roots, *(arg for value in step.walk() for arg in {*value.args})])
        self.chains = {v: _chain(v, of, reads) for v, (of, _) in self.slopes.items()}
        self.taped = set(program.kept)
        self.values = {v for v in self.pair.step.walk() if not loop_invariant(v)}
        self.needed = self._activations(backward_roots(self.pair))
        self.key: dict[Node, str] = {}
        self.zone = self._zones()
        self.build = Builder()

    def _activations(self, roots: Iterable[Node]) -> set[Node]:
        """The values of the forward that ``roots`` are computed from, through values that only a
        backward has."""
        below = walk(roots, stop=lambda v: v in self.values or loop_invariant(v))
        return self.values.intersection(below)

    def _zones(self) -> Mapping[Node, int]:
        zones: dict[Node, int] = {}
        forward = self.program.forward
        for zone, phase in ((AFTER, forward.after), (STEP, forward.step), (BEFORE, forward.before)):
            zones.update(dict.fromkeys(phase_nodes(phase), zone))
        return zones

    def collect(self) -> Picture:
        inside = {part for chain in self.chains.values() for part in chain[1:]}
        for value in self.pair.step.walk():
            if not loop_invariant(value) and value not in inside:
                chain = self.chains.get(value)
                self._mark(value, chain[-1] if chain else value)
        self._ends()
        return self.canvas

    def _mark(self, value: Node, shown: Node) -> None:
        """Draw a value as an op: its own, or the one that has a surrogate's derivative."""
        key = self.key[value] = f"n{len(self.key)}"
        if value.op in ("input", "state"):
            self._leaf(key, value)
            return
        d = self.build.make("cotangent", (), (key, 0), value.shape, "", Rate.CARRY)
        rows = self._rows(value, shown, d)
        args = [(i, arg) for i, arg in enumerate(shown.args) if not loop_invariant(arg)]
        tags = [spoken(self.names.short(arg)) for arg in shown.args if loop_invariant(arg)]
        if shown.op == "div" and loop_invariant(shown.args[0]):
            tags = []
        if shown.op == "lin" and shown.bias and self._kind(shown) == "sum":
            tags.append(f"{shown.bias:g}")
        mark = Mark(key, self._kind(shown), self._label(shown), "", tag=", ".join(tags))
        mark.zone = self.zone.get(value, STEP)
        mark.needed, mark.taped = value in self.needed, value in self.taped
        if value in self.names and value not in self.pair.step.next_states:
            mark.name = self.names.short(value)
            back = f"d{mark.name}" if value.op in ("lin", "matmul") else f"δ{mark.name}"
            mark.back_name = back if self.names.is_used(back) else ""
        reduced = OPS[shown.op].kind == "reduce"
        inside = len(args) == 1 and mark.kind == "function"
        for index, arg in args:
            part = rows[index]
            factor, red = ("no gradient", False) if part is None else self._factor(part, d)
            coef = _coefficient(shown, index)
            back = "" if inside or reduced or mark.kind == "product" else factor
            self.canvas.lines.append(Line(self.key[arg], key, coef, back, red and bool(back)))
            if inside:
                mark.back, mark.reads = _bare(factor) or "1", red
        if reduced:
            mark.back = _REDUCED.get(shown.op, "")
            mark.reads = bool(self._activations(part for part in rows if part is not None))
        self._backward(mark, shown)
        self.canvas.marks[key] = mark

    def _rows(self, value: Node, shown: Node, d: Node) -> tuple[Node | None, ...]:
        """Cotangents of the arguments of a value that is drawn as an op; of a surrogate, of the
        argument that it replaces."""
        of, slope = self.slopes.get(value, (None, None))
        if of is None or slope is None or of not in shown.args:
            return VJP[shown.op](self.build, shown, d)
        return tuple(self.build.mul(d, slope) if arg is of else None for arg in shown.args)

    def _leaf(self, key: str, leaf: Node) -> None:
        name = self.names.short(leaf)
        kind: BoxKind = "input" if leaf.op == "input" else "state"
        readers = [v for v in self.zone if leaf in v.args]
        zone = min((self.zone[v] for v in readers), default=STEP) if kind == "input" else STEP
        mark = self.canvas.marks[key] = Mark(key, kind, name, f"d{name}", zone=zone)
        mark.needed = leaf in self.needed

    def _kind(self, value: Node) -> BoxKind:
        if value.op == "matmul":
            return "product"
        if value.op == "mul" or (value.op == "div" and not loop_invariant(value.args[0])):
            return "times"
        if value.op == "lin" and (len(value.args) > 1 or _shifts(value)):
            return "sum"
        return "function"

    def _label(self, value: Node) -> str:
        if value.op == "lin" and len(value.args) == 1:
            (coef,), bias = value.coefs, value.bias
            if not bias:
                return "broadcast" if coef == 1 else f"× {coef:g}"
            if coef == 1:
                return "+"
            return f"{bias:g} - ·" if coef == -1 else f"{coef:g} · + {bias:g}"
        if value.op == "div" and loop_invariant(value.args[0]):
            return f"{spoken(self.names.inner(value.args[0]))} / ·"
        label = _SIGNS.get(value.op) or _SPOKEN.get(value.op, value.op)
        return label

    def _factor(self, part: Node, d: Node) -> tuple[str, bool]:
        """The factor of a cotangent on its way back, and whether it reads an activation."""
        if part is d:
            return "", False
        red = bool(self._activations([part]))
        if part.op == "mul" and d in part.args:
            factor = part.args[1] if part.args[0] is d else part.args[0]
            return f"× {spoken(self.names.inner(factor))}", red
        if part.op == "lin" and part.args == (d,) and not part.bias:
            (coef,) = part.coefs
            return ("" if coef == 1 else "× -1" if coef == -1 else f"× {coef:g}"), red
        self.names.give(d, "δ")
        text = spoken(self.names.short(part))
        self.names.forget(d)
        return text, red

    def _backward(self, mark: Mark, value: Node) -> None:
        """The mirrored shape: transposed products, factors inside, gradients hanging on it."""
        if mark.kind == "product":
            mark.back = mark.label
            mark.back_tag = f"∂{mark.tag}" if self._is_trained(value.args[0]) else ""
        elif mark.kind == "sum":
            mark.back = "•"
        elif mark.kind == "times":
            mark.back = "×"
        elif not mark.back:  # several operands: the factors stand at the lines
            mark.back = mark.label
        if mark.kind != "product":
            weights = [
                v
                for v in value.args
                if loop_invariant(v) and v.op not in ("const", "count") and self._is_trained(v)
            ]
            mark.back_tag = ", ".join(f"∂{spoken(self.names.inner(weight))}" for weight in weights)

    def _is_trained(self, value: Node) -> bool:
        """Whether a value of weights alone has a gradient: constants have none."""
        wants = self.program.spec.wants
        return any(leaf.op == "weight" and leaf.name in wants for leaf in walk((value,)))

    def _ends(self) -> None:
        step = self.pair.step
        outputs = {
            root: self.names.short(d)
            for root, d in zip(step.outputs, self.pair.d_outputs, strict=True)
        }
        for leaf, root in zip(step.states, step.next_states, strict=True):
            if root is leaf and root not in outputs:
                continue  # it only holds a value
            name = f"{self.names.short(leaf)}′"
            back = f"d{name} + {outputs[root]}" if root in outputs else f"d{name}"
            self._end(name, back, root)
        for root, d in outputs.items():
            if root not in step.next_states:
                self._end(d.removeprefix("d"), d, root, "output")

    def _end(self, name: str, back: str, root: Node, kind: BoxKind = "next") -> None:
        if root not in self.key:  # a value of weights alone
            return
        key = f"end {name}"
        zone = AFTER if self.zone.get(root) == AFTER else STEP
        self.canvas.marks[key] = Mark(key, kind, name, back, zone=zone)
        self.canvas.lines.append(Line(self.key[root], key))


def backward_roots(pair: Pair) -> list[Node]:
    """Results of a backward step: cotangents of states and inputs, and operands of sums."""
    operands = [v for term in pair.sums for v in (term.left, term.right) if v is not None]
    return [*pair.d_states, *(d for d in pair.d_inputs if d is not None), *operands]


def _shifts(value: Node) -> bool:
    """Whether a sum of one term adds a number to it."""
    return value.coefs == (1.0,) and bool(value.bias)


def spoken(text: str) -> str:
    """A text as short as a picture wants it: σ for sigmoid, · for a product."""
    return _BEFORE_OPS.sub(lambda match: _SPOKEN[match[0]], text).replace(" * ", "·")


def _bare(text: str) -> str:
    """A factor without the brackets around all of it."""
    inner = text.removeprefix("× ")
    if not (inner.startswith("(") and inner.endswith(")")):
        return text
    depth = 0
    for index, char in enumerate(inner):
        depth += (char == "(") - (char == ")")
        if not depth and index < len(inner) - 1:
            return text
    return f"× {inner[1:-1]}" if "·" in inner and " " not in inner.partition("·")[0] else text


def _coefficient(value: Node, index: int) -> str:
    if value.op != "lin" or len(value.args) == 1:
        return ""
    coef = value.coefs[index]
    return "" if coef == 1 else "−" if coef == -1 else f"{coef:g}"

"""The table of basic operations: what each computes, and what flows back through it.

Nothing is listed here: the operations are those of ``ir/ops.py``, the rules ``autodiff/rules.py``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from elman.autodiff.rules import VJP, Row
from elman.drawing.picture import spoken
from elman.drawing.svg import opening
from elman.escaping import xml_text
from elman.ir.build import Builder
from elman.ir.graph import Node, Rate, walk
from elman.ir.ops import OPS
from elman.ir.printer import Names
from elman.ir.types import Shape

_COLUMNS = 4
_WIDE, _TALL, _GAP, _MARGIN, _HEAD = 300.0, 268.0, 16.0, 28.0, 76.0
_RADIUS = 15.0
_FORWARD, _BACKWARD, _RULES = 60.0, 150.0, 220.0  # y of the two diagrams and of the formulas
_OPERAND_X, _MIDDLE, _RIGHT = 46.0, 150.0, 254.0  # x of operand, operation, result
_REACH = 42.0  # from an operation to the operand below it
_LINE = 15.0
_Point = tuple[float, float]
_VECTOR: Shape = (("n",),)
_MATRIX: Shape = (("n",), ("m",))
_SHOWN = {  # inside the circle
    "lin": "+", "mul": "×", "div": "÷", "matmul": "@", "outer": "⊗", "transpose": "ᵀ",
    "bmm": "@", "swapaxes": "ᵀ",
    "sigmoid": "σ", "sum": "Σ",
}  # fmt: skip
_OPERANDS = {  # kind (or op) -> what its operands are called, and their shapes
    "pointwise": (("x", _VECTOR), ("y", _VECTOR), ("z", _VECTOR)),
    "where": (("c", _VECTOR), ("x", _VECTOR), ("y", _VECTOR)),
    "matmul": (("W", _MATRIX), ("x", (("m",),))),
    "outer": (("x", _VECTOR), ("y", (("m",),))),
    "bmm": (("S", ((("n", "m"),),)), ("U", ((("m", "n"),),))),
    "swapaxes": (("S", ((("n", "m"),),)),),
    "roll": (("S", ((("n", "m"),),)),),
    "reduce": (("x", _VECTOR),),
    "spread": (("x", ((4,),)),),
    "scan": (("x", _VECTOR),),
    "move": (("W", _MATRIX),),
}


@dataclass(frozen=True)
class Rule:
    """An operation and its backward, as text.

    Attributes:
        names: of the operations that share it.
        symbol: stands in the diagram.
        operands: their names.
        back: the cotangent of each operand; None where no gradient flows.
        needed: names of the values that the backward reads, among the operands and ``h``.
    """

    names: tuple[str, ...]
    symbol: str
    operands: tuple[str, ...]
    back: tuple[str | None, ...]
    needed: frozenset[str]


def rules() -> list[Rule]:
    """The rule of every operation that has one, in the order of the op table; operations without
    any gradient share one."""
    shared: dict[tuple[Row, int], list[str]] = {}
    for name, op in OPS.items():
        if name in VJP:
            count = op.arity or (2 if op.kind == "pointwise" else 1)
            shared.setdefault((VJP[name], count), []).append(name)
    return [_rule(tuple(names), count) for (_, count), names in shared.items()]


def _rule(names: tuple[str, ...], count: int) -> Rule:
    """Apply the row of an operation to operands that have names alone."""
    first, build, texts = names[0], Builder(), Names()
    slots = _OPERANDS.get(first) or _OPERANDS[OPS[first].kind]
    shape, data = _result(first, [shape for _, shape in slots[:count]])
    d = build.make("cotangent", (), ("h", 0), shape, "", Rate.CARRY)  # first of all factors
    operands: list[Node] = []
    for name, operand_shape in slots[:count]:
        kind = "weight" if len(operand_shape) == 2 else "state"
        operands.append(build.make(kind, (), (name, 0), operand_shape))
        texts.give(operands[-1], name)
    value = build.make(first, operands, data, shape)
    texts.give(value, "h")
    texts.give(d, "δ")
    rows = VJP[first](build, value, d)
    ends = {*operands, value}
    parts = [part for part in rows if part is not None]
    read = ends.intersection(walk(parts, stop=ends.__contains__))
    return Rule(
        names,
        _SHOWN.get(first, first) if len(names) == 1 else "f",
        tuple(texts.short(operand) for operand in operands),
        tuple(None if part is None else _formula(texts.short(part)) for part in rows),
        frozenset(texts.short(value) for value in read),
    )


def _result(name: str, operands: list[Shape]) -> tuple[Shape, tuple[Hashable, ...]]:
    """Shape and data of an operation's result, for operands of these shapes."""
    kind, first = OPS[name].kind, operands[0]
    if kind == "reduce":
        return (), ()
    if name == "lin":
        return first, (tuple(1.0 for _ in operands), 0.0)
    if name == "matmul":
        return first[:1], ()
    if name == "outer":
        return (*first, *operands[1]), ()
    if name == "bmm":
        return ((("n", "n"),),), ()
    if name == "swapaxes":
        return ((("m", "n"),),), ()
    if name == "roll":
        return first, (1,)
    if kind == "spread":
        return _VECTOR, ()
    return (first[::-1] if kind == "move" else first), ()


def _formula(text: str) -> str:
    """A factor as short as it can be; a quotient keeps the room that tells what is below it."""
    return spoken(text.replace(" * ", " · ") if " / " in text else text)


def table() -> str:
    """All rules as SVG text."""
    all_rules = rules()
    lines = -(-len(all_rules) // _COLUMNS)
    width = 2 * _MARGIN + _COLUMNS * (_WIDE + _GAP) - _GAP
    height = _HEAD + lines * (_TALL + _GAP) + _MARGIN
    parts = [
        *opening(width, height, "basic operations"),
        f'<text class="title" x="{_MARGIN}" y="30">Basic operations</text>',
        f'<text class="subtitle" x="{_MARGIN}" y="52">Forward above, up and to the right; backward '
        "below, down and to the left. Red: the backward reads it. A value that is read twice is "
        "copied: what flows back is added up.</text>",
    ]
    for index, rule in enumerate(all_rules):
        x = _MARGIN + index % _COLUMNS * (_WIDE + _GAP)
        y = _HEAD + index // _COLUMNS * (_TALL + _GAP)
        parts += [f'<g transform="translate({x:.0f},{y:.0f})">', *_card(rule), "</g>"]
    return "\n".join([*parts, "</svg>"])


def _card(rule: Rule) -> Iterator[str]:
    """One rule: name, forward, backward, formulas."""
    yield f'<rect class="card" width="{_WIDE}" height="{_TALL}" rx="8"/>'
    yield _text(14, 22, ", ".join(rule.names), "note", "font-weight: bold")
    yield f'<path class="axis" d="M12,{(_FORWARD + _BACKWARD) / 2 + 16} H{_WIDE - 12}"/>'
    yield from _diagram(rule, back=False)
    yield from _diagram(rule, back=True)
    formulas = [(f"δ{name}", text) for name, text in zip(rule.operands, rule.back, strict=True)]
    for index, (name, text) in enumerate(formulas):
        rule_text = f"{name}: no gradient" if text is None else f"{name} = {text}"
        yield _text(14, _RULES + index * _LINE, rule_text, "note")


def _diagram(rule: Rule, *, back: bool) -> Iterator[str]:
    """The operation with its wires: the first operand at the left, the others below."""
    y, symbol = (_BACKWARD, _back_symbol(rule)) if back else (_FORWARD, rule.symbol)
    half = max(_RADIUS, 3.65 * len(symbol) + 7)
    ends = [(_OPERAND_X, y), (_MIDDLE, y + _REACH), (_MIDDLE + 62, y + _REACH)]
    flows = [not back or text is not None for text in rule.back]
    for (x, at), name, flow in zip(ends, rule.operands, flows):
        start, stop = _wire(x, at, y, half)
        if flow:
            yield _arrow(start, stop, back)
        label = f"δ{name}" if back else name
        yield _text(x, at, label, _colour(rule, name, back) if flow else "faint")
    yield _arrow((_MIDDLE + half, y), (_RIGHT - 16, y), back)
    yield _text(_RIGHT, y, "δ" if back else "h", _colour(rule, "h", back))
    yield (
        f'<rect class="shape" x="{_MIDDLE - half:.1f}" y="{y - _RADIUS}" width="{2 * half:.1f}" '
        f'height="{2 * _RADIUS}" rx="{_RADIUS}"/>'
    )
    yield _text(_MIDDLE, y, symbol, "", "font-size: 15px" if len(symbol) < 3 else "")


def _back_symbol(rule: Rule) -> str:
    """The symbol of the backward: a copy for a sum, the derivative for a function."""
    if set(rule.back) == {"δ"} and len(rule.back) > 1:
        return "•"
    function = OPS[rule.names[0]].kind == "pointwise" and len(rule.back) == 1
    return f"{rule.symbol}′" if function and rule.back != (None,) else rule.symbol


def _wire(x: float, at: float, y: float, half: float) -> tuple[_Point, _Point]:
    """Where the wire of an operand begins and ends."""
    if at == y:
        return (x + 16, y), (_MIDDLE - half, y)
    if x == _MIDDLE:
        return (x, at - 9), (x, y + _RADIUS)
    return (x - 10, at - 8), (_MIDDLE + half * 0.8, y + _RADIUS * 0.7)


def _arrow(start: _Point, stop: _Point, back: bool) -> str:
    """A wire of the forward, or of the backward, which runs the other way."""
    (x1, y1), (x2, y2) = (stop, start) if back else (start, stop)
    return f'<path class="line" d="M{x1},{y1} L{x2},{y2}" marker-end="url(#tip)"/>'


def _colour(rule: Rule, name: str, back: bool) -> str:
    return "red" if name in rule.needed and not back else ""


def _text(x: float, y: float, text: str, name: str = "", style: str = "") -> str:
    return (
        f'<text class="{name}" x="{x}" y="{y}" dy="0.35em" style="{style}">{xml_text(text)}</text>'
    )

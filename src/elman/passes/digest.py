"""Hash of a canonical step: equal for cells that differ only in names of weights.

Loop-invariant sums of biases count as one bias: an LSTM with one bias and torch's with two are the
same. The order in which the terms of a sum or the factors of a product were written does not
matter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import cast

from elman.ir.graph import Node, walk
from elman.ir.pair import Step, loop_invariant

_COMMUTES = ("lin", "mul", "minimum", "maximum", "eq", "ne")


def _rows(value: Node) -> tuple[int, ...]:
    """The row blocks of the weights below a loop-invariant value."""
    leaves = [leaf for leaf in walk([value]) if leaf.op == "weight"]
    return tuple(sorted({leaf.row for leaf in leaves if len(leaf.data) > 1}))


def _is_bias(value: Node) -> bool:
    plain = value.op == "weight" and len(value.shape) == 1
    coefs = value.data[0] if value.op == "lin" else ()
    summed = value.op == "lin" and not value.data[1] and all(c == 1.0 for c in coefs)  # type: ignore[union-attr]
    return plain or (summed and all(_is_bias(arg) for arg in value.args))


def _is_end(value: Node) -> bool:
    return loop_invariant(value) and _is_bias(value)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _label(value: Node, step: Step) -> str:
    """Description of a value without its arguments and the names of weights."""
    if value.op in ("input", "state"):
        index = (step.inputs if value.op == "input" else step.states).index(value)
        return f"{value.op} {index} {value.shape}"
    if _is_end(value):
        return f"bias {_rows(value)} {value.shape}"
    if value.op == "weight":
        return f"weight {value.data[1:]} {value.shape}"
    data = value.data[1] if value.op == "lin" else value.data  # terms have the coefficients
    return f"{value.op} {data} {value.shape}"


def _structure(step: Step) -> tuple[dict[Node, str], dict[Node, list[tuple[float, Node]]]]:
    """Per value a hash of all below it, and its (coefficient, argument) pairs in fixed order."""
    name: dict[Node, str] = {}
    below: dict[Node, list[tuple[float, Node]]] = {}
    for value in walk(step.roots, stop=_is_end):
        coefs = cast("tuple[float, ...]", value.data[0]) if value.op == "lin" else ()
        coefs = coefs or (1.0,) * len(value.args)
        terms = [] if _is_end(value) else list(zip(coefs, value.args, strict=True))
        if value.op in _COMMUTES:
            terms.sort(key=lambda term: (name[term[1]], term[0]))
        below[value] = terms
        name[value] = _hash(f"{_label(value, step)} {[(coef, name[arg]) for coef, arg in terms]}")
    return name, below


def ordered(step: Step) -> Iterator[Node]:
    """Every value of the step once, arguments first; equal digests give orders that correspond.

    Loop-invariant biases are not entered.
    """
    _, below = _structure(step)
    yield from _walk(step, below)


def _walk(step: Step, below: dict[Node, list[tuple[float, Node]]]) -> Iterator[Node]:
    visited: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(root, False) for root in reversed(step.roots)]
    while stack:
        value, ready = stack.pop()
        if ready:
            yield value
        elif value not in visited:
            visited.add(value)
            stack.append((value, True))
            stack.extend((arg, False) for _, arg in reversed(below[value]) if arg not in visited)


def digest(step: Step) -> str:
    """A short hash of the step: ops, coefficients, shapes, order of gates; not weights' names."""
    _, below = _structure(step)
    place: dict[Node, int] = {}
    tensors: dict[object, int] = {}
    lines: list[str] = []
    for value in _walk(step, below):
        tensor = ""
        if value.op == "weight" and not _is_end(value):
            tensor = f"of {tensors.setdefault(value.data[0], len(tensors))}"
        args = [(coef, place[arg]) for coef, arg in below[value]]
        place[value] = len(place)
        lines.append(f"{_label(value, step)} {tensor} {args}")
    lines.append(str([place[root] for root in step.roots]))
    return _hash("\n".join(lines))

"""What heads stand for: copies of the cell without heads, each run with one head's part of all
arguments.

Which units are a head's is worked out here once more, from what the cell declares: of each gate
block that is divided the n-th part.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import torch
from hypothesis import assume
from torch import Tensor

from elman.errors import ShapeError
from elman.frontend.cell import Cell
from elman.frontend.signature import Declared
from elman.ir.types import gate_block_size, names_in
from helpers import Case, Sizes, random_case, run
from kernels import cell_from
from random_cells import Drawn


def _entries(cell: Cell) -> tuple[Declared, ...]:
    return (*cell.inputs, *cell.states, *cell.weights, *(cell.outputs or cell.states[:1]))


class Copies:
    """A cell with heads beside the cell that one of them is.

    Args:
        whole: the cell without heads.
        heads: how many.
        sizes: of one head's dims, by name.
        one: the cell of one head, if numbers among its dims are not those of ``whole``.
    """

    def __init__(
        self, whole: Cell, heads: int, sizes: dict[str, int], one: Cell | None = None
    ) -> None:
        self.whole, self.one, self.heads = whole, one or whole, heads
        self.cell, self.dims = whole.with_heads(heads), whole.division.dims
        names = {name for entry in _entries(whole) for name in names_in(entry.shape)}
        self.sizes = {name: size for name, size in sizes.items() if name in names}
        entries = zip(*map(_entries, (self.whole, self.one, self.cell)), strict=True)
        self.entries = {id(whole): (one, all_heads) for whole, one, all_heads in entries}

    def case(self, T: int, B: int, dtype: torch.dtype = torch.float64) -> Case:
        """Random arguments of the cell with heads."""
        size = {n: s * self.heads if n in self.dims else s for n, s in self.sizes.items()}
        more = tuple((n, s) for n, s in size.items() if n not in ("I", "H"))
        units, hidden = (
            sum(gate_block_size(gate_block, size) for dim in first.shape for gate_block in dim)
            for first in (self.whole.inputs[0], self.whole.states[0])
        )
        return random_case(self.cell, Sizes(T, B, units, hidden, more), 1, dtype)

    def _is_divided(self, entry: Declared) -> bool:
        """Whether each head has a part of its own."""
        divided = any(gate_block in self.dims for dim in entry.shape for gate_block in dim)
        return divided or self._is_repeated(entry)

    @property
    def is_partly_divided(self) -> bool:
        """Whether an output has units of heads and others, which only a cell without heads may."""
        inside = [[g in self.dims for dim in e.shape for g in dim] for e in self.whole.outputs]
        return any(any(units) and not all(units) for units in inside)

    def _is_repeated(self, entry: Declared) -> bool:
        """Whether each head has one of its own of what has no divided dim."""
        if any(gate_block in self.dims for dim in entry.shape for gate_block in dim):
            return False
        return self.entries[id(entry)][1].shape != entry.shape

    def _at(self, entry: Declared, head: int) -> Any:
        """What a head has of an argument or a result of all heads, as an index."""
        one, repeated = self.entries[id(entry)][0], self._is_repeated(entry)
        if not entry.shape:
            return (..., head) if repeated else (...,)
        inside = [any(gate_block in self.dims for gate_block in dim) for dim in entry.shape]
        found: list[Tensor] = []
        for place, (dim, parts) in enumerate(zip(entry.shape, one.shape, strict=True)):
            units: list[int] = []
            at = 0
            for gate_block, part in zip(dim, parts, strict=True):
                size = gate_block_size(part, self.sizes)
                divided = repeated or (gate_block in self.dims and not (place and all(inside)))
                units += range(at + head * size * divided, at + head * size * divided + size)
                at += size * self.heads if divided else size
            found.append(torch.tensor(units, dtype=torch.long))
        return (..., found[0][:, None], found[1]) if len(found) == 2 else (..., found[0])

    def run(self, case: Case) -> dict[str, Tensor]:
        """What the copies give one by one, put together: values and gradients by name."""
        whole = self.whole
        outputs = whole.outputs or whole.states[:1]
        leaves = (*whole.inputs, *whole.states, *whole.weights)
        values = {**case.inputs, **case.states, **case.weights}
        d_outputs = _parts(case.d_output, case.cell, case.dims)
        made = [torch.zeros_like(d) for d in d_outputs]
        found: dict[str, Tensor] = {}
        for head in range(self.heads):

            def part(entry: Declared, value: Tensor, head: int = head) -> Tensor:
                return value[self._at(entry, head)].clone()

            def pulled(entry: Declared, d: Tensor, head: int = head) -> Tensor:
                """The cotangent of what all heads share is one head's."""
                return part(entry, d, head) * (head == 0 or self._is_divided(entry))

            single = Case(
                self.one,
                self.sizes,
                {e.name: part(e, case.inputs[e.name]) for e in whole.inputs},
                {e.name: part(e, case.states[e.name]) for e in whole.states},
                {e.name: part(e, case.weights[e.name]) for e in whole.weights},
                _joined([pulled(e, d) for e, d in zip(outputs, d_outputs, strict=True)]),
                {e.name: pulled(e, case.d_last[e.name]) for e in whole.states},
            )
            got = run(self.one, single, "reference")
            parts = _parts(got["out"], self.one, self.sizes)
            for entry, all_heads, value in zip(outputs, made, parts, strict=True):
                all_heads[self._at(entry, head)] = value
            for entry in whole.states:
                name = f"last {entry.name}"
                all_heads = found.setdefault(name, torch.zeros_like(values[entry.name]))
                all_heads[self._at(entry, head)] = got[name]
            for entry in leaves:
                if (name := f"d{entry.name}") in got:
                    all_heads = found.setdefault(name, torch.zeros_like(values[entry.name]))
                    all_heads[self._at(entry, head)] += got[name]
        return {"out": _joined(made), **found}


def _parts(value: Tensor, cell: Cell, sizes: dict[str, int]) -> list[Tensor]:
    """Each of the outputs that lie side by side."""
    shapes = [root.shape for root in cell.graph.outputs]
    if len(shapes) == 1:
        return [value]
    widths = [sum(gate_block_size(g, sizes) for g in s[0]) if s else 1 for s in shapes]
    parts = value.split(widths, -1)
    return [p if shape else p.squeeze(-1) for p, shape in zip(parts, shapes, strict=True)]


def _joined(values: list[Tensor]) -> Tensor:
    if len(values) == 1:
        return values[0]
    return torch.cat([v if v.dim() == 3 else v.unsqueeze(-1) for v in values], -1)


NUMBERS = re.compile(r"(\w+)\[(?:(\d+), (\S+)|(\S+), (\d+))\]")  # matrices with a number for a dim


def written(text: str, number: Any) -> str:
    """A cell's text in which the numbers among the dims of its matrices are others."""

    def matrix(found: re.Match[str]) -> str:
        dims = found[0][len(found[1]) + 1 : -1].split(", ")
        return f"{found[1]}[{', '.join(number(d) if d.isdigit() else d for d in dims)}]"

    head, body = text.split("\n", 1)
    second, rest = body.split("\n", 1)
    return "\n".join([head, NUMBERS.sub(matrix, second), rest])


def _copies_of(drawn: Drawn, heads: int, numbers: bool) -> Copies:
    """A drawn cell of heads; numbers among its dims stay numbers, or become names."""
    sizes = {"I": drawn.I, "H": drawn.H, "P": drawn.P, "K": 24, "L": 2}
    if not numbers:
        named = written(drawn.text, lambda number: {"24": "K", "2": "L"}[number])
        return Copies(cell_from(named), heads, sizes)
    whole = cell_from(written(drawn.text, lambda number: str(heads * int(number))))

    def of_one(number: str) -> str:
        wide = heads * int(number)
        return number if wide in whole.division.dims else str(wide)

    return Copies(whole, heads, sizes, cell_from(written(drawn.text, of_one)))


def drawn_copies(drawn: Drawn, heads: int, numbers: bool) -> Copies:
    """The same, leaving aside what is refused as it should be."""
    try:
        copies = _copies_of(drawn, heads, numbers)
    except ShapeError as error:
        partly = "return that part as an output of its own" in str(error)
        assume(not partly)  # an output of units of heads, and of others
        assume(not numbers)  # groups are as many as a dim has units, and are divided like it
        raise
    assume(not copies.is_partly_divided)
    return copies


def of_inputs(drawn: Drawn) -> Drawn:
    """The same formula whose static inputs have values of their own in every step."""
    text = re.sub(r'(input="[^"]*)", (.*)static="([^"]*)", ', r'\1, \3", \2', drawn.text)
    return replace(drawn, text=text)

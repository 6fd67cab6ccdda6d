"""Dims and shapes of values in a graph, without batch and time.

A dim is an ordered tuple of *gate blocks*: ``3H`` is (H, H, H), ``I+H`` is (I, H), ``4`` is (4,).
A matrix per sample ``S[K, V]`` is one gate block, the pair (K, V): its units row by row. An axis
of several parts is a name of its own there, the text of its dim: ``S[2K, V]`` is ("2K", V). Only
the tracer, which cuts vectors along it into their parts, (K, K), knows more of it than its size.
Equality, ``split`` and ``concat`` are tuple operations; there is no symbolic algebra.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from itertools import groupby
from typing import Protocol

Axis = str | int
GateBlock = Axis | tuple[Axis, Axis]
Dim = tuple[GateBlock, ...]
Shape = tuple[Dim, ...]

SCALAR: Shape = ()

_TERM = re.compile(r"(?P<count>\d+)?\s*\*?\s*(?P<name>[A-Za-z_]\w*)?")


def parse_dim(text: str) -> Dim:
    """Parse ``"3H"``, ``"I+H"``, ``"4"``; raises ValueError with the reason otherwise."""
    gate_blocks: list[GateBlock] = []
    for part in text.split("+"):
        term = part.strip()
        match = _TERM.fullmatch(term)
        if not term or match is None:
            product = "; a product is a name of its own" if "*" in term else ""
            message = f"cannot read the dim {text!r}: write a name, a number, 3H or I+H{product}"
            raise ValueError(message)
        count, name = int(match["count"] or 1), match["name"]
        if count < 1:
            raise ValueError(f"the dim {text!r} has a zero in it")
        if name is None:
            if count == 1 and "+" in text:
                raise ValueError(
                    f"no single unit in {text!r}: declare a scalar of its own beside it"
                )
            if count == 1:
                raise ValueError("a dim of 1 is written as a scalar: `m`, not `m[1]`")
            gate_blocks.append(count)
        else:
            gate_blocks.extend([name] * count)
    return tuple(gate_blocks)


@cache
def parts_of(axis: Axis) -> Dim:
    """The gate blocks that a vector along an axis of a matrix per sample has: ``2K`` is (K, K)."""
    if isinstance(axis, int):
        return (axis,)
    gate_blocks: list[GateBlock] = []
    for term in axis.split("+"):
        match = _TERM.fullmatch(term)
        assert match is not None, "an axis is a sum of names and numbers"
        count, name = int(match["count"] or 1), match["name"]
        gate_blocks.extend([count] if name is None else [name] * count)
    return tuple(gate_blocks)


def axis_of(dim: Dim) -> Axis:
    """The axis of a matrix per sample along which a vector of this dim lies, the reverse of
    :func:`parts_of`: (K, K) is ``2K``. Numbers side by side are one."""
    gate_blocks: list[GateBlock] = []
    for gate_block in dim:
        last = gate_blocks[-1] if gate_blocks else None
        if isinstance(gate_block, int) and isinstance(last, int):
            gate_blocks[-1] = last + gate_block
        else:
            gate_blocks.append(gate_block)
    if len(gate_blocks) > 1:
        return show_dim(tuple(gate_blocks))
    (axis,) = gate_blocks
    assert not isinstance(axis, tuple), "the dim of a vector"
    return axis


def show_dim(dim: Dim) -> str:
    """Print a dim as it is written: (H, H, H) -> 3H, (I, H) -> I+H."""
    terms: list[str] = []
    for gate_block, run in groupby(dim):
        count = len(list(run))
        if isinstance(gate_block, tuple):
            axes = [f"({axis})" if "+" in str(axis) else str(axis) for axis in gate_block]
            terms.extend(["·".join(axes)] * count)
        elif isinstance(gate_block, int):
            terms.extend([str(gate_block)] * count)
        else:
            terms.append(gate_block if count == 1 else f"{count}{gate_block}")
    return "+".join(terms)


def show_shape(shape: Shape) -> str:
    """Print a shape: ``[3H, I]``, ``[H]``, ``scalar``; of a matrix per sample ``[K, V]``."""
    if not shape:
        return "scalar"
    if len(shape) == 1 and len(shape[0]) == 1 and isinstance(shape[0][0], tuple):
        return "[" + ", ".join(map(str, shape[0][0])) + "]"
    return "[" + ", ".join(show_dim(dim) for dim in shape) + "]"


def gate_block_size(gate_block: GateBlock, dims: Mapping[str, int]) -> int:
    """Size of one gate block under a binding of names to sizes."""
    if isinstance(gate_block, tuple):
        return gate_block_size(gate_block[0], dims) * gate_block_size(gate_block[1], dims)
    if isinstance(gate_block, int):
        return gate_block
    is_name = gate_block.isidentifier()  # else the text of an axis of several parts
    return dims[gate_block] if is_name else dim_size(parts_of(gate_block), dims)


def dim_size(dim: Dim, dims: Mapping[str, int]) -> int:
    """Size of a dim under a binding of names to sizes."""
    return sum(gate_block_size(gate_block, dims) for gate_block in dim)


def shape_size(shape: Shape, dims: Mapping[str, int]) -> tuple[int, ...]:
    """Sizes of all dims of a shape under a binding of names to sizes."""
    return tuple(dim_size(dim, dims) for dim in shape)


def axes_of(gate_block: GateBlock, dims: Mapping[str, int]) -> tuple[int, int] | None:
    """Rows and columns of the gate block of a matrix per sample; None for that of a vector."""
    if not isinstance(gate_block, tuple):
        return None
    rows, columns = (gate_block_size(axis, dims) for axis in gate_block)
    return rows, columns


class _Shaped(Protocol):
    @property
    def shape(self) -> Shape: ...


def is_matrix(value: _Shaped) -> bool:
    """Whether a value is a matrix per sample."""
    return len(value.shape) == 1 and isinstance(value.shape[0][0], tuple)


def matrix_axes(value: _Shaped) -> tuple[Axis, Axis]:
    """The dims of the rows and the columns of a matrix per sample."""
    block = value.shape[0][0]
    assert isinstance(block, tuple), "a matrix per sample"
    return block


def names_in(shape: Shape) -> set[str]:
    """The named dims that occur in a shape."""
    blocks = [gate_block for dim in shape for gate_block in dim]
    axes = [axis for block in blocks for axis in (block if isinstance(block, tuple) else (block,))]
    parts = [part for axis in axes for part in parts_of(axis)]
    return {part for part in parts if isinstance(part, str)}

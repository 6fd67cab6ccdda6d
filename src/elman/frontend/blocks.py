"""Block-diagonal matrices in a formula, as graphs: stored as their blocks, one above the other.

Rows of a block matrix lie gate block by gate block, and within a gate block head by head; its
columns are those of one head.
"""

from __future__ import annotations

from elman.ir.graph import Node, node
from elman.ir.types import Dim


def _rows(value: Node, head: int, heads: int, where: str) -> Node:
    """What one head has of a vector, or of a matrix along its rows."""
    parts = [_gate_block(value, at, where) for at in range(head, len(value.shape[0]), heads)]
    return _joined(parts, where)


def _gate_block(value: Node, at: int, where: str) -> Node:
    shape = ((value.shape[0][at],), *value.shape[1:])
    return node("split", (value,), (at, at + 1), shape, where)


def _joined(parts: list[Node], where: str) -> Node:
    if len(parts) == 1:
        return parts[0]
    dim: Dim = tuple(gate_block for part in parts for gate_block in part.shape[0])
    return node("concat", parts, (), (dim, *parts[0].shape[1:]), where)


def multiplied(matrix: Node, vector: Node, heads: int, where: str) -> Node:
    """A block-diagonal product: rows of head n meet the units of head n."""
    parts = [_rows(vector, head, heads, where) for head in range(heads)]
    products = [
        node(
            "matmul",
            (_gate_block(matrix, row, where), parts[row % heads]),
            (),
            ((gate_block,),),
            where,
        )
        for row, gate_block in enumerate(matrix.shape[0])
    ]
    return node("concat", products, (), (matrix.shape[0],), where)


def transposed(matrix: Node, heads: int, where: str) -> Node:
    """The transpose of a block-diagonal matrix: the transposes of its blocks."""
    blocks: list[Node] = []
    for head in range(heads):
        block_row = _rows(matrix, head, heads, where)
        blocks.append(node("transpose", (block_row,), (), block_row.shape[::-1], where))
    columns = range(len(matrix.shape[1]))
    return _joined([_gate_block(block, at, where) for at in columns for block in blocks], where)

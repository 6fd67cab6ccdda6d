"""Sizes and constants that cells of the library need beside those of the input and the state."""

from __future__ import annotations

from typing import Any

import torch

from elman import cells
from elman.frontend.cell import Cell
from elman.ir.types import names_in, parts_of
from helpers import Sizes

DIMS: dict[str, dict[str, Any]] = {  # of a cell -> its sizes and constants
    "ligru": {"input_size": 12, "num_layers": 1},
    "rwkv4": {"input_size": 6},
    "gru_d": {"mean": torch.linspace(-1, 1, 6)},
    "onlstm_chunked": {"M": 3},
    "lstmn": {"M": 3},
    "gated_slot_attention": {"M": 3},
    "mamba": {"hidden_size": 3},
    "cfc": {"U": 5},
    "cfc_pure": {"U": 5},
    "ealstm": {"S": 3},
    "s4d": {"input_size": 3, "hidden_size": 6},
    "lmu": {"M": 4, "A": cells.lmu_matrix(5.0), "B": cells.lmu_vector(5.0)},
}
VECTORS = [cell for cell in cells.ALL if cell not in cells.MATRIX]  # for engines of these alone


def sizes_of(cell: Cell, T: int, B: int) -> Sizes:
    """Small ones of any cell of the library."""
    if cell is cells.s4d:
        return Sizes(T, B, 3, 6)
    named = {name for entry in cell.weights for name in names_in(entry.shape)} - {"I", "H"}
    inputs = {"ligru": 12, "rwkv4": 6}.get(cell.name, 5)
    return Sizes(T, B, inputs, 6, tuple((name, 3) for name in sorted(named)))


def matrix_sizes(cell: Cell, T: int, V: int) -> Sizes:
    """Sizes of a cell with a matrix per sample: V columns of each part, and three units of further
    dims."""
    leaves = (*cell.inputs, *cell.static, *cell.states)
    named = set[str]().union(*(names_in(leaf.shape) for leaf in leaves))
    first, block = names_in(cell.inputs[0].shape), cell.states[0].shape[0][0]
    parts = parts_of(block[1] if isinstance(block, tuple) else block)
    more = tuple((name, 3) for name in sorted(named - first - {*parts}))
    return Sizes(T=T, B=3, I=5, H=5 if first & {*parts} else V * len(parts), more=more)

"""Sizes and constants that cells of the library need beside those of the input and the state."""

from __future__ import annotations

from typing import Any

import torch

from elman import cells

DIMS: dict[str, dict[str, Any]] = {  # of a cell -> its sizes and constants
    "ligru": {"input_size": 12, "num_layers": 1},
    "gru_d": {"mean": torch.linspace(-1, 1, 6)},
    "onlstm_chunked": {"M": 3},
    "cfc": {"U": 5},
    "cfc_pure": {"U": 5},
    "ealstm": {"S": 3},
    "lmu": {"M": 4, "A": cells.lmu_matrix(5.0), "B": cells.lmu_vector(5.0)},
}

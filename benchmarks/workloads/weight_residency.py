"""A recurrent layer whose weights come anew in every step: from cache, or from memory.

What a kernel for a whole sequence saves is seen beside one product per step (``stepped``), whose
weights stay in the cache if they fit, and beside the same with weights that no cache holds
(``reloaded``): each step takes the next of so many copies that all of them together are larger than
any cache, as a GPU's kernels found them that began anew in each step.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.problem import Problem
from elman.errors import EngineError

COLD_BYTES = 128 << 20  # of all copies together
CELL = "rnn"
Layer = Callable[[Tensor], tuple[Tensor, Tensor]]


def stepped(problem: Problem, cold: bool = False) -> Layer:
    """torch's tanh RNN, the inputs' product at once, then a product and a tanh per step.

    Args:
        problem: one layer of cell ``rnn``.
        cold: whether each step's recurrent weights come from memory.

    Returns:
        From x [T, B, I] to outputs [T, B, H] and the last state [B, H].

    Raises:
        EngineError: it is another cell.
    """
    if problem.case.cell != CELL or problem.case.layers != 1:
        raise EngineError(f"written for one layer of {CELL} alone")
    W, R, b, d = (
        problem.weights[f"{name}_l0"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    count = math.ceil(COLD_BYTES / (R.numel() * R.element_size())) if cold else 1
    copies = itertools.cycle([R.t() if not cold else R.clone().t() for _ in range(count)])
    bias = b + d

    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        h = x.new_zeros(x.shape[1], R.shape[0])
        outputs = []
        for row in torch.nn.functional.linear(x, W, bias).unbind(0):
            h = torch.addmm(row, h, next(copies)).tanh_()
            outputs.append(h)
        return torch.stack(outputs), h

    return run

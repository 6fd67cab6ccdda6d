"""One step at a time: what a stream gives now, without a sequence around it."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from elman.errors import InputError
from elman.nn.dense import check_dense


def run_step(module: Any, x: Any, state: Any, rank: int) -> tuple[Tensor, Any]:
    """Run a module for one step.

    Args:
        module: takes a sequence and a state.
        x: its input or inputs, without the axis of time.
        state: as the module takes it.
        rank: dims of the first input at one step of a batch.

    Raises:
        InputError: no step alone can be had of a bidirectional module, or of that input.
    """
    if module.bidirectional:
        raise InputError(
            "step: a bidirectional module needs the whole sequence, from its end as well"
        )
    several = isinstance(x, (tuple, list))
    given = tuple(x) if several else (x,)
    if not given or not all(isinstance(value, Tensor) for value in given):
        raise InputError("step: x is a tensor, or a tuple of tensors")
    for value in given:
        check_dense(value, "step: x")
    dims = given[0].dim()
    if dims not in (rank, rank - 1):
        raise InputError(
            f"step: x must have {rank} dimensions (or {rank - 1}, unbatched), got {dims}: "
            f"the axis of time is left out"
        )
    axis = 1 if module.batch_first and dims == rank else 0
    row = tuple([value.unsqueeze(axis) for value in given])
    out, after = module(row if several else row[0], state)
    return out.squeeze(axis), after

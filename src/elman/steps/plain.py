"""The plain loop: a step's own function, called for each step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def run(
    step: Callable[..., Any],
    carry: Sequence[Tensor],
    xs: Sequence[Tensor],
    steps: int,
    options: Mapping[str, Any],
) -> tuple[list[Any], list[Any]]:
    """Run a step for each step of a sequence.

    Args:
        step: called with leaves of the carry and of x, returns leaves of the next carry and y.
        carry: leaves. xs: leaves [T, ..].
        steps: T.
        options: ``lengths``, ``reset``, ``reset_to``, ``mask``, ``masked_output`` as of a layer.

    Returns:
        Leaves of the last carry, and of the outputs [T, ..].
    """
    start, now = [*carry], [*carry]
    lengths, reset, mask = (options.get(name) for name in ("lengths", "reset", "mask"))
    ends = None if lengths is None else torch.as_tensor(lengths, device=now[0].device)
    outputs: list[list[Any]] = []
    for t in range(steps):
        inside = None if ends is None else t < ends
        if reset is not None:
            initial = options.get("reset_to") == "initial"
            fresh = start if initial else [torch.zeros_like(value) for value in start]
            flags = reset[t].bool() if inside is None else reset[t].bool() & inside
            now = [_chosen(flags, new, old) for new, old in zip(fresh, now, strict=True)]
        counts = inside
        if mask is not None:
            counts = mask[t].bool() if inside is None else mask[t].bool() & inside
        row = [x[t] for x in xs]
        if counts is not None:  # what is not read may be NaN, whose gradient would be, too
            row = [_chosen(counts, x, 0) if x.is_floating_point() else x for x in row]
        before = now
        now, ys = step(now, row)
        now, ys = [*now], [*ys]
        if counts is not None:
            held = {id(new): old for new, old in zip(now, before, strict=True)}
            if options.get("masked_output") == "zeros":
                held = {}
            ys = [_chosen(counts, y, held.get(id(y), 0)) for y in ys]
            if inside is not None:
                ys = [_chosen(inside, y, 0) for y in ys]
            now = [_chosen(counts, new, old) for new, old in zip(now, before, strict=True)]
        outputs.append(ys)
    columns = [[row[k] for row in outputs] for k in range(len(outputs[0]))] if outputs else []
    return now, [
        torch.stack(column) if isinstance(column[0], Tensor) else column[-1] for column in columns
    ]


def _chosen(flags: Tensor, new: Any, old: Any) -> Any:
    """``new`` where a flag of the sample is not 0, else ``old``."""
    if not isinstance(new, Tensor) or not new.dim():
        return new
    flags = flags.to(new.device, torch.bool)
    flags = flags.reshape(*flags.shape, *[1] * (new.dim() - flags.dim()))
    other = old if isinstance(old, Tensor) else torch.full_like(new, old)
    return torch.where(flags, new, other)

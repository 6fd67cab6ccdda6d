"""The order of steps: options of a call in the layout of its inputs, and loops from the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from elman.errors import InputError
from elman.nn.options.registry import select_options
from elman.torch_internals import pytree

_OF_STEPS = ("reset", "mask")
_TAKEN = (*_OF_STEPS, "lengths", "reset_to", "masked_output")
_ANYTHING = "what it closes over, or is given with x, may be anything"
_HINTS = {"outputs": 'return what is wanted of each step: return {"y": y, "h": h}, state'}


def options_of_steps(options: Mapping[str, Any], axis: int) -> dict[str, Any]:
    """The options of a call that say something, those with a value for each step as [T, B].

    Raises:
        InputError: a step has no such option.
    """
    chosen = select_options(options)
    for name in chosen:
        if name not in _TAKEN:
            raise InputError(f"a step has no {name}=", _HINTS.get(name, _ANYTHING))
    for name in _OF_STEPS:
        if axis and name in chosen:
            chosen[name] = chosen[name].movedim(axis, 0)
    return chosen


def reversed_call(xs: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Inputs [T, B, ..] and options of a loop that begins with each sequence's last step."""
    flags = {name: options[name] for name in _OF_STEPS if name in options}
    return reversed_steps(xs, options), {**options, **reversed_steps(flags, options)}


def reversed_steps(tree: Any, options: Mapping[str, Any]) -> Any:
    """Values [T, B, ..] from the last step of each sequence to the first; the padding stays."""
    lengths = options.get("lengths")

    def reverse(value: Tensor) -> Tensor:
        if lengths is None or value.dim() < 2:
            return value.flip(0)
        steps = torch.arange(len(value), device=value.device).unsqueeze(1)
        ends = torch.as_tensor(lengths, device=value.device)
        order = torch.where(steps < ends, ends - 1 - steps, steps)
        return value[order, torch.arange(value.shape[1], device=value.device)]

    return pytree.tree_map_only(Tensor, reverse, tree)

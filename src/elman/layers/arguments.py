"""Arguments of published layers: single sequences, and checks of inputs, states and options."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor, nn

from elman.checks import check_number, check_size
from elman.errors import ShapeError
from elman.nn.execute.onnx import warn_of_fixed_batch

Forward = TypeVar("Forward", bound=Callable[..., Any])


def for_layers(forward: Forward) -> Forward:
    """Decorate a ``forward(x, state, ...)`` of x [T, B, n], of which all other tensors and all
    results have the batch as their second axis: it takes [T, n] too, a single sequence, where none
    of them has a batch; [B, T, n] if the layer is ``batch_first``; and warns of a dynamic batch
    that torch's exporter has fixed."""

    @functools.wraps(forward)
    def run(self: nn.Module, x: Any, *rest: Any, **named: Any) -> Any:
        if not isinstance(x, Tensor) or x.dim() not in (2, 3):
            return forward(self, x, *rest, **named)
        if x.dim() == 3:
            batch_first = bool(getattr(self, "batch_first", False))
            x = x.transpose(0, 1) if batch_first else x
            size = x.shape[1]
            out, *further = forward(self, x, *rest, **named)
            warn_of_fixed_batch(size, type(self).__name__)
            return (out.transpose(0, 1) if batch_first else out, *further)
        rest = each(rest, _with_batch)
        named = {name: each(value, _with_batch) for name, value in named.items()}
        return each(forward(self, _with_batch(x), *rest, **named), lambda value: value.squeeze(1))

    return run  # type: ignore[return-value]


def _with_batch(value: Tensor) -> Tensor:
    return value.unsqueeze(1) if value.dim() else value


def each(values: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A tensor, or each of nested tuples, changed; all else as it is."""
    if isinstance(values, (tuple, list)):
        return tuple([each(value, change) for value in values])
    return change(values) if isinstance(values, Tensor) else values


def check_steps(x: Any, size: int) -> None:
    """Check the input of a layer. Raises ShapeError: x is not [T, B, size]."""
    if not isinstance(x, Tensor) or x.dim() != 3 or x.shape[-1] != size or not x.shape[0]:
        shape = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise ShapeError(f"x must be [T, B, {size}], or unbatched [T, {size}], got {shape}")


def check_state(state: Any, shapes: list[list[int]]) -> None:
    """Check the state of a layer. Raises ShapeError: it is no tuple of tensors of these shapes."""
    parts = state if isinstance(state, (tuple, list)) else (state,)
    found = [list(v.shape) if isinstance(v, Tensor) else type(v).__name__ for v in parts]
    if parts is not state or found != shapes:
        raise ShapeError(f"the state must be a tuple of {shapes}, got {found}")


def part_size(name: str, size: float, parts: int, kind: str = "heads (num_heads)") -> int:
    """The size of each of equal parts. Raises ShapeError: there are none of a whole size."""
    whole = round(size)
    if abs(size - whole) > 1e-6 or whole < 1 or whole % parts:
        raise ShapeError(f"{name} of {size:g} cannot be divided: no multiple of {parts} {kind}")
    return whole // parts


def check_sizes(**sizes: Any) -> None:
    """Raise InputError where one is no positive integer."""
    for name, size in sizes.items():
        check_size(name, size, 1)


def check_positive(**numbers: Any) -> None:
    """Raise InputError where one is no positive number."""
    for name, number in numbers.items():
        check_number(name, number, 1e-30)

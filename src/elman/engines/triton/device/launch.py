"""From tensors to a kernel's arguments: by name, whatever their strides; the device's limits."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from triton.errors import TritonError

from elman.engines.precision import multiplying, precision
from elman.engines.triton.device import limits
from elman.errors import EngineError

Arrays = dict[str, Tensor]


@contextmanager
def launching(like: Tensor) -> Iterator[None]:
    """Launch on a tensor's device; what Triton refuses is an error of the engine.

    Autocast is off inside: kernels take what they were compiled for.
    """
    device = like.device.type
    with ExitStack() as inside:
        if torch.is_autocast_enabled(device):
            inside.enter_context(torch.autocast(device, enabled=False))
        if like.is_cuda:
            inside.enter_context(torch.cuda.device_of(like))
            inside.enter_context(multiplying(like, precision()))
        try:
            yield
        except (TritonError, ValueError) as error:  # its launcher's are of the latter type
            raise EngineError(f"Triton refuses a kernel: {error}") from error


def chip() -> Any:
    """Properties of the GPU, or None."""
    return _properties(torch.cuda.current_device()) if torch.cuda.is_available() else None


@cache
def _properties(device: int) -> Any:
    return torch.cuda.get_device_properties(device)


def processors() -> int:
    """Programs of a grid that are resident at once, one per processor."""
    count: int = getattr(chip(), "multi_processor_count", limits.PROCESSORS)
    return count


def fresh(like: Tensor, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
    """Memory like a tensor's, not initialised; NaN where the tests look for what nobody wrote."""
    memory = like.new_empty(shape, dtype=dtype or like.dtype)
    return memory.fill_(float("nan")) if os.environ.get("ELMAN_POISON") else memory


def numbered(name: str, values: Sequence[Tensor]) -> Arrays:
    """``name0``, ``name1`` …"""
    return {f"{name}{k}": value for k, value in enumerate(values)}


def arguments(
    names: Iterable[str], arrays: Mapping[str, Tensor], numbers: Mapping[str, int]
) -> list[Any]:
    """What a kernel is called with, in the order of its names.

    Args:
        names: of numbers, of arrays, and of an array's strides: ``x_b``, or ``x_r``, from row to
            row, ``x_h`` from head to head.
        arrays: [rows, n] each, or [heads, rows, n]; contiguous along n. Vectors [n], [heads, n].
        numbers: what else the kernel is called with.
    """
    values: list[Any] = []
    for name in names:
        base, _, kind = name.partition("_")
        if name in numbers:
            values.append(numbers[name])
        elif not kind:
            values.append(arrays[name])
        elif kind == "h":
            values.append(arrays[base].stride(0))
        else:
            values.append(arrays[base].stride(-2))
    return values

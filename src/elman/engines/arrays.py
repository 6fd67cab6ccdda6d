"""torch as the array namespace of ``ir/evaluate``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from elman.engines.stand_ins import ClipGradient, Surrogate
from elman.ir.ops import POINTWISE, REDUCTIONS


class Arrays:
    """The functions of ``ir/evaluate`` over torch, for one dtype and device.

    Constants are tensors [] of that dtype, so that no op promotes.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        self._device = device
        self._constants: dict[str, Tensor] = {}

    def constant(self, value: float) -> Tensor:
        """A number as a tensor []."""
        key = float.__repr__(value)  # 0.0 and -0.0 are equal as keys, but not as numbers
        tensor = self._constants.get(key)
        if tensor is None:
            wide = torch.full((), value, dtype=torch.float64, device=self._device)
            tensor = wide.to(self._dtype)  # overflows to infinity, as in every engine
            self._constants[key] = tensor
        return tensor

    @staticmethod
    def as_float(truth: Tensor, like: Tensor) -> Tensor:
        """1 where true, else 0."""
        return truth.to(like.dtype)

    @staticmethod
    def as_integer(value: Tensor) -> Tensor:
        """Truncated to int64."""
        return value.to(torch.int64)

    def arange(self, size: int) -> Tensor:
        """0, 1, … size - 1 as integers of 64 bits."""
        return torch.arange(size, device=self._device)

    @staticmethod
    def concat(tensors: Sequence[Tensor], axis: int) -> Tensor:
        """Join along one axis."""
        return torch.cat(tuple(tensors), axis)

    @staticmethod
    def broadcast(tensors: Sequence[Tensor], axis: int) -> tuple[Tensor, ...]:
        """Give all parts the same leading axes, so that they can be joined along ``axis``."""
        if axis != -1:
            return tuple(tensors)
        lead = torch.broadcast_shapes(*(tensor.shape[:-1] for tensor in tensors))
        return tuple(tensor.expand(*lead, tensor.shape[-1]) for tensor in tensors)

    @staticmethod
    def var(v: Tensor) -> Tensor:
        """Over the last axis, divided by n; 0 of no samples, for which torch would warn."""
        return v.var(-1, correction=0) if v.numel() else v.sum(-1)

    @staticmethod
    def argmax(v: Tensor) -> Tensor:
        """The index of the first maximum along the last axis, as a float."""
        return v.argmax(-1).to(v.dtype)

    @staticmethod
    def cumsum(v: Tensor) -> Tensor:
        """Along the last axis."""
        return v.cumsum(-1)

    @staticmethod
    def flip(v: Tensor) -> Tensor:
        """The last axis in reverse."""
        return v.flip(-1)

    def positions(self, start: int, stop: int) -> Tensor:
        """The numbers from ``start`` to before ``stop`` [stop - start]."""
        return torch.arange(start, stop, dtype=self._dtype, device=self._device)

    @staticmethod
    def stop(v: Tensor) -> Tensor:
        """The value without its history."""
        return v.detach()

    @staticmethod
    def surrogate(value: Tensor, of: Tensor, slope: Tensor) -> Tensor:
        """``value``, with the derivative ``slope`` by ``of``."""
        return Surrogate.apply(*torch.broadcast_tensors(value, of, slope))

    @staticmethod
    def clip_gradient(v: Tensor, limit: Tensor) -> Tensor:
        """The value; its cotangent is clipped to ±limit."""
        return ClipGradient.apply(*torch.broadcast_tensors(v, limit))

    softplus = staticmethod(functional.softplus)


for _name in REDUCTIONS:  # of the last axis
    if not hasattr(Arrays, _name):
        setattr(Arrays, _name, staticmethod(partial(getattr(torch, _name), dim=-1)))
for _name in ("swapaxes", "broadcast_to", *POINTWISE):  # torch's functions of these names
    if not hasattr(Arrays, _name) and hasattr(torch, _name):
        setattr(Arrays, _name, staticmethod(getattr(torch, _name)))

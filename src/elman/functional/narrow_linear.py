"""Linear layers whose calls of few rows, as those of generated text, take as long as their weights
take to be read: in eight bits, in bfloat16, or as they are."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # torch's own habit

from elman.checks import shown
from elman.engines.c.narrow import MOST_ROWS, linear
from elman.errors import InputError

TYPES = {"int8": torch.int8, "bf16": torch.bfloat16, "float32": torch.float32}
_LARGEST = 127


class _Held(NamedTuple):
    """A layer's weights in few bits, and of which they were made."""

    weight: Tensor
    scale: Tensor | None
    made_of: tuple[int, int]  # address and version


class NarrowLinear(nn.Linear):
    """A linear layer whose class was torch's. Calls of few rows without gradients read the weights,
    or a copy in few bits, once for all rows; all others are torch's own, with the weights as they
    are. The copy is made again when the weights have changed."""

    held_dtype: torch.dtype

    def forward(self, input: Tensor) -> Tensor:
        out = None
        if _runs(self, input):
            out = self._few_rows(input)
        return F.linear(input, self.weight, self.bias) if out is None else out

    def _few_rows(self, x: Tensor) -> Tensor | None:
        held, source = vars(self).get("_held"), (self.weight.data_ptr(), self.weight._version)
        if held is None or held.made_of != source:
            held = vars(self)["_held"] = _Held(*narrowed(self.weight, self.held_dtype), source)
        bias = None if self.bias is None else self.bias.float()
        rows = x.reshape(-1, x.shape[-1]).float().contiguous()
        out = linear(rows, held.weight, held.scale, bias)
        return None if out is None else out.view(*x.shape[:-1], -1).to(x.dtype)


def _runs(layer: NarrowLinear, x: Tensor) -> bool:
    """Whether a call is of few rows, without gradients, and seen by nobody else."""
    single = x.numel() == layer.in_features
    if single and layer.held_dtype is torch.float32 and torch.get_num_threads() == 1:
        return False  # torch's is faster
    return (
        not torch.is_grad_enabled()
        and 0 < x.numel() <= MOST_ROWS * layer.in_features
        and x.shape[-1:] == (layer.in_features,)
        and x.dtype is layer.weight.dtype
        and x.device.type == layer.weight.device.type == "cpu"
        and type(x) is Tensor
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
    )


def narrowed(weight: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Weights [outputs, inputs] in few bits, and for integers the factor of each output: its
    largest weight is 127 of them."""
    with torch.no_grad():
        values = weight.detach().float()
        if dtype is not torch.int8:
            return values.to(dtype).contiguous(), None
        scale = (values.abs().amax(1) / _LARGEST).clamp(min=torch.finfo(torch.float32).tiny)
        return (values / scale[:, None]).round().to(torch.int8).contiguous(), scale


def narrow(model: nn.Module, weights: Any) -> dict[str, str]:
    """Let the linear layers of a model read their weights in few bits; a line for each kind.

    Raises:
        InputError: there is no such type.
    """
    if not isinstance(weights, str) or weights not in TYPES:
        raise InputError(f'weights must be "int8", "bf16" or "float32", got {shown(weights)}')
    texts = dict[str, str]()
    for name, layer in model.named_modules():
        if type(layer) in (nn.Linear, NarrowLinear):
            layer.__class__ = NarrowLinear
            if vars(layer).get("held_dtype") is not TYPES[weights]:
                vars(layer).pop("_held", None)
            vars(layer)["held_dtype"] = TYPES[weights]
            texts[name] = f"Linear, weights in {weights} for up to {MOST_ROWS} rows"
        elif isinstance(layer, nn.Linear):
            texts[name] = f"{type(layer).__name__}, left alone: a class derived from Linear"
    return texts


def widen(model: nn.Module) -> None:
    """Undo :func:`narrow`."""
    layers: list[Any] = [layer for layer in model.modules() if type(layer) is NarrowLinear]
    for layer in layers:
        layer.__class__ = nn.Linear
        for name in ("_held", "held_dtype"):
            vars(layer).pop(name, None)

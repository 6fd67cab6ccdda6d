"""Experts of models of transformers whose calls of few tokens, as those of generated text, read
only the weights of the chosen experts, once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from elman.engines.c.compilation.build import find_compiler
from elman.engines.c.kernels.few_rows import MOST_ROWS, linear
from elman.functional.linear_layers import TYPES, WEIGHTS, Copies

_FACTS = ("has_gate", "has_bias", "has_post_expert_norm", "is_transposed", "down_proj")
_NAMES = {dtype: name for name, dtype in TYPES.items()}


class FewTokensExperts(Copies):
    """Experts whose class was transformers'. Calls of few tokens without gradients run by two
    kernels; all others are those of the class."""

    their_class: type[nn.Module]  # of the class that is made for it
    has_gate: bool
    has_bias: bool
    has_post_expert_norm: bool
    is_transposed: bool
    act_fn: Callable[[Tensor], Tensor]
    _apply_gate: Callable[[Tensor], Tensor]
    post_expert_norm: Callable[[Tensor], Tensor]

    def forward(self, hidden_states: Tensor, *given: Any, **options: Any) -> Tensor:
        names = dict(zip(("top_k_index", "top_k_weights"), given)) | options
        if len(names) != 2 or not _are_few(self, hidden_states):
            if not torch.is_grad_enabled() and not torch.compiler.is_compiling():
                self.check_copies()
            return self.their_class.forward(self, hidden_states, *given, **options)
        choices, weights = names["top_k_index"], names["top_k_weights"]
        experts = choices.reshape(-1).long().contiguous()
        y = self._linear(hidden_states.float().contiguous(), _first(self), experts)
        y = self._apply_gate(y) if self.has_gate else self.act_fn(y)
        y = self._linear(y.contiguous(), "down_proj", experts)
        if self.has_post_expert_norm:
            y = self.post_expert_norm(y)
        y = weights.float()[:, None] @ y.view(*choices.shape, -1)
        return y[:, 0].to(hidden_states.dtype)

    def _linear(self, x: Tensor, name: str, experts: Tensor) -> Tensor:
        copy = self.copy_of(name, self.is_transposed)
        bias = getattr(self, f"{name}_bias").float() if self.has_bias else None
        return linear(x, copy.weight, copy.scale, bias, experts)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """By the class of transformers, as this one is in no module."""
        return _restored, (self.their_class,), self.__getstate__()


def _restored(kind: type[nn.Module]) -> nn.Module:
    derived = _class_of(kind)
    return derived.__new__(derived)


@cache
def _class_of(kind: type[nn.Module]) -> type[FewTokensExperts]:
    """A class derived from a class of transformers, with its name, which reports have."""
    names = {"their_class": kind, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (FewTokensExperts, kind), names)


def _first(layer: Any) -> str:
    return "gate_up_proj" if layer.has_gate else "up_proj"


def _are_few(layer: FewTokensExperts, x: Tensor) -> bool:
    """Return whether a call has few tokens, no gradients, and no mode of torch's that sees it."""
    weight = getattr(layer, _first(layer))
    return (
        not torch.is_grad_enabled()
        and x.dim() == 2
        and 0 < len(x) <= MOST_ROWS
        and x.shape[1] == weight.shape[1 if layer.is_transposed else 2]
        and x.dtype is weight.dtype
        and x.dtype in WEIGHTS
        and x.device.type == weight.device.type == "cpu"
        and type(x) is Tensor
        and type(weight) is type(layer.down_proj) is nn.Parameter
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
    )


def _dtype(layer: Any, weights: str | None) -> torch.dtype | None:
    """The type in which a layer's weights are read; None: it has no experts as transformers'
    interface describes them, or would need a copy that nobody asked for."""
    if not all(hasattr(layer, name) for name in _FACTS) or not hasattr(layer, _first(layer)):
        return None
    first, second = getattr(layer, _first(layer)), layer.down_proj
    if not hasattr(layer, "_apply_gate" if layer.has_gate else "act_fn"):
        return None
    if not all(isinstance(w, Tensor) and w.dim() == 3 for w in (first, second)):
        return None
    if weights is not None:
        return TYPES[weights] if first.dtype in WEIGHTS else None
    is_ready = not layer.is_transposed and first.is_contiguous() and second.is_contiguous()
    return first.dtype if is_ready and first.dtype in _NAMES else None


def convert(model: nn.Module, weights: str | None) -> None:
    """Let the experts of a model read their weights in a type of ``TYPES``; None: as they are."""
    has_compiler = not isinstance(find_compiler(), str)
    for layer in [*model.modules()]:
        dtype = _dtype(layer, weights) if has_compiler else None
        if dtype is not vars(layer).get("copy_dtype") and isinstance(layer, FewTokensExperts):
            _restore(layer)
        if dtype is not None and not isinstance(layer, FewTokensExperts):
            layer.__class__ = _class_of(type(layer))
            vars(layer)["copy_dtype"] = dtype


def report(model: nn.Module) -> dict[str, str]:
    """Return a line for each layer of experts, by its name."""
    lines = {name: _line(layer) for name, layer in model.named_modules()}
    return {name: line for name, line in lines.items() if line}


def _line(layer: Any) -> str:
    kind = type(layer).__name__
    if isinstance(layer, FewTokensExperts):
        return f"{kind}, weights in {_NAMES[layer.copy_dtype]} for up to {MOST_ROWS} tokens"
    if _dtype(layer, "int8") is None:
        return ""
    if isinstance(find_compiler(), str):
        return f"{kind}, left alone: there is no C compiler"
    if _dtype(layer, None) is None:
        return f"{kind}, left alone: its weights need a copy, which weights= makes"
    return f"{kind}, not replaced: elman.functional.install(model)"


def restore(model: nn.Module) -> None:
    """Undo :func:`convert`."""
    for layer in [*model.modules()]:
        if isinstance(layer, FewTokensExperts):
            _restore(layer)


def _restore(layer: Any) -> None:
    layer.__class__ = layer.their_class
    for name in ("_copies", "copy_dtype"):
        vars(layer).pop(name, None)

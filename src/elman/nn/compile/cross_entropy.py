"""Decoder and loss as operators that torch.compile and torch.export see as a whole.

The forward returns the gradients that are wanted beside the loss, so the backward is a product with
a scalar, which the compiler sees; with ``reduction="none"`` it is an operator of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from elman.engines.cross_entropy import Wants, accumulated
from elman.nn.autograd.cross_entropy import Decoding, Rule, check_targets, decoding_of, scaled
from elman.nn.compile.names import fixed_engine

# x [N, H], weight [V, H], bias [V] of one type; targets [...], N of them, int64; which gradients of
# x, weight and bias are wanted; the rule; an engine's name, or ``auto``
_ARGUMENTS = (
    "Tensor x, Tensor weight, Tensor? bias, Tensor targets, bool[] wants, "
    "int ignore_index, float label_smoothing, str reduction, str engine"
)


def run_compiled(
    x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, rule: Rule
) -> Tensor:
    """The loss as the compiler traces it; arguments as of :func:`decoding_of`, targets [...]."""
    grad = torch.is_grad_enabled()
    wants = [grad and v is not None and v.requires_grad for v in (x, weight, bias)]
    how = (rule.ignore_index, float(rule.label_smoothing), rule.reduction, fixed_engine("auto"))
    return torch.ops.elman.linear_cross_entropy(x, weight, bias, targets, wants, *how)[0]


def _decoding(arguments: Sequence[Any]) -> Decoding:
    x, weight, bias, targets, _, *rule, engine = arguments
    return decoding_of(x, weight, bias, targets.reshape(-1), Rule(*rule), engine)


def _early(arguments: Sequence[Any]) -> Sequence[bool]:
    """Which gradients the forward makes."""
    return (False, False, False) if arguments[7] == "none" else arguments[4]


def _alike(arguments: Sequence[Any], wants: Sequence[bool]) -> list[Tensor]:
    return [value.new_empty(value.shape) for value, want in zip(arguments, wants) if want]


@torch.library.custom_op(
    "elman::linear_cross_entropy", mutates_args=(), schema=f"({_ARGUMENTS}) -> Tensor[]"
)
def linear_cross_entropy(*arguments: Any) -> list[Tensor]:
    """The loss, and the gradients of x, weight and bias that are wanted."""
    _, weight, _, targets, _, ignored, *_ = arguments
    check_targets(targets, len(weight), ignored)
    loss, gradients = _decoding(arguments).computed(Wants(*_early(arguments)))
    return [loss, *(value for value in gradients if value is not None)]


@linear_cross_entropy.register_fake
def _(*arguments: Any) -> list[Tensor]:
    x = arguments[0]
    shape = [len(x)] if arguments[7] == "none" else []
    loss = x.new_empty(shape, dtype=accumulated(x.dtype))
    return [loss, *_alike(arguments, _early(arguments))]


@torch.library.custom_op(
    "elman::linear_cross_entropy_backward",
    mutates_args=(),
    schema=f"(Tensor cotangents, {_ARGUMENTS}) -> Tensor[]",
)
def linear_cross_entropy_backward(cotangents: Tensor, *arguments: Any) -> list[Tensor]:
    """Gradients that are wanted, of losses [N] with cotangents [N]."""
    gradients = _decoding(arguments).computed(Wants(*arguments[4]), cotangents)[1]
    return [value for value in gradients if value is not None]


@linear_cross_entropy_backward.register_fake
def _(cotangents: Tensor, *arguments: Any) -> list[Tensor]:
    return _alike(arguments, arguments[4])


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    *tensors, ctx.wants, ignored, smoothing, ctx.reduction, engine = inputs
    ctx.how = ctx.wants, ignored, smoothing, ctx.reduction, engine
    ctx.save_for_backward(*(tensors if ctx.reduction == "none" else output[1:]))


def _back(ctx: Any, cotangents: Sequence[Tensor | None]) -> Any:
    d_loss, found = cotangents[0], ctx.saved_tensors
    if ctx.reduction == "none":
        found = torch.ops.elman.linear_cross_entropy_backward(d_loss, *found, *ctx.how)
    each = iter(found)
    gradients: Any = [next(each) if want else None for want in ctx.wants]
    if ctx.reduction != "none" and d_loss is not None:
        gradients = scaled(gradients, d_loss)
    return *gradients, *(None for _ in range(6))


linear_cross_entropy.register_autograd(_back, setup_context=_keep)

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
from elman.nn.autograd.cross_entropy import Rule, check_targets, decoding_of, scaled
from elman.nn.compile.names import fixed_engine

_NOTHING = (False, False, False)


def run_compiled(
    x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, rule: Rule
) -> Tensor:
    """The loss as the compiler traces it; arguments as of :func:`decoding_of`, targets [...]."""
    grad = torch.is_grad_enabled()
    wants = [grad and v is not None and v.requires_grad for v in (x, weight, bias)]
    how = (rule.ignore_index, float(rule.label_smoothing), rule.reduction, fixed_engine("auto"))
    return torch.ops.elman.linear_cross_entropy(x, weight, bias, targets, wants, *how)[0]


@torch.library.custom_op("elman::linear_cross_entropy", mutates_args=())
def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    wants: Sequence[bool],
    ignore_index: int,
    label_smoothing: float,
    reduction: str,
    engine: str,
) -> list[Tensor]:
    """The loss, and the gradients of x, weight and bias that are wanted.

    Args:
        x [N, H], weight [V, H], bias [V]: of one type.
        targets [...]: N of them, int64.
        wants: of x, weight, bias.
        engine: a name, or ``auto``.
    """
    rule: Any = Rule(ignore_index, label_smoothing, reduction)  # type: ignore[arg-type]
    check_targets(targets, len(weight), ignore_index)
    early = Wants(*(_NOTHING if reduction == "none" else wants))
    decoding = decoding_of(x, weight, bias, targets.reshape(-1), rule, engine)
    loss, gradients = decoding.computed(early)
    return [loss, *(value for value in gradients if value is not None)]


@linear_cross_entropy.register_fake
def _(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    wants: Sequence[bool],
    ignore_index: int,
    label_smoothing: float,
    reduction: str,
    engine: str,
) -> list[Tensor]:
    none = reduction == "none"
    loss = x.new_empty([len(x)] if none else [], dtype=accumulated(x.dtype))
    early = _NOTHING if none else wants
    return [loss, *_alike((x, weight, bias), early)]


def _alike(tensors: Sequence[Tensor | None], wants: Sequence[bool]) -> list[Tensor]:
    pairs = zip(tensors, wants, strict=True)
    return [value.new_empty(value.shape) for value, want in pairs if want and value is not None]


@torch.library.custom_op("elman::linear_cross_entropy_backward", mutates_args=())
def linear_cross_entropy_backward(
    cotangents: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    wants: Sequence[bool],
    ignore_index: int,
    label_smoothing: float,
    engine: str,
) -> list[Tensor]:
    """Gradients that are wanted, of losses [N] with cotangents [N]; arguments as above."""
    rule = Rule(ignore_index, label_smoothing, "none")
    decoding = decoding_of(x, weight, bias, targets.reshape(-1), rule, engine)
    return [v for v in decoding.computed(Wants(*wants), cotangents)[1] if v is not None]


@linear_cross_entropy_backward.register_fake
def _(
    cotangents: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    wants: Sequence[bool],
    *_: Any,
) -> list[Tensor]:
    return _alike((x, weight, bias), wants)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, bias, targets, ctx.wants, *ctx.how = inputs
    if ctx.how[2] == "none":
        ctx.save_for_backward(x, weight, bias, targets)
    else:
        ctx.save_for_backward(*output[1:])


def _back(ctx: Any, cotangents: Sequence[Tensor | None]) -> Any:
    ignore_index, label_smoothing, reduction, engine = ctx.how
    d_loss, saved = cotangents[0], ctx.saved_tensors
    if reduction == "none":
        operator = torch.ops.elman.linear_cross_entropy_backward
        gradients_of_leaves = operator(
            d_loss, *saved, ctx.wants, ignore_index, label_smoothing, engine
        )
    else:
        gradients_of_leaves = saved
    each = iter(gradients_of_leaves)
    gradients: Any = [next(each) if want else None for want in ctx.wants]
    if reduction != "none" and d_loss is not None:
        gradients = scaled(gradients, d_loss)
    return *gradients, *(None for _ in range(6))


linear_cross_entropy.register_autograd(_back, setup_context=_keep)

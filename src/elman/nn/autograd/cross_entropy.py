"""Decoder and loss under autograd: gradients are made in the forward, where logits are at hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F  # noqa: N812  # torch's own habit

from elman.engines import registry
from elman.engines.cross_entropy import CrossEntropy, Found, Rows, Wants, accumulated, in_torch
from elman.errors import BuildError, DisagreementError, EngineError, InputError, warn_once
from elman.nn.autograd.function import through_torch_ops
from elman.nn.autograd.transforms import late_cotangents
from elman.torch_internals import backward_keeps_graph

Reduction = Literal["mean", "sum", "none"]
Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


@dataclass(frozen=True)
class Rule:
    """How the losses of rows become one, as of torch's cross entropy."""

    ignore_index: int = -100
    label_smoothing: float = 0.0
    reduction: Reduction = "mean"


@dataclass(frozen=True, eq=False)
class Decoding:
    """A call of a decoder.

    Attributes:
        x [N, H], weight [V, H], bias [V] or None: of one type, on one device.
        targets [N]: int64; classes, or what is ignored.
        engine: what computes it where it can; None: torch ops.
        named: whether that engine was asked for, and nothing else may take its place.
    """

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    targets: Tensor
    rule: Rule
    engine: CrossEntropy | None = None
    named: bool = False

    def plain(self) -> Tensor:
        """The loss by torch's own two operations, with all logits in memory."""
        return plain_loss(F.linear(self.x, self.weight, self.bias), self.targets, self.rule)

    def computed(self, wants: Wants, cotangents: Tensor | None = None) -> tuple[Tensor, Gradients]:
        """Loss and gradients, without autograd. Rows that are ignored take no part.

        Args:
            wants: which gradients.
            cotangents [N]: of the losses; None: those that a mean or a sum has.
        """
        x, targets, reduction = self.x, self.targets, self.rule.reduction
        counted = targets != self.rule.ignore_index
        indices = None if bool(counted.all()) else counted.nonzero().squeeze(1)
        if indices is not None:
            x, targets = x[indices], targets[indices]
            cotangents = None if cotangents is None else cotangents[indices]
        wide, count = accumulated(x.dtype), len(targets)
        if cotangents is None:
            share = 1 / max(count, 1) if reduction == "mean" else 1.0
            cotangents = x.new_full((count,), share, dtype=wide)
        losses, d_x, d_weight, d_bias = self._found(x, targets, cotangents.to(wide), wants)
        if reduction != "none":
            losses = losses.sum() if reduction == "sum" else losses.mean()
        elif indices is not None:
            losses = losses.new_zeros(len(self.x)).index_copy_(0, indices, losses)
        if indices is not None and d_x is not None:
            d_x = torch.zeros_like(self.x).index_copy_(0, indices, d_x)
        return losses, (d_x, d_weight, d_bias)

    def _found(self, x: Tensor, targets: Tensor, scale: Tensor, wants: Wants) -> Found:
        """By the engine; by torch ops where there is none, or it fails and was not asked for."""
        rows = Rows(x, self.weight, self.bias, targets, self.rule.label_smoothing)
        if self.engine is not None and len(x):
            try:
                found = self.engine(rows, scale, wants)
                if found is not None:
                    return found
            except (BuildError, DisagreementError) as error:
                if self.named:
                    raise
                warn_once(f"elman.LinearCrossEntropyLoss runs in torch's operations: {error}")
        return in_torch(rows, scale, wants)


def plain_loss(logits: Tensor, targets: Tensor, rule: Rule, weight: Tensor | None = None) -> Tensor:
    """torch's cross entropy, in the type that sums are made in.

    Args:
        logits [N, C, …], targets [N, …]: classes; or [N, C, …], their probabilities.
        weight [C]: factors of the classes' losses.
    """
    wide = accumulated(logits.dtype)
    return F.cross_entropy(
        logits.to(wide),
        targets.to(wide) if targets.is_floating_point() else targets,
        weight=None if weight is None else weight.to(wide),
        ignore_index=rule.ignore_index,
        label_smoothing=rule.label_smoothing,
        reduction=rule.reduction,
    )


class Decoded(Function):
    """``apply(decoding, x, weight, bias)`` → the loss in the type that sums are made in."""

    @staticmethod
    def forward(ctx: Any, decoding: Decoding, *tensors: Tensor | None) -> Tensor:
        """The loss; with the gradients, unless each row has a cotangent of its own."""
        wants = Wants(*ctx.needs_input_grad[1:])
        per_row = decoding.rule.reduction == "none"
        loss, gradients = decoding.computed(Wants() if per_row else wants)
        ctx.gradients = None if per_row else gradients
        ctx.wants, ctx.how = wants, (decoding.rule, decoding.engine, decoding.named)
        ctx.save_for_backward(decoding.targets, *tensors)
        return loss

    @staticmethod
    def backward(ctx: Any, d_loss: Tensor) -> Any:  # type: ignore[override]
        """The forward's gradients, scaled; through torch ops if they may be differentiated."""
        targets, x, weight, bias = ctx.saved_tensors

        def decoding(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Decoding:
            return Decoding(x, weight, bias, targets, *ctx.how)

        late = late_cotangents((d_loss,))
        if late or torch.is_grad_enabled():
            tensors = (x, weight) if bias is None else (x, weight, bias)
            gradients_of_leaves = through_torch_ops(
                lambda *leaves: (decoding(*leaves).plain().to(d_loss.dtype),),
                tensors,
                (d_loss,),
                late,
            )
            return (None, *gradients_of_leaves, *([None] if bias is None else []))
        if ctx.gradients is None:
            return (None, *decoding(x, weight, bias).computed(ctx.wants, d_loss)[1])
        gradients = ctx.gradients
        if backward_keeps_graph():
            return (None, *scaled(gradients, d_loss))
        ctx.gradients = None  # nobody else has them: they may become the leaves' own
        if d_loss.device.type == "cpu" and d_loss.item() == 1:  # looking costs nothing there
            return (None, *gradients)
        return (None, *(None if value is None else value.mul_(d_loss) for value in gradients))


def scaled(gradients: Gradients, by: Tensor) -> Gradients:
    """Gradients times a scalar, in their own types."""
    d_x, d_weight, d_bias = (None if v is None else v * by.to(v.dtype) for v in gradients)
    return d_x, d_weight, d_bias


def decoding_of(
    x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, rule: Rule, engine_name: str
) -> Decoding:
    """A call on the engine that is asked for, or on the best there is (``auto``).

    Args:
        x [N, H], weight [V, H], bias [V]: of one type.
        targets [N]: int64.

    Raises:
        EngineError: that engine has a kernel for it, but not for this type or device.
    """
    kind = x.device.type
    if engine_name == "auto":
        return Decoding(x, weight, bias, targets, rule, registry.cross_entropy(kind))
    engine = registry.find(engine_name)
    run = engine.cross_entropy()
    lacks = engine.lacks(kind, str(x.dtype).removeprefix("torch.")) if run is not None else None
    if lacks is not None:
        raise EngineError(f"engine {engine_name!r} cannot run LinearCrossEntropyLoss: {lacks}")
    return Decoding(x, weight, bias, targets, rule, run, True)


def check_targets(targets: Tensor, vocabulary: int, ignored: int) -> None:
    """Raise InputError for a target that is not a class.

    Only on a CPU: elsewhere, looking would wait for the device, and torch's operations stop there
    by themselves.
    """
    if targets.device.type != "cpu":
        return
    wrong = ((targets < 0) | (targets >= vocabulary)) & (targets != ignored)
    if bool(wrong.any()):
        place = wrong.nonzero()[0].tolist()
        value = int(targets[tuple(place)])
        raise InputError(
            f"target{place or ''} is {value}, not one of 0 … {vocabulary - 1}",
            f"LinearCrossEntropyLoss(…, ignore_index={value}) leaves such out",
        )

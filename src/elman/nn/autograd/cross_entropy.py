"""Decoder and loss under autograd and torch.compile; the forward computes the gradients, while it
has the logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F  # noqa: N812  # torch's own habit

from elman.engines import registry
from elman.engines.cross_entropy import CrossEntropy, Found, Rows, Wants, accumulated, in_torch
from elman.engines.precision import IEEE
from elman.errors import BuildError, DisagreementError, EngineError, InputError, warn_once
from elman.nn.autograd.function import through_torch_ops
from elman.nn.autograd.transforms import late_cotangents
from elman.nn.engine_choice import fixed_engine
from elman.torch_internals import backward_keeps_graph

Reduction = Literal["mean", "sum", "none"]
Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


@dataclass(frozen=True)
class Rule:
    """Reduction of the losses of rows, with the arguments of torch's cross entropy; ``precision``
    of products."""

    ignore_index: int = -100
    label_smoothing: float = 0.0
    reduction: Reduction = "mean"
    precision: str = IEEE


@dataclass(frozen=True, eq=False)
class Decoding:
    """One call of a decoder: its tensors, its rule and its engine.

    Attributes:
        x [N, H], weight [V, H], bias [V] or None: of one type, on one device.
        targets [N]: int64; classes, or ``rule.ignore_index``.
        engine: the engine's function, for types and devices that it supports; None: torch ops.
        named: whether the caller named the engine, so that torch ops may not replace it.
    """

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    targets: Tensor
    rule: Rule
    engine: CrossEntropy | None = None
    named: bool = False

    def plain(self) -> Tensor:
        """Compute the loss by torch's two operations, with all logits in memory."""
        return plain_loss(F.linear(self.x, self.weight, self.bias), self.targets, self.rule)

    def compute(self, wants: Wants, cotangents: Tensor | None = None) -> tuple[Tensor, Gradients]:
        """Compute loss and gradients without autograd; ignored rows are left out.

        Args:
            wants: which gradients.
            cotangents [N]: of the losses; None: those of a mean or a sum.
        """
        x, targets, reduction = self.x, self.targets, self.rule.reduction
        is_valid = targets != self.rule.ignore_index
        indices = None if bool(is_valid.all()) else is_valid.nonzero().squeeze(1)
        if indices is not None:
            x, targets = x[indices], targets[indices]
            cotangents = None if cotangents is None else cotangents[indices]
        wide, count = accumulated(x.dtype), len(targets)
        if cotangents is None:
            share = 1 / max(count, 1) if reduction == "mean" else 1.0
            cotangents = x.new_full((count,), share, dtype=wide)
        losses, d_x, d_weight, d_bias = self._run_engine(x, targets, cotangents.to(wide), wants)
        if reduction != "none":
            losses = losses.sum() if reduction == "sum" else losses.mean()
        elif indices is not None:
            losses = losses.new_zeros(len(self.x)).index_copy_(0, indices, losses)
        if indices is not None and d_x is not None:
            d_x = torch.zeros_like(self.x).index_copy_(0, indices, d_x)
        return losses, (d_x, d_weight, d_bias)

    def _run_engine(self, x: Tensor, targets: Tensor, scale: Tensor, wants: Wants) -> Found:
        """Run the engine, or torch ops if there is none or an engine chosen by ``auto`` fails."""
        smoothing, precision = self.rule.label_smoothing, self.rule.precision
        rows = Rows(x, self.weight, self.bias, targets, smoothing, precision)
        if self.engine is not None and len(x):
            try:
                result = self.engine(rows, scale, wants)
                if result is not None:
                    return result
            except (BuildError, DisagreementError) as error:
                if self.named:
                    raise
                warn_once(f"elman.LinearCrossEntropyLoss runs in torch's operations: {error}")
        return in_torch(rows, scale, wants)


def plain_loss(logits: Tensor, targets: Tensor, rule: Rule, weight: Tensor | None = None) -> Tensor:
    """Compute torch's cross entropy, in the dtype of its sums.

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


class DecoderLoss(Function):
    """``apply(decoding, x, weight, bias)`` → the loss, in the dtype of its sums."""

    @staticmethod
    def forward(ctx: Any, decoding: Decoding, *tensors: Tensor | None) -> Tensor:
        """Compute the loss, and the gradients unless each row has its own cotangent."""
        wants = Wants(*ctx.needs_input_grad[1:])
        per_row = decoding.rule.reduction == "none"
        loss, gradients = decoding.compute(Wants() if per_row else wants)
        ctx.gradients = None if per_row else gradients
        ctx.wants, ctx.how = wants, (decoding.rule, decoding.engine, decoding.named)
        ctx.save_for_backward(decoding.targets, *tensors)
        return loss

    @staticmethod
    def backward(ctx: Any, d_loss: Tensor) -> Any:  # type: ignore[override]
        """Scale the forward's gradients; use torch ops if they may be differentiated."""
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
            return (None, *decoding(x, weight, bias).compute(ctx.wants, d_loss)[1])
        gradients = ctx.gradients
        if backward_keeps_graph():
            return (None, *scale_gradients(gradients, d_loss))
        ctx.gradients = None  # no other reference: they may be scaled in place
        if d_loss.device.type == "cpu" and d_loss.item() == 1:  # a GPU would have to synchronise
            return (None, *gradients)
        return (None, *(None if value is None else value.mul_(d_loss) for value in gradients))


def scale_gradients(gradients: Gradients, by: Tensor) -> Gradients:
    """Multiply gradients by a scalar; each keeps its dtype."""
    d_x, d_weight, d_bias = (None if v is None else v * by.to(v.dtype) for v in gradients)
    return d_x, d_weight, d_bias


def decoding_of(
    x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, rule: Rule, engine_name: str
) -> Decoding:
    """Build the call for an engine by name, or for the best one (``auto``).

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

    Only on a CPU: elsewhere the check would wait for the device, and torch's own operations stop at
    such a target.
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


# x [N, H], weight [V, H], bias [V] of one type; targets [...], N of them, int64; which gradients of
# x, weight and bias are wanted; the rule; an engine's name, or ``auto``
_SCHEMA = (
    "Tensor x, Tensor weight, Tensor? bias, Tensor targets, bool[] wants, "
    "int ignore_index, float label_smoothing, str reduction, str precision, str engine"
)


def trace_loss(
    x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, rule: Rule
) -> Tensor:
    """Compute the loss as the compiler traces it; for arguments see :func:`decoding_of`, but
    targets are [...]."""
    grad = torch.is_grad_enabled()
    wants = [grad and v is not None and v.requires_grad for v in (x, weight, bias)]
    settings = (
        rule.ignore_index,
        float(rule.label_smoothing),
        rule.reduction,
        rule.precision,
        fixed_engine("auto"),
    )
    return torch.ops.elman.linear_cross_entropy(x, weight, bias, targets, wants, *settings)[0]


def _decoding(arguments: Sequence[Any]) -> Decoding:
    x, weight, bias, targets, _, *rule, engine = arguments
    return decoding_of(x, weight, bias, targets.reshape(-1), Rule(*rule), engine)


def _early(arguments: Sequence[Any]) -> Sequence[bool]:
    """Gradients that the forward computes: of x, weight and bias."""
    return (False, False, False) if arguments[7] == "none" else arguments[4]


def _alike(arguments: Sequence[Any], wants: Sequence[bool]) -> list[Tensor]:
    return [value.new_empty(value.shape) for value, is_wanted in zip(arguments, wants) if is_wanted]


@torch.library.custom_op(
    "elman::linear_cross_entropy", mutates_args=(), schema=f"({_SCHEMA}) -> Tensor[]"
)
def linear_cross_entropy(*arguments: Any) -> list[Tensor]:
    """Compute the loss and the wanted gradients of x, weight and bias."""
    _, weight, _, targets, _, ignored, *_ = arguments
    check_targets(targets, len(weight), ignored)
    loss, gradients = _decoding(arguments).compute(Wants(*_early(arguments)))
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
    schema=f"(Tensor cotangents, {_SCHEMA}) -> Tensor[]",
)
def linear_cross_entropy_backward(cotangents: Tensor, *arguments: Any) -> list[Tensor]:
    """Compute the wanted gradients of losses [N] with cotangents [N]."""
    gradients = _decoding(arguments).compute(Wants(*arguments[4]), cotangents)[1]
    return [value for value in gradients if value is not None]


@linear_cross_entropy_backward.register_fake
def _(cotangents: Tensor, *arguments: Any) -> list[Tensor]:
    return _alike(arguments, arguments[4])


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    *tensors, ctx.wants, ignored, smoothing, ctx.reduction, precision, engine = inputs
    ctx.how = ctx.wants, ignored, smoothing, ctx.reduction, precision, engine
    ctx.save_for_backward(*(tensors if ctx.reduction == "none" else output[1:]))


def _backward(ctx: Any, cotangents: Sequence[Tensor | None]) -> Any:
    d_loss, tensors = cotangents[0], ctx.saved_tensors
    if ctx.reduction == "none":
        tensors = torch.ops.elman.linear_cross_entropy_backward(d_loss, *tensors, *ctx.how)
    results = iter(tensors)
    gradients: Any = [next(results) if is_wanted else None for is_wanted in ctx.wants]
    if ctx.reduction != "none" and d_loss is not None:
        gradients = scale_gradients(gradients, d_loss)
    return *gradients, *(None for _ in range(7))


linear_cross_entropy.register_autograd(_backward, setup_context=_setup_context)

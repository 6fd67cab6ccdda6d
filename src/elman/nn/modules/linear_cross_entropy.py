"""LinearCrossEntropyLoss: the decoder of a language model and its loss as one module."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # torch's own habit

from elman.checks import check_choice, check_flag, check_index, check_list, check_share, check_size
from elman.engines.cross_entropy import Wants, accumulated
from elman.engines.precision import BF16, IEEE
from elman.errors import InputError, ShapeError
from elman.nn.autograd.cross_entropy import (
    DecoderLoss,
    Reduction,
    Rule,
    check_targets,
    decoding_of,
    plain_loss,
    trace_loss,
)
from elman.nn.autograd.transforms import transform_reason, transforming, unshared
from elman.nn.engine_choice import autocast_type, exports_onnx, requested_engine
from elman.nn.layout.dense import as_tensor, check_dense, check_factory
from elman.nn.layout.layout import cast_to
from elman.plan.spec import USUAL
from elman.torch_internals import constant, fp32_precision, run_whole
from elman.tuning.precision import lacks_bf16

_IGNORED = -100  # torch's
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class LinearCrossEntropyLoss(nn.Module):
    """Linear decoder and cross entropy of a language model, without materialising all logits.

    It has the arguments, parameters and results of torch 2.13's ``LinearCrossEntropyLoss``, for
    inputs with any leading axes. For hidden states x and targets t it computes

        ``F.cross_entropy(F.linear(x, linear.weight, linear.bias), t, label_smoothing=…, …)``

    but never holds the logits [N, C] of all rows in memory. It computes them for some rows at a
    time and, if gradients are wanted, their gradients of x, weight and bias as well. Rows with an
    ignored target cost nothing. On the CPU, float32 and float64 run in one compiled kernel;
    everything else runs in torch's operators, chunk by chunk.

    The forward computes the gradient while it has the logits; with ``reduction="none"`` the
    backward recomputes them. Second derivatives, ``torch.func``, forward-mode derivatives, class
    weights, ``out_features`` and probabilities as targets use torch's computation with all logits.
    Under autocast on a CPU, or with ``torch.backends.mkldnn.matmul.fp32_precision = "bf16"``, a
    float32 decoder rounds both operands of each product to bfloat16 where the processor multiplies
    these; all else is float32, as is the loss in torch.
    Source of the idea, for GPUs: "Cut your losses in large-vocabulary language models" (Wijmans et
    al., arXiv 2411.09009v2); the formulas are in ``engines/cross_entropy.py``.

    Args:
        in_features: H, size of x.
        num_classes: C.
        out_features: sizes (d1, d2, …) of a loss of several dimensions: targets [..., d1, d2, …].
        bias: whether the decoder has a bias.
        tie: an ``nn.Embedding``, or its weight [C, H], which the decoder shares. torch has no such
            argument.
        device, dtype: of the parameters; those of ``tie`` if there is one.
        reduction: ``"mean"``, ``"sum"``, or ``"none"`` for the loss of every row.
        weight [C]: a factor for the loss of each class, a buffer; a mean is weighted by it.
        ignore_index: target of rows without loss, which a mean leaves out. None: -100.
        label_smoothing: share of the target that is spread evenly over all classes, in [0, 1].
        options: None. torch's options set the chunks of rows, which elman chooses itself.

    The decoder is the child ``linear``, an ``nn.Linear``: parameters ``linear.weight`` [C, H] and
    ``linear.bias`` [C]; with ``out_features`` C · d1 · d2 · … in place of C.

    Raises:
        InputError, ShapeError: a size or an option is invalid.

    Example::

        decoder = elman.LinearCrossEntropyLoss(200, 10_000, tie=embedding)
        loss = decoder(states, words)  # states [T, B, 200], words [T, B]
        loss.backward()

    Example:
        >>> decoder = elman.LinearCrossEntropyLoss(16, 100)
        >>> loss = decoder(torch.randn(5, 2, 16), torch.randint(100, (5, 2)))
        >>> loss.backward()
    """

    weight: Tensor | None

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        out_features: Sequence[int] = (),
        bias: bool = False,
        tie: nn.Embedding | Tensor | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
        reduction: Reduction = "mean",
        weight: Tensor | None = None,
        ignore_index: int | None = None,
        label_smoothing: float = 0.0,
        options: None = None,
    ) -> None:
        super().__init__()
        check_size("in_features", in_features)
        self.num_classes = check_size("num_classes", num_classes)
        check_list("out_features", out_features, "out_features=(4, 3)")
        self.out_features = tuple([check_size("out_features", size) for size in out_features])
        self.reduction: Reduction = check_choice("reduction", reduction, get_args(Reduction))  # type: ignore[assignment]
        self.ignore_index = ignore_index
        if ignore_index is not None:
            self.ignore_index = check_index("ignore_index", ignore_index)
        self.label_smoothing = check_share("label_smoothing", label_smoothing)
        if options is not None:
            raise InputError("options of chunks are torch's own", "leave them out: elman chooses")
        if weight is not None:
            _check_tensor("weight", weight)
            if weight.shape != (num_classes,):
                subject = f"weight is one number per class, [{num_classes}]"
                raise ShapeError(f"{subject}, got {[*weight.shape]}")
        self.register_buffer("weight", weight)
        bias = check_flag("bias", bias)
        check_factory(device, dtype)
        self.tied = tie is not None
        outputs = math.prod(self.out_features, start=num_classes)
        check_size("num_classes and out_features", outputs)
        if tie is None:
            self.linear = nn.Linear(in_features, outputs, bias, device=device, dtype=dtype)
            return
        self.linear = nn.Linear(in_features, outputs, bias=False, device="meta")
        self.linear.weight = _tied_weight(tie, (outputs, in_features), device, dtype)
        if bias:
            bound = 1 / math.sqrt(in_features)
            values = self.linear.weight.detach().new_empty(outputs).uniform_(-bound, bound)
            self.linear.bias = nn.Parameter(values)

    def logits(self, x: Tensor) -> Tensor:
        """Compute ``linear(x)``, of which the loss is the cross entropy.

        Args:
            x [..., H]: hidden states.

        Returns:
            [..., C]; [..., C · d1 · d2 · …] with ``out_features``.

        Raises:
            ShapeError, InputError: x does not fit the decoder.
        """
        self._check_states(x)
        return F.linear(x, self.linear.weight, self.linear.bias)

    @run_whole
    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Compute the loss of all rows.

        Args:
            input [..., H]: hidden states x.
            target [..., d1, d2, …]: classes from 0 to C - 1, or ``ignore_index``, as integers; or
                their probabilities [..., C, d1, d2, …], of x's type.

        Returns:
            A scalar; with ``reduction="none"`` [..., d1, d2, …], 0 where the target is ignored.

        Raises:
            ShapeError: x and target do not fit each other, or the decoder.
            InputError: types or devices do not fit; on a CPU, a target is not a class.
        """
        self._check(input, target)
        weight, bias = self.linear.weight, self.linear.bias
        rows, kind = input.reshape(-1, self.linear.in_features), weight.device.type
        half = autocast_type(kind)
        if half is not None:
            rows, weight, bias = cast_to(
                (rows, weight, bias), weight.dtype if kind == "cpu" else half
            )
        with torch.autocast(kind, enabled=False) if half is not None else nullcontext():
            loss = self._loss(rows, weight, bias, target, half is torch.bfloat16)
        loss = loss.to(accumulated(rows.dtype) if half is not None else rows.dtype)
        if self.reduction != "none":
            return loss
        return loss.reshape((*input.shape[:-1], *self.out_features))

    def _loss(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, casts: bool
    ) -> Tensor:
        """The loss of rows x [N, H], of one type with weight and bias; ``casts``: whether autocast
        asks for bfloat16."""
        ignored = _IGNORED if self.ignore_index is None else self.ignore_index
        rounds = x.device.type == "cpu" and _rounds_products(x.dtype, casts)
        precision = BF16 if rounds else IEEE
        rule = Rule(ignored, self.label_smoothing, self.reduction, precision)
        classes = not targets.is_floating_point()
        targets = targets.long() if classes else targets
        tensors = (x, weight) if bias is None else (x, weight, bias)
        simple = classes and self.weight is None and not self.out_features
        if simple and torch.compiler.is_compiling() and not (exports_onnx() or transforming()):
            return trace_loss(x, weight, bias, targets, rule)
        if not simple or exports_onnx() or transform_reason((*tensors, targets)) is not None:
            x, weight, targets = unshared((x, weight, targets))
            logits = F.linear(x, weight, bias).unflatten(-1, (self.num_classes, *self.out_features))
            shape = (len(x), *self.out_features) if classes else logits.shape
            return plain_loss(logits, targets.reshape(shape), rule, self.weight)
        check_targets(targets, self.num_classes, ignored)
        decoding = decoding_of(x, weight, bias, targets.reshape(-1), rule, requested_engine("auto"))
        if torch.is_grad_enabled() and any(value.requires_grad for value in tensors):
            return DecoderLoss.apply(decoding, x, weight, bias)
        return decoding.compute(Wants())[0]

    def _check(self, x: Any, targets: Any) -> None:
        """Raise ShapeError or InputError for arguments that do not fit."""
        self._check_states(x)
        _check_tensor("target", targets)
        probable, shape = targets.is_floating_point(), [*x.shape[:-1], *self.out_features]
        if probable:
            shape.insert(x.dim() - 1, self.num_classes)
        elif targets.dtype not in _INTEGERS:
            raise InputError(f"target must be integers or probabilities, got {targets.dtype}")
        if [*targets.shape] != shape:
            raise ShapeError(
                f"target of LinearCrossEntropyLoss, {'probabilities' if probable else 'classes'}, "
                f"is {shape} for input {[*x.shape]}, got {[*targets.shape]}"
            )
        if probable and self.ignore_index is not None:
            raise InputError("ignore_index is a class, target are probabilities of classes")
        if targets.device != x.device:
            raise InputError(f"target is on {targets.device}, the decoder on {x.device}")

    def _check_states(self, x: Any) -> None:
        """Raise ShapeError or InputError for hidden states that do not fit the decoder."""
        _check_tensor("input", x)
        size, like = self.linear.in_features, self.linear.weight
        if x.dim() == 0 or x.shape[-1] != size:
            raise ShapeError(f"input of LinearCrossEntropyLoss is [..., {size}], got {[*x.shape]}")
        if x.device != like.device:
            raise InputError(f"input is on {x.device}, the decoder on {like.device}")
        if x.dtype != like.dtype and autocast_type(x.device.type) is None:
            message = f"input is {x.dtype}, the decoder {like.dtype}"
            raise InputError(message, f"decoder(x.to({like.dtype}), targets)")

    def extra_repr(self) -> str:
        """Sizes, and options that are not the defaults."""
        defaults = {"out_features": (), "tied": False, "reduction": "mean", "ignore_index": None}
        fields = [f"{self.linear.in_features}, {self.num_classes}"]
        for name, default in (defaults | {"label_smoothing": 0.0}).items():
            value = getattr(self, name)
            fields += [f"{name}={value!r}"] if value != default else []
        return ", ".join(fields)


@constant
def _rounds_products(dtype: torch.dtype, casts: bool) -> bool:
    """True if products on a CPU round their operands: autocast, or torch's switch for products,
    requests it, and the engine supports it."""
    wanted = casts or fp32_precision("mkldnn", "matmul") == BF16
    return wanted and lacks_bf16(USUAL, dtype, "cpu", requested_engine("auto")) is None


def _check_tensor(name: str, value: Any) -> None:
    """Raise InputError for an argument of a call that is not a dense tensor."""
    if not isinstance(value, Tensor):
        message = f"{name} of LinearCrossEntropyLoss is a tensor, got {type(value).__name__}"
        raise InputError(message, as_tensor(value, name))
    check_dense(value, name, "LinearCrossEntropyLoss")


def _tied_weight(
    tie: Any, shape: tuple[int, int], device: Any, dtype: torch.dtype | None
) -> nn.Parameter:
    """The weight of an embedding.

    Raises:
        InputError, ShapeError: it is not an embedding, or has another shape, type or device.
    """
    weight = tie.weight if isinstance(tie, nn.Embedding) else tie
    if not isinstance(weight, nn.Parameter):
        raise InputError(f"tie must be an nn.Embedding or its weight, got {type(tie).__name__}")
    if weight.shape != shape:
        raise ShapeError(f"tie must be [C, H] = {[*shape]}, got {[*weight.shape]}")
    if dtype not in (None, weight.dtype):
        raise InputError(f"dtype is {dtype}, but that of the tied weight is {weight.dtype}")
    if device is not None and torch.empty(0, device=device).device != weight.device:
        raise InputError(f"device is {device}, but the tied weight is on {weight.device}")
    return weight

"""LinearCrossEntropy: the decoder of a language model and its loss as one module."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # torch's own habit

from elman.checks import check_choice, check_flag, check_index, check_share, check_size
from elman.engines.cross_entropy import Wants, accumulated
from elman.errors import InputError, ShapeError, diagnostic
from elman.nn.autograd.cross_entropy import (
    Decoded,
    Decoding,
    Reduction,
    Rule,
    check_targets,
    decoding_of,
)
from elman.nn.autograd.transforms import transformed
from elman.nn.call.dense import as_tensor, check_dense, check_factory
from elman.nn.compile.cross_entropy import run_compiled
from elman.nn.compile.names import transforming
from elman.nn.engine_choice import autocast_type, exports_onnx, wanted

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class LinearCrossEntropy(nn.Module):
    """Cross entropy of a linear decoder, without its logits: the loss of a language model's words.

    For hidden states x and targets t the same as

        ``F.cross_entropy(F.linear(x, weight, bias), t, label_smoothing=…, ignore_index=…)``

    but the logits [N, V] of all rows never stand in memory: they are made for some rows at a time,
    and with them, where gradients are wanted, those of x, weight and bias. Rows whose target is
    ignored cost nothing, whatever is in them. On the CPU, float32 and float64 run in one compiled
    kernel; everything else in torch's operations, chunk by chunk.

    The gradient is made in the forward, while logits are at hand; with ``reduction="none"`` in the
    backward, from logits made again. Gradients of gradients, ``torch.func`` and forward-mode
    derivatives are computed as torch does, with all logits. Under autocast on a CPU it computes in
    its weights' type; the loss is autocast's, float32. A loss without the logits of all rows is the
    idea of "Cut your losses in large-vocabulary language models" (Wijmans et al., arXiv
    2411.09009v2), there for GPUs; the formulas stand in ``engines/cross_entropy.py``.

    Args:
        hidden: H, size of x.
        vocabulary: V, number of classes.
        bias: whether there is one.
        tie: an ``nn.Embedding``, or its weight [V, H], to be the decoder's weight too.
        ignore_index: rows with this target have no loss; a mean is over the others.
        label_smoothing: share of the target that is spread evenly over all classes, in [0, 1].
        reduction: ``"mean"``, ``"sum"``, or ``"none"``: the loss of every row.
        device, dtype: of the parameters; those of ``tie`` if there is one.

    Parameters are called as those of ``nn.Linear``: ``weight`` [V, H] and ``bias`` [V].

    Raises:
        InputError, ShapeError: a size or an option that is none.

    Example::

        decoder = elman.LinearCrossEntropy(200, 10_000, tie=embedding)
        loss = decoder(states, words)  # states [T, B, 200], words [T, B]
        loss.backward()

    Example:
        >>> decoder = elman.LinearCrossEntropy(16, 100)
        >>> loss = decoder(torch.randn(5, 2, 16), torch.randint(100, (5, 2)))
        >>> loss.backward()
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        hidden: int,
        vocabulary: int,
        bias: bool = True,
        tie: nn.Embedding | Tensor | None = None,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        reduction: Reduction = "mean",
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.hidden = check_size("hidden", hidden)
        self.vocabulary = check_size("vocabulary", vocabulary)
        self.ignore_index = check_index("ignore_index", ignore_index)
        self.label_smoothing = check_share("label_smoothing", label_smoothing)
        check_choice("reduction", reduction, get_args(Reduction))
        self.reduction: Reduction = reduction
        bias = check_flag("bias", bias)
        check_factory(device, dtype)
        self.tied = tie is not None
        if tie is None:
            self.weight = nn.Parameter(torch.empty(vocabulary, hidden, device=device, dtype=dtype))
        else:
            self.weight = _tied(tie, (vocabulary, hidden), device, dtype)
        made = nn.Parameter(self.weight.detach().new_empty(vocabulary)) if bias else None
        self.register_parameter("bias", made)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias as ``nn.Linear`` does; a tied weight is left as it is."""
        bound = 1 / math.sqrt(self.hidden)
        if not self.tied:
            nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def logits(self, x: Tensor) -> Tensor:
        """What the loss is of: ``x @ weight.T + bias``.

        Args:
            x [..., H]: hidden states.

        Returns:
            [..., V].

        Raises:
            ShapeError, InputError: x does not fit the decoder.
        """
        self._check_states(x)
        return F.linear(x, self.weight, self.bias)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        """The loss of some rows.

        Args:
            x [..., H]: hidden states.
            targets [...]: classes from 0 to V - 1, or ``ignore_index``; integers.

        Returns:
            A scalar; with ``reduction="none"`` [...], 0 where the target is ignored.

        Raises:
            ShapeError: x and targets do not fit each other, or the decoder.
            InputError: types or devices do not fit; on a CPU, a target is not a class.
        """
        self._check(x, targets)
        weight: Tensor = self.weight
        bias: Tensor | None = self.bias
        rows, kind = x.reshape(-1, self.hidden), weight.device.type
        half = autocast_type(kind)
        if half is not None:
            inner = weight.dtype if kind == "cpu" else half
            rows, weight = _cast(rows, inner), _cast(weight, inner)
            bias = None if bias is None else _cast(bias, inner)
        with torch.autocast(kind, enabled=False) if half is not None else nullcontext():
            loss = self._loss(rows, weight, bias, targets)
        loss = loss.to(accumulated(rows.dtype) if half is not None else rows.dtype)
        return loss.reshape(targets.shape) if self.reduction == "none" else loss

    def _loss(self, x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
        """The loss of rows [N, H], of one type with weight and bias."""
        rule = Rule(self.ignore_index, self.label_smoothing, self.reduction)
        targets = targets.long()
        flat = targets.reshape(-1)
        tensors = (x, weight) if bias is None else (x, weight, bias)
        if exports_onnx():
            return Decoding(x, weight, bias, flat, rule).plain()
        if torch.compiler.is_compiling() and not transforming():
            return run_compiled(x, weight, bias, targets, rule)
        if transformed((*tensors, targets)) is not None:
            return Decoding(x, weight, bias, flat, rule).plain()
        check_targets(targets, self.vocabulary, self.ignore_index)
        decoding = decoding_of(x, weight, bias, flat, rule, wanted("auto"))
        if torch.is_grad_enabled() and any(value.requires_grad for value in tensors):
            return Decoded.apply(decoding, x, weight, bias)
        return decoding.computed(Wants())[0]

    def _check(self, x: Any, targets: Any) -> None:
        """Raise ShapeError or InputError for arguments that do not fit."""
        self._check_states(x)
        _check_tensor("targets", targets)
        if targets.shape != x.shape[:-1]:
            raise ShapeError(
                f"targets of LinearCrossEntropy are {[*x.shape[:-1]]} for x {[*x.shape]}, "
                f"got {[*targets.shape]}"
            )
        if targets.dtype not in _INTEGERS:
            hint = "F.cross_entropy(decoder.logits(x), targets) takes probabilities of classes"
            raise InputError(diagnostic(f"targets must be integers, got {targets.dtype}", [], hint))
        if targets.device != self.weight.device:
            raise InputError(
                f"targets are on {targets.device}, the decoder on {self.weight.device}"
            )

    def _check_states(self, x: Any) -> None:
        """Raise ShapeError or InputError for hidden states that do not fit the decoder."""
        _check_tensor("x", x)
        if x.dim() == 0 or x.shape[-1] != self.hidden:
            raise ShapeError(f"x of LinearCrossEntropy is [..., {self.hidden}], got {[*x.shape]}")
        if x.device != self.weight.device:
            raise InputError(f"x is on {x.device}, the decoder on {self.weight.device}")
        if x.dtype != self.weight.dtype and autocast_type(x.device.type) is None:
            hint = f"decoder(x.to({self.weight.dtype}), targets)"
            message = f"x is {x.dtype}, the decoder {self.weight.dtype}"
            raise InputError(diagnostic(message, [], hint))

    def extra_repr(self) -> str:
        """Sizes and options that are not the usual ones."""
        parts = [f"{self.hidden}, {self.vocabulary}"]
        parts += ["bias=False"] if self.bias is None else []
        parts += ["tied"] if self.tied else []
        usual = Rule()
        for name in ("ignore_index", "label_smoothing", "reduction"):
            value = getattr(self, name)
            parts += [f"{name}={value!r}"] if value != getattr(usual, name) else []
        return ", ".join(parts)


def _check_tensor(name: str, value: Any) -> None:
    """Raise InputError for an argument of a call that is no dense tensor."""
    if not isinstance(value, Tensor):
        message = f"{name} of LinearCrossEntropy is a tensor, got {type(value).__name__}"
        raise InputError(diagnostic(message, [], as_tensor(value, name)))
    check_dense(value, name, "LinearCrossEntropy")


def _tied(tie: Any, shape: tuple[int, int], device: Any, dtype: torch.dtype | None) -> nn.Parameter:
    """The weight of an embedding.

    Raises:
        InputError, ShapeError: it is none, or not of this shape, type and device.
    """
    weight = tie.weight if isinstance(tie, nn.Embedding) else tie
    if not isinstance(weight, nn.Parameter):
        raise InputError(f"tie must be an nn.Embedding or its weight, got {type(tie).__name__}")
    if weight.shape != shape:
        raise ShapeError(f"tie must be [V, H] = {[*shape]}, got {[*weight.shape]}")
    if dtype not in (None, weight.dtype):
        raise InputError(f"dtype is {dtype}, but that of the tied weight is {weight.dtype}")
    if device is not None and torch.empty(0, device=device).device != weight.device:
        raise InputError(f"device is {device}, but the tied weight is on {weight.device}")
    return weight


def _cast(value: Tensor, dtype: torch.dtype) -> Tensor:
    """As autocast casts: float64 is left alone."""
    return value if value.dtype == torch.float64 else value.to(dtype)

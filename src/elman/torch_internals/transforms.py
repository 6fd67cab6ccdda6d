"""Transforms of torch.func, and forward-mode differentiation."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false
# (what is private has no types)

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor
from torch.autograd import Function, forward_ad

from elman.torch_internals.lookup import import_optional, private, unavailable

__all__ = [
    "differentiated_in_vmap",
    "forward_gradients",
    "forward_mode",
    "innermost_transform",
    "is_batched_cotangent",
    "is_functional",
    "is_wrapped",
]


class _Probe(Function):
    """Torch refuses it inside torch.func, as it has no ``setup_context``."""

    @staticmethod
    def forward(ctx: Any) -> None:
        """Nothing."""


def _innermost() -> bool | None:
    try:
        _Probe.apply()
    except RuntimeError:
        return True
    return None


innermost_transform: Callable[[], Any] = private(
    "torch._C._functorch", "peek_interpreter_stack", _innermost
)
"""The innermost transform of torch.func that surrounds a call; None where there is none.

Without it: True, or None, as an autograd function tells that no transform takes.
"""

import_optional("torch._functorch.pyfunctorch")
_transforms: Callable[[], list[Any]] | None = private(
    "torch._functorch.pyfunctorch", "retrieve_all_functorch_interpreters", None
)
_has_gradient: Callable[[Tensor], bool] | None = private(
    "torch._C._functorch", "is_gradtrackingtensor", None
)
_level: Callable[[Tensor], int] | None = private("torch._C._functorch", "maybe_get_level", None)


def differentiated_in_vmap(tensors: Iterable[Tensor]) -> bool:
    """Whether torch.func differentiates by one of some tensors inside of a vmap.

    Without its names: False; only the speed of gradients by sample depends on it.
    """
    if innermost_transform() is None:
        return False
    if _transforms is None or _has_gradient is None or _level is None:
        return False
    levels = [stage.level() for stage in _transforms() if stage.key().name == "Vmap"]
    return bool(levels) and any(_has_gradient(t) and _level(t) > levels[0] for t in tensors)


def _any_batched(value: Tensor) -> bool:
    return True


is_batched_cotangent: Callable[[Tensor], bool] = private(
    "torch._C._functorch", "is_legacy_batchedtensor", _any_batched
)
"""Whether a cotangent is of autograd's own batching (``is_grads_batched``).

Without it: always, so that backwards run on torch's operations.
"""


def _enter_level() -> bool:
    try:
        level = forward_ad.enter_dual_level()
    except RuntimeError:
        return True
    forward_ad.exit_dual_level(level=level)
    return False


def _level_open() -> bool:
    return forward_ad._current_level >= 0


_has_level = private("torch.autograd.forward_ad", "_current_level", None) is not None
forward_mode: Callable[[], bool] = _level_open if _has_level else _enter_level
"""Whether a call is inside a level of forward-mode differentiation (``dual_level``).

Without ``_current_level``: by entering one, as torch refuses to nest them.
"""

_forward_gradients: Callable[[bool], AbstractContextManager[None]] | None = private(
    "torch.autograd.forward_ad", "_set_fwd_grad_enabled", None
)


def forward_gradients() -> AbstractContextManager[None]:
    """A context in which outer levels of forward mode see what is computed: torch turns them off in
    the ``jvp`` of an autograd function. Raises EngineError: this torch has no such switch."""
    if _forward_gradients is None:
        raise unavailable("forward-mode differentiation of a gradient", "_set_fwd_grad_enabled")
    return _forward_gradients(True)


def _never(_: Tensor) -> bool:
    return False


is_functional: Callable[[Tensor], bool] = private("torch", "_is_functional_tensor", _never)
"""Whether a tensor is one that torch.func.functionalize has wrapped. Without it: never."""

is_wrapped: Callable[[Tensor], bool] = private(
    "torch._C._functorch", "is_functorch_wrapped_tensor", _never
)
"""Whether a tensor stands for one inside of a transform of torch.func. Without it: never."""

"""Backwards: of torch's graph, and of functions that state their own."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false
# (what is private has no types)

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from elman.torch_internals.lookup import private
from elman.torch_internals.modes import count_dispatch_modes

__all__ = [
    "OwnBackward",
    "backward_keeps_graph",
    "differentiate",
    "is_view",
    "own_backwards",
    "saved_tensors_are_hooked",
    "saved_tensors_may_change",
]


def _keeps_graph() -> bool:
    return True


backward_keeps_graph: Callable[[], bool] = private(
    "torch._C._autograd", "_get_current_graph_task_keep_graph", _keeps_graph
)
"""Whether a second backward may follow the one that is under way (``retain_graph``).

Without it: always, so that a backward writes over nothing that was saved.
"""

_top_hooks: Callable[[bool], Any] | None = private(
    "torch._C._autograd", "_top_saved_tensors_default_hooks", None
)


def saved_tensors_are_hooked() -> bool:
    """Whether hooks of the user's get the tensors that autograd saves (checkpointing, offloading).

    Without its name: True.
    """
    return _top_hooks is None or _top_hooks(False) is not None


_allows_mutation = (
    private("torch.autograd.graph", "_allow_mutation_on_saved_tensors_enabled", None) is not None
)


def saved_tensors_may_change() -> bool:
    """Whether ``torch.autograd.graph.allow_mutation_on_saved_tensors`` surrounds a call.

    Without its name: inside of any mode of class TorchDispatchMode and hooks of saved tensors.
    """
    if _allows_mutation:
        return torch.autograd.graph._allow_mutation_on_saved_tensors_enabled
    return count_dispatch_modes() > 0 and saved_tensors_are_hooked()


_run_backward: Callable[..., Any] | None = private(
    "torch.autograd.graph", "_engine_run_backward", None
)


def differentiate(
    roots: Sequence[Tensor], leaves: Sequence[Tensor], ds: Sequence[Tensor], create_graph: bool
) -> Sequence[Tensor | None]:
    """Call ``torch.autograd.grad`` without its checks.

    To compare the shapes of cotangents, that one imports a computer algebra system: 0.2 s of the
    first training step. Without the private name: torch.autograd.grad.
    """
    if _run_backward is None:
        return torch.autograd.grad(roots, leaves, ds, create_graph=create_graph, allow_unused=True)
    return _run_backward(
        tuple(roots), tuple(ds), create_graph, create_graph, tuple(leaves), True, False
    )


def _any_view(value: Tensor) -> bool:
    return True


is_view: Callable[[Tensor], bool] = private("torch.Tensor", "_is_view", _any_view)
"""Whether autograd takes a tensor for a view of another one.

Without it: always.
"""

_single_level: Any = private("torch.autograd.function", "_SingleLevelFunction", None)
_own_backward_users: list[Any] = []
_own_backward_lock = Lock()
OwnBackward = Callable[[Any, tuple[Any, ...], Callable[..., Any]], Any]


@contextmanager
def own_backwards(call: OwnBackward) -> Generator[None]:
    """Inside, calls of a torch.autograd.Function are ``call(function, args, original)``.

    Those of all threads come by, so that ``call`` decides by the context that it is called in.
    Without the private class, functions are called as they are, and their backward is not seen.
    """
    if _single_level is None:
        yield
        return
    own: ContextVar[Any] = _own_backward

    def apply(function: Any, *args: Any, **kwargs: Any) -> Any:
        original: Any = super(_single_level, function).apply
        current = own.get()
        if current is None or kwargs:
            return original(*args, **kwargs)
        return current(function, args, original)

    with _own_backward_lock:
        _own_backward_users.append(call)
        if len(_own_backward_users) == 1:
            _single_level.apply = classmethod(apply)
    token = own.set(call)
    try:
        yield
    finally:
        own.reset(token)
        with _own_backward_lock:
            _own_backward_users.remove(call)
            if not _own_backward_users:
                del _single_level.apply


_own_backward: ContextVar[Any] = ContextVar("elman_own_backward", default=None)

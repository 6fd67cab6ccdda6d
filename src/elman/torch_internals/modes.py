"""Modes, hooks and switches that change what torch's operations do."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false
# (what is private has no types)

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from elman.torch_internals.lookup import private

__all__ = [
    "TorchDispatchMode",
    "autocast_enabled",
    "count_dispatch_modes",
    "count_function_modes",
    "cpu_has_bf16",
    "fp32_precision",
    "has_global_hooks",
    "no_function_modes",
    "no_modes",
    "tracing_context",
    "tracing_state",
]


def _one_mode() -> int:
    return 1


count_dispatch_modes: Callable[[], int] = private(
    "torch._C", "_len_torch_dispatch_stack", _one_mode
)
"""How many modes of class TorchDispatchMode surround a call.

Without it: always one, so that layers run on torch's operations, which modes see.
"""


def _function_modes() -> int:
    return int(torch.overrides.has_torch_function((_plain,)))


_plain = torch.empty(0, device="cpu")
count_function_modes: Callable[[], int] = private(
    "torch._C", "_len_torch_function_stack", _function_modes
)
"""How many modes of class TorchFunctionMode surround a call.

Without it: one if there are any, as torch's overrides say of a plain tensor.
"""


def _no_context() -> None:
    return None


tracing_context: Callable[[], Any] = private("torch._guards.TracingContext", "try_get", _no_context)
"""What torch's compiler traces in this thread; None if it does not. Without it: None."""


def _tracing() -> bool | None:
    jit: Any = torch.jit  # torch does not list it
    return jit.is_tracing() or None


tracing_state: Callable[[], Any] = private("torch._C", "_get_tracing_state", _tracing)
"""What torch.jit.trace knows of the trace that is being made; None outside of it.

Without it: True, or None.
"""


def _no_hooks() -> bool:
    return False


has_global_hooks: Callable[[], Any] = private(
    "torch.nn.modules.module", "_has_any_global_hook", _no_hooks
)
"""Whether hooks of all modules are registered.

Without it: never, so that a layer that is recorded runs without them.
"""

_DEVICES = ("cpu", "cuda", "xpu", "mps", "hpu", "mtia", "xla", "ipu", "maia")


def _autocast() -> bool:
    return any(
        torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
        for kind in _DEVICES
    )


def _precision(backend: str, kind: str) -> str:
    return str(getattr(getattr(torch.backends, backend), kind).fp32_precision)


fp32_precision: Callable[[str, str], str] = private(
    "torch._C", "_get_fp32_precision_getter", _precision
)
"""``fp32_precision`` of a backend and a kind of operations, as ``torch.backends`` has it.

Without it: torch's property, which takes six times as long.
"""

autocast_enabled: Callable[[], bool] = private("torch._C", "_is_any_autocast_enabled", _autocast)
"""Whether autocast is on for any kind of device.

Without it: each kind is asked.
"""

cpu_has_bf16: Callable[[], bool] = private(
    "torch.ops.mkldnn", "_is_mkldnn_bf16_supported", lambda: True
)
"""True if oneDNN computes in bfloat16 on this processor. torch does not ask before it calls
oneDNN's LSTM under autocast, which raises where it does not.

Without it: assumed.
"""

TorchDispatchMode: Any = torch.utils._python_dispatch.TorchDispatchMode
no_function_modes: Callable[[], AbstractContextManager[Any]] = private(
    "torch._C", "DisableTorchFunction", nullcontext
)
"""A context in which no function mode sees torch's operations. Without it: modes see them."""

no_modes: Callable[[], AbstractContextManager[Any]] = private(
    "torch.utils._python_dispatch", "_disable_current_modes", nullcontext
)
"""A context in which no dispatch mode sees torch's operations. Without it: modes see them."""

"""torch.compile and torch.export, and Triton."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false
# (what is private has no types)

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from elman.torch_internals.lookup import LACKING, private, unavailable
from elman_command import once_imported

__all__ = [
    "AnyFunction",
    "DispatchKeys",
    "allow_compiling",
    "constant",
    "dispatch_keys",
    "dispatching",
    "forget_triton_function",
    "run_whole",
    "scan",
]


class DispatchKeys(NamedTuple):
    """Dispatch keys that a thread includes and excludes.

    Attributes:
        included, excluded: dispatch keys.
    """

    included: Any
    excluded: Any


_included: Callable[[], Any] | None = private("torch._C", "_dispatch_tls_local_include_set", None)
_excluded: Callable[[], Any] | None = private("torch._C", "_dispatch_tls_local_exclude_set", None)
_forced_keys: Callable[[Any, Any], AbstractContextManager[None]] | None = private(
    "torch._C", "_ForceDispatchKeyGuard", None
)
_COMPILED = "a recurrent layer inside torch.compile or torch.export"


def dispatch_keys() -> DispatchKeys:
    """The dispatch keys of this thread. Raises EngineError: this torch does not tell."""
    if _included is None or _excluded is None:
        raise unavailable(_COMPILED, "_dispatch_tls_local_include_set")
    return DispatchKeys(_included(), _excluded())


def dispatching(keys: DispatchKeys) -> AbstractContextManager[None]:
    """A context in which this thread's operations go through other dispatch keys. Raises
    EngineError: this torch has no such switch."""
    if _forced_keys is None:
        raise unavailable(_COMPILED, "_ForceDispatchKeyGuard")
    return _forced_keys(*keys)


def constant(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let torch's compiler call a function and take what it returns for a constant.

    What torch.compiler.assume_constant_result does, which would import the compiler now: a second.
    A compiler that does not know the mark looks into the function.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


_scan = private("torch.ops.higher_order", "scan", None)


def scan(
    step: Callable[..., list[Tensor]],
    starts: Sequence[Tensor],
    rows: Sequence[Tensor],
    constants: Sequence[Tensor],
) -> list[Tensor]:
    """Run a step over rows as one operation of what is traced. What is public
    (``torch._higher_order_ops.scan``) compiles the step first, ten times as long.

    Args:
        step: of carried values, a row of each input, and constants; returns the next carried values
            and an output, none of them an alias.
        starts: the first carried values.
        rows: [T, ...] each.
        constants: the same for each step.

    Returns:
        The last carried values, and the output [T, ...].

    Raises:
        EngineError: this torch has no such operation.
    """
    if _scan is None:
        raise unavailable("an exported model with such a layer", "torch.ops.higher_order.scan")
    return list(_scan(step, tuple(starts), tuple(rows), tuple(constants)))


# Torch's compiler refuses every nn.RNN, nn.GRU and nn.LSTM, subclasses too, unless its option
# ``allow_rnn`` is set (torch 2.13 has it still, and no other way in); with that it would unroll
# torch's own layers over time. So the option is set for a class of ours alone, while the compiler
# looks at a module of it; and only once the compiler has been imported.
_BUILDER = "torch._dynamo.variables.builder"
_RULES = "torch._dynamo.trace_rules"


@cache
def allow_compiling(kind: type) -> None:
    """Let torch's compiler look into modules of a class that is a subclass of torch's layers.

    Where the compiler has another form, nothing is done: it takes them, or breaks its graph there,
    and they run as without it.
    """
    once_imported(_BUILDER, lambda builder: _allow(builder, kind))


def _allow(builder: Any, kind: type) -> None:
    variables = getattr(builder, "VariableBuilder", None)
    wrap = getattr(variables, "wrap_module", None)
    config: Any = sys.modules.get("torch._dynamo.config")
    if wrap is None or not hasattr(config, "allow_rnn"):
        LACKING.append(f"{_BUILDER}.VariableBuilder.wrap_module")
        return

    def wrap_module(self: Any, value: Any) -> Any:
        if not isinstance(value, kind):
            return wrap(self, value)
        with config.patch(allow_rnn=True):
            return wrap(self, value)

    variables.wrap_module = wrap_module  # type: ignore[union-attr]


def _compile_within(rules: Any) -> None:
    """Have torch's compiler look into functions of elman's from what it compiles, and never begin
    with one. It would where it gave up on the function that calls a layer, for instance because a
    mode such as FlopCounterMode was on in an earlier call: with halves of an engine's functions,
    which pass addresses of tensors to C."""
    names = ("add", "SKIP_DIRS", "BUILTIN_INLINE_WHEN_CALLED")
    add, skipped, inlined = (getattr(rules, name, None) for name in names)
    if add is None or skipped is None or inlined is None:
        LACKING.append(f"{_RULES}.BUILTIN_INLINE_WHEN_CALLED")
        return
    add("elman")
    inlined.add(skipped[-1])


_set_strategy = private("torch._C._dynamo.eval_frame", "set_code_exec_strategy", None)
_strategy = private("torch._C._dynamo.eval_frame", "_FrameExecStrategy", None)
_action = private("torch._C._dynamo.eval_frame", "_FrameAction", None)
AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


def run_whole(function: AnyFunction) -> AnyFunction:
    """Have torch's compiler run a function, and all that it calls, as it is, unless it looks into
    the function from what it compiles: see :func:`_compile_within`, which does not hold for what is
    called outside of elman.

    Without its names: the compiler begins with what is called.
    """
    if None not in (_set_strategy, _strategy, _action):
        _set_strategy(function.__code__, _strategy(_action.SKIP, _action.SKIP))
    return function


once_imported(_RULES, _compile_within)


def forget_triton_function(name: str) -> None:
    """Have Triton let go of a function that it was handed under a name.

    Triton looks there only for functions that it preloads. Without its list: nothing is done.
    """
    from triton.runtime import jit

    getattr(jit, "_triton_jit_function_registry", {}).pop(name, None)

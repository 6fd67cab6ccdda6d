"""Undocumented parts of torch and Triton that elman uses, each with a fallback.

All of it is here and nowhere else. Names are looked up once, when elman is imported: where there is
one, it is bound as it is, so that calls go straight to torch's C. Where this torch lacks one, what
takes its place is public and slower, or more cautious, or an error that says so; ``LACKING`` lists
these names. ``tests/test_torch_internals.py`` tests each of both ways.

All names are in torch 2.13 and Triton 3.7.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false
# (what is private has no types)

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

from elman.errors import EngineError
from elman_command import once_imported

LACKING: list[str] = []  # private names that this torch, or this Triton, does not have


def _private(owner: str, name: str, instead: Any) -> Any:
    """A name of a module or a class of torch's; ``instead`` where there is none."""
    value: Any = torch
    for part in owner.split(".")[1:]:
        value = getattr(value, part, None)
    value = getattr(value, name, None)
    if value is not None:
        return value
    LACKING.append(f"{owner}.{name}")
    return instead


def _import_optional(module: str) -> None:
    """Import a module of torch's that may not be there."""
    if importlib.util.find_spec(module) is not None:
        importlib.import_module(module)


def _unavailable(feature: str, name: str) -> EngineError:
    return EngineError(f"{feature} needs {name}, which torch {torch.__version__} does not have")


# ---- modes that change what torch's operations do


def _one_mode() -> int:
    return 1


count_dispatch_modes: Callable[[], int] = _private(
    "torch._C", "_len_torch_dispatch_stack", _one_mode
)
"""How many modes of class TorchDispatchMode surround a call.

Without it: always one, so that layers run on torch's operations, which modes see.
"""


def _function_modes() -> int:
    return int(torch.overrides.has_torch_function((_plain,)))


_plain = torch.empty(0, device="cpu")
count_function_modes: Callable[[], int] = _private(
    "torch._C", "_len_torch_function_stack", _function_modes
)
"""How many modes of class TorchFunctionMode surround a call.

Without it: one if there are any, as torch's overrides say of a plain tensor.
"""


def _no_context() -> None:
    return None


tracing_context: Callable[[], Any] = _private(
    "torch._guards.TracingContext", "try_get", _no_context
)
"""What torch's compiler traces in this thread; None if it does not. Without it: None."""


def _tracing() -> bool | None:
    jit: Any = torch.jit  # torch does not list it
    return jit.is_tracing() or None


tracing_state: Callable[[], Any] = _private("torch._C", "_get_tracing_state", _tracing)
"""What torch.jit.trace knows of the trace that is being made; None outside of it.

Without it: True, or None.
"""


def _no_hooks() -> bool:
    return False


has_global_hooks: Callable[[], Any] = _private(
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


fp32_precision: Callable[[str, str], str] = _private(
    "torch._C", "_get_fp32_precision_getter", _precision
)
"""``fp32_precision`` of a backend and a kind of operations, as ``torch.backends`` has it.

Without it: torch's property, which takes six times as long.
"""


autocast_enabled: Callable[[], bool] = _private("torch._C", "_is_any_autocast_enabled", _autocast)
"""Whether autocast is on for any kind of device.

Without it: each kind is asked.
"""


cpu_has_bf16: Callable[[], bool] = _private(
    "torch.ops.mkldnn", "_is_mkldnn_bf16_supported", lambda: True
)
"""True if oneDNN computes in bfloat16 on this processor. torch does not ask before it calls
oneDNN's LSTM under autocast, which raises where it does not.

Without it: assumed.
"""


# ---- torch.func and forward-mode differentiation


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


innermost_transform: Callable[[], Any] = _private(
    "torch._C._functorch", "peek_interpreter_stack", _innermost
)
"""The innermost transform of torch.func that surrounds a call; None where there is none.

Without it: True, or None, as an autograd function tells that no transform takes.
"""


_import_optional("torch._functorch.pyfunctorch")
_transforms: Callable[[], list[Any]] | None = _private(
    "torch._functorch.pyfunctorch", "retrieve_all_functorch_interpreters", None
)
_has_gradient: Callable[[Tensor], bool] | None = _private(
    "torch._C._functorch", "is_gradtrackingtensor", None
)
_level: Callable[[Tensor], int] | None = _private("torch._C._functorch", "maybe_get_level", None)


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


is_batched_cotangent: Callable[[Tensor], bool] = _private(
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


_has_level = _private("torch.autograd.forward_ad", "_current_level", None) is not None
forward_mode: Callable[[], bool] = _level_open if _has_level else _enter_level
"""Whether a call is inside a level of forward-mode differentiation (``dual_level``).

Without ``_current_level``: by entering one, as torch refuses to nest them.
"""

_forward_gradients: Callable[[bool], AbstractContextManager[None]] | None = _private(
    "torch.autograd.forward_ad", "_set_fwd_grad_enabled", None
)


def forward_gradients() -> AbstractContextManager[None]:
    """A context in which outer levels of forward mode see what is computed: torch turns them off in
    the ``jvp`` of an autograd function. Raises EngineError: this torch has no such switch."""
    if _forward_gradients is None:
        raise _unavailable("forward-mode differentiation of a gradient", "_set_fwd_grad_enabled")
    return _forward_gradients(True)


# ---- autograd


def _keeps_graph() -> bool:
    return True


backward_keeps_graph: Callable[[], bool] = _private(
    "torch._C._autograd", "_get_current_graph_task_keep_graph", _keeps_graph
)
"""Whether a second backward may follow the one that is under way (``retain_graph``).

Without it: always, so that a backward writes over nothing that was saved.
"""

_top_hooks: Callable[[bool], Any] | None = _private(
    "torch._C._autograd", "_top_saved_tensors_default_hooks", None
)


def saved_tensors_are_hooked() -> bool:
    """Whether hooks of the user's get the tensors that autograd saves (checkpointing, offloading).

    Without its name: True.
    """
    return _top_hooks is None or _top_hooks(False) is not None


_allows_mutation = (
    _private("torch.autograd.graph", "_allow_mutation_on_saved_tensors_enabled", None) is not None
)


def saved_tensors_may_change() -> bool:
    """Whether ``torch.autograd.graph.allow_mutation_on_saved_tensors`` surrounds a call.

    Without its name: inside of any mode of class TorchDispatchMode and hooks of saved tensors.
    """
    if _allows_mutation:
        return torch.autograd.graph._allow_mutation_on_saved_tensors_enabled
    return count_dispatch_modes() > 0 and saved_tensors_are_hooked()


_run_backward: Callable[..., Any] | None = _private(
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


is_view: Callable[[Tensor], bool] = _private("torch.Tensor", "_is_view", _any_view)
"""Whether autograd takes a tensor for a view of another one.

Without it: always.
"""


# ---- memory

_count_users: Callable[[int], int] | None = _private("torch._C", "_storage_Use_Count", None)
_address: Any = _private("torch.UntypedStorage", "_cdata", None)
COUNTS_USERS = _count_users is not None and _address is not None
"""Whether :func:`count_users` knows; without its names no memory is taken again."""


def count_users(storage: Any) -> int:
    """Count the C++ references to a storage; its Python object is one of them."""
    assert _count_users is not None, "COUNTS_USERS says so"
    return _count_users(storage._cdata)


def _copy_each(targets: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for target, value in zip(targets, values, strict=True):
        target.copy_(value)


copy_all: Callable[[Sequence[Tensor], Sequence[Tensor]], Any] = _private(
    "torch", "_foreach_copy_", _copy_each
)
"""Copy tensors into others; on a GPU, tensors of one type by one kernel.

Without it: one after another.
"""


# ---- processes


def default_store() -> Any:
    """The store of the default process group, which processes pass texts through. Raises
    EngineError: this torch does not hand it out."""
    groups: Any = getattr(torch.distributed, "distributed_c10d", None)
    store = getattr(groups, "_get_default_store", None)
    if store is None:
        raise _unavailable("one choice of engines for all processes", "_get_default_store")
    return store()


# ---- torch.compile and operators


class DispatchKeys(NamedTuple):
    """Dispatch keys that a thread includes and excludes.

    Attributes:
        included, excluded: dispatch keys.
    """

    included: Any
    excluded: Any


_included: Callable[[], Any] | None = _private("torch._C", "_dispatch_tls_local_include_set", None)
_excluded: Callable[[], Any] | None = _private("torch._C", "_dispatch_tls_local_exclude_set", None)
_forced_keys: Callable[[Any, Any], AbstractContextManager[None]] | None = _private(
    "torch._C", "_ForceDispatchKeyGuard", None
)
_COMPILED = "a recurrent layer inside torch.compile or torch.export"


def dispatch_keys() -> DispatchKeys:
    """The dispatch keys of this thread. Raises EngineError: this torch does not tell."""
    if _included is None or _excluded is None:
        raise _unavailable(_COMPILED, "_dispatch_tls_local_include_set")
    return DispatchKeys(_included(), _excluded())


def dispatching(keys: DispatchKeys) -> AbstractContextManager[None]:
    """A context in which this thread's operations go through other dispatch keys. Raises
    EngineError: this torch has no such switch."""
    if _forced_keys is None:
        raise _unavailable(_COMPILED, "_ForceDispatchKeyGuard")
    return _forced_keys(*keys)


def constant(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let torch's compiler call a function and take what it returns for a constant.

    What torch.compiler.assume_constant_result does, which would import the compiler now: a second.
    A compiler that does not know the mark looks into the function.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


_scan = _private("torch.ops.higher_order", "scan", None)


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
        raise _unavailable("an exported model with such a layer", "torch.ops.higher_order.scan")
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


_set_strategy = _private("torch._C._dynamo.eval_frame", "set_code_exec_strategy", None)
_strategy = _private("torch._C._dynamo.eval_frame", "_FrameExecStrategy", None)
_action = _private("torch._C._dynamo.eval_frame", "_FrameAction", None)
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


# ---- Triton


def forget_triton_function(name: str) -> None:
    """Have Triton let go of a function that it was handed under a name.

    Triton looks there only for functions that it preloads. Without its list: nothing is done.
    """
    from triton.runtime import jit

    getattr(jit, "_triton_jit_function_registry", {}).pop(name, None)


# ---- steps in torch's operations


pytree: Any = torch.utils._pytree
TorchDispatchMode: Any = torch.utils._python_dispatch.TorchDispatchMode
no_function_modes: Callable[[], AbstractContextManager[Any]] = _private(
    "torch._C", "DisableTorchFunction", nullcontext
)
"""A context in which no function mode sees torch's operations. Without it: modes see them."""


def schema_of(operation: Any) -> Any:
    """Names of an operation's arguments, and which of them it writes to."""
    return operation._schema


def name_of(op: Any) -> str:
    """``add.Tensor`` of torch.ops.aten; without the mark of forms that write in place."""
    packet, dot, overload = str(op).removeprefix("aten.").partition(".")
    in_place = packet.endswith("_") and not packet.endswith("__")
    return (packet[:-1] if in_place else packet) + dot + overload


def writing_variant(operation: Any) -> tuple[Any, str] | None:
    """The variant of an operation that writes its one result into a given tensor, and the name of
    that argument; None if there is none."""

    def others(schema: Any) -> list[tuple[str, str]]:
        return [(a.name, str(a.type)) for a in schema.arguments if not a.is_out]

    wanted, packet = others(operation._schema), operation.overloadpacket
    for name in packet.overloads():
        variant = getattr(packet, name)
        written = [a.name for a in variant._schema.arguments if a.is_out]
        if len(written) == 1 and others(variant._schema) == wanted:
            return variant, written[0]
    return None


def memory_of(tensor: Tensor) -> int:
    """A number of the memory that a tensor lies in."""
    return tensor.untyped_storage()._cdata


def _never(_: Tensor) -> bool:
    return False


is_functional: Callable[[Tensor], bool] = _private("torch", "_is_functional_tensor", _never)
"""Whether a tensor is one that torch.func.functionalize has wrapped. Without it: never."""

is_wrapped: Callable[[Tensor], bool] = _private(
    "torch._C._functorch", "is_functorch_wrapped_tensor", _never
)
"""Whether a tensor stands for one inside of a transform of torch.func. Without it: never."""

no_modes: Callable[[], AbstractContextManager[Any]] = _private(
    "torch.utils._python_dispatch", "_disable_current_modes", nullcontext
)
"""A context in which no dispatch mode sees torch's operations. Without it: modes see them."""

_single_level: Any = _private("torch.autograd.function", "_SingleLevelFunction", None)
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


@cache
def _decompositions() -> Mapping[Any, Any]:
    return torch._decomp.core_aten_decompositions()


def decomposition(operation: Any) -> Callable[..., Any] | None:
    """An operation in terms of others, if torch has such a rule."""
    table = _decompositions()
    # its get() finds none that was not asked for by [] before
    found = table[operation] if operation in table else None  # noqa: SIM401
    if found is None and operation.has_kernel_for_dispatch_key(
        torch._C.DispatchKey.CompositeImplicitAutograd
    ):
        return operation.decompose
    return found


def symbols_of(size: Any) -> frozenset[str]:
    """Names of the symbols that a size of a traced tensor depends on; none of a number."""
    return (
        frozenset(map(str, size.node.expr.free_symbols))
        if isinstance(size, torch.SymInt)
        else frozenset()
    )

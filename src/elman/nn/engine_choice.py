"""The engine that runs a module: its argument, or else :func:`using`, or else ELMAN_ENGINE."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor
from torch.jit import TracerWarning  # type: ignore[attr-defined]  # torch does not list it
from torch.nn.utils.rnn import PackedSequence

from elman.checks import shown
from elman.engines import registry
from elman.engines.time_shards import TimeShards, over_time
from elman.engines.time_shards import shards_time as shards_time
from elman.errors import EngineError, InputError, warn
from elman.plan.spec import USUAL
from elman.torch_internals import (
    autocast_enabled,
    constant,
    count_dispatch_modes,
    cpu_has_bf16,
    tracing_context,
    tracing_state,
)
from elman.tuning.precision import lacks_bf16

HALVES = (torch.bfloat16, torch.float16)
_VARIABLE, _FORCING = "ELMAN_ENGINE", "ELMAN_FORCE_ENGINE"

# Read at import: os.environ.get takes a tenth of the time of a small step.
_environment: str | None = os.environ.get(_VARIABLE) or None
_forced: str | None = os.environ.get(_FORCING) or None  # runs every module, for debugging
_block: ContextVar[str | None] = ContextVar("elman_engine", default=None)


def check_engine(engine: str, where: str = "") -> str:
    """Return the name of an engine. Raises EngineError, with ``where`` before the text: there is no
    such engine."""
    if not isinstance(engine, str) or engine not in ("auto", *registry.names()):
        raise EngineError(
            f"{where}no engine {shown(engine)}; there are auto, {', '.join(registry.names())}"
        )
    return engine


@contextmanager
def using(*, engine: str) -> Iterator[None]:
    """Run the modules that name no engine on one engine, inside the ``with`` block.

    A module constructed with ``engine=`` keeps its engine. The block takes precedence over the
    environment variable ELMAN_ENGINE; ``engine="auto"`` re-enables measurement. Other threads are
    not affected.

    Raises:
        EngineError: there is no engine of that name; or, inside the block, the engine cannot run a
            layer.

    Example:
        >>> with elman.using(engine="reference"):
        ...     out, h = elman.GRU(8, 16)(torch.randn(5, 2, 8))
    """
    token = _block.set(check_engine(engine))
    try:
        yield
    finally:
        _block.reset(token)


@contextmanager
def shard_time(group: Any = None) -> Iterator[None]:
    """Cut sequences in time over processes: inside the ``with`` block each process calls a module
    with the steps of its own, and all of them together compute what one would with all steps.

    Modules run on engine ``deer`` there: a layer that is affine in its state takes one scan, others
    Newton's iteration, whose scans and convergence checks are those of all processes. Inside
    ``using(engine="scan-backward")`` the processes run their steps one after another, and only the
    backward all at once. :func:`deer` and :func:`linear_scan` take part too. Numbers of steps may
    differ, but each process has one at least.

    - Inputs and outputs [T, B, …] are those of the process's own steps, in the order of ranks.
    - The initial state must be the same in all processes. Last states are those after a process's
      own steps: the sequences' are those of the last process, of the reverse direction those of the
      first one.
    - Gradients are those of the sum of all processes' losses. A process's gradients of weights are
      those of its own steps: add them up over the processes.
    - All processes make the same calls in the same order, with the same batch and weights, and call
      ``backward`` too, with the same tensors requiring gradients: a process without a loss takes
      ``0 * out.sum()``. An error in one process leaves the others waiting for the group's timeout.
    - Each process draws its own random numbers: dropout of weights would differ between them, and
      equal seeds repeat the masks of zoneout.

    There are no second derivatives, transforms, checkpoints, single steps, streams, or batches of
    several lengths inside.

    Args:
        group: a group of ``torch.distributed``; None for all processes.

    Raises:
        EngineError: there is no group, or this process is not in it; or, inside the block, a layer
            cannot be run so.

    Source: Lim, Zhu, Selfridge & Kasim 2024 (DEER), arXiv:2309.12252v3, eq. 3 to 6; Blelloch 1990
    (scans in blocks).

    Example:
        >>> with elman.shard_time():  # doctest: +SKIP
        ...     out, h = net(x[rank * T : (rank + 1) * T], h0)
    """
    with using(engine="deer"), over_time(TimeShards(group)):
        yield


@constant
def serves(kind: str, dtype: torch.dtype) -> bool:
    """Whether an engine compiles steps of a type for a kind of device."""
    return _serves(kind, dtype)


@cache
def _serves(kind: str, dtype: torch.dtype) -> bool:
    return registry.fuses(kind, str(dtype).removeprefix("torch."))


@constant
def has_autocast(kind: str) -> bool:
    """Whether torch has autocast for a kind of device: the compiler of torch 2.11 cannot ask it."""
    return _has_autocast(kind)


@cache
def _has_autocast(kind: str) -> bool:
    return torch.amp.is_autocast_available(kind)


def autocast_type(kind: str) -> torch.dtype | None:
    """The dtype of autocast on a kind of device; None if it is off."""
    if not has_autocast(kind) or not torch.is_autocast_enabled(kind):
        return None
    return torch.get_autocast_dtype(kind)


def requested_engine(argument: str) -> str:
    """The engine that a module with ``engine=argument`` must use now.

    Its argument, unless that is ``auto``; else the engine of :func:`using`; else ELMAN_ENGINE. The
    variable ELMAN_FORCE_ENGINE overrides all. Both variables are read when elman is imported.

    Raises:
        EngineError: a variable names an engine that does not exist.
    """
    if _forced is not None:
        return check_engine(_forced, f"{_FORCING}: ")
    if argument != "auto":
        return argument
    block = _block.get()
    if block is not None:
        return block
    return argument if _environment is None else check_engine(_environment, f"{_VARIABLE}: ")


def computes_autocast(dtype: torch.dtype, kind: str, engine: str) -> bool:
    """True if elman, not torch's layer, computes a call under autocast for bfloat16: an engine
    rounds the operands of its products, or the processor has no bfloat16 for torch either.

    Args:
        dtype, kind: of the weights.
        engine: a name, or ``auto``.
    """
    if kind != "cpu" or autocast_type(kind) is not torch.bfloat16:
        return False
    return _computes_bf16(dtype, engine)


@constant
def _computes_bf16(dtype: torch.dtype, engine: str) -> bool:
    return not cpu_has_bf16() or lacks_bf16(USUAL, dtype, "cpu", engine) is None


def unsupported_reason(
    input: Any, engine: str, beyond_torch: bool, weights: Callable[[], torch.dtype]
) -> str | None:
    """The reason why torch's own layers compute a call, or None.

    Args:
        input: of a call.
        engine: a name, or ``auto``.
        beyond_torch: whether the call has options that torch's layers lack.
        weights: returns the type of the module's weights.
    """
    data = cast(Tensor, input.data if isinstance(input, PackedSequence) else input)
    kind = data.device.type
    if tracing_state() is not None or torch.compiler.is_compiling():
        return "torch.compile or torch.jit.trace"
    if autocast_enabled():
        half = autocast_type(kind)
        if half is not None:
            able = beyond_torch or serves(kind, half)
            return None if able or computes_autocast(weights(), kind, engine) else "autocast"
    widened = engine == "auto" and data.dtype in HALVES and (beyond_torch or kind == "cpu")
    if engine == "reference" or widened:
        return None  # without an engine for the type, elman computes in float32, as for all cells
    if serves(kind, data.dtype):
        return None
    return f"dtype {data.dtype}" if registry.compiles_on(kind) else f"tensors on {kind}"


@constant
def exports_onnx() -> bool:
    """Whether torch.onnx.export runs, in any thread."""
    exporting = getattr(sys.modules.get("torch.onnx"), "is_in_onnx_export", None)
    return exporting is not None and bool(exporting())


@constant
def traces_onnx() -> bool:
    """Whether torch.onnx.export(…, dynamo=True) traces this call. Its flag is set for the whole
    process, modes and the compiler's context in its own thread."""
    return exports_onnx() and (count_dispatch_modes() > 0 or tracing_context() is not None)


def check_export(module: str) -> None:
    """Raise InputError if torch's older exporter to ONNX, which has no operator for elman's
    modules, traces a call.

    Args:
        module: its name, for the message.

    Raises:
        InputError: it traces a call.
    """
    if exports_onnx():
        problem = f"torch's older exporter to ONNX has no operator for this {module}"
        raise InputError(problem, "torch.onnx.export(model, args, dynamo=True)")


def check_trace(module: str) -> None:
    """Warn that a trace fixes the number of steps.

    Args:
        module: its name.

    Raises:
        InputError: see :func:`check_export`.
    """
    if tracing_state() is None:
        return
    check_export(module)
    text = (
        f"torch.jit.trace records the steps of this {module} one by one: the trace is right for as "
        "many steps as it was made with, and no others. torch.export and torch.compile keep it"
    )
    warn(text, TracerWarning)


def compiles(input: Any, engine: str, weights: Callable[[], torch.dtype]) -> bool:
    """True if a call under torch.compile becomes elman's operators, not torch's.

    Args:
        input, engine, weights: see :func:`unsupported_reason`.
    """
    if not isinstance(input, Tensor) or input.dim() not in (2, 3):
        return False
    kind = input.device.type
    if kind == "meta":
        return False
    if traces_onnx():
        return True
    half = autocast_type(kind)
    if serves(kind, half or input.dtype):
        return True
    if half is not None:
        return computes_autocast(weights(), kind, engine)
    return kind == "cpu" and engine == "auto" and input.dtype in HALVES  # computed in float32


@constant
def fixed_engine(argument: str) -> str:
    """:func:`requested_engine`, fixed when a call is compiled."""
    return requested_engine(argument)

"""Records of the engine and schedule of each layer, for checkpoints; counters, caches, and the
globals that a saved model names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import nn

from elman import cells, compiler, ops
from elman.checks import shown
from elman.errors import InputError
from elman.frontend.cell import bound_cell
from elman.nn.compile import names
from elman.nn.execute.group import Group
from elman.nn.execute.layer import Runner
from elman.nn.layout.dense import check_model
from elman.nn.modules.linear_cross_entropy import LinearCrossEntropyLoss
from elman.nn.modules.recurrent import Recurrent
from elman.nn.modules.sequence import SequenceModule
from elman.nn.modules.torch_layers import GRU, LSTM, RNN
from elman.plan.spec import PlanOptions
from elman.tuning import kernels as kept_kernels


def _runners(model: nn.Module) -> Iterator[tuple[str, Runner | Group]]:
    for name, module in model.named_modules():
        if isinstance(module, SequenceModule):
            sources: dict[str, Runner | Group] = {**module.stack.groups, **module.runners}
            for suffix, runner in sources.items():
                yield f"{name}.{suffix}" if name else suffix, runner


def choices(model: nn.Module) -> dict[str, Any]:
    """Record the engine choices of a model's layers, for :func:`pin`.

    A call with another engine by name (inside ``using``) has a record of its own.

    Returns:
        ``{layer: {size bucket: {"engine": …, "schedule": …, digests and facts of the kernel}}}``,
        for JSON. A layer that has not run yet has no size bucket. Layers that could run together
        have an additional entry for that choice.
    """
    check_model("elman.nn.choices", model)
    by_name: dict[str, Any] = {}
    for name, runner in _runners(model):
        pending = runner.pending_records if isinstance(runner, Group) else {}
        if isinstance(runner, Group) and not runner.choices and not pending:
            continue  # there was nothing to choose
        by_name[name] = {bucket: dict(record) for bucket, record in pending.items()} | {
            bucket: {
                **choice.kernel.describe(),
                "engine": choice.engine,
                "schedule": choice.schedule,
            }
            for bucket, choice in runner.choices.items()
        }
    return by_name


def counters(model: nn.Module) -> dict[str, int]:
    """Count events in a model's kernels since the process started.

    Returns:
        Counts by name: ``calls`` of engine ``deer``, and ``fallbacks`` among them, which no solver
        could solve, so that their steps ran sequentially.
    """
    check_model("elman.nn.counters", model)
    kernels = [
        choice.kernel
        for _, runner in _runners(model)
        if isinstance(runner, Runner)
        for choice in runner.choices.values()
    ]
    total: dict[str, int] = {}
    for kernel in dict.fromkeys(kernels):
        for name, count in kernel.counters().items():
            total[name] = total.get(name, 0) + count
    return total


def pin(model: nn.Module, choices: Mapping[str, Any]) -> list[str]:
    """Make a model's layers use the choices that :func:`choices` recorded.

    For a module that names no engine, ``using`` and ELMAN_ENGINE take precedence. Size buckets
    without a record choose as usual.

    Returns:
        The reasons why some records cannot be used; empty if all can.

    Raises:
        InputError: an argument is not a model, or not a record.
    """
    check_model("elman.nn.pin", model)
    if not isinstance(choices, Mapping):
        problem = f"pin takes the records of a model's layers, not {shown(choices)}"
        raise InputError(problem, "elman.nn.pin(model, elman.nn.choices(model))")
    for module in model.modules():
        if isinstance(module, SequenceModule):
            module.runtime.plans.clear()  # which have the kernels of earlier choices
    reasons: list[str] = []
    present = dict(_runners(model))
    for name, records in choices.items():
        runner = present.get(name)
        if runner is None:
            reasons.append(f"{name}: no such layer")
            continue
        if not isinstance(records, Mapping):
            reasons.append(f"{name}: its records are {shown(records)}")
            continue
        for bucket, record in records.items():
            reason = "a record has names" if not isinstance(record, Mapping) else None
            reason = reason or runner.pin(bucket, record)
            if reason is not None:
                reasons.append(f"{name}: {reason}")
    return reasons


ON_RELEASE: list[Callable[[], object]] = []  # further functions that release() calls


def release() -> None:
    """Free the memory and compiled kernels that elman caches and that are not in use.

    elman caches buffers for large results and for workspaces of kernels on the CPU (up to 512 MiB
    each), and up to 1024 compiled kernels, mostly of deleted modules. Modules keep the kernels in
    use; kernels and engine choices on disk stay. It also drops formulas of :func:`elman.scan` and
    the objects that their steps refer to. The next call allocates and loads what it needs.

    Example:
        >>> out, h = elman.GRU(8, 16)(torch.randn(5, 2, 8))
        >>> elman.release()
    """
    names.release()
    kept_kernels.release()
    compiler.release()
    for forget in ON_RELEASE:
        forget()


NAMED = (GRU, LSTM, RNN, Recurrent, LinearCrossEntropyLoss, PlanOptions, bound_cell)


def safe_globals() -> list[Any]:
    """List elman's entries for the allow-list of ``torch.load(path, weights_only=True)``.

    A model saved by ``torch.save(model, path)`` loads with::

        with torch.serialization.safe_globals([*elman.safe_globals(), MyModel, torch.nn.Linear]):
            model = torch.load(path)

    The file of ``elman.GRU`` and the like names the class, and ``elman.PlanOptions`` if the layer
    has a plan. The file of a ``Recurrent`` names its class, its cell, :func:`elman.bound_cell` if
    options or heads are bound, and functions passed as options. Add your own cells and functions
    like your classes: ``[*elman.safe_globals(), MyModel, my_cell]``.

    Returns:
        The classes of modules and options, the cells of ``elman.cells``, the functions of
        ``elman.ops``, and ``elman.bound_cell``.

    Example:
        >>> torch.save(elman.GRU(8, 16), "net.pt")
        >>> with torch.serialization.safe_globals(elman.safe_globals()):
        ...     net = torch.load("net.pt")
    """
    return [*NAMED, *cells.ALL, *(getattr(ops, name) for name in ops.__all__)]

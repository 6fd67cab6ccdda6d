"""Run every torch.nn.RNN, GRU and LSTM of a process on elman's engines.

Only ``forward`` of the classes is replaced: classes, instances, pickles and scripts stay torch's. A
layer runs as its double, an object of elman's class that shares the layer's attributes.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import nn

from elman.errors import ElmanError
from elman.nn.execute.layer import Runner
from elman.nn.modules.subclasses import (
    LAYERS,
    CheckFirst,
    accelerated,
    class_title,
    layer_of,
    own_class,
    refusal,
    refuse,
)
from elman.nn.modules.torch_layers import TorchLayers
from elman.torch_internals import run_whole, tracing_state

_torchs_own: dict[type, Callable[..., Any]] = {}  # torch's forwards, while elman's replace them


class _Double:
    """The attributes of a double itself; it shares all others with the layer."""

    __slots__ = ("_runtime", "_verified")


class _Run(NamedTuple):
    """A layer that was called.

    Attributes:
        kind: its class at that time.
        double: the object that runs; None: torch's own forward runs.
        forward: the double's forward.
        reason: why there is no double.
    """

    kind: type
    double: Any
    forward: Any
    reason: str | None


_doubles: WeakKeyDictionary[nn.Module, _Run] = WeakKeyDictionary()
_history: list[tuple[type, list[Runner]]] = []  # of all layers that were called


def install_layers() -> None:
    """Replace the forward of torch's layers by elman's."""
    kinds: Any = LAYERS
    for kind in kinds:
        if kind not in _torchs_own:
            _torchs_own[kind] = kind.forward
            kind.forward = _forward(kind.forward)


def uninstall_layers() -> None:
    """Undo :func:`install_layers`."""
    while _torchs_own:
        kind, forward = _torchs_own.popitem()
        kind.forward = forward
    _doubles.clear()
    _history.clear()


def running(layer: nn.Module) -> str:
    """The report of a layer of torch's that runs on elman; empty if it does not."""
    ran = _doubles.get(layer)
    if not _torchs_own or (refusal(type(layer)) if ran is None else ran.reason) is not None:
        return ""
    name = LAYERS[layer_of(type(layer))].__name__
    engines = "" if ran is None else engines_of(ran.double.runners.values())
    return f"{class_title(type(layer))}, runs on elman.{name}, engine auto{engines}"


def all_that_ran() -> tuple[list[str], list[str]]:
    """The layers called since :func:`install_layers`: those on elman, by class and engines, and
    those on torch, by class and reason."""
    ran, alone = Counter[str](), Counter[str]()
    for kind, runners in _history:
        reason, engines = refusal(kind, forward=False), engines_of(runners)
        if reason is None and not engines:
            reason = "no engine takes its calls"
        if reason is None:
            ran[f"{class_title(kind)}, engine auto{engines}"] += 1
        else:
            alone[f"{class_title(kind)}, left alone: {reason}"] += 1
    return [f"{count} {text}" for text, count in ran.items()], [*alone]


_BY_STEPS = (
    "; each training call has a single step: a call of the whole sequence is faster (reset=, mask=)"
)


def engines_of(runners: Iterable[Runner]) -> str:
    """The engines that ``auto`` chose in earlier calls, and whether a loop around the layer keeps
    it from running whole sequences."""
    runners = list(runners)
    choices = (choice for runner in runners for choice in runner.choices.values())
    engines = sorted({choice.engine for choice in choices})
    text = f": {', '.join(engines)}" if engines else ""
    return text + _BY_STEPS * any(runner.trains_by_steps for runner in runners)


def _forward(torchs: Callable[..., Any]) -> Callable[..., Any]:
    """The replacement of a layer's forward, with the globals, name and source of torch's, which
    torch.jit.script reads."""
    compiling, tracing, own, run = torch.compiler.is_compiling, tracing_state, TorchLayers, _run

    def forward(self: Any, input: Any, hx: Any = None) -> Any:
        if isinstance(self, own) or compiling() or tracing() is not None:
            return torchs(self, input, hx)
        return run(self, input, hx, torchs)

    run_whole(forward)
    kind: Any = torchs
    function = FunctionType(
        forward.__code__, kind.__globals__, None, forward.__defaults__, forward.__closure__
    )
    return functools.wraps(torchs)(function)


def _run(layer: Any, input: Any, hx: Any, torchs: Callable[..., Any]) -> Any:
    ran = _doubles.get(layer)
    if ran is None or ran.kind is not type(layer):
        ran = _doubles[layer] = _begin(layer)
    if ran.double is None:
        return torchs(layer, input, hx)
    result = ran.forward(ran.double, input, hx)
    if ran.double._verified is None:  # its results differ: torch runs the layer from now on
        _doubles[layer] = _begin(layer)
    return result


def _begin(layer: Any) -> _Run:
    """Make the double of a layer."""
    kind = type(layer)
    if "_is_replica" in vars(layer):  # nn.DataParallel makes replicas for one call each
        return _Run(kind, None, None, "a replica")
    reason = refusal(kind, forward=False)
    if reason is not None:
        _history.append((kind, []))
        return _Run(kind, None, None, reason)
    try:
        made = accelerated(kind, {})
        meta: Any = type(kind)
        double: Any = object.__new__(meta(kind.__name__, (_Double, made), {}))
        object.__setattr__(double, "__dict__", vars(layer))
        double._verified, double._runtime = False, None
        double._runtime = double._make_runtime()
    except (TypeError, AttributeError, ElmanError) as error:
        reason = f"elman cannot run it: {error}"
        if own_class(kind) not in LAYERS:
            refuse(kind, reason)
        _history.append((kind, []))
        return _Run(kind, None, None, reason)
    _history.append((kind, [*double.runners.values()]))
    ours = TorchLayers if own_class(kind) in LAYERS else CheckFirst
    return _Run(kind, double, ours.forward, None)

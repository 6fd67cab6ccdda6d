"""Swap torch's recurrent layers inside a model for elman's, in place, and back."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, TypeVar

from torch import nn

from elman.errors import InputError, warn
from elman.nn.call.dense import check_model
from elman.nn.call.runtime import RUNTIME
from elman.nn.modules.sequence import SequenceModule
from elman.nn.modules.torch_layers import GRU, LSTM, RNN, TorchLayers

_log = logging.getLogger("elman")
_REPLACEMENTS: dict[type, type] = {nn.RNN: RNN, nn.GRU: GRU, nn.LSTM: LSTM}
_ORIGINALS: dict[type, type] = {ours: theirs for theirs, ours in _REPLACEMENTS.items()}
_STEPS = {nn.RNNCell: "elman.RNN", nn.GRUCell: "elman.GRU", nn.LSTMCell: "elman.LSTM"}
_MARK = "_elman_swapped"
_MOST_REASONS = 5  # in a warning

Model = TypeVar("Model", bound=nn.Module)


def accelerate(model: Model) -> Model:
    """Make every torch.nn.RNN, GRU and LSTM inside a model run on elman's engines.

    The modules change their class in place, so parameters, hooks, mode and all references to them
    stay. A class that torch derived from the layer's (a parametrization's, ``fully_shard``'s) is
    derived from elman's instead. Your own subclasses of torch's layers are not changed;
    :func:`elman.nn.report` and the logger ``elman`` (level INFO) give the reason. If the model has
    no layer of elman's then, a warning says why.

    Args:
        model: any module, or one of torch's layers; it is changed in place.

    Returns:
        The model itself.

    Example:
        >>> model = elman.accelerate(torch.nn.Sequential(torch.nn.GRU(8, 16)))
        >>> isinstance(model[0], elman.GRU)
        True
    """
    check_model("elman.accelerate", model)
    classes: dict[type, type] = {}
    for module in model.modules():
        kind = type(module)
        if not isinstance(module, TorchLayers) and _is_torchs(kind, _REPLACEMENTS):
            module.__class__ = _rebase(kind, _REPLACEMENTS, classes)
            module.__dict__[_MARK] = True
            swapped: Any = module
            swapped._runtime = swapped._make_runtime()  # now, not while a compiler traces
    texts = report(model)
    for name, text in texts.items():
        _log.info("%s: %s", name or type(model).__name__, text)
    if not any(isinstance(module, SequenceModule) for module in model.modules()):
        _warn_of_nothing(type(model).__name__, texts)
    return model


def restore(model: Model) -> Model:
    """Undo :func:`accelerate`: give torch's own classes back.

    Modules constructed as elman's classes, or as subclasses of them, stay as they are. A class that
    torch derived from a layer's after :func:`accelerate` (a parametrization's, ``fully_shard``'s)
    is derived from torch's layer then.

    Raises:
        InputError: a layer has since been given a class of yours that is derived from elman's;
            nothing is changed then.

    Example:
        >>> model = elman.accelerate(torch.nn.Sequential(torch.nn.GRU(8, 16)))
        >>> isinstance(elman.restore(model)[0], elman.GRU)
        False
    """
    check_model("elman.restore", model)
    marked = [(n, m) for n, m in model.named_modules() if _MARK in m.__dict__]
    for name, module in marked:
        layer = _layer_of(type(module), _ORIGINALS)
        if layer is not None and not _is_torchs(type(module), _ORIGINALS):
            own = type(module).__name__
            raise InputError(
                f"elman.restore: {name or 'the model'} is a {own}, which is derived from "
                f"elman.{layer.__name__}: {own} cannot be made torch's",
                f"give it the class below first: layer.__class__ = {own}.__bases__[0]",
            )
    classes: dict[type, type] = {}
    for _, module in marked:
        del module.__dict__[_MARK]
        if isinstance(module, TorchLayers):
            module.__dict__.pop(RUNTIME, None)
            module.__class__ = _rebase(type(module), _ORIGINALS, classes)
    return model


def _layer_of(kind: type, layers: Mapping[type, type]) -> type | None:
    """The layer's class that a class is, or is derived from."""
    return next((base for base in kind.__mro__ if base in layers), None)


def _is_torchs(kind: type, layers: Mapping[type, type]) -> bool:
    """Whether a class is one of some layers', or derived from it by torch, with its forward: torch
    derives a class for each module that is parametrized, and for those that FSDP shards."""
    layer = _layer_of(kind, layers)
    if layer is None or kind.forward is not layer.forward:  # type: ignore[attr-defined]
        return False
    between = kind.__mro__[: kind.__mro__.index(layer)]
    return all(base.__module__.partition(".")[0] == "torch" for base in between)


def _rebase(kind: type, layers: Mapping[type, type], classes: dict[type, type]) -> type:
    """Derive a class from another layer's class. The class itself may be that of further modules.

    Args:
        kind: a layer's class, or one that torch derived from it.
        layers: the new class of each layer's.
        classes: what was derived already; modules that shared a class share the new one.
    """
    if kind in layers:
        return layers[kind]
    if kind not in classes:
        bases = [
            base if _layer_of(base, layers) is None else _rebase(base, layers, classes)
            for base in kind.__bases__
        ]
        names = {k: v for k, v in vars(kind).items() if k not in ("__dict__", "__weakref__")}
        classes[kind] = type(kind)(kind.__name__, tuple(bases), names)
    return classes[kind]


def _warn_of_nothing(model: str, texts: Mapping[str, str]) -> None:
    """Warn that a model has no layer of elman's, with the reasons."""
    reasons = [f"{name or model}: {text}" for name, text in texts.items()]
    if len(reasons) > _MOST_REASONS:
        further = len(reasons) - _MOST_REASONS
        reasons[_MOST_REASONS:] = [f"{further} more, which elman.nn.report(model) lists"]
    why = "; ".join(reasons) or "it has no torch.nn.RNN, GRU or LSTM"
    warn(f"elman.accelerate replaced nothing in {model}: {why}")


def report(model: nn.Module) -> dict[str, str]:
    """List each recurrent layer of a model with its engine, or why it was not replaced.

    Returns:
        A line for each submodule, by its name (``""`` for the model itself). After a call, that of
        a layer with ``engine="auto"`` ends with the engine that was chosen.
    """
    check_model("elman.nn.report", model)
    texts: dict[str, str] = {}
    for name, module in model.named_modules():
        text = _status(module)
        if text:
            texts[name] = text
    return texts


def _chosen_engines(module: Any) -> str:
    """The engines that ``auto`` chose in earlier calls."""
    if module.engine != "auto" or module.__dict__.get(RUNTIME) is None:
        return ""
    choices = (choice for runner in module.runners.values() for choice in runner.choices.values())
    engines = sorted({choice.engine for choice in choices})
    return f": {', '.join(engines)}" if engines else ""


def _status(module: nn.Module) -> str:
    kind: Any = type(module)
    if isinstance(module, SequenceModule):
        own = next(base for base in kind.__mro__ if base.__module__.partition(".")[0] == "elman")
        derived = "" if own is kind else f"{kind.__name__}, derived from "
        return f"{derived}elman.{own.__name__}, engine {module.engine}{_chosen_engines(module)}"
    if kind in _STEPS:
        return f"torch.nn.{kind.__name__}, left alone: {_STEPS[kind]} takes all steps at once"
    if not isinstance(module, nn.RNNBase):
        return ""
    if _is_torchs(kind, _REPLACEMENTS):
        return f"torch.nn.{module.mode.partition('_')[0]}, not accelerated"
    return f"{kind.__name__}, left alone: a subclass may change what forward computes"

"""Swap torch's recurrent layers inside a model for elman's, in place, and back."""

from __future__ import annotations

import logging
from typing import Any, TypeVar

from torch import nn
from torch.nn.utils import parametrize

from elman.nn.call.dense import check_model
from elman.nn.call.runtime import RUNTIME
from elman.nn.modules.recurrent import Recurrent
from elman.nn.modules.torch_layers import GRU, LSTM, RNN

_log = logging.getLogger("elman")
_REPLACEMENTS: dict[type, type] = {nn.RNN: RNN, nn.GRU: GRU, nn.LSTM: LSTM}
_STEPS = {nn.RNNCell: "elman.RNN", nn.GRUCell: "elman.GRU", nn.LSTMCell: "elman.LSTM"}
_MARK = "_elman_swapped"

Model = TypeVar("Model", bound=nn.Module)


def accelerate(model: Model) -> Model:
    """Make every torch.nn.RNN, GRU and LSTM inside a model run on elman's engines.

    The modules change their class in place, so parameters, hooks, mode and all references to them
    stay. Your own subclasses of torch's layers and parametrized modules are not changed;
    :func:`elman.nn.report` and the logger ``elman`` (level INFO) give the reason.

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
    for module in model.modules():
        replacement = _REPLACEMENTS.get(type(module))
        if replacement is not None:
            module.__class__ = replacement
            module.__dict__[_MARK] = True
            swapped: Any = module
            swapped._runtime = swapped._make_runtime()  # now, not while a compiler traces
    for name, text in report(model).items():
        _log.info("%s: %s", name or type(model).__name__, text)
    return model


def restore(model: Model) -> Model:
    """Undo :func:`accelerate`: give torch's own classes back.

    Modules constructed as elman's classes stay as they are.

    Example:
        >>> model = elman.accelerate(torch.nn.Sequential(torch.nn.GRU(8, 16)))
        >>> isinstance(elman.restore(model)[0], elman.GRU)
        False
    """
    check_model("elman.restore", model)
    torch_classes = {replacement: torch_class for torch_class, replacement in _REPLACEMENTS.items()}
    for module in model.modules():
        if module.__dict__.pop(_MARK, False) and type(module) in torch_classes:
            module.__dict__.pop(RUNTIME, None)
            module.__class__ = torch_classes[type(module)]
    return model


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
    if isinstance(module, Recurrent) or kind in _REPLACEMENTS.values():
        return f"elman.{kind.__name__}, engine {module.engine}{_chosen_engines(module)}"
    if kind in _STEPS:
        return f"torch.nn.{kind.__name__}, left alone: {_STEPS[kind]} takes all steps at once"
    if not isinstance(module, nn.RNNBase):
        return ""
    if parametrize.is_parametrized(module):
        return f"torch.nn's {module.mode}, left alone: its weights are parametrized"
    if kind in _REPLACEMENTS:
        return f"torch.nn.{kind.__name__}, not accelerated"
    return f"{kind.__name__}, left alone: a subclass may change what forward computes"

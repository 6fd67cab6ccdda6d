"""Swap torch's recurrent layers inside a model for elman's, in place, and back."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, TypeVar

from torch import nn

from elman.errors import ElmanError, InputError, warn
from elman.nn.call.runtime import RUNTIME, Runtime
from elman.nn.layout.dense import check_model
from elman.nn.modules.installed import engines_of, running
from elman.nn.modules.sequence import SequenceModule
from elman.nn.modules.subclasses import (
    LAYERS,
    MARK,
    accelerated,
    class_title,
    describe_refusal,
    give_back,
    is_torchs,
    layer_of,
    original,
    own_class,
    refusal,
    refuse,
)
from elman.nn.modules.torch_layers import TorchLayers

_log = logging.getLogger("elman")
_MOST_REASONS = 5  # reasons that a warning lists

Model = TypeVar("Model", bound=nn.Module)


def accelerate(model: Model) -> Model:
    """Make every torch.nn.RNN, GRU and LSTM inside a model run on elman's engines.

    The modules change their class in place, so parameters, hooks, mode and all references to them
    stay. A class that torch derived from the layer's (a parametrization's, ``fully_shard``'s) is
    derived from elman's instead. So is your own subclass of torch's layer, if it leaves ``forward``
    alone or its ``forward`` calls ``super().forward``; its first call is compared with torch's.
    Others are not changed; :func:`elman.nn.report` and the logger ``elman`` (level INFO) give the
    reason. If the model has no layer of elman's then, a warning says why.

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
        if is_torchs(module) and refusal(type(module)) is None:
            _replace(module, classes)
    texts = report(model)
    for name, text in texts.items():
        _log.info("%s: %s", name or type(model).__name__, text)
    if not any(isinstance(module, SequenceModule) for module in model.modules()):
        theirs = type(model).__module__.startswith("transformers")
        _warn_of_nothing(type(model).__name__, texts, of_transformers=theirs)
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
    classes: dict[type, type] = {}
    marked: list[tuple[nn.Module, type]] = []
    for name, module in model.named_modules():
        if MARK not in vars(module):
            continue
        kind = type(module)
        given = original(kind, classes) if isinstance(module, TorchLayers) else kind
        if given is None:
            raise InputError(
                f"elman.restore: {name or 'the model'} is a {kind.__name__}, which is derived from "
                f"elman.{layer_of(kind).__name__}: {kind.__name__} cannot be made torch's",
                f"give it the class below first: layer.__class__ = {kind.__name__}.__bases__[0]",
            )
        marked.append((module, given))
    for module, given in marked:
        give_back(module, given)
    return model


def _replace(module: Any, classes: dict[type, type]) -> None:
    """Change a layer's class to elman's; refuse the user's class if that fails."""
    kind = type(module)
    try:
        module.__class__ = accelerated(kind, classes)
        module.__dict__[MARK] = True
        module._runtime = module._make_runtime()  # now, not while a compiler traces
    except (TypeError, AttributeError, ElmanError) as error:
        if own_class(kind) in LAYERS:
            raise
        give_back(module, kind)
        refuse(kind, f"elman cannot run it: {error}")


def _warn_of_nothing(model: str, texts: Mapping[str, str], *, of_transformers: bool) -> None:
    """Warn that a model has no layer of elman's, with the reasons."""
    reasons = [f"{name or model}: {text}" for name, text in texts.items()]
    if len(reasons) > _MOST_REASONS:
        further = len(reasons) - _MOST_REASONS
        reasons[_MOST_REASONS:] = [f"{further} more, which elman.nn.report(model) lists"]
    why = "; ".join(reasons)
    why = why or "it has no torch.nn.RNN, GRU or LSTM (a module of one step takes elman.Loop)"
    if of_transformers:
        why += "; models of transformers take elman.functional.install(model)"
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


def _status(module: nn.Module) -> str:
    kind: Any = type(module)
    if isinstance(module, SequenceModule):
        own = next(base for base in kind.__mro__ if base.__module__.partition(".")[0] == "elman")
        derived = "" if own is kind else f"{kind.__name__}, derived from "
        runtime: Runtime | None = module.__dict__.get(RUNTIME)
        engines = ""
        if runtime is not None and module.engine == "auto":
            engines = engines_of(runtime.runners.values())
        return f"{derived}elman.{own.__name__}, engine {module.engine}{engines}"
    if is_torchs(module):
        reason = running(module) or describe_refusal(module)
        return reason or f"{class_title(kind)}, not accelerated"
    return describe_refusal(module)

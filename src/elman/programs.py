"""Programs that build their own models: elman in a whole process, and as callbacks of trainers."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Self
from weakref import WeakSet

from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

from elman.errors import MissingPackageError
from elman.functional import stand_ins
from elman.nn.modules.installed import all_that_ran, install_layers, uninstall_layers
from elman.nn.modules.subclasses import describe_refusal
from elman.nn.modules.swap import accelerate

_hooks: list[Any] = []
_changed: WeakSet[nn.Module] = WeakSet()  # of transformers: with our functions
_functions: dict[str, None] = {}  # that were replaced
_alone: dict[str, None] = {}  # what a report says of layers that were built and are left alone


def install() -> None:
    """Make every torch.nn.RNN, GRU and LSTM of this process run on elman's engines, whoever builds
    it, now or before. In the place of functions of transformers come those of
    :mod:`elman.functional`, as :func:`elman.functional.install` does it, when a model is built.

    Classes stay torch's: ``type``, ``isinstance``, subclasses, pickles, ``state_dict``,
    ``torch.jit.script``, ``torch.export`` and quantisation are as without it. A subclass runs on
    elman where its ``forward`` is torch's or leads to it; its first call is compared with torch's.
    The command ``elman run program.py`` does this for a program, without a changed line.

    Example:
        >>> elman.install()
        >>> layer = torch.nn.GRU(8, 16)
        >>> out, h = layer(torch.randn(5, 2, 8))
        >>> elman.nn.report(layer)
        {'': 'torch.nn.GRU, runs on elman.GRU, engine auto: reference'}
        >>> elman.uninstall()
    """
    install_layers()
    if not _hooks:
        _hooks.append(register_module_module_registration_hook(_note))


def uninstall() -> None:
    """Undo :func:`install`: torch's layers, and functions of transformers, are their own again.

    Example:
        >>> elman.install()
        >>> elman.uninstall()
        >>> elman.nn.report(torch.nn.GRU(8, 16))
        {'': 'torch.nn.GRU, not accelerated'}
    """
    uninstall_layers()
    while _hooks:
        _hooks.pop().remove()
    while _changed:
        stand_ins.uninstall(_changed.pop())
    stand_ins.uninstall_modules()
    _alone.clear()


def _note(_: nn.Module, name: str, module: nn.Module | None) -> None:
    """See a module that becomes a part of another."""
    if module is None:
        return
    text = describe_refusal(module)
    if text:
        _alone[text] = None
    if type(module).__module__.startswith("transformers"):
        stand_ins.replace(module)
        _changed.add(module)


def summary() -> list[str]:
    """Three lines: what ran on elman, what was left alone and why, and which functions are ours."""
    ran, alone = all_that_ran()
    texts = [text.replace(", left alone", "") for text in dict.fromkeys([*_alone, *alone])]
    return [
        f"on elman: {'; '.join(ran) or 'no layer was called'}",
        f"left alone: {'; '.join(texts) or 'nothing'}",
        f"functions replaced: {', '.join(stand_ins.replaced()) or 'none'}",
    ]


class _Callback:
    """An object of a class that is also derived from those of packages, where they are there."""

    _of: Mapping[str, str]  # module -> its class of callbacks

    def __new__(cls) -> Self:
        """Derive the class when somebody wants an object: the packages take their time."""
        there = [name for name in cls._of if find_spec(name.partition(".")[0])]
        bases = [getattr(import_module(name), cls._of[name]) for name in there]
        if not bases:
            names = [name.partition(".")[0] for name in cls._of]
            text = f"elman.{cls.__name__} needs the package {' or '.join(names)}"
            raise MissingPackageError(text, name=names[0])
        made = type(cls.__name__, (cls, *bases), {"__reduce__": lambda _: (cls, ())})
        return object.__new__(made)


class Accelerate(_Callback):
    """A callback of Lightning's Trainer: the model that it fits, tests or asks for predictions runs
    on elman, whoever built it.

    It calls :func:`elman.accelerate` before the strategy wraps the model. Checkpoints have the
    ``state_dict``, so they are loaded with and without the callback.

    Raises:
        MissingPackageError: neither lightning nor pytorch_lightning is installed.

    Example:
        >>> trainer = lightning.Trainer(callbacks=[elman.Accelerate()])  # doctest: +SKIP
    """

    _of: Mapping[str, str] = {"lightning.pytorch": "Callback", "pytorch_lightning": "Callback"}

    def setup(self, trainer: Any, pl_module: nn.Module, stage: str) -> None:
        """Accelerate the model at the beginning of a run."""
        accelerate(pl_module)


class AccelerateTrainer(_Callback):
    """A callback of Hugging Face's Trainer: its model runs on elman, layers of torch's as well as
    functions of transformers.

    It calls :func:`elman.accelerate` and :func:`elman.functional.install` when the trainer is made.
    ``save_model`` writes the ``state_dict``, as without it.

    Raises:
        MissingPackageError: transformers is not installed.

    Example:
        >>> trainer = transformers.Trainer(  # doctest: +SKIP
        ...     model, callbacks=[elman.AccelerateTrainer()]
        ... )
    """

    _of: Mapping[str, str] = {"transformers": "TrainerCallback"}

    def on_init_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Accelerate the trainer's model."""
        model = others["model"]
        has_functions = stand_ins.runs_on_elman(stand_ins.replace(model))
        if not has_functions or any(isinstance(m, nn.RNNBase) for m in model.modules()):
            accelerate(model)

"""Classes derived from torch's layers, with elman's layer in place of torch's."""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Mapping
from functools import cache
from types import FunctionType
from typing import Any, Unpack
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from elman.errors import warn
from elman.nn.autograd.transforms import is_plain
from elman.nn.call.runtime import RUNTIME
from elman.nn.modules.torch_layers import GRU, LSTM, RNN, TorchLayers
from elman.nn.options.registry import CallOptions
from elman.torch_internals import run_whole
from elman.tuning.agreement import disagreement

LAYERS: Mapping[type, type] = {nn.RNN: RNN, nn.GRU: GRU, nn.LSTM: LSTM}
_ORIGINALS: Mapping[type, type] = {ours: theirs for theirs, ours in LAYERS.items()}
MARK = "_elman_swapped"  # attribute of a module whose class was changed
_STEPS = {nn.RNNCell: "elman.RNN", nn.GRUCell: "elman.GRU", nn.LSTMCell: "elman.LSTM"}
_NEW: Any = vars(copyreg)["__newobj__"]  # makes objects of a pickle
_OWN = "_elman_own"  # attribute of a class made here: the user's class
_HELPERS = ("check_input", "check_hidden_size", "check_forward_args", "permute_hidden")
_HELPERS += ("get_expected_hidden_size", "get_expected_cell_size")
_refused: WeakKeyDictionary[type, str] = WeakKeyDictionary()  # classes whose results differ


def layer_of(kind: type) -> Any:
    """torch's layer class that a class is, or is derived from."""
    return next(base for base in kind.__mro__ if base in LAYERS)


def is_torchs(module: nn.Module) -> bool:
    """Whether a module is one of torch's layers, of any class, and none of elman's."""
    return isinstance(module, tuple(LAYERS)) and not isinstance(module, TorchLayers)


def own_class(kind: type) -> type:
    """The class below those that torch derived from it (parametrizations, ``fully_shard``)."""
    return next(base for base in kind.__mro__ if base in LAYERS or not _is_torchs(base))


def class_title(kind: type) -> str:
    """A class's name in reports."""
    own = own_class(kind) if issubclass(kind, nn.RNNBase) else kind
    return f"torch.nn.{own.__name__}" if _is_torchs(own) else own.__name__


def describe_refusal(module: nn.Module) -> str:
    """The report of a module that elman does not run; empty for modules that are not recurrent."""
    kind = type(module)
    for cell, layer in _STEPS.items():
        if isinstance(module, cell):
            return f"{class_title(kind)}, left alone: {layer} takes all steps at once"
    reason = refusal(kind) if is_torchs(module) else None
    return "" if reason is None else f"{class_title(kind)}, left alone: {reason}"


def refuse(kind: type, reason: str) -> None:
    """Make :func:`refusal` return a reason for a class."""
    _refused[own_class(kind)] = reason


def refusal(kind: type, forward: bool = True) -> str | None:
    """The reason why elman's layer cannot replace torch's as a base of a class; None if it can.

    Args:
        kind: torch's class, or one that is derived from it.
        forward: whether the class's own forward must call its base's.
    """
    for base in kind.__mro__[: kind.__mro__.index(layer_of(kind))]:
        if base in _refused:
            return _refused[base]
        if not _is_torchs(base):
            changed = [name for name in _HELPERS if name in vars(base)]
            if changed:
                return f"its {changed[0]} is not torch's"
        own = vars(base).get("forward") if forward else None
        if own is not None and (_is_torchs(base) or not _calls_super(own)):
            return "its forward does not call super().forward"
    return None


def accelerated(kind: type, classes: dict[type, type]) -> type:
    """A class with elman's layer as a base: before torch's layer, after the user's class. A class
    that torch derived from one (a parametrization's, ``fully_shard``'s) is derived again from the
    new base, since torch later changes it back to its base.

    Args:
        kind: torch's layer, or a class that is derived from it.
        classes: classes derived so far; modules that shared a class share the new one.

    Raises:
        TypeError: Python cannot derive such a class.
    """
    return _derive(kind, classes, lambda own: LAYERS.get(own) or _put_below(own))


def original(kind: type, classes: dict[type, type]) -> type | None:
    """The class from which :func:`accelerated` made one; None if a user's class is derived from
    it."""
    own = [base for base in kind.__mro__ if _OWN in vars(base) or base in _ORIGINALS]
    between = kind.__mro__[: kind.__mro__.index(own[0])]
    if not all(map(_is_torchs, between)):
        return None
    return _derive(kind, classes, lambda made: vars(made).get(_OWN) or _ORIGINALS.get(made))


def _is_torchs(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "torch"


def _calls_super(forward: Any) -> bool:
    names = getattr(getattr(forward, "__code__", None), "co_names", ())
    return isinstance(forward, FunctionType) and {"super", "forward"} <= {*names}


def _derive(kind: type, classes: dict[type, type], leaf: Callable[[type], type | None]) -> type:
    """Derive a class of torch's from other bases.

    Args:
        kind: the class.
        classes: classes derived so far.
        leaf: gives the replacement of a class that torch did not derive.
    """
    if kind in classes:
        return classes[kind]
    if kind in LAYERS or not _is_torchs(kind):
        made = leaf(kind)
    else:
        bases = [
            _derive(base, classes, leaf) if issubclass(base, nn.RNNBase) else base
            for base in kind.__bases__
        ]
        names = {k: v for k, v in vars(kind).items() if k not in ("__dict__", "__weakref__")}
        made = type(kind)(kind.__name__, tuple(bases), names)
    return classes.setdefault(kind, made or kind)


class CheckFirst(TorchLayers):
    """The base of a user's class, whose first call is compared with torch's."""

    _verified: bool | None = False  # None: results differ

    @run_whole
    def forward(self, input: Any, hx: Any = None, **options: Unpack[CallOptions]) -> Any:
        """Run elman's layer; if the first results differ from torch's, torch's from then on."""
        if not self._verified and not options and is_plain():
            reason = self._difference(input, hx)
            if reason is not None:
                result = self._torch_forward(input, hx, None)
                self._give_up(reason)
                return result
            self._verified = True
        return super().forward(input, hx, **options)

    def _difference(self, input: Any, hx: Any) -> str | None:
        """How results differ from torch's, without dropout between layers."""
        training, self.training = self.training, False
        try:
            with torch.no_grad():
                ours = _tensors(*super().forward(input, hx))
                theirs = _tensors(*self._torch_forward(input, hx, None))
        finally:
            self.training = training
        dtype = str(self._type()).removeprefix("torch.")
        return disagreement(ours, theirs, dtype, max(1, len(ours["out"])))

    def _give_up(self, reason: str) -> None:
        made = next(base for base in type(self).__mro__ if _OWN in vars(base))
        own = vars(made)[_OWN]
        refuse(own, f"its results are not those of torch's layer: {reason}")
        self._verified = None
        warn(f"{own.__name__} runs on torch, not on elman: {_refused[own]}")
        if MARK in vars(self):
            give_back(self, original(type(self), {}) or own)


def give_back(module: nn.Module, kind: type) -> None:
    """Undo the acceleration of a module: give it torch's, or the user's, class again."""
    for name in (MARK, RUNTIME, "_verified"):
        vars(module).pop(name, None)
    module.__class__ = kind


def _tensors(out: Any, last: Any) -> dict[str, torch.Tensor]:
    states = last if isinstance(last, tuple) else (last,)
    out = out.data if isinstance(out, PackedSequence) else out
    return {"out": out, **{f"state {n}": state for n, state in enumerate(states)}}


_CHECK_FIRST: Mapping[type, type] = {
    theirs: type(
        ours.__name__, (CheckFirst, ours), {"__module__": __name__, "__doc__": ours.__doc__}
    )
    for theirs, ours in LAYERS.items()
}


@cache
def _put_below(kind: type) -> type:
    """Derive a class from the user's class and elman's layer, with the names of the user's."""
    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(kind)(
        kind.__name__,
        (kind, _CHECK_FIRST[layer_of(kind)]),
        {**names, _OWN: kind, "__reduce_ex__": _reduce},
    )


def _reduce(self: Any, protocol: int) -> Any:
    """Pickle by the name of the user's class: the derived class has none."""
    kind = type(self)
    make, arguments, *rest = super(kind, self).__reduce_ex__(protocol)
    if make is _NEW and arguments == (kind,):
        make, arguments = _new, (vars(kind)[_OWN],)
    return (make, arguments, *rest)


def _new(kind: type) -> Any:
    return object.__new__(_put_below(kind))

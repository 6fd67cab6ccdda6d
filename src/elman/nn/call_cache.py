"""Fast paths of calls that came before, looked up before any argument is checked.

What is checked in a call, and which kernel runs it, depends on the metadata of its tensors (never
on their numbers), on the module's options and on the modes of torch that are active. All of that is
a *kind* of call. The first call of a kind only leaves its key, the second one stores a fast path,
and from the third on calls go straight to the kernel.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from elman.nn.autograd.transforms import plain
from elman.nn.fast_path import FastPath, Run
from elman.nn.signature import Signature
from elman.nn.stack import Stack
from elman.nn.states import one_or_all
from elman.nn.using import HALVES, wanted

_MOST = 128  # entries of a module's cache; beyond them it begins anew
_PLAIN = (Tensor, Parameter)
_OF: Any = Tensor
_dtype, _shape, _on_cpu, _needs_grad = [
    one.__get__ for one in (_OF.dtype, _OF.shape, _OF.is_cpu, _OF.requires_grad)
]
_OF_MARKS = (_dtype, _shape, Tensor.stride)
_grad = torch.is_grad_enabled
_deterministic = torch.are_deterministic_algorithms_enabled
_of_layers = attrgetter(
    "training",
    "batch_first",
    "dropout",
    "residual",
    "weight_dropout",
    "checkpoint",
    "memory_budget",
)


class Lookup(NamedTuple):
    """How a call is found in the cache, and the tensors that a fast path is given.

    Attributes:
        key: finds the entry.
        guards: must equal those of the entry; not part of the key, as hashing them takes longer
            than comparing them.
        states, weights: of the call; no states stand for zeros.
        marks: its resets and its draws, those that are given.
        drawn: whether draws are given.
    """

    key: Hashable
    guards: list[Any]
    states: Sequence[Tensor]
    weights: Sequence[Tensor]
    marks: tuple[Tensor, ...]
    drawn: bool


class _Entry(NamedTuple):
    """What is known of a kind of call.

    Attributes:
        guards: as of :class:`Lookup`.
        run: the fast path; None if such calls take the general one.
    """

    guards: list[Any]
    run: Run | None


class CallCache(ABC):
    """The kinds of calls of one module, and their fast paths.

    Args:
        names: of its parameters; without any, all calls take the general path.
        options: reads the attributes of the module that a call depends on.
    """

    def __init__(self, names: Sequence[str], options: Callable[[Any], tuple[Any, ...]]) -> None:
        self._weights: Any = itemgetter(*names) if len(names) > 1 else None
        self._options = options
        self._entries: dict[Hashable, _Entry | None] = {}  # None: came once so far

    def __getstate__(self) -> dict[str, Any]:
        """Copies begin with an empty cache: torch's parametrized modules copy all attributes."""
        return {**self.__dict__, "_entries": {}}

    def forget(self) -> None:
        """Empty the cache."""
        self._entries.clear()

    def __call__(
        self, module: Any, x: Any, state: Any, reset: Any = None, draws: Any = None
    ) -> Any:
        """What ``module(x, state, reset=reset, draws=draws)`` returns; None if there is no fast
        path for it."""
        lookup = self._lookup(module, x, state, reset, draws)
        if lookup is None:
            return None
        key, guards, states, weights, marks, _ = lookup
        entry = self._entries.get(key)
        if entry is None or entry.run is None or entry.guards != guards:
            return None
        return self._results(*entry.run(x, states, weights, *marks))

    @abstractmethod
    def _results(self, output: Tensor, last: Sequence[Tensor]) -> Any:
        """What the module returns."""

    @abstractmethod
    def _fast_run(self, module: Any, x: Tensor, lookup: Lookup) -> Run | None:
        """The fast path of calls like this one, whose tensors are plain, states and weights
        contiguous; None if there is none."""

    def keep(self, module: Any, x: Any, state: Any, reset: Any = None, draws: Any = None) -> None:
        """Take in a call that took the general path: if its kind came before, find a fast path."""
        lookup = self._lookup(module, x, state, reset, draws)
        if lookup is None:
            return
        if lookup.key in self._entries:
            entry = self._entries[lookup.key]
            if entry is not None and entry.run is None and entry.guards == lookup.guards:
                return
            tensors = (x, *lookup.states, *lookup.weights)
            plain_memory = all(type(t) in _PLAIN and t.is_cpu and not t.is_neg() for t in tensors)
            served = plain_memory and all(t.is_contiguous() for t in tensors[1:])
            run = self._fast_run(module, x, lookup) if served else None
            self._entries[lookup.key] = _Entry(lookup.guards, run)
            return
        if len(self._entries) >= _MOST:
            self._entries.clear()
        self._entries[lookup.key] = None

    def _lookup(self, module: Any, x: Any, state: Any, reset: Any, draws: Any) -> Lookup | None:
        """Key and guards of a call; None where no fast path could run it."""
        if self._weights is None or type(x) is not Tensor or not plain():
            return None
        drawn = draws is not None
        marks: tuple[Any, ...] = () if reset is None else (reset,)
        marks += (draws,) if drawn else ()
        for mark in marks:
            if type(mark) is not Tensor or not mark.is_cpu:
                return None
        if state is None:
            states: Sequence[Tensor] = ()
        elif isinstance(state, (tuple, list)):
            states = state
        else:
            states = (state,)
        try:
            weights = self._weights(module._parameters)
            tensors = (x, *states, *weights)
            key = (
                x.shape,
                x.stride(),
                x.dtype,
                type(state),
                wanted(module.engine),
                _deterministic(),
                *map(_needs_grad, tensors if _grad() else ()),
                *self._options(module),
                drawn,
                *[fact(mark) for mark in marks for fact in _OF_MARKS],
            )
            guards = [
                *map(type, tensors),
                *map(_dtype, tensors),
                *map(_shape, tensors),
                *map(_on_cpu, tensors),
                *map(Tensor.is_neg, tensors),
                *map(Tensor.is_contiguous, tensors),
            ]
        except (KeyError, RuntimeError, TypeError):  # weights are missing, or have no memory
            return None
        return Lookup(key, guards, states, weights, marks, drawn)


class LayerCallCache(CallCache):
    """The cache of a module of layers.

    Args:
        stack, signature: of the module.
        names: of the parameters of each layer and direction.
        draws: how often cells draw random numbers anew, in training.
        from_zeros: whether sequences that are given no state begin with zeros.
    """

    def __init__(
        self,
        stack: Stack,
        signature: Signature,
        names: Sequence[Sequence[str]],
        draws: tuple[str, ...],
        from_zeros: bool,
    ) -> None:
        self._stack, self._signature, self._draws = stack, signature, draws
        one = len(signature.inputs) == 1 and len(signature.inputs[0][1]) == 1
        one = one and not signature.static and len(stack.output_layout().shapes) == 1
        served = from_zeros and one and signature.form.alike
        super().__init__([name for own in names for name in own] if served else [], _of_layers)

    def _results(self, output: Tensor, last: Sequence[Tensor]) -> Any:
        return output, one_or_all(last)

    def _fast_run(self, module: Any, x: Tensor, lookup: Lookup) -> Run | None:
        if module.checkpoint is not None and torch.is_grad_enabled():
            return None
        if module.training and module.weight_dropout:
            return None
        draws = self._draws if module.training else ()
        if draws and x.dtype in HALVES:
            return None
        between = module.residual or (module.training and module.dropout > 0.0)
        groups = self._stack.groups_for(bool(between))
        if len(groups) > 1:
            return None
        first = bool(module.batch_first)
        batched, drawn = x.dim() == 3, lookup.drawn
        path = FastPath.of(groups[0][0], self._signature, batched, first, draws, drawn)
        tensors = (lookup.states, lookup.weights, lookup.marks)
        return path.prepared(x, *tensors, wanted(module.engine))

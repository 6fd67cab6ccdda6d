"""Calls of a kind that came before: looked up before anything is checked, and run at once.

What is checked in a call, and which kernel runs it, depends on what its tensors are (not on their
numbers), on the module's options and on what is under way in torch. A kind is all of that; the
second call of one is kept, and those that follow go straight to the kernel.
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
from elman.nn.signature import Signature
from elman.nn.stack import Stack
from elman.nn.states import one_or_all
from elman.nn.using import HALVES, wanted
from elman.nn.ways import Run, Way

_MOST = 128  # kinds of calls of a module
_PLAIN = (Tensor, Parameter)
_OF: Any = Tensor
_dtype, _shape, _on_cpu, _needs_grad = [
    one.__get__ for one in (_OF.dtype, _OF.shape, _OF.is_cpu, _OF.requires_grad)
]
_OF_RESETS = (_dtype, _shape, Tensor.stride)
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


class Asked(NamedTuple):
    """What a call is.

    Attributes:
        key: by which its kind is looked up.
        facts: what must be the same besides.
        states, weights, resets: of the call; no states: zeros.
    """

    key: Hashable
    facts: list[Any]
    states: Sequence[Tensor]
    weights: Sequence[Tensor]
    resets: tuple[Tensor, ...]


class _Kind(NamedTuple):
    """A kind of calls.

    Attributes:
        facts: as of :class:`Asked`.
        run: None: such calls go the long way.
    """

    facts: list[Any]
    run: Run | None


class Kinds(ABC):
    """The kinds of calls of one module.

    Args:
        names: of its parameters; none: all calls go the long way.
        options: what a call depends on of the module's attributes.
    """

    def __init__(self, names: Sequence[str], options: Callable[[Any], tuple[Any, ...]]) -> None:
        self._weights: Any = itemgetter(*names) if len(names) > 1 else None
        self._options = options
        self._kinds: dict[Hashable, _Kind | None] = {}  # None: it came once

    def __getstate__(self) -> dict[str, Any]:
        """Nothing that came is copied: torch's parametrized modules copy all attributes."""
        return {**self.__dict__, "_kinds": {}}

    def forget(self) -> None:
        """Let all calls be checked anew."""
        self._kinds.clear()

    def __call__(self, module: Any, x: Any, state: Any, reset: Any = None) -> Any:
        """What ``module(x, state, reset=reset)`` gives; None where the kind of call is not
        known."""
        asked = self._asked(module, x, state, reset)
        if asked is None:
            return None
        key, facts, states, weights, resets = asked
        kind = self._kinds.get(key)
        if kind is None or kind.run is None or kind.facts != facts:
            return None
        return self._made(*kind.run(x, states, weights, *resets))

    @abstractmethod
    def _made(self, output: Tensor, last: Sequence[Tensor]) -> Any:
        """What the module returns."""

    @abstractmethod
    def _run_of(self, module: Any, x: Tensor, asked: Asked) -> Run | None:
        """What runs calls of a kind, whose tensors are plain, states and weights contiguous; None
        if they go the long way."""

    def keep(self, module: Any, x: Any, state: Any, reset: Any = None) -> None:
        """Take in a call that went the long way: its kind is kept when it comes again."""
        asked = self._asked(module, x, state, reset)
        if asked is None:
            return
        if asked.key in self._kinds:
            tensors = (x, *asked.states, *asked.weights)
            served = all(type(t) in _PLAIN and t.is_cpu and not t.is_neg() for t in tensors)
            served = served and all(t.is_contiguous() for t in tensors[1:])
            run = self._run_of(module, x, asked) if served else None
            self._kinds[asked.key] = _Kind(asked.facts, run)
            return
        if len(self._kinds) >= _MOST:
            self._kinds.clear()
        self._kinds[asked.key] = None

    def _asked(self, module: Any, x: Any, state: Any, reset: Any) -> Asked | None:
        """What a call is; None if it is nothing usual."""
        if self._weights is None or type(x) is not Tensor or not plain():
            return None
        if reset is None:
            resets: tuple[Tensor, ...] = ()
        elif type(reset) is Tensor and reset.is_cpu:
            resets = (reset,)
        else:
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
                *[fact(reset) for reset in resets for fact in _OF_RESETS],
            )
            facts = [
                *map(type, tensors),
                *map(_dtype, tensors),
                *map(_shape, tensors),
                *map(_on_cpu, tensors),
                *map(Tensor.is_neg, tensors),
                *map(Tensor.is_contiguous, tensors),
            ]
        except (KeyError, RuntimeError, TypeError):  # no such weights, or what has no memory
            return None
        return Asked(key, facts, states, weights, resets)


class Repeats(Kinds):
    """The kinds of calls of a module of layers.

    Args:
        stack, signature: of the module.
        names: of the parameters of each layer and direction.
        draws: how often cells draw random numbers anew, in training.
        usual: whether sequences that are given no state begin with zeros.
    """

    def __init__(
        self,
        stack: Stack,
        signature: Signature,
        names: Sequence[Sequence[str]],
        draws: tuple[str, ...],
        usual: bool,
    ) -> None:
        self._stack, self._signature, self._draws = stack, signature, draws
        one = len(signature.inputs) == 1 and len(signature.inputs[0][1]) == 1
        one = one and not signature.static and len(stack.handing().shapes) == 1
        served = usual and one and signature.form.alike
        super().__init__([name for own in names for name in own] if served else [], _of_layers)

    def _made(self, output: Tensor, last: Sequence[Tensor]) -> Any:
        return output, one_or_all(last)

    def _run_of(self, module: Any, x: Tensor, asked: Asked) -> Run | None:
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
        way = Way.of(groups[0][0], self._signature, x.dim() == 3, first, draws)
        return way.settled(x, *asked[2:], wanted(module.engine))

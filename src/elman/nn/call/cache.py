"""Cache of call plans, searched before any argument is checked."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.utils.rnn import PackedSequence

from elman.engines.time_shards import CURRENT
from elman.nn.autograd.transforms import is_plain
from elman.nn.engine_choice import requested_engine
from elman.nn.layout.dense import is_dense
from elman.torch_internals import fp32_precision as _precision

_MOST = 128  # plans of a module; beyond them it begins anew
_PLAIN = (Tensor, Parameter)
_OF: Any = Tensor
_dtype, _shape, _on_cpu, _needs_grad = [
    getter.__get__ for getter in (_OF.dtype, _OF.shape, _OF.is_cpu, _OF.requires_grad)
]
_grad = torch.is_grad_enabled
_deterministic = torch.are_deterministic_algorithms_enabled
_read_options = attrgetter(  # what plans read of a module, besides its runtime and guards
    *("training", "batch_first", "dropout", "residual", "weight_dropout", "precision")
)


class Kind(NamedTuple):
    """The key of all calls of one kind, and the tensors of one of them.

    Attributes:
        key: finds the plan.
        guards: must equal those of the entry; not part of the key, as hashing them takes longer
            than comparing them.
        weights: of all layers and directions.
        tensors: all arguments.
    """

    key: Hashable
    guards: list[Any]
    weights: Sequence[Tensor]
    tensors: list[Tensor]


class CallCache:
    """The plans of one module.

    Args:
        names: of its weights, then of its default initial states.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._weights: Callable[[Mapping[str, Any]], Sequence[Tensor]] = (
            itemgetter(*names) if len(names) > 1 else lambda values: [values[n] for n in names]
        )
        self._plans: dict[Hashable, tuple[list[Any], Any]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Copies begin with an empty cache: torch's parametrized modules copy all attributes."""
        return {**self.__dict__, "_plans": {}}

    def clear(self) -> None:
        """Forget all plans."""
        self._plans.clear()

    def kind_of(self, module: Any, x: Any, state: Any, options: Mapping[str, Any]) -> Kind | None:
        """The kind of a call; None where calls like it are planned anew each time: in transforms,
        modes and autocast, or with tensors that are not plain ones."""
        if not is_plain() or CURRENT.get() is not None:
            return None
        tensors: list[Tensor] = [x] if type(x) is Tensor else []
        form: list[Hashable] = []
        try:
            if not tensors:
                form.append(_describe(x, tensors))
            if state is not None:
                form.append(_describe(state, tensors))
            buffers, parameters = module._buffers, module._parameters
            weights = self._weights({**buffers, **parameters} if buffers else parameters)
            tensors += weights
            count = len(tensors)
            for name, value in options.items():
                form += [name, _describe(value, tensors)]
            if not tensors:  # packed inputs of a cell without weights
                return None
            first = tensors[0]
            key = (
                first.shape,
                first.stride(),
                first.dtype,
                requested_engine(module.engine),
                _deterministic(),
                _precision("mkldnn", "rnn"),
                *map(_needs_grad, tensors if _grad() else ()),
                *_read_options(module),
                *form,
            )
            guards = [
                module.plan,
                *map(type, tensors),
                *map(_dtype, tensors),
                *map(_shape, tensors),
                *map(_on_cpu, tensors),
                *map(Tensor.is_neg, tensors),
                *map(Tensor.is_contiguous, tensors[:count]),  # a direct call reads their memory
            ]
        except (KeyError, RuntimeError, TypeError):  # weights are missing, or have no memory
            return None
        return Kind(key, guards, weights, tensors)

    def find(self, kind: Kind) -> Any:
        """The plan of calls of a kind; None if none is kept."""
        entry = self._plans.get(kind.key)
        return entry[1] if entry is not None and entry[0] == kind.guards else None

    def keep(self, kind: Kind, plan: Any) -> bool:
        """Keep the plan of a kind, unless a tensor hides the memory that a kernel reads; return
        whether it is kept."""
        if not all(type(t) in _PLAIN and t.is_cpu and not t.is_neg() for t in kind.tensors):
            return False
        if len(self._plans) >= _MOST:
            self._plans.clear()
        self._plans[kind.key] = kind.guards, plan
        return True


def _describe(value: Any, tensors: list[Tensor]) -> Hashable:
    """Describe an argument without its tensors; these are appended to ``tensors``.

    Raises:
        TypeError: it is none that calls of a kind can have in common.
    """
    if isinstance(value, Tensor):
        if not is_dense(value):
            raise TypeError("an argument is not dense")
        tensors.append(value)
        return Tensor
    if type(value) is PackedSequence and type(value.data) is Tensor and value.data.is_cpu:
        data, sizes = value.data, value.batch_sizes
        form = data.shape[1:], data.dtype, data.requires_grad, int(sizes[0])
        return PackedSequence, *form, value.sorted_indices is None
    if type(value) in (tuple, list):
        if value and all(type(part) is int for part in value):
            return type(value), len(value)  # lengths
        return type(value), tuple([_describe(part, tensors) for part in value])
    if type(value) in (str, int, float, bool):
        return value
    raise TypeError(f"an argument is a {type(value).__name__}")

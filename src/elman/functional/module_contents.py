"""The contents of a module and its parts, which a recording of its operations depends on."""

from __future__ import annotations

from itertools import chain
from operator import is_
from typing import Any

from torch import Tensor, nn

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
FOR_A_RECORDING = "_elman_records"  # an attribute of forwards that are there for a moment


def _replaces(part: dict[str, Any]) -> bool:
    """Whether a module has a forward of its own."""
    return "forward" in part and not hasattr(part["forward"], FOR_A_RECORDING)


def version_of(weight: Tensor) -> int:
    """Return how often a weight was written to, which torch does not count of some."""
    return 0 if weight.is_inference() else weight._version


class ModuleContents:
    """The attributes, parts and tensors of a layer, as they are when it is made.

    Attributes:
        tensors: parameters first.
        watched: whether a hook, or another forward, of one of its parts sees each call.
    """

    def __init__(self, layer: nn.Module) -> None:
        held = [vars(part) for part in layer.modules()]
        values = [*chain.from_iterable(each.values() for each in held)]
        self._dicts = [*held, *(value for value in values if isinstance(value, dict))]
        self._values = self._present()
        self._weights = [*layer.parameters()]
        self.tensors = [
            *self._weights,
            *layer.buffers(),
            *(value for value in values if isinstance(value, Tensor)),
        ]
        self.watched = any(_replaces(part) or any(map(part.get, _HOOKS)) for part in held[1:])

    def _present(self) -> list[Any]:
        return [*chain.from_iterable(map(dict.values, self._dicts))]

    def are_unchanged(self) -> bool:
        """Return whether all parts, and all that they hold, are still the same objects."""
        present = self._present()
        return len(present) == len(self._values) and all(map(is_, present, self._values))

    def memory(self) -> list[int]:
        """Where the tensors lie, and how often the weights were written to."""
        places = [tensor.data_ptr() for tensor in self.tensors]
        return places + [*map(version_of, self._weights)]

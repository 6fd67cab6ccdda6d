"""Attention layers of transformers while they are recorded: what grows with the text is called
apart."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Any

from torch import nn

from elman.functional.module_contents import FOR_A_RECORDING
from elman.functional.recordings import Recorder, RefusedError

_Apart = Callable[[Callable[..., Any], bool], Callable[..., Any]]
TABLE = "ALL_ATTENTION_FUNCTIONS"  # of the modules that models lie in
_UPDATES = ("DynamicLayer.update", "DynamicSlidingWindowLayer.update")  # put new tensors in the
# place of the old ones, which can be put back
_LENGTHS = ("get_seq_length", "get_mask_sizes", "get_max_length")  # of caches
GROWS = ("keys", "values", "cumulative_length")  # attributes of a cache's layer
_lock = Lock()  # tables belong to the process


def can_grow(held: Any) -> bool:
    """Return whether an update of a cache's layer exchanges its tensors, so that its attributes put
    it back."""
    update = getattr(type(held), "update", None)
    return getattr(update, "__qualname__", "") in _UPDATES


def _of_recording(function: Callable[..., Any]) -> Callable[..., Any]:
    """A forward that is there while a layer is recorded: other threads may see it."""
    setattr(function, FOR_A_RECORDING, True)
    return function


class Table:
    """A table of attention functions whose calls are made apart."""

    def __init__(self, table: Any, apart: _Apart) -> None:
        self._table, self._apart = table, apart

    def get_interface(self, *given: Any, **options: Any) -> Any:
        return self._apart(self._table.get_interface(*given, **options), True)

    def __getitem__(self, name: str) -> Any:
        return self._apart(self._table[name], True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)


@contextmanager
def called_apart(
    layer: nn.Module, cache: Any, parts: list[nn.Module], recorder: Recorder
) -> Iterator[None]:
    """Call apart, inside of the block: updates of a cache that grows, attention functions, and some
    parts of a layer. These alone may ask for the length of the cache."""
    apart = recorder.apart

    def update(*given: Any, **options: Any) -> Any:
        return of_class(cache, *given, **options)  # each run has its own cache

    def length(name: str, *given: Any, **options: Any) -> Any:
        if not recorder.is_apart:
            raise RefusedError("it asks for the length of the cache")
        return getattr(type(cache), name)(cache, *given, **options)

    of_class = apart(
        lambda held, *given, **options: type(held).update(held, *given, **options), False
    )
    modules = {
        type(part).__module__: sys.modules[type(part).__module__] for part in layer.modules()
    }
    with _lock:  # what is in these places may be another thread's until then
        puts = [(part, "forward", _of_recording(apart(part.forward, True))) for part in parts]
        if cache is not None:
            lengths = [name for name in _LENGTHS if hasattr(cache, name)]
            puts += [(cache, name, partial(length, name)) for name in lengths]
            puts += [(cache, "update", update)]
        tables = [
            (module, vars(module)[TABLE]) for module in modules.values() if TABLE in vars(module)
        ]
        try:
            for owner, name, function in puts:
                vars(owner)[name] = function
            for module, table in tables:
                setattr(module, TABLE, Table(table, apart))
            yield
        finally:
            for owner, name, _ in puts:
                del vars(owner)[name]
            for module, table in tables:
                setattr(module, TABLE, table)

"""Runs what a layer does for one token again as a list of operations, without its Python.

Of a token that is generated, most of the time of a recurrent layer on a CPU goes into Python and
into views: transformers splits, transposes and reshapes some twenty times around a few kernels. Its
caches keep the addresses of their states. So all operations of one token are recorded, each with
the tensors that it reads and writes; a further token copies its input to where the first one's lay
and runs the operations in order. Views need no operation then, and kernels of ours no arguments.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import wraps
from itertools import chain
from threading import local
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from elman.engines.c.threads import threads
from elman.functional.recordings import ModuleContents, Recording, RefusedError, tensors_of, write
from elman.nn.autograd.transforms import is_plain
from elman.nn.records import ON_RELEASE
from elman.torch_internals import (
    has_global_hooks,
)

_ALIKE = 2  # tokens of one kind before one is recorded: kernels are prepared by then
_MOST = 256  # tokens to wait after recordings that were of little use
_USEFUL = 16  # tokens that a recording should serve
_CLOSE = 1e-5  # relative to the largest value
_ALLOCATES = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
_REFUSED = (  # what another token could do otherwise
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.nondeterministic_seeded,
)
_STATES = ("conv_states", "recurrent_states")  # of a layer in transformers' caches
_Found = tuple[list[Tensor], tuple[Any, ...]]  # states, and the flags and numbers beside them
_PLAIN = (bool, int, float, str, type(None))


class _Situation(NamedTuple):
    """All that a token's operations depend on, but for the numbers in tensors.

    Attributes:
        arguments: shapes and types of tensors, all else as it is, by its id where it is no number.
        objects: ids of what the layer and its parts hold.
        weights: where they lie, and how often they were written to.
        states: of the cache: which tensors, and where they lie; flags and numbers beside them.
        process: that runs it, its threads, and whether torch is in inference mode.
    """

    arguments: tuple[Any, ...]
    objects: tuple[int, ...]
    weights: tuple[int, ...]
    states: tuple[Any, ...]
    process: tuple[int, ...]


class _Tokens:
    """Tokens of one layer.

    Args:
        layer: of the model.
        whole: whether it is all between two residual streams, so that it must have no attention.

    Attributes:
        refused: why its tokens are not recorded.
    """

    def __init__(self, layer: nn.Module, whole: bool) -> None:
        self.refused, self._whole = "", whole
        indices = (getattr(part, "layer_idx", None) for part in layer.modules())
        self._index = next((each for each in indices if isinstance(each, int)), None)
        self._contents = ModuleContents(layer)
        self._last: _Situation | None = None
        self._recording: Recording | None = None
        self._alike, self._patience = 0, _ALIKE

    def states(self, given: Any, options: Any) -> _Found | None:
        """What :func:`_states_of` finds in a call's arguments."""
        return _states_of(self._index, (*given, *options.values()), self._whole)

    def run(self, forward: Any, layer: nn.Module, given: Any, options: Any, found: _Found) -> Any:
        """The result of a token, by its operations or by the layer itself."""
        states, _ = found
        situation = _situation(self._contents, given, options, found)
        recording = self._recording  # another thread may put its own in the place
        if recording is not None and recording.situation == situation:
            if recording.verified:
                return recording.run(given, options)
            return self._verify(recording, forward, layer, given, options, states)
        if situation != self._last:
            self._contents = ModuleContents(layer)
            situation = _situation(self._contents, given, options, found)
            self._begin(situation)
        self._alike += 1
        if self._alike <= self._patience:
            return forward(layer, *given, **options)
        before = [state.clone() for state in states]
        try:
            recording = Recording(forward, layer, given, options, states, situation)
        except RefusedError as error:
            self.refused = str(error)
            write(states, before)
            return forward(layer, *given, **options)
        self._recording = recording
        return recording.result

    def _begin(self, situation: _Situation) -> None:
        """Wait for tokens of another kind, the longer the less the last recording was of use."""
        if self._recording is not None:
            little = self._recording.uses < _USEFUL
            self._patience = min(2 * self._patience, _MOST) if little else _ALIKE
        self._last, self._recording, self._alike = situation, None, 0

    def _verify(
        self,
        recording: Recording,
        forward: Any,
        layer: nn.Module,
        given: Any,
        options: Any,
        states: list[Tensor],
    ) -> Any:
        """A token by both; the recording is used if results and states are the same."""
        before = [state.clone() for state in states]
        want = forward(layer, *given, **options)
        after = [state.clone() for state in states]
        write(states, before)
        got = recording.run(given, options)
        pairs = zip(tensors_of((got, states)), tensors_of((want, after)), strict=True)
        close = [_is_close(*pair) for pair in pairs]
        recording.verified = all(close)
        if not recording.verified:
            self.refused, self._recording = "its results differ", None
            write(states, after)
        return want


_forwards = dict[Any, Callable[..., Any]]()  # of classes, as they were
_tokens: WeakKeyDictionary[nn.Module, _Tokens] = WeakKeyDictionary()
ON_RELEASE.append(_tokens.clear)
_busy = local()  # inside of a layer that is recorded or waits to be


def record(kind: type, whole: bool) -> None:
    """Record tokens of layers of a class.

    Args:
        whole: whether they are layers of a model, with norms and all else, or parts of these.
    """
    if "forward" in vars(kind) and kind not in _forwards:
        forward = _forwards[kind] = vars(kind)["forward"]
        kind.forward = _recorded(forward, whole)


def restore(kind: type) -> None:
    """Undo :func:`record`."""
    if kind in _forwards:
        kind.forward = _forwards.pop(kind)


def restore_all() -> None:
    """Undo :func:`record` for all classes, and forget what was recorded."""
    for kind in [*_forwards]:
        restore(kind)
    _tokens.clear()


def _recorded(forward: Callable[..., Any], whole: bool) -> Callable[..., Any]:
    @wraps(forward)
    def call(layer: nn.Module, *given: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling():
            return forward(layer, *given, **options)
        x = given[0] if given else options.get("hidden_states")
        if (
            torch.is_grad_enabled()
            or not isinstance(x, Tensor)
            or x.dim() != 3
            or x.shape[1] != 1
            or x.device.type != "cpu"
            or getattr(_busy, "layer", None) is not None
            or not is_plain()
            or has_global_hooks()
        ):
            return forward(layer, *given, **options)
        tokens = _tokens.get(layer)
        if tokens is None:
            tokens = _tokens[layer] = _Tokens(layer, whole)
        found = None if tokens.refused else tokens.states(given, options)
        if found is None:
            return forward(layer, *given, **options)
        _busy.layer = layer
        try:
            return tokens.run(forward, layer, given, options, found)
        finally:
            _busy.layer = None

    return call


def _situation(contents: ModuleContents, given: Any, options: Any, found: _Found) -> _Situation:
    states, facts = found
    return _Situation(
        (*map(_describe, given), *options, *map(_describe, options.values())),
        contents.ids(),
        contents.weights(),
        (*facts, *((id(state), state.data_ptr(), *state.shape) for state in states)),
        (os.getpid(), threads(), torch.is_inference_mode_enabled()),
    )


def _describe(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.shape, value.dtype, value.device, type(value)
    if isinstance(value, tuple | list):
        return tuple(map(_describe, value))
    if type(value) is dict:
        return tuple([(key, _describe(each)) for key, each in value.items()])
    return value if isinstance(value, _PLAIN) else id(value)


def _states_of(index: int | None, arguments: tuple[Any, ...], whole: bool) -> _Found | None:
    """The states of a layer in a cache of transformers, and the flags and numbers beside them; None
    if there is no cache, or one that is not known, or the layer has attention."""
    for cache in arguments:
        layers = getattr(cache, "layers", None)
        if isinstance(layers, list) and index is not None and index < len(layers):
            held = vars(layers[index])
            states = [v for name in _STATES for v in _each(held.get(name)) if v is not None]
            if not states or (whole and held.get("keys") is not None):
                return None
            others = [value for name, value in held.items() if name not in _STATES]
            facts = chain.from_iterable(map(_each, (*vars(cache).values(), *others)))
            return states, tuple([value for value in facts if isinstance(value, _PLAIN)])
    return None


def _each(value: Any) -> Iterable[Any]:
    if isinstance(value, list | tuple):
        return value
    return value.values() if isinstance(value, dict) else (value,)


def _is_close(got: Tensor, want: Tensor) -> bool:
    if not want.numel():
        return got.shape == want.shape
    return bool((got - want).abs().max() <= _CLOSE * want.abs().max())

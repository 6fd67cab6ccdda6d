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
from contextlib import AbstractContextManager, nullcontext
from functools import partial, wraps
from itertools import chain
from threading import get_ident, local
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from elman.engines.c.process.threads import threads
from elman.errors import warn_once
from elman.functional.attention import GROWS, called_apart, can_grow
from elman.functional.linear_layers import rounds_inputs
from elman.functional.module_contents import ModuleContents
from elman.functional.recordings import (
    NotReadyError,
    Recorder,
    Recording,
    RefusedError,
    tensors_of,
    write,
)
from elman.functional.state_memory import StateMemory, exchanged
from elman.nn.autograd.transforms import is_plain
from elman.nn.records import ON_RELEASE
from elman.torch_internals import has_global_hooks

_ALIKE = 2  # tokens of one kind before one is recorded: kernels are prepared by then
_MOST = 256  # tokens to wait after recordings that were of little use
_USEFUL = 16  # tokens that a recording should serve
_CLOSE = 1e-5  # relative to the largest value
_CLOSE_ROUNDED = 1e-3  # inputs are rounded to 16 bits: another last bit may be another integer
_STATES = ("conv_states", "recurrent_states")  # of a layer in transformers' caches
_LATE = 8  # times that kernels may not be ready
_PARTS = 4  # of a layer that are called apart, at most
_PLAIN = (bool, int, float, str, type(None))
_SLOWER = "are not recorded, and run by transformers' Python, which is slower"


class _Situation(NamedTuple):
    """All that a token's operations depend on, but for the numbers in tensors.

    Attributes:
        arguments: shapes and types of tensors, all else as it is, by its id where it is no number.
        contents: of the layer and its parts; others are another object.
        memory: where the tensors of the layer lie, and how often its weights were written to.
        states: of the cache: shapes, flags and numbers.
        addresses: which tensors the states are, and where they lie.
        process: that runs it, the thread (recordings are of one at a time), how many torch has,
            and whether it is in inference mode.
    """

    arguments: tuple[Any, ...]
    contents: ModuleContents
    memory: list[int]
    states: tuple[Any, ...]
    addresses: tuple[tuple[int, int], ...]
    process: tuple[int, ...]


class _Held(NamedTuple):
    """What the cache of a call has for a layer.

    Attributes:
        cache: of all layers.
        layer: its attributes, of the layer.
        states: tensors that are changed in place.
        facts: flags and numbers of both.
        grows: whether there are keys and values, too.
        free: names of arguments that differ between tokens.
    """

    cache: Any
    layer: dict[str, Any]
    states: list[Tensor]
    facts: tuple[Any, ...]
    grows: bool
    free: tuple[str, ...]

    def kept(self) -> Callable[[], None]:
        """Copy all that a token changes; what is returned puts it back."""
        before = [state.clone() for state in self.states]
        owners = [(held, _copied(held)) for held in (vars(self.cache), self.layer)]

        def put_back() -> None:
            write(self.states, before)
            for held, attributes in owners:
                _restore(held, attributes)

        return put_back

    def tensors(self) -> list[Tensor]:
        """All that a token changes."""
        return [*self.states, *(self.layer[name] for name in ("keys", "values") if self.grows)]


class _Tokens:
    """Tokens of one layer.

    Args:
        layer: of the model.

    Attributes:
        refused: why its tokens are not recorded.
    """

    def __init__(self, layer: nn.Module) -> None:
        self.refused, self._apart = "", list[nn.Module]()
        indices = (getattr(part, "layer_idx", None) for part in layer.modules())
        self._index = next((each for each in indices if isinstance(each, int)), None)
        self._contents = ModuleContents(layer)
        self._last: _Situation | None = None
        self._varying, self._arguments = set[str](), dict[str, tuple[Any, Any]]()
        self._token: Any = None  # what is known of its own tensor, by which others are compared
        self._recording: Recording | None = None
        self._alike, self._patience, self._late = 0, _ALIKE, 0

    def held(self, given: Any, options: dict[str, Any]) -> _Held | None:
        """What :func:`_held` finds in a call's arguments."""
        return _held(self._index, given, options, self._varying)

    def run(self, forward: Any, layer: nn.Module, given: Any, options: Any, held: _Held) -> Any:
        """The result of a token, by its operations or by the layer itself."""
        contents = self._contents
        if not contents.are_unchanged():
            contents = self._contents = ModuleContents(layer)
        situation = _situation(contents, given, options, held)
        recording = self._recording  # another thread may put its own in the place
        if recording is not None and _follows(recording, situation, held):
            if recording.verified:
                return recording.run(given, options)
            return self._verify(recording, forward, layer, given, options, held)
        if situation != self._last:
            self._note_varying(given, options)
            self._begin(situation)
        self._alike += 1
        if self._alike <= self._patience or contents.watched:
            if contents.watched:
                _say(layer, "a hook, or another forward, of one of its parts sees each call")
            return forward(layer, *given, **options)
        memory = StateMemory(held.states)
        put_back, recording = held.kept(), Recording(situation, memory, held.free)
        apart = [*self._apart]  # other threads may find more meanwhile
        around = partial(self._around, layer, held)
        try:
            with exchanged(held.layer, _STATES, held.states, memory.own):
                recording.record(forward, layer, given, options, around)
        except Exception as error:  # what is wrong with the layer it raises again
            put_back()
            self._refuse(layer, error, apart)
            return forward(layer, *given, **options)
        memory.lend(held.states)
        self._recording = recording
        return recording.result

    def _around(
        self, layer: nn.Module, held: _Held, recorder: Recorder
    ) -> AbstractContextManager[Any]:
        if not (held.grows or self._apart):
            return nullcontext()
        cache = held.cache if held.grows else None
        return called_apart(layer, cache, self._apart, recorder)

    def _refuse(self, layer: nn.Module, error: Exception, apart: list[nn.Module]) -> None:
        """Record no token, or call the part of the layer apart that cannot be recorded.

        Args:
            apart: the parts that were called apart.
        """
        if isinstance(error, NotReadyError) and self._late < _LATE:
            self._alike, self._late = 0, self._late + 1
            return
        part = _part_of(error, layer) if isinstance(error, RefusedError) else None
        if part is None or part in apart or len(apart) == _PARTS:
            self._give_up(layer, str(error) or type(error).__name__)
        elif part not in self._apart:
            self._apart.append(part)

    def _begin(self, situation: _Situation) -> None:
        """Wait for tokens of another kind, the longer the less the last recording was of use."""
        if self._recording is not None:
            little = self._recording.uses < _USEFUL
            self._patience = min(2 * self._patience, _MOST) if little else _ALIKE
        self._last, self._recording, self._alike = situation, None, 0

    def _note_varying(self, given: Any, options: dict[str, Any]) -> None:
        """Find tensors among the arguments that grow from token to token, as positions of all of
        them do."""
        before, token = self._arguments, self._token
        now = {name: (_kind(value), _describe(value)) for name, value in options.items()}
        self._arguments, self._token = now, (_describe(given), now.get("hidden_states"))
        if token == self._token:
            alike = [name for name in now if name in before and before[name][0] == now[name][0]]
            grown = [name for name in alike if before[name] != now[name]]
            self._varying |= {name for name in grown if _is_of_tensors(options[name])}

    def _verify(
        self,
        recording: Recording,
        forward: Any,
        layer: nn.Module,
        given: Any,
        options: Any,
        held: _Held,
    ) -> Any:
        """A token by both; the recording is used if results and states are the same."""
        before = held.kept()
        want = forward(layer, *given, **options)
        after, tensors = held.kept(), [each.clone() for each in held.tensors()]
        before()
        try:
            got = recording.run(given, options)
        except RefusedError as error:
            after()
            self._give_up(layer, str(error))
            return want
        pairs = zip(tensors_of((got, held.tensors())), tensors_of((want, tensors)), strict=True)
        tolerance = _CLOSE_ROUNDED if rounds_inputs(layer) else _CLOSE
        recording.verified = all(_is_close(*pair, tolerance) for pair in pairs)
        if not recording.verified:
            self._give_up(layer, "its results differ")
            after()
        return want

    def _give_up(self, layer: nn.Module, why: str) -> None:
        """Record no token of a layer any more, and say so, once for layers alike."""
        self.refused, self._recording = why, None
        _say(layer, why)


def _say(layer: nn.Module, why: str) -> None:
    kind = type(layer).__name__
    warn_once(f"elman: tokens of {kind} {_SLOWER}: {why}")


_forwards = dict[Any, Callable[..., Any]]()  # of classes, as they were
_tokens: WeakKeyDictionary[nn.Module, _Tokens] = WeakKeyDictionary()
ON_RELEASE.append(_tokens.clear)
_busy = local()  # inside of a layer that is recorded or waits to be


def record(kind: type) -> None:
    """Record tokens of layers of a class."""
    if "forward" in vars(kind) and kind not in _forwards:
        forward = _forwards[kind] = vars(kind)["forward"]
        kind.forward = _recorded(forward)


def restore(kind: type) -> None:
    """Undo :func:`record`."""
    if kind in _forwards:
        kind.forward = _forwards.pop(kind)


def restore_all() -> None:
    """Undo :func:`record` for all classes, and forget what was recorded."""
    for kind in [*_forwards]:
        restore(kind)
    _tokens.clear()


def _recorded(forward: Callable[..., Any]) -> Callable[..., Any]:
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
            tokens = _tokens[layer] = _Tokens(layer)
        held = None if tokens.refused else tokens.held(given, options)
        if held is None:
            return forward(layer, *given, **options)
        _busy.layer = layer
        try:
            return tokens.run(forward, layer, given, options, held)
        finally:
            _busy.layer = None

    return call


def _part_of(error: Exception, layer: nn.Module) -> nn.Module | None:
    """The innermost part of a layer in whose forward an error was raised."""
    parts, found, frame = {id(part) for part in layer.modules()}, None, error.__traceback__
    while frame is not None:
        inside = frame.tb_frame.f_locals.get("self")
        if id(inside) in parts and inside is not layer:
            found = inside
        frame = frame.tb_next
    return found


def _is_of_tensors(value: Any) -> bool:
    return isinstance(value, Tensor) or (
        isinstance(value, tuple | list) and all(map(_is_of_tensors, value))
    )


def _situation(
    contents: ModuleContents, given: Any, options: dict[str, Any], held: _Held
) -> _Situation:
    free = [_kind(options[name]) for name in held.free]
    fixed = {name: each for name, each in options.items() if name not in held.free}
    addresses = tuple([(id(state), state.data_ptr()) for state in held.states])
    return _Situation(
        (*map(_describe, given), *fixed, *map(_describe, fixed.values()), *free),
        contents,
        contents.memory(),
        (*held.facts, *[state.shape for state in held.states]),
        addresses,
        (os.getpid(), get_ident(), threads(), torch.is_inference_mode_enabled()),
    )


def _follows(recording: Recording, situation: _Situation, held: _Held) -> bool:
    """Return whether a recording serves a situation: that of the same cache, or of one that takes
    its place."""
    before = recording.situation
    if before == situation:
        return True
    if not recording.verified or before._replace(addresses=situation.addresses) != situation:
        return False
    if not recording.memory.take_over(held.states):
        return False
    addresses = tuple([(id(state), state.data_ptr()) for state in held.states])
    recording.situation = situation._replace(addresses=addresses)
    return True


def _kind(value: Any) -> Any:
    """Of an argument that differs between tokens: all but sizes."""
    if isinstance(value, tuple | list):
        return tuple(map(_kind, value))
    return (value.dim(), value.dtype) if isinstance(value, Tensor) else type(value)


def _describe(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.shape, value.dtype, value.device, type(value)
    if isinstance(value, tuple | list):
        return tuple(map(_describe, value))
    if type(value) is dict:
        return tuple([(key, _describe(each)) for key, each in value.items()])
    return value if isinstance(value, _PLAIN) else id(value)


def _held(
    index: int | None, given: Any, options: dict[str, Any], varying: set[str]
) -> _Held | None:
    """What a cache of transformers has for a layer, nothing for one without states; None if there
    is no cache, or one that is not known."""
    for cache in (*given, *options.values()):
        layers = getattr(cache, "layers", None)
        if not isinstance(layers, list):
            continue
        of_layer = layers[index] if index is not None and index < len(layers) else None
        layer = {} if of_layer is None else vars(of_layer)
        grows = isinstance(layer.get("keys"), Tensor)
        own = [name for name, each in options.items() if each is cache]
        if grows and not (own and can_grow(of_layer)):
            kind = type(of_layer).__name__
            why = (
                f"{kind} has a fixed size; a cache that grows, generate's default, is recorded"
                if own
                else "the cache is not given by name"
            )
            warn_once(f"elman: tokens {_SLOWER}: {why}")
            return None
        states = [v for name in _STATES for v in _each(layer.get(name)) if v is not None]
        changed = (*_STATES, *GROWS) if grows else _STATES
        others = [value for name, value in layer.items() if name not in changed]
        facts = chain.from_iterable(map(_each, (*vars(cache).values(), *others)))
        plain = tuple([value for value in facts if isinstance(value, _PLAIN)])
        free = tuple([name for name in options if name in own or name in varying])
        return _Held(cache, layer, states, plain, grows, free)
    return None


def _copied(held: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Attributes, and what is in those that are lists and dicts."""
    return {
        name: (value, value.copy() if type(value) in (list, dict) else None)
        for name, value in held.items()
    }


def _restore(held: dict[str, Any], attributes: dict[str, tuple[Any, Any]]) -> None:
    held.clear()
    for name, (value, content) in attributes.items():
        held[name] = value
        if isinstance(value, list):
            value[:] = content
        elif isinstance(value, dict) and content is not None:
            value.clear()
            value.update(content)


def _each(value: Any) -> Iterable[Any]:
    if isinstance(value, list | tuple):
        return value
    return value.values() if isinstance(value, dict) else (value,)


def _is_close(got: Tensor, want: Tensor, tolerance: float) -> bool:
    if not want.numel():
        return got.shape == want.shape
    return bool((got - want).abs().max() <= tolerance * want.abs().max())

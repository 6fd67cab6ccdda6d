"""RNN, GRU and LSTM in place of torch.nn's: their constructors, weights, results and errors."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from elman.errors import EngineError, InputError, ShapeError
from elman.nn.allowing import allow_compiling
from elman.nn.asking import autocast_type, checked, left_to_torch, serves, wanted
from elman.nn.compiled import as_tensor, fixed_engine, run_compiled
from elman.nn.dense import is_dense
from elman.nn.formulas import FORMULAS, PROJECTED
from elman.nn.packing import Packing, with_lengths
from elman.nn.runner import Runner
from elman.nn.stack import Stack
from elman.nn.streaming import run_step
from elman.nn.transforms import transformed


class _Layers:
    """What the three classes add to torch's: forward on elman's engines.

    Whatever these do not do yet, and every mistake, goes to torch's own forward: it computes, or it
    raises in its own words.
    """

    engine: str = "auto"
    heads: int = 1
    _stack: Stack | None = None

    @property
    def stack(self: Any) -> Stack:
        """Who runs the layers."""
        if self._stack is None:
            cell, sizes = FORMULAS[self.mode, bool(self.bias)].with_heads(self.heads), {}
            if self.proj_size:
                cell, sizes = PROJECTED[bool(self.bias)], {"H": self.hidden_size}
            directions = 1 + bool(self.bidirectional)
            height = self.proj_size or self.hidden_size
            above = [height * directions] * (self.num_layers - 1)
            runners = [
                Runner(cell, cell.bind(width, height, **sizes))
                for width in (self.input_size, *above)
                for _ in range(directions)
            ]
            self._stack = Stack(runners, directions)
        return self._stack

    @property
    def runners(self: Any) -> dict[str, Runner]:
        """Who runs each layer and direction, by the suffix of its weights' names: ``l0``,
        ``l0_reverse`` …"""
        ends = ("", "_reverse")[: self.stack.directions]
        suffixes = [f"l{k}{end}" for k in range(self.num_layers) for end in ends]
        return dict(zip(suffixes, self.stack.runners, strict=True))

    def __getstate__(self: Any) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()  # type: ignore[misc]
        return {name: value for name, value in state.items() if name != "_stack"}

    def extra_repr(self: Any) -> str:
        """torch's, and the engine if one was named."""
        told = super().extra_repr()  # type: ignore[misc]
        if self.heads != 1:
            told += f", heads={self.heads}"
        return told if self.engine == "auto" else f"{told}, engine={self.engine!r}"

    def forward(self: Any, input: Any, hx: Any = None, *, lengths: Any = None) -> Any:
        """Run all layers; arguments and results are torch's.

        Args:
            input: [T, B, I], [B, T, I] with ``batch_first``, [T, I] unbatched, or a PackedSequence.
            hx: initial states; zeros if omitted.
            lengths [B]: steps of each sequence of a padded batch, in any order. The output is zero
                behind each end, the last states are those after each own last step, and padding
                costs no arithmetic.
        """
        if torch.compiler.is_compiling() and _compiles(input):
            engine = fixed_engine(self.engine)
            weights = [getattr(self, name) for name in self._flat_weights_names]
            kind = input.device.type
            half = autocast_type(kind)
            if half is None:
                return _run_layers(self, input, hx, weights, engine, None, lengths)
            input, hx, weights = _lowered(input, hx, weights, half)
            with torch.autocast(kind, enabled=False):
                return _run_layers(self, input, hx, weights, engine, None, lengths)
        if lengths is not None:
            return with_lengths(self.forward, input, hx, lengths, self.batch_first)
        engine = wanted(self.engine)
        packed: bool = isinstance(input, PackedSequence)
        divided = self.heads != 1
        theirs = engine == "aten" and not divided
        if theirs or not _well_formed(self, input, hx):
            return super().forward(input, hx)  # type: ignore[misc]
        weights, given = _weights(self), cast(Tensor, input.data if packed else input)
        start, kind, reason = hx, given.device.type, None
        half = autocast_type(kind)
        if half is not None and not serves(kind, half):
            reason = "autocast"
        elif half is not None:
            given, start, weights = _lowered(given, hx, weights, half)
        reason = reason or _unsuitable(given, start, weights, engine)
        if reason is None:
            packing = Packing.of(input) if packed else None
            if half is None:
                return _run_layers(self, given, start, weights, engine, packing)
            with torch.autocast(kind, enabled=False):
                return _run_layers(self, given, start, weights, engine, packing)
        if engine != "auto" or divided:
            with_heads = f" with {self.heads} heads" if divided else ""
            raise EngineError(
                f"engine {engine} cannot run this {type(self).__name__}{with_heads}: {reason}"
            )
        return super().forward(input, hx)  # type: ignore[misc]

    def step(self: Any, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Run one step of a stream.

        Without gradients, weights are used as they lie in memory: nothing is packed or kept.

        Args:
            x [B, I]: the input now; [I] unbatched.
            state: what the step before returned, as ``hx`` of :meth:`forward`; zeros if omitted.

        Returns:
            out [B, H]: the last layer's output; [H] unbatched.
            state: to be given to the next step.

        Raises:
            InputError: the module is bidirectional, or x has the wrong rank.
        """
        return run_step(self, x, state, 2)


allow_compiling(_Layers)


def _well_formed(module: Any, given: Any, hx: Any) -> bool:
    """Whether the arguments are dense, of the right sizes, and of at least one step and sample."""
    if isinstance(given, PackedSequence):
        shape, ranks = given.data.shape, (2,)
        batch: tuple[int, ...] = (int(given.batch_sizes[0]),) if len(given.batch_sizes) else (0,)
    elif isinstance(given, Tensor):
        if not is_dense(given):
            return False
        shape, ranks = given.shape, (2, 3)
        batch = () if len(shape) == 2 else tuple(shape[0 if module.batch_first else 1 :][:1])
    else:
        return False
    if len(shape) not in ranks or shape[-1] != module.input_size or 0 in shape:
        return False
    if hx is None:
        return True
    directions = 2 if module.bidirectional else 1
    lead = (module.num_layers * directions, *batch)
    if module.mode != "LSTM":
        return isinstance(hx, Tensor) and hx.shape == (*lead, module.hidden_size)
    width = module.proj_size or module.hidden_size
    return (
        isinstance(hx, (tuple, list))
        and len(hx) == 2
        and all(isinstance(state, Tensor) for state in hx)
        and hx[0].shape == (*lead, width)
        and hx[1].shape == (*lead, module.hidden_size)
    )


def _lowered(
    given: Tensor, hx: Any, weights: list[Tensor], dtype: torch.dtype
) -> tuple[Tensor, Any, list[Tensor]]:
    """What autocast makes of the arguments of torch's layers: all but float64 in its own type."""

    def lower(tensor: Tensor) -> Tensor:
        wide = tensor.dtype is torch.float64 or not tensor.is_floating_point()
        return tensor if wide else tensor.to(dtype)

    start = tuple(map(lower, hx)) if isinstance(hx, (tuple, list)) else hx
    start = lower(start) if isinstance(start, Tensor) else start
    return lower(given), start, [lower(weight) for weight in weights]


def _unsuitable(given: Tensor, hx: Any, weights: list[Tensor], engine: str) -> str | None:
    """Why these tensors are left to torch's own layers, or None."""
    dtype, device = given.dtype, given.device
    reason = None if engine == "reference" else left_to_torch(given)
    if reason is not None:
        return reason
    states = () if hx is None else hx if isinstance(hx, (tuple, list)) else (hx,)
    for tensor in (*weights, *states):
        if tensor.dtype is not dtype or tensor.device != device:
            return "tensors of several dtypes or devices"
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return "torch.compile or torch.jit.trace"
    return None


def _divide(module: Any, heads: int) -> None:
    """Give a new module of several heads its recurrent weights: [gates · H, H / heads]."""
    FORMULAS[module.mode, bool(module.bias)].with_heads(heads)  # refuses what is no number
    if heads == 1:
        return
    size = module.hidden_size
    if size % heads:
        raise ShapeError(f"hidden_size={size} cannot be divided among {heads} heads")
    if module.proj_size:
        raise InputError(f"proj_size={module.proj_size} has no heads")
    module.heads = heads
    for name in module._flat_weights_names:
        if name.startswith("weight_hh"):
            whole = getattr(module, name)
            setattr(module, name, nn.Parameter(whole.new_empty(whole.shape[0], size // heads)))
    module.reset_parameters()


def _weights(module: Any) -> list[Tensor]:
    """All weights in torch's order, as they are now: parameters, or what stands in their place."""
    own = module._parameters
    found = []
    for name in module._flat_weights_names:
        weight = own.get(name)
        found.append(getattr(module, name) if weight is None else weight)
    return found


def _compiles(given: Any) -> bool:
    """Whether a call that is being compiled becomes operators of elman's; else it is torch's."""
    if not isinstance(given, Tensor) or given.dim() not in (2, 3):
        return False
    kind = given.device.type
    return kind in ("cpu", "cuda") and serves(kind, autocast_type(kind) or given.dtype)


def _run_layers(
    module: Any,
    given: Tensor,
    hx: Any,
    weights: list[Tensor],
    engine: str,
    packing: Packing | None,
    lengths: Any = None,
) -> Any:
    """Arguments checked before; lengths only where the call is being compiled."""
    batched = packing is not None or given.dim() == 3
    x = given if batched else given.unsqueeze(1)
    if batched and module.batch_first and packing is None:
        x = x.transpose(0, 1)
    compiling = torch.compiler.is_compiling()
    two = module.mode == "LSTM"
    stack: Any = None if compiling else module._stack or module.stack
    count = module.num_layers * (2 if module.bidirectional else 1)
    ragged = None if packing is None else packing.ragged
    if hx is None:
        batch = x.shape[1] if ragged is None else ragged.batch
        widths = (module.proj_size or module.hidden_size, module.hidden_size)[: 1 + two]
        states = tuple([x.new_zeros(count, batch, width) for width in widths])
    else:
        states = tuple(hx) if two else (hx,)
        if packing is not None:
            states = tuple([packing.sorted(state, 1) for state in states])
        elif not batched:
            states = tuple([state.unsqueeze(1) for state in states])
    plain = compiling or engine == "reference" or transformed((x, *states, *weights)) is None
    if count == 1 and ragged is None and not compiling:
        if plain:
            x, last = stack.runners[0]((x,), states, weights, engine, True)
        else:
            x, last = stack.runners[0].under_transforms((x,), states, weights, True)
    else:
        starts = list(zip(*[state.unbind(0) for state in states]))
        each = len(weights) // count
        groups = [weights[k : k + each] for k in range(0, len(weights), each)]
        share = module.dropout if module.training else 0.0
        if compiling:
            x, ends = run_compiled(
                module, (x,), starts, groups, engine, share, False, as_tensor(lengths)
            )
        else:
            x, ends = stack.run(
                (x,), starts, groups, engine if plain else None, share, ragged=ragged
            )
        last = tuple([torch.stack(parts) for parts in zip(*ends)])
    if packing is not None:
        x = packing.wrapped(x)
        last = tuple([packing.unsorted(state, 1) for state in last])
    elif not batched:
        x, last = x.squeeze(1), tuple([state.squeeze(1) for state in last])
    elif module.batch_first:
        x = x.transpose(0, 1)
    return x, last if two else last[0]


class RNN(_Layers, nn.RNN):
    """torch.nn.RNN on elman's engines: ``h[t] = tanh(W x[t] + b + R h[t-1] + d)``.

    Same constructor, draws, ``state_dict``, results and errors as torch's.

    Args:
        engine: ``"auto"``, or the name of an engine.
        heads: groups of units that do not see each other's past: ``weight_hh`` is block-diagonal,
            stored as [gates · H, H / heads], head n being units n·H/heads … of each gate. All other
            arguments are torch's.
    """

    def __init__(self, *args: Any, engine: str = "auto", heads: int = 1, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.engine = checked(engine)
        _divide(self, heads)


class GRU(_Layers, nn.GRU):
    """torch.nn.GRU on elman's engines: ``h[t] = (1 - z) * n + z * h[t-1]``.

    Same constructor, draws, ``state_dict``, results and errors as torch's.

    Args:
        engine: ``"auto"``, or the name of an engine.
        heads: groups of units that do not see each other's past: ``weight_hh`` is block-diagonal,
            stored as [gates · H, H / heads], head n being units n·H/heads … of each gate. All other
            arguments are torch's.
    """

    def __init__(self, *args: Any, engine: str = "auto", heads: int = 1, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.engine = checked(engine)
        _divide(self, heads)


class LSTM(_Layers, nn.LSTM):
    """torch.nn.LSTM on elman's engines: ``c[t] = f * c[t-1] + i * g``, ``h[t] = o * tanh(c[t])``.

    Same constructor, draws, ``state_dict``, results and errors as torch's.

    Args:
        engine: ``"auto"``, or the name of an engine.
        heads: groups of units that do not see each other's past: ``weight_hh`` is block-diagonal,
            stored as [gates · H, H / heads], head n being units n·H/heads … of each gate. All other
            arguments are torch's.
    """

    def __init__(self, *args: Any, engine: str = "auto", heads: int = 1, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.engine = checked(engine)
        _divide(self, heads)

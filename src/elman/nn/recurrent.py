"""Any cell as a module: layers, directions, dropout, residual connections."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter, init

from elman.errors import InputError, ShapeError, diagnostic
from elman.frontend.cell import Cell, same_cell
from elman.frontend.draws import Per
from elman.frontend.initial import Init, check_init
from elman.ir.types import shape_size
from elman.nn.compile.operator import fixed_engine
from elman.nn.handing import Outputs, checked_outputs
from elman.nn.reset import ResetTo
from elman.nn.sequence import PARTS, SequenceModule
from elman.nn.using import wanted
from elman.plan.checkpoint import Steps
from elman.plan.spec import Tape

_EARLIER = ("runners", "stack", "_names", "_arguments")  # what pickles of earlier versions have
_FORMULA = "_formula"
_OF_CALLS = ("outputs", "lengths", "reset", "reset_to", "static", "state")

State = Tensor | tuple[Tensor, ...]


class Recurrent(SequenceModule, nn.Module):
    """A recurrent network of any cell: ``h[t] = cell(x[t], h[t-1])`` in each layer and direction.

    Parameters are named after the cell's weights: ``W_l0``, ``R_l0``, ``W_l0_reverse`` … They are
    drawn from U(-1/√H, 1/√H) in declared order, H being the size of the first state, unless the
    cell's ``init=`` says otherwise. So are its constants, which are buffers: part of the
    ``state_dict``, moved by ``to``, and never trained.

    Args:
        cell: the formula of one step, made by ``@elman.cell``.
        input_size: size of the cell's first input.
        hidden_size: size of the cell's first state.
        num_layers: each further layer reads the output of the one below as its first input.
        bidirectional: a second set of weights runs over the reversed sequence; outputs are joined.
        batch_first: x and out are [B, T, ·].
        dropout: share of values dropped after each layer but the last, in training.
        residual: from the second layer on, a layer's input is added to its output.
        heads: groups of units that do not see each other's past: weights that multiply a state are
            block-diagonal, stored as [rows, columns / heads], and so are their transposes; one that
            multiplies an input too divides the input as well.
        engine: ``"auto"`` (measured), or a name; ``elman.using`` and ELMAN_ENGINE override it.
        tape: how much the forward keeps for the backward: ``"save"``, ``"auto"``, ``"recompute"``.
        without: optimizations that are left out, to measure what they gain: names of
            ``elman.plan.spec.OPTIMIZATIONS``.
        checkpoint: the forward keeps the states of every so many steps and no tape, which the
            backward computes again; ``"auto"``: as many as fit into ``memory_budget``.
        memory_budget: bytes, or as ``"2GiB"``, for ``checkpoint="auto"``.
        clip_gradient: what flows from a step back into the states before it is held within
            [-clip_gradient, clip_gradient], component by component.
        learn_initial: what a sequence begins with that is given no state is learned: parameters
            ``initial_h`` … [layers · directions, H], one per state, zeros at first.
        zoneout: share of units that keep their old state in a step of training, of all states or by
            name, ``{"h": 0.05, "c": 0.5}``; the mean of both otherwise.
        recurrent_dropout: share of units of a state that are dropped, in training, where a weight
            matrix multiplies them; ``recurrent_dropout_per``: the same units in all steps of a
            ``"sequence"``, or drawn anew in every ``"step"``.
        weight_dropout: share of each matrix that multiplies what depends on a state that is dropped
            in a call in training.
        device, dtype: of the parameters.
        more: sizes of the cell's other dims (``P=16``), the cell's own options, and its constants
            (``mask=…``): a number; a tensor or array of the declared shape, which is copied; or a
            function that is given the tensor to be filled, of each layer and direction, and fills
            it or returns its value.

    Raises:
        ShapeError: sizes that do not fit the cell.
        InputError: an option that does not exist; a constant that is not given.

    Example:
        >>> net = elman.Recurrent(elman.cells.mgu, 8, 16, num_layers=2)
        >>> out, h = net(torch.randn(5, 2, 8))  # of x [T, B, I]
        >>> out.shape, h.shape
        (torch.Size([5, 2, 16]), torch.Size([2, 2, 16]))
    """

    def __init__(
        self,
        cell: Cell,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        bidirectional: bool = False,
        batch_first: bool = False,
        dropout: float = 0.0,
        residual: bool = False,
        heads: int = 1,
        engine: str = "auto",
        tape: Tape = "auto",
        without: Collection[str] = (),
        checkpoint: Steps = None,
        memory_budget: int | str | None = None,
        clip_gradient: float | None = None,
        learn_initial: bool = False,
        zoneout: float | Mapping[str, float] = 0.0,
        recurrent_dropout: float = 0.0,
        recurrent_dropout_per: Per = "sequence",
        weight_dropout: float = 0.0,
        device: Any = None,
        dtype: torch.dtype | None = None,
        **more: Any,
    ) -> None:
        super().__init__()
        cell, dims, given = _separated(cell, more)
        _check_size("heads", heads)
        cell = cell.with_heads(heads)
        for name, size in (("input_size", input_size), ("hidden_size", hidden_size), *dims.items()):
            _check_size(name, size)
        if num_layers < 1:
            raise InputError(f"num_layers must be at least 1, got {num_layers}")
        if not 0.0 <= dropout <= 1.0:
            raise InputError(f"dropout is a share in [0, 1], got {dropout}")
        if dropout and num_layers == 1:
            warnings.warn(
                "dropout option adds dropout after all but last recurrent layer, so non-zero "
                f"dropout expects num_layers greater than 1, but got dropout={dropout} and "
                f"num_layers={num_layers}",
                stacklevel=2,
            )
        self._set_options(
            {
                "engine": engine,
                "heads": heads,
                "tape": tape,
                "residual": residual,
                "without": without,
                "checkpoint": checkpoint,
                "memory_budget": memory_budget,
                "clip_gradient": clip_gradient,
                "learn_initial": learn_initial,
                "zoneout": zoneout,
                "recurrent_dropout": recurrent_dropout,
                "recurrent_dropout_per": recurrent_dropout_per,
                "weight_dropout": weight_dropout,
            }
        )
        self.cell = cell = cell.with_changes(*self._changes)
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bidirectional, self.batch_first = bool(bidirectional), bool(batch_first)
        self.dropout = float(dropout)
        self._dims, self._given = dict(dims), tuple(given)
        for names, runner in zip(self.parts.names, self.runners.values()):
            for name, weight in zip(names, cell.weights):
                shape = shape_size(weight.shape, dict(runner.dims))
                made = torch.empty(shape, device=device, dtype=dtype)
                if weight.name not in cell.constants:
                    self.register_parameter(name, Parameter(made))
                    continue
                self.register_buffer(name, made)
                if weight.name in given:
                    _initialise(made, given[weight.name], f"{name}, {weight}")
        self._make_initial(device, dtype)
        self.reset_parameters()

    def _formula(self) -> tuple[Cell, int, dict[str, int]]:
        """See :meth:`SequenceModule._formula`."""
        return self.cell, self.hidden_size, self._dims

    def _parameter_names(self, suffixes: Sequence[str]) -> list[list[str]]:
        """See :meth:`SequenceModule._parameter_names`."""
        return [[f"{weight.name}_{suffix}" for weight in self.cell.weights] for suffix in suffixes]

    def __getstate__(self) -> dict[str, Any]:
        state = {k: v for k, v in super().__getstate__().items() if k != PARTS}  # type: ignore[misc]
        return {**state, _FORMULA: self.cell.fingerprint}

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = {k: v for k, v in state.items() if k not in (PARTS, *_EARLIER)}
        state.setdefault("_given", ())  # earlier pickles have no constants
        same_cell(state["cell"], state.pop(_FORMULA, None))
        super().__setstate__(state)
        self._parts = self._make_parts()  # now, not while a compiler traces

    def reset_parameters(self) -> None:
        """Draw all weights anew, layer by layer, in declared order; constants too if the cell's
        ``init=`` has them, and not the module's arguments."""
        bound = 1.0 / math.sqrt(self.hidden_size) if self.hidden_size > 0 else 0.0
        for names in self.parts.names:
            for name, weight in zip(names, self.cell.weights):
                if weight.name not in self._given:
                    how = self.cell.init.get(weight.name)
                    _initialise(getattr(self, name), how, str(weight), bound)
        for value in self._initial():
            _initialise(value, "zeros", "")

    def forward(
        self,
        x: Any,
        state: State | None = None,
        *,
        lengths: Tensor | Sequence[int] | None = None,
        reset: Any = None,
        reset_to: ResetTo | None = None,
        static: Any = None,
        outputs: Outputs = None,
    ) -> Any:
        """Run the cell over a batch of sequences, differentiable by BPTT.

        Args:
            x [T, B, I]: input, time-major; [B, T, I] with ``batch_first``; [T, I] unbatched. A cell
                of several inputs takes a tuple, each with the same T and B; a scalar input is
                [T, B]. A mask of type bool counts as numbers of the weights' type, 1 where true.
                Or a PackedSequence (a tuple of such): then so is the output.
            state: one [layers·directions, B, H] per state of the cell, a tuple if there are
                several; zeros (or what is learned) if omitted; without B if unbatched.
            lengths [B]: steps of each sequence of a padded batch, in any order. Padding costs no
                arithmetic.
            reset [T, B]: not 0 where an episode begins: before that step the state becomes the
                initial one, in both directions; laid out (and packed) as x.
            reset_to: what the state becomes: ``"zeros"``, or the ``"initial"`` one that was given;
                by default what a sequence begins with that is given no state.
            static [B, S]: of a cell with static inputs: one value per sequence, the same for all
                layers and steps; a tuple if there are several; [S] unbatched; a scalar one is [B].
            outputs: ``"states"`` for the last layer's states behind every step too.

        Returns:
            out [T, B, H·directions]: the last layer's output at each step; layout as x. With
                lengths it is zero behind each sequence's end. A tuple of a cell's several outputs
                in declared order; a scalar one is [T, B] ([T, B, 2] of two directions).
            states [T, B, H·directions]: with ``outputs="states"``, laid out as out: a tuple if the
                cell has several. ``out, states, last = net(x, outputs="states")``.
            state: as the argument, after the last step of each sequence.

        Raises:
            ShapeError: wrong rank, size, or a sequence of no steps.
            InputError: wrong dtype, device, or number of inputs or states; no dense tensor.
                Static inputs are missing, or the cell has none.
            EngineError: the engine asked for by name cannot run this cell; the text says why.
        """
        compiling = torch.compiler.is_compiling()
        engine = fixed_engine(self.engine) if compiling else wanted(self.engine)
        prepared = self._prepared(x, state, lengths, reset, self._weights(), static)
        outputs = checked_outputs(outputs)
        made, last = self._run(prepared, engine, reset_to, outputs)
        return self._handed_out(made, last, outputs)

    def extra_repr(self) -> str:
        """Cell, sizes, and every option that is not the default."""
        told = [self.cell.name, str(self.input_size), str(self.hidden_size)]
        told += [f"{name}={size}" for name, size in self._dims.items()]
        defaults = self.cell.defaults
        for name, value in self.cell.options.items():
            if value is not defaults.get(name):
                told.append(f"{name}={getattr(value, '__name__', value)}")
        for name, default in (
            ("num_layers", 1),
            ("bidirectional", False),
            ("batch_first", False),
            ("dropout", 0.0),
            ("residual", False),
            ("heads", 1),
            ("engine", "auto"),
            ("tape", "auto"),
            ("without", ()),
            ("checkpoint", None),
            ("memory_budget", None),
            ("clip_gradient", None),
            ("learn_initial", False),
            ("zoneout", 0.0),
            ("recurrent_dropout", 0.0),
            ("recurrent_dropout_per", "sequence"),
            ("weight_dropout", 0.0),
        ):
            if getattr(self, name) != default:
                told.append(f"{name}={getattr(self, name)!r}")
        return ", ".join(told)


def _separated(cell: Any, given: dict[str, Any]) -> tuple[Cell, dict[str, int], dict[str, Init]]:
    """Bind the options of a cell; what is left are sizes of its dims, and its constants."""
    if isinstance(cell, list | tuple):
        raise InputError(
            diagnostic(
                "Recurrent takes one cell for all its layers, not several",
                [],
                "one module for each: first, second = Recurrent(a, …), Recurrent(b, …)",
            )
        )
    if not isinstance(cell, Cell):
        raise InputError(
            diagnostic(
                f"Recurrent takes a cell, not {type(cell).__name__}",
                [("value", repr(cell))],
                "decorate the formula: @elman.cell(input=…, state=…, weights=…)",
            )
        )
    if not cell.states:
        raise InputError(
            diagnostic(
                f"{cell.name} has no state: there is nothing for Recurrent to hand on",
                [("at", cell.where)],
                'a state that the formula returns too: state="h[H]"; elman.draw and elman.explain '
                "show it as it is",
            )
        )
    options = {name: value for name, value in given.items() if name in cell.defaults}
    bound = cell.with_options(**options)
    fixed = {name: value for name, value in given.items() if name in cell.constants}
    for name, how in fixed.items():
        check_init(name, how, cell.weights, cell.states, cell.where)
    for entry in cell.weights:
        if entry.name in cell.constants and entry.name not in {*fixed, *cell.init}:
            raise InputError(
                diagnostic(
                    f"{cell.name} needs its constant {entry}",
                    [("at", cell.where)],
                    f"Recurrent({cell.name}, …, {entry.name}=…), a number, a tensor, or a function "
                    f"that fills one; or init={{{entry.name!r}: …}} in the cell",
                )
            )
    dims = {name: value for name, value in given.items() if name not in {*options, *fixed}}
    known = {
        gate_block
        for entry in (*cell.inputs, *cell.static, *cell.states, *cell.weights)
        for dim in entry.shape
        for gate_block in dim
        if isinstance(gate_block, str)
    }
    constants = f"; constants: {', '.join(sorted(cell.constants))}" if cell.constants else ""
    for name in dims:
        if name in _OF_CALLS:
            raise InputError(
                diagnostic(f"{name} is an argument of each call", [], f"net(x, {name}=…)")
            )
        if name not in known:
            raise InputError(
                f"Recurrent has no argument {name!r}, and {cell.name} neither a dim nor an option "
                f"of that name (dims: {', '.join(sorted(known))}; options: "
                f"{', '.join(cell.defaults) or 'none'}{constants})"
            )
    return bound, dims, fixed


def _check_size(name: str, size: Any) -> None:
    if isinstance(size, list | tuple):
        hint = "one module for each size: first, second = Recurrent(…), Recurrent(…)"
        raise InputError(diagnostic(f"{name} is one size for all layers, got {size!r}", [], hint))
    if isinstance(size, bool) or not isinstance(size, int):
        raise InputError(f"{name} should be of type int, got: {type(size).__name__}")
    least = 0 if name == "input_size" else 1
    if size < least:
        raise InputError(f"{name} must be at least {least}, got {size}")


def _initialise(weight: Tensor, how: Init | None, name: str, bound: float = 0.0) -> None:
    """Fill a weight as the cell's ``init=`` says, or by U(-bound, bound)."""
    with torch.no_grad():
        if how is None:
            init.uniform_(weight, -bound, bound)
            return
        if isinstance(how, str):
            getattr(init, f"{how}_")(weight)
            return
        made = how(weight) if callable(how) else how
        if made is None or made is weight:
            return
        value = torch.as_tensor(made)
        if value.dim() and value.shape != weight.shape:
            raise ShapeError(f"init of {name} is {[*value.shape]}, not {[*weight.shape]}")
        weight.copy_(value)

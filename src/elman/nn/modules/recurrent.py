"""Any cell as a module: layers, directions, dropout, residual connections."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any, Unpack, cast

import torch
from torch import Tensor
from torch.nn import Parameter, init

from elman.checks import check_dropout, check_flag, check_size
from elman.errors import InputError, ShapeError
from elman.frontend.cell import Cell, same_cell
from elman.frontend.initial import Init
from elman.ir.types import axes_of, shape_size
from elman.nn.execute.layer import Formula, Runner
from elman.nn.layout.dense import check_factory
from elman.nn.modules.layer_config import resolve_layers
from elman.nn.modules.layer_options import OPTIONS, Options, show_options
from elman.nn.modules.sequence import SequenceModule
from elman.nn.options.registry import CallOptions, select_options
from elman.torch_internals import run_whole

_FORMULA = "_formula"
_OF_PARAMETERS = ("device", "dtype")  # facts of the parameters, which the module does not keep

State = Tensor | tuple[Tensor, ...] | Sequence[Tensor | tuple[Tensor, ...]]


@show_options
class Recurrent(SequenceModule):
    """A recurrent network of any cell: ``h[t] = cell(x[t], h[t-1])`` in each layer and direction.

    Parameters are named after the cell's weights: ``W_l0``, ``R_l0``, ``W_l0_reverse`` … They are
    drawn from U(-1/√H, 1/√H) in declared order, where H is the size of the first state, unless the
    cell's ``init=`` sets them. Constants are named alike; they are buffers: part of the
    ``state_dict``, moved by ``to``, and never trained. Initial states that the cell declares are
    buffers, too: ``initial_h`` … [layers · directions, H].

    Args:
        cell: the formula of one step, from ``@elman.cell``; or a list with one cell per layer.
        input_size: size of the cell's first input.
        hidden_size: size of the cell's first state; or a list with one size per layer.
        num_layers: number of layers; each reads the output of the layer below as its first input.
            The length of a list of cells or sizes sets it, too.
        bidirectional: add a second set of weights for the reversed sequence; outputs are
            concatenated.
        batch_first: x and out are [B, T, ·].
        dropout: share of values dropped after each layer but the last, in training.
        device, dtype: of the parameters.
        cell_arguments: the options of :class:`elman.nn.modules.layer_options.Options` (``engine``,
            ``heads``, ``plan``, ``residual``, ``clip_gradient``, ``learn_initial``, ``zoneout``,
            ``recurrent_dropout``, ``recurrent_dropout_per``, ``weight_dropout``, ``quantize``);
            sizes of the cell's other dims (``P=16``), the cell's own options, and its constants
            (``mask=…``). A constant is a number; a tensor or array of the declared shape, which is
            copied; or a function that fills the tensor passed to it, or returns its value, for each
            layer and direction. Dims and constants apply to the layers whose cells declare them. A
            list has one entry per layer, None for a layer whose cell has no such dim or constant.

    Layers can have different cells and sizes: ``Recurrent([cell_a, cell_b], I, [64, 32])``. Further
    and static inputs go to every layer whose cell declares them. If the states of all layers have
    the same names and sizes, calls are as usual. Otherwise the initial and last states are lists in
    the order ``l0``, ``l0_reverse``, ``l1`` …, with a tensor [B, H] for each layer and direction,
    or a tuple if the cell has several states.

    With ``heads=N`` of a cell with a matrix per sample, sizes are totals of all heads, x and out
    are [T, B, N, ·], or joined [T, B, N · n] if the first input is, and states [.., B, N, K, V].

    Raises:
        ShapeError: sizes do not fit the cell, cannot be divided among heads, or differ between
            layers that ``residual`` adds.
        InputError: an option does not exist, a constant is missing, or a list does not have one
            entry per layer; heads of a cell with a matrix per sample would share its weights; no
            cell has the states, or the products, that an option is for.

    Example:
        >>> net = elman.Recurrent(elman.cells.mgu, 8, 16, num_layers=2)
        >>> out, h = net(torch.randn(5, 2, 8))  # of x [T, B, I]
        >>> out.shape, h.shape
        (torch.Size([5, 2, 16]), torch.Size([2, 2, 16]))
        >>> known = torch.rand(5, 2) < 0.8  # valid steps; the others are not read
        >>> x = torch.randn(5, 2, 8).masked_fill(~known.unsqueeze(-1), torch.nan)
        >>> net(x, mask=known)[0].isfinite().all()
        tensor(True)
        >>> net = elman.Recurrent(elman.cells.delta_net, 3 * 4, 3 * 8, heads=3)
        >>> q, k, v, b = (torch.randn(5, 2, 3, *size) for size in ([4], [4], [8], []))
        >>> out, S = net((q, k, v, b))
        >>> out.shape, S.shape
        (torch.Size([5, 2, 3, 8]), torch.Size([1, 2, 3, 4, 8]))
        >>> net = elman.Recurrent([elman.cells.gru, elman.cells.lstm], 8, [16, 4])
        >>> out, (h, (k, c)) = net(torch.randn(10, 2, 8))
        >>> out.shape, h.shape, c.shape
        (torch.Size([10, 2, 4]), torch.Size([2, 16]), torch.Size([2, 4]))
    """

    def __init__(
        self,
        cell: Cell | Sequence[Cell],
        input_size: int,
        hidden_size: int | Sequence[int],
        num_layers: int = 1,
        *,
        bidirectional: bool = False,
        batch_first: bool = False,
        dropout: float = 0.0,
        device: Any = None,
        dtype: torch.dtype | None = None,
        **cell_arguments: Any,
    ) -> None:
        super().__init__()
        check_size("input_size", input_size, 0)
        check_factory(device, dtype)
        options = {name: cell_arguments.pop(name) for name in OPTIONS if name in cell_arguments}
        self._set_options(cast(Options, options))
        formulas, constants = resolve_layers(
            cell, hidden_size, num_layers, self.heads, self._changes, cell_arguments
        )
        self.cell, _, self._dims = formulas[0]
        self.num_layers, self.input_size = len(formulas), input_size
        self._layer_formulas = (
            None if all(formula == formulas[0] for formula in formulas) else formulas
        )
        sizes = [size for _, size, _ in formulas]
        self.hidden_size: Any = sizes[0] if len({*sizes}) == 1 else sizes
        self.bidirectional = check_flag("bidirectional", bidirectional)
        self.batch_first = check_flag("batch_first", batch_first)
        self.dropout = check_dropout(dropout, self.num_layers)
        self._check_effects()
        self._fixed_constants = tuple(
            dict.fromkeys([name for values in constants for name in values])
        )
        directions = 1 + self.bidirectional
        for index, (names, runner) in enumerate(zip(self.runtime.names, self.runners.values())):
            values = constants[index // directions]
            for name, weight in zip(names, runner.cell.weights):
                shape = shape_size(weight.shape, dict(runner.dims))
                tensor = torch.empty(shape, device=device, dtype=dtype)
                if weight.name not in runner.cell.constants:
                    self.register_parameter(name, Parameter(tensor))
                    continue
                self.register_buffer(name, tensor)
                if weight.name in values:
                    _initialise(tensor, values[weight.name], f"constant {weight}")
        self._make_initial(device, dtype)
        self.register_ranges()
        self.reset_parameters()

    def _check_effects(self) -> None:
        """Check that every option has an effect in some layer. Raises InputError."""
        cells = [cell for cell, *_ in self._formulas()]
        names = "/".join(dict.fromkeys([cell.name for cell in cells]))
        if all(cell.idle for cell in cells):
            for option in ("zoneout", "clip_gradient", "learn_initial"):
                if getattr(self, option):
                    raise InputError(f"{option}: {names} has no state")
        if self.weight_dropout and not any(map(any, self.runtime.recurrent)):
            raise InputError(
                f"weight_dropout: {names} multiplies no state [H] with a weight matrix"
            )

    def _formulas(self) -> list[Formula]:
        if self._layer_formulas is not None:
            return self._layer_formulas
        return [(self.cell, self.hidden_size, self._dims)] * self.num_layers

    def _parameter_names(self, runners: Mapping[str, Runner]) -> list[list[str]]:
        return [
            [f"{weight.name}_{suffix}" for weight in runner.cell.weights]
            for suffix, runner in runners.items()
        ]

    def __getstate__(self) -> dict[str, Any]:
        cells = [cell.fingerprint for cell, *_ in self._layer_formulas or [(self.cell,)]]
        return {
            **super().__getstate__(),
            _FORMULA: cells[0] if self._layer_formulas is None else cells,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        formula, layer_formulas = state.pop(_FORMULA, None), state["_layer_formulas"]
        formulas, saved = (
            ([(state["cell"],)], [formula]) if layer_formulas is None else (layer_formulas, formula)
        )
        # a file names its cell: refuse weights of another formula under the same name
        for (cell, *_), fingerprint in zip(formulas, saved, strict=True):
            same_cell(cell, fingerprint)
        super().__setstate__(state)

    def reset_parameters(self) -> None:
        """Draw new weights, layer by layer, in declared order. Constants that the cell's ``init=``
        sets, and default initial states, are reset, too."""
        directions = 1 + self.bidirectional
        heights = [size for _, size, _ in self._formulas() for _ in range(directions)]
        for names, runner, height in zip(self.runtime.names, self.runners.values(), heights):
            bound = 1.0 / math.sqrt(height) if height > 0 else 0.0
            for name, weight in zip(names, runner.cell.weights):
                if weight.name not in self._fixed_constants:
                    init = runner.cell.init.get(weight.name)
                    _initialise(getattr(self, name), init, f"init of {weight}", bound)
        starts = [value.detach() for value in self._initial()]
        for runner, states in zip(self.runners.values(), self.runtime.signature.form.rows(starts)):
            for state, value in zip(runner.cell.states, states):
                axes = axes_of(state.shape[0][0], dict(runner.dims)) if state.shape else None
                value = value if axes is None else value.unflatten(-1, axes)
                _initialise(value, runner.cell.init.get(state.name, "zeros"), f"init of {state}")

    @run_whole
    def forward(self, x: Any, state: State | None = None, **options: Unpack[CallOptions]) -> Any:
        """Run the cell over a batch of sequences, differentiable by BPTT.

        Args:
            x [T, B, I]: input, time-major; [B, T, I] with ``batch_first``; [T, I] unbatched. For a
                cell with several inputs, a tuple with the same T and B; a scalar input is [T, B].
                A bool input is converted to the weights' dtype. A PackedSequence, or a tuple of
                them, makes the output packed, too.
            state: initial state, [layers·directions, B, H]; a tuple if the cell has several states;
                no B if unbatched. Default: zeros, or the learned or declared initial state. If
                the states of the layers differ, a list with [B, H] or a tuple for each layer and
                direction.
            options: of :class:`elman.nn.options.registry.CallOptions`: ``lengths``, ``reset``,
                ``reset_to``, ``mask``, ``masked_output``, ``draws``, ``static``, ``outputs``.

        Returns:
            out [T, B, H·directions]: the last layer's output at each step, in the layout of x; zero
                past each sequence's end. A tuple if the cell declares several outputs; a scalar
                output is [T, B], or [T, B, 2] with two directions.
            states [T, B, H·directions]: only with ``outputs="states"``, in the layout of out; a
                tuple if the cell has several. ``out, states, last = net(x, outputs="states")``.
            state: the state after the last step of each sequence, in the form of the argument.

        Raises:
            ShapeError: a wrong rank or size, or a sequence without steps.
            InputError: a wrong dtype, device or number of inputs or states; a tensor that is not
                dense; static inputs that are missing or that the cell lacks; ``draws`` for a module
                that draws nothing, or in a dtype without enough bits.
            EngineError: the named engine cannot run this cell; the text says why.
        """
        call_options = select_options(options) if options else {}
        heads = self.runtime.heads
        if heads is None:
            return self._forward(x, state, call_options)
        x, state, form = heads.enter(self, x, state, call_options)
        return heads.leave(self._forward(x, state, call_options), form)

    def flatten_parameters(self) -> None:
        """Do nothing. Code for torch's recurrent layers may call this method."""

    def extra_repr(self) -> str:
        """Cell, sizes, and options that are not the defaults."""
        cells, _, dims = zip(*self._formulas())
        alone = all(cell is self.cell for cell in cells)
        names = self.cell.name if alone else f"[{', '.join(cell.name for cell in cells)}]"
        fields = [names, str(self.input_size), str(self.hidden_size)]
        for name in dict.fromkeys(name for layer_dims in dims for name in layer_dims):
            sizes = [layer_dims.get(name) for layer_dims in dims]
            fields.append(f"{name}={sizes[0] if len({*sizes}) == 1 else sizes}")
        options = [
            f"{name}={getattr(value, '__name__', value)}"
            for cell in dict.fromkeys(cells)
            for name, value in cell.options.items()
            if value is not cell.defaults.get(name)
        ]
        fields += dict.fromkeys(options)
        for name, argument in inspect.signature(Recurrent).parameters.items():
            is_option = argument.default is not argument.empty and name not in _OF_PARAMETERS
            if is_option and getattr(self, name) != argument.default:
                fields.append(f"{name}={getattr(self, name)!r}")
        return ", ".join(fields)


def _initialise(weight: Tensor, scheme: Init | None, subject: str, bound: float = 0.0) -> None:
    """Initialise a weight by the cell's ``init=``, or from U(-bound, bound)."""
    with torch.no_grad():
        if scheme is None:
            init.uniform_(weight, -bound, bound)
            return
        if isinstance(scheme, str):
            getattr(init, f"{scheme}_")(weight)
            return
        tensor = scheme(weight) if callable(scheme) else scheme
        if tensor is None or tensor is weight:
            return
        value = torch.as_tensor(tensor)
        if value.dim() and value.shape != weight.shape:
            raise ShapeError(f"{subject} is {[*value.shape]}, not {[*weight.shape]}")
        weight.copy_(value)

"""The gates of a cell as arrays, in and out of a module; and checks of the arrays that users pass:
an error names the array that is missing, unknown or of another shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from elman import cells
from elman.errors import InputError, ShapeError
from elman.frontend.cell import Cell
from elman.nn.modules.formulas import FORMULAS
from elman.nn.modules.sequence import SequenceModule
from elman.ops import relu

Array = np.ndarray[Any, Any]

GATES = {  # kind -> gates in torch's order
    "rnn": "h",
    "gru": "rzn",
    "gru_before": "rzn",
    "lstm": "ifgo",
    "lstm_peephole": "ifgo",
}
PEEPHOLES = "ifo"
ROLES = {"W": "W", "R": "R", "b": "b", "c": "d", "d": "d", "p": "p"}  # a cell's weight -> of Gates
CANDIDATE = "U"  # the recurrent matrix of the last gate, where a cell has it apart


class Gates(NamedTuple):
    """The weights of one layer in one direction; G gates in torch's order.

    Attributes:
        W [G·H, I]: multiplies the input.
        R [G·H, H]: multiplies the state.
        b [G·H]: is added to W x; None if there are no biases.
        d [G·H]: is added to R h; None where b is the only bias.
        p [3H]: peepholes of i, f, o; None where there are none.
    """

    W: Array
    R: Array
    b: Array | None = None
    d: Array | None = None
    p: Array | None = None


class Kind(NamedTuple):
    """The common recurrence that a cell computes.

    Attributes:
        name: of GATES.
    """

    name: str

    @property
    def gates(self) -> str:
        """Names of the gates, in torch's order."""
        return GATES[self.name]


@cache
def _kinds() -> dict[str, Kind]:
    """Kinds by fingerprint of the formula, built lazily: formulas are traced for it."""
    kinds = {
        cells.rnn: Kind("rnn"),
        cells.rnn.with_options(activation=relu): Kind("rnn"),
        cells.gru_before: Kind("gru_before"),
        cells.lstm: Kind("lstm"),
        cells.lstm_peephole: Kind("lstm_peephole"),
    }
    for (mode, _), cell in FORMULAS.items():
        kinds[cell] = Kind(mode.partition("_")[0].lower())
    return {cell.fingerprint: kind for cell, kind in kinds.items()}


def kind_of(cell: Cell) -> Kind | None:
    """Find the common recurrence of a cell by its formula, ignoring changes of its states; None if
    it is another one, or has several heads."""
    return _kinds().get(without_changes(cell).fingerprint)


def without_changes(cell: Cell) -> Cell:
    """The formula itself, whose states are read and written as it says."""
    return replace(cell, changes=()) if cell.changes else cell


def require_kind(module: Any) -> Kind:
    """The kind of a module's cell. Raises InputError: it is not a recurrent module, or not of a
    kind that other libraries have."""
    if not isinstance(module, SequenceModule):
        raise InputError(
            f"weights are those of a recurrent module, not of {type(module).__name__}",
            "of a larger model, its recurrent part; elman.accelerate(model) makes torch's "
            "layers elman's",
        )
    cells = list(dict.fromkeys([cell for cell, *_ in module._formulas()]))
    if len(cells) > 1:
        raise InputError(
            "layouts of other libraries are of one cell for all layers, not of "
            f"{', '.join(cell.name for cell in cells)}",
            "module.state_dict() has all weights by their names",
        )
    cell = cells[0]
    kind = kind_of(cell)
    if kind is None:
        heads = f" with {cell.heads} heads" if cell.heads != 1 else ""
        raise InputError(
            f"other libraries have no layout for the weights of {cell.name}{heads}",
            "module.state_dict() has them by their names; layouts are those of RNN, GRU and "
            "LSTM, cells.gru_before and cells.lstm_peephole",
        )
    return kind


def weight_names(cell: Cell) -> list[str]:
    """Names of a cell's weights, in declared order."""
    return [entry.name for entry in cell.weights]


def gather_weights(cell: Cell, weights: Sequence[torch.Tensor]) -> Gates:
    """Gather the weights of a cell by role, as numpy arrays that share nothing with them."""
    arrays = {
        name: to_numpy(weight) for name, weight in zip(weight_names(cell), weights, strict=True)
    }
    candidate = arrays.pop(CANDIDATE, None)
    if candidate is not None:
        arrays["R"] = np.concatenate([arrays["R"], candidate])
    return Gates(**{ROLES[name]: value for name, value in arrays.items()})


def scatter_weights(cell: Cell, gates: Gates) -> list[Array]:
    """The inverse of :func:`gather_weights`: an array per weight of the cell, in declared order.

    A cell with one bias gets the sum of both; one with two, of which one is missing, zeros.

    Raises:
        InputError: there are biases that are not zero, and the cell has none.
    """
    names, parts = weight_names(cell), gates._asdict()
    biases = [ROLES[name] for name in names if ROLES.get(name) in ("b", "d")]
    present = [value for value in (gates.b, gates.d) if value is not None]
    if not biases and any(value.any() for value in present):
        raise InputError(
            "the arrays have biases that are not zero, and the module has none",
            "make the module with bias=True",
        )
    zeros = np.zeros(len(gates.W), gates.W.dtype)
    if len(biases) == 1:
        parts["b"] = sum(present[1:], present[0]) if present else zeros
    else:
        parts |= {role: zeros if parts[role] is None else parts[role] for role in "bd"}
    if CANDIDATE in names:
        cut = 2 * len(gates.R) // 3
        parts["R"], parts[CANDIDATE] = gates.R[:cut], gates.R[cut:]
    if "p" in names and gates.p is None:
        parts["p"] = np.zeros(3 * gates.R.shape[1], gates.W.dtype)
    return [parts[ROLES.get(name, name)] for name in names]


def reorder_gates(values: Array, source: str, target: str) -> Array:
    """Reorder the rows of gates: ``source`` and ``target`` name the same gates."""
    if source == target:
        return values
    blocks = dict(zip(source, np.split(values, len(source))))
    return np.concatenate([blocks[gate] for gate in target])


def to_numpy(weight: torch.Tensor) -> Array:
    """Convert a tensor to an array that shares no memory with it; half precision is widened."""
    value = weight.detach().cpu()
    if value.dtype in (torch.bfloat16, torch.float16):
        value = value.float()
    return np.array(value.numpy())


Shapes = Mapping[str, tuple[int, ...]]  # by role of Gates


class Layer(NamedTuple):
    """One layer in one direction.

    Attributes:
        suffix: of its weights' names: ``l0``, ``l0_reverse`` …
        inputs: I.
        units: H.
        directions: of the module.
    """

    suffix: str
    inputs: int
    units: int
    directions: int


def present_arrays(part: Gates) -> Iterator[tuple[str, Array]]:
    """The arrays of a layer that are not None, by role."""
    return ((role, value) for role, value in part._asdict().items() if value is not None)


def layout_error(expected: str, arrays: Any) -> InputError:
    """Build the error for arrays of another form."""
    return InputError(f"this layout is {expected}, not {type(arrays).__name__}")


def as_array(value: Any, name: str, shape: tuple[int, ...] | None) -> Array:
    """Convert a value to an array of numbers. Raises InputError: it is none; ShapeError: it has not
    this shape."""
    try:
        result = to_numpy(value) if isinstance(value, torch.Tensor) else np.asarray(value)
        result = result if result.dtype == np.float64 else result.astype(np.float32)
    except (TypeError, ValueError):
        raise InputError(f"{name} is not an array of numbers: {type(value).__name__}") from None
    if shape is not None and result.shape != shape:
        raise ShapeError(f"{name} is {[*result.shape]}, not {[*shape]}")
    return result


def take_array(
    remaining: dict[str, Any],
    name: str,
    shape: tuple[int, ...],
    context: str = "",
    required: bool = True,
) -> Array | None:
    """Take an array out of a dict; None if it is not there and not needed. Raises InputError,
    ShapeError: it is needed, or does not fit."""
    value = remaining.pop(name, None)
    if value is not None:
        return as_array(value, name + context, shape)
    if required:
        names = ", ".join(map(str, remaining)) or "nothing"
        raise InputError(f"{name}{context} is missing; there is {names}")
    return None


def take_by_role(
    remaining: dict[str, Any], names: Mapping[str, str], shapes: Shapes, context: str = ""
) -> Gates:
    """Take the arrays of a layer; biases and peepholes may be missing."""
    arrays = {
        role: take_array(remaining, name, shapes[role], context, role in "WR")
        for role, name in names.items()
    }
    return Gates(**arrays)  # type: ignore[arg-type]


def check_none_remains(remaining: Mapping[str, Any], context: str = "") -> None:
    """Raise InputError if arrays remain that the module has no place for."""
    names = [str(name) for name, value in remaining.items() if value is not None]
    if names:
        raise InputError(f"nothing of the module is called {', '.join(names)}{context}")


def read_trees(arrays: Any, layers: Sequence[Layer]) -> list[Mapping[str, Any]]:
    """Check that there is a dict per layer; a single one needs no list. Raises InputError: there
    are more, or fewer, or something else."""
    dicts = [arrays] if isinstance(arrays, Mapping) else arrays
    if not isinstance(dicts, (list, tuple)) or not all(isinstance(v, Mapping) for v in dicts):
        raise layout_error("a dict of arrays for each layer", arrays)
    if len(dicts) != len(layers):
        suffixes = ", ".join(layer.suffix for layer in layers)
        raise InputError(f"there are {len(dicts)} dicts of arrays, not {len(layers)}: {suffixes}")
    return list(dicts)

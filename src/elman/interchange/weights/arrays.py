"""The gates of a cell as arrays, in and out of a module; and arrays out of what users hand in,
checked: one that is missing, unknown or of another shape is told by its name.
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
    """Which of the usual recurrences a cell is.

    Attributes:
        name: of GATES.
        relu: whether an RNN's function is relu, not tanh.
    """

    name: str
    relu: bool = False

    @property
    def gates(self) -> str:
        """Its gates in torch's order."""
        return GATES[self.name]


@cache
def _kinds() -> dict[str, Kind]:
    """By fingerprint of the formula; not before it is asked for: formulas are traced for it."""
    own = {
        cells.rnn: Kind("rnn"),
        cells.rnn.with_options(activation=relu): Kind("rnn", True),
        cells.gru_before: Kind("gru_before"),
        cells.lstm: Kind("lstm"),
        cells.lstm_peephole: Kind("lstm_peephole"),
    }
    for (mode, _), cell in FORMULAS.items():
        own[cell] = Kind(mode.partition("_")[0].lower(), mode == "RNN_RELU")
    return {cell.fingerprint: kind for cell, kind in own.items()}


def kind_of(cell: Cell) -> Kind | None:
    """Which of the usual recurrences a cell is, by its formula, however its states are changed;
    None if it is none of them, or has several heads."""
    return _kinds().get(unchanged(cell).fingerprint)


def unchanged(cell: Cell) -> Cell:
    """The formula itself, whose states are read and written as it says."""
    return replace(cell, changes=()) if cell.changes else cell


def known_kind(module: Any) -> Kind:
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


def names_of(cell: Cell) -> list[str]:
    """Names of a cell's weights, in declared order."""
    return [entry.name for entry in cell.weights]


def gathered(cell: Cell, weights: Sequence[torch.Tensor]) -> Gates:
    """The weights of a cell by role, as numpy arrays that share nothing with them."""
    found = {name: numbers(weight) for name, weight in zip(names_of(cell), weights, strict=True)}
    candidate = found.pop(CANDIDATE, None)
    if candidate is not None:
        found["R"] = np.concatenate([found["R"], candidate])
    return Gates(**{ROLES[name]: value for name, value in found.items()})


def scattered(cell: Cell, gates: Gates) -> list[Array]:
    """The inverse of :func:`gathered`: an array per weight of the cell, in declared order.

    A cell with one bias gets the sum of both; one with two, of which one is missing, zeros.

    Raises:
        InputError: there are biases that are not zero, and the cell has none.
    """
    names, parts = names_of(cell), gates._asdict()
    biases = [ROLES[name] for name in names if ROLES.get(name) in ("b", "d")]
    given = [value for value in (gates.b, gates.d) if value is not None]
    if not biases and any(value.any() for value in given):
        raise InputError(
            "the arrays have biases that are not zero, and the module has none",
            "make the module with bias=True",
        )
    zeros = np.zeros(len(gates.W), gates.W.dtype)
    if len(biases) == 1:
        parts["b"] = sum(given[1:], given[0]) if given else zeros
    else:
        parts |= {role: zeros if parts[role] is None else parts[role] for role in "bd"}
    if CANDIDATE in names:
        cut = 2 * len(gates.R) // 3
        parts["R"], parts[CANDIDATE] = gates.R[:cut], gates.R[cut:]
    if "p" in names and gates.p is None:
        parts["p"] = np.zeros(3 * gates.R.shape[1], gates.W.dtype)
    return [parts[ROLES.get(name, name)] for name in names]


def reordered(values: Array, source: str, target: str) -> Array:
    """Rows of gates in another order: ``source`` and ``target`` name the same gates."""
    if source == target:
        return values
    blocks = dict(zip(source, np.split(values, len(source))))
    return np.concatenate([blocks[gate] for gate in target])


def numbers(weight: torch.Tensor) -> Array:
    """A tensor as an array that shares nothing with it; half precision widened."""
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


def present(part: Gates) -> Iterator[tuple[str, Array]]:
    """The arrays of a layer that there are, by role."""
    return ((role, value) for role, value in part._asdict().items() if value is not None)


def wrong(expected: str, got: Any) -> InputError:
    """What is to be raised where something else was given."""
    return InputError(f"this layout is {expected}, not {type(got).__name__}")


def array(value: Any, name: str, shape: tuple[int, ...] | None) -> Array:
    """A value as an array of numbers. Raises InputError: it is none; ShapeError: it has not this
    shape."""
    try:
        found = numbers(value) if isinstance(value, torch.Tensor) else np.asarray(value)
        found = found if found.dtype == np.float64 else found.astype(np.float32)
    except (TypeError, ValueError):
        raise InputError(f"{name} is not an array of numbers: {type(value).__name__}") from None
    if shape is not None and found.shape != shape:
        raise ShapeError(f"{name} is {[*found.shape]}, not {[*shape]}")
    return found


def taken(
    left: dict[str, Any], name: str, shape: tuple[int, ...], where: str = "", needed: bool = True
) -> Array | None:
    """Take an array out of a dict; None if it is not there and not needed. Raises InputError,
    ShapeError: it is needed, or does not fit."""
    value = left.pop(name, None)
    if value is not None:
        return array(value, name + where, shape)
    if needed:
        others = ", ".join(map(str, left)) or "nothing"
        raise InputError(f"{name}{where} is missing; there is {others}")
    return None


def by_role(
    left: dict[str, Any], names: Mapping[str, str], shapes: Shapes, where: str = ""
) -> Gates:
    """Take the arrays of a layer; biases and peepholes may be missing."""
    found = {
        role: taken(left, name, shapes[role], where, role in "WR") for role, name in names.items()
    }
    return Gates(**found)  # type: ignore[arg-type]


def none_left(left: Mapping[str, Any], where: str = "") -> None:
    """Raise InputError if arrays are left that nobody took."""
    names = [str(name) for name, value in left.items() if value is not None]
    if names:
        raise InputError(f"nothing of the module is called {', '.join(names)}{where}")


def trees(arrays: Any, layers: Sequence[Layer]) -> list[Mapping[str, Any]]:
    """A dict per layer, of which one alone needs no list. Raises InputError: there are more, or
    fewer, or something else."""
    found = [arrays] if isinstance(arrays, Mapping) else arrays
    if not isinstance(found, (list, tuple)) or not all(isinstance(v, Mapping) for v in found):
        raise wrong("a dict of arrays for each layer", arrays)
    if len(found) != len(layers):
        suffixes = ", ".join(layer.suffix for layer in layers)
        raise InputError(f"there are {len(found)} dicts of arrays, not {len(layers)}: {suffixes}")
    return list(found)

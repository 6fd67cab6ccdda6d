"""The layouts of libraries, one row each; and a module's weights in one of them, out and in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from elman.errors import InputError, ShapeError, diagnostic
from elman.interchange.weights.arrays import (
    GATES,
    PEEPHOLES,
    Array,
    Gates,
    Kind,
    Layer,
    gather_weights,
    reorder_gates,
    require_kind,
    scatter_weights,
)
from elman.interchange.weights.containers import (
    Container,
    Fields,
    Flat,
    Joined,
    Listed,
    Named,
    Nodes,
    Trees,
)

# How the biases b of W x and d of R h are kept: both; their sum; or their sum for all gates but the
# last of a GRU, whose d is multiplied by the reset gate and kept apart.
Biases = Literal["two", "one", "candidate"]


@dataclass(frozen=True)
class Layout:
    """Weight layout of one library.

    Attributes:
        name: of the library or format.
        container: how arrays are named and nested.
        biases: per kind that the library has.
        orders: gates per kind, where they are not in torch's order.
        transposed: whether matrices are [columns, rows].
        peepholes: their order.
    """

    name: str
    container: Container
    biases: Mapping[str, Biases]
    orders: Mapping[str, str] = field(default_factory=dict[str, str])
    transposed: bool = False
    peepholes: str = PEEPHOLES

    def check(self, kind: Kind) -> None:
        """Raise InputError if the library has no such cell."""
        if kind.name in self.biases:
            return
        alternatives = [name for name, layout in LAYOUTS.items() if kind.name in layout.biases]
        raise InputError(
            f"layout {self.name!r} has no {kind.name}: it is for {', '.join(self.biases)}",
            f"layout={alternatives[0]!r}" if alternatives else "",
        )

    def convert(self, gates: Gates, kind: Kind) -> Gates:
        """Convert the weights of one layer to the library's layout. Raises InputError: it has no
        place for one of them."""
        W, R, b, d, p = gates
        if kind.name == "gru" and self.biases["gru"] == "one" and d is not None:
            if d[2 * len(d) // 3 :].any():
                raise InputError(
                    f"layout {self.name!r} has no bias for a GRU's candidate inside the reset "
                    "gate, and the module's is not zero",
                    "layout='flax', or 'equinox'",
                )
        b, d = _convert_biases(b, d, self.biases[kind.name])
        target = self.orders.get(kind.name, kind.gates)
        W, R, b, d = (_reorder_rows(value, kind.gates, target) for value in (W, R, b, d))
        p = None if p is None else reorder_gates(p, PEEPHOLES, self.peepholes)
        assert W is not None, "every layer has matrices"
        assert R is not None, "every layer has matrices"
        return Gates(W.T, R.T, b, d, p) if self.transposed else Gates(W, R, b, d, p)

    def restore(self, arrays: Gates, kind: Kind) -> Gates:
        """The inverse of :meth:`convert`; biases may be missing."""
        W, R, b, d, p = arrays
        W, R = (W.T, R.T) if self.transposed else (W, R)
        source = self.orders.get(kind.name, kind.gates)
        W, R, b, d = (_reorder_rows(value, source, kind.gates) for value in (W, R, b, d))
        p = None if p is None else reorder_gates(p, self.peepholes, PEEPHOLES)
        assert W is not None, "checked by the container"
        assert R is not None, "checked by the container"
        if self.biases[kind.name] == "candidate" and d is not None:
            d = np.concatenate([np.zeros(len(W) - len(d), d.dtype), d])
        return Gates(W, R, b, d, p)

    def shapes(self, layer: Layer, kind: Kind) -> dict[str, tuple[int, ...]]:
        """Shapes of the arrays of a layer, by role."""
        rows = len(kind.gates) * layer.units
        matrices = {"W": (rows, layer.inputs), "R": (rows, layer.units)}
        if self.transposed:
            matrices = {role: (columns, rows) for role, (rows, columns) in matrices.items()}
        form = self.biases[kind.name]
        vectors: dict[str, tuple[int, ...]] = {"b": (rows,)}
        if form != "one":
            vectors["d"] = (rows,) if form == "two" else (layer.units,)
        if kind.name == "lstm_peephole":
            vectors["p"] = (len(PEEPHOLES) * layer.units,)
        return matrices | vectors


def _convert_biases(
    b: Array | None, d: Array | None, form: Biases
) -> tuple[Array | None, Array | None]:
    """Convert both biases to the form of a library."""
    if b is None:
        return None, None
    d = np.zeros_like(b) if d is None else d
    if form == "two":
        return b, d
    if form == "one":
        return b + d, None
    cut = 2 * len(b) // 3  # of a GRU, in torch's order
    return np.concatenate([b[:cut] + d[:cut], b[cut:]]), d[cut:]


def _reorder_rows(value: Array | None, source: str, target: str) -> Array | None:
    """Reorder the gates of an array; None stays None."""
    return None if value is None else reorder_gates(value, source, target)


_PAIR: dict[str, Biases] = dict.fromkeys(("rnn", "gru", "lstm"), "two")
_SINGLE: dict[str, Biases] = dict.fromkeys(("rnn", "gru", "lstm"), "one")
_ZRN = {"gru": "zrn", "gru_before": "zrn"}

LAYOUTS: Mapping[str, Layout] = MappingProxyType(
    {
        layout.name: layout
        for layout in (
            Layout("torch", Named(), _PAIR),
            Layout("cudnn", Flat(), _PAIR),
            Layout("keras", Listed(), {**_SINGLE, "gru": "two", "gru_before": "one"}, _ZRN, True),
            Layout("flax", Trees(), {**_SINGLE, "gru": "candidate"}, {}, True),
            Layout("nnx", Joined(), _SINGLE, {}, True),
            Layout("equinox", Fields(), {"gru": "candidate", "lstm": "one"}),
            Layout(
                "onnx",
                Nodes(),
                dict.fromkeys(GATES, "two"),
                _ZRN | {"lstm": "iofg", "lstm_peephole": "iofg"},
                peepholes="iof",
            ),
        )
    }
)


def find_layout(name: Any) -> Layout:
    """Find the layout of a library. Raises InputError if there is none of the name."""
    if isinstance(name, str) and name in LAYOUTS:
        return LAYOUTS[name]
    raise InputError(f"there is no layout {name!r}", 'layout="onnx"', known=", ".join(LAYOUTS))


def to_arrays(module: Any, layout: str) -> Any:
    """Convert the weights of a module to the layout of another library.

    The module is an ``elman.RNN``, ``GRU`` or ``LSTM``, or an :class:`elman.Recurrent` with one of
    these cells, ``cells.gru_before`` or ``cells.lstm_peephole``, with any number of layers and
    directions. For G gates, H units and I inputs of a layer the layouts are:

    - ``"keras"``: a list [kernel [I, G·H], recurrent_kernel [H, G·H], bias [G·H]] for each layer
      and direction, as ``get_weights()`` has them, gates i, f, c, o or z, r, h. A GRU is one with
      ``reset_after=True``, its bias [2, G·H]; ``cells.gru_before`` is one with ``False``.
    - ``"flax"``: a tree for each layer and direction, of ``flax.linen``'s LSTMCell, GRUCell,
      SimpleCell, or of ``nnx``'s LSTMCell; ``"nnx"``: of its OptimizedLSTMCell, GRUCell and
      SimpleCell.
    - ``"equinox"``: a dict for each layer and direction, of ``equinox.nn``'s LSTMCell, GRUCell.
    - ``"onnx"``: a dict for each layer, W [directions, G·H, I], R [directions, G·H, H],
      B [directions, 2·G·H], P [directions, 3·H]; gates i, o, f, c or z, r, h. A GRU is one with
      ``linear_before_reset=1``, ``cells.gru_before`` one with 0.
    - ``"cudnn"``: one array [N]: all matrices of all layers, then all biases.
    - ``"torch"``: a dict by the names of ``torch.nn``.

    Args:
        module: a recurrent module.
        layout: one of the names above.

    Learned initial states are not converted, since no layout has them.

    Returns:
        numpy arrays that share no memory with the module, in the dtype of its weights (float32 for
        half precision); without biases if the module has none.

    Raises:
        InputError: the module is of another kind, or the library has no such cell.

    Example:
        >>> arrays = elman.weights.to_arrays(elman.LSTM(4, 8), "keras")
        >>> [array.shape for array in arrays]
        [(4, 32), (8, 32), (32,)]
    """
    target, kind = find_layout(layout), require_kind(module)
    target.check(kind)
    cell = module._formulas()[0][0]
    with torch.no_grad():
        parts = [
            target.convert(gather_weights(cell, weights), kind)
            for weights in module._current_weights()
        ]
    return target.container.write(parts, _layers(module), kind)


def from_arrays(module: Any, arrays: Any, layout: str) -> None:
    """Load the weights of another library into a module.

    Biases missing from the arrays become zero. Two biases are summed where the other side has one.
    If something does not fit, nothing is changed.

    Args:
        module: a recurrent module, as for :func:`to_arrays`.
        arrays: in the form that :func:`to_arrays` returns, as numpy arrays or anything numpy
            converts. A dict of one layer needs no list; lists of Keras may be nested by layers and
            directions.
        layout: as for :func:`to_arrays`.

    Raises:
        InputError: the module or layout is not supported, the library has no such cell, an array
            is missing or unknown, or a bias is not zero and the module has none.
        ShapeError: an array has another shape than the module needs.

    Example:
        >>> net = elman.GRU(4, 8, num_layers=2)
        >>> arrays = elman.weights.to_arrays(elman.GRU(4, 8, 2), "onnx")
        >>> elman.weights.from_arrays(net, arrays, "onnx")
    """
    source, kind = find_layout(layout), require_kind(module)
    source.check(kind)
    layers, cell = _layers(module), module._formulas()[0][0]
    shapes = [source.shapes(layer, kind) for layer in layers]
    try:
        parts = source.container.read(arrays, layers, shapes, kind)
    except (InputError, ShapeError) as error:
        raise type(error)(_explain_mismatch(error, layout, module)) from None
    arrays_of_layers = [scatter_weights(cell, source.restore(part, kind)) for part in parts]
    targets = [[_find_parameter(module, name) for name in names] for names in module.runtime.names]
    with torch.no_grad():
        for parameters, values in zip(targets, arrays_of_layers, strict=True):
            for parameter, value in zip(parameters, values, strict=True):
                parameter.copy_(torch.from_numpy(value.copy()))


def _explain_mismatch(error: Exception, layout: str, module: Any) -> str:
    return diagnostic(
        str(error),
        [("for", f"{type(module).__name__}({module.extra_repr()}), layout {layout!r}")],
        f"elman.weights.to_arrays(module, {layout!r}) shows what is expected",
    )


def _layers(module: Any) -> list[Layer]:
    """All layers and directions, in the order of their weights."""
    directions = 1 + bool(module.bidirectional)
    heights = [size for _, size, _ in module._formulas() for _ in range(directions)]
    return [
        Layer(suffix, dict(runner.dims)["I"], height, directions)
        for (suffix, runner), height in zip(module.runners.items(), heights, strict=True)
    ]


def _find_parameter(module: Any, name: str) -> nn.Parameter:
    parameter = getattr(module, name)
    if isinstance(parameter, nn.Parameter):
        return parameter
    raise InputError(
        f"{name} is not a parameter: it is computed from others",
        f"torch.nn.utils.parametrize.remove_parametrizations(module, {name!r}) first",
    )

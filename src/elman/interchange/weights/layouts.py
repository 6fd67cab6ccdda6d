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
from elman.frontend.cell import Cell
from elman.interchange.weights.arrays import (
    GATES,
    PEEPHOLES,
    Array,
    Gates,
    Kind,
    Layer,
    gathered,
    known_kind,
    reordered,
    scattered,
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
    """How one library keeps weights.

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
        others = [name for name, layout in LAYOUTS.items() if kind.name in layout.biases]
        raise InputError(
            f"layout {self.name!r} has no {kind.name}: it is for {', '.join(self.biases)}",
            f"layout={others[0]!r}" if others else "",
        )

    def written(self, gates: Gates, kind: Kind) -> Gates:
        """The weights of one layer as the library keeps them."""
        W, R, b, d, p = gates
        if kind.name == "gru" and self.biases["gru"] == "one" and d is not None:
            if d[2 * len(d) // 3 :].any():
                raise InputError(
                    f"layout {self.name!r} has no bias for a GRU's candidate inside the reset "
                    "gate, and the module's is not zero",
                    "layout='flax', or 'equinox'",
                )
        b, d = _kept(b, d, self.biases[kind.name])
        target = self.orders.get(kind.name, kind.gates)
        W, R, b, d = (_turned(value, kind.gates, target) for value in (W, R, b, d))
        p = None if p is None else reordered(p, PEEPHOLES, self.peepholes)
        assert W is not None, "every layer has matrices"
        assert R is not None, "every layer has matrices"
        return Gates(W.T, R.T, b, d, p) if self.transposed else Gates(W, R, b, d, p)

    def read(self, kept: Gates, kind: Kind) -> Gates:
        """The inverse of :meth:`written`; biases may be missing."""
        W, R, b, d, p = kept
        W, R = (W.T, R.T) if self.transposed else (W, R)
        source = self.orders.get(kind.name, kind.gates)
        W, R, b, d = (_turned(value, source, kind.gates) for value in (W, R, b, d))
        p = None if p is None else reordered(p, self.peepholes, PEEPHOLES)
        assert W is not None, "checked by the container"
        assert R is not None, "checked by the container"
        if self.biases[kind.name] == "candidate" and d is not None:
            d = np.concatenate([np.zeros(len(W) - len(d), d.dtype), d])
        return Gates(W, R, b, d, p)

    def shapes(self, layer: Layer, kind: Kind) -> dict[str, tuple[int, ...]]:
        """What each array of a layer has to be, by role."""
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


def _kept(b: Array | None, d: Array | None, form: Biases) -> tuple[Array | None, Array | None]:
    """Both biases as a library keeps them."""
    if b is None:
        return None, None
    d = np.zeros_like(b) if d is None else d
    if form == "two":
        return b, d
    if form == "one":
        return b + d, None
    cut = 2 * len(b) // 3  # of a GRU, in torch's order
    return np.concatenate([b[:cut] + d[:cut], b[cut:]]), d[cut:]


def _turned(value: Array | None, source: str, target: str) -> Array | None:
    """Rows of all gates in another order, if there are any."""
    return None if value is None else reordered(value, source, target)


_TWO: dict[str, Biases] = dict.fromkeys(("rnn", "gru", "lstm"), "two")
_ONE: dict[str, Biases] = dict.fromkeys(("rnn", "gru", "lstm"), "one")
_ZRN = {"gru": "zrn", "gru_before": "zrn"}

LAYOUTS: Mapping[str, Layout] = MappingProxyType(
    {
        layout.name: layout
        for layout in (
            Layout("torch", Named(), _TWO),
            Layout("cudnn", Flat(), _TWO),
            Layout("keras", Listed(), {**_ONE, "gru": "two", "gru_before": "one"}, _ZRN, True),
            Layout("flax", Trees(), {**_ONE, "gru": "candidate"}, {}, True),
            Layout("nnx", Joined(), _ONE, {}, True),
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


def layout_named(name: Any) -> Layout:
    """The layout of a library. Raises InputError if there is none of the name."""
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
    how, kind = layout_named(layout), known_kind(module)
    how.check(kind)
    return _written(module, how, kind, module._formulas()[0][0], slice(None))


def save_layer(module: Any, layout: str, number: int, kind: Kind) -> Any:
    """What :func:`save` has of one layer.

    Args:
        module, layout: as there; other layers may have other cells.
        number: of the layer.
        kind: of its cell.
    """
    how, two = layout_named(layout), 1 + bool(module.bidirectional)
    own, cell = slice(two * number, two * (number + 1)), module._formulas()[number][0]
    return _written(module, how, kind, cell, own)[0]


def _written(module: Any, how: Layout, kind: Kind, cell: Cell, own: slice) -> Any:
    """The weights of some layers and directions, which have one cell."""
    with torch.no_grad():
        parts = [how.written(gathered(cell, each), kind) for each in module._settled_weights()[own]]
    return how.container.write(parts, _layers(module)[own], kind)


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
    how, kind = layout_named(layout), known_kind(module)
    how.check(kind)
    layers, cell = _layers(module), module._formulas()[0][0]
    shapes = [how.shapes(layer, kind) for layer in layers]
    try:
        parts = how.container.read(arrays, layers, shapes, kind)
    except (InputError, ShapeError) as error:
        raise type(error)(_told(error, layout, module)) from None
    found = [scattered(cell, how.read(part, kind)) for part in parts]
    targets = [[_parameter(module, name) for name in names] for names in module.parts.names]
    with torch.no_grad():
        for own, values in zip(targets, found, strict=True):
            for parameter, value in zip(own, values, strict=True):
                parameter.copy_(torch.from_numpy(value.copy()))


def _told(error: Exception, layout: str, module: Any) -> str:
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


def _parameter(module: Any, name: str) -> nn.Parameter:
    found = getattr(module, name)
    if isinstance(found, nn.Parameter):
        return found
    raise InputError(
        f"{name} is not a parameter: it is computed from others",
        f"torch.nn.utils.parametrize.remove_parametrizations(module, {name!r}) first",
    )

"""``load`` and ``save``: weights of a module as arrays of another library."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from elman.errors import InputError, ShapeError, diagnostic
from elman.weights.gates import Kind, gathered, known_kind, scattered
from elman.weights.layouts import layout_named
from elman.weights.reading import Layer


def to_arrays(module: Any, layout: str) -> Any:
    """The weights of a module as another library lays them out.

    Of ``elman.RNN``, ``GRU`` and ``LSTM``, and of :class:`elman.Recurrent` with one of these cells,
    with ``cells.gru_before`` or ``cells.lstm_peephole``; all layers, both directions. G gates,
    H units, I inputs of a layer:

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

    What no layout has a place for stays with the module: learned initial states.

    Returns:
        numpy arrays that share no memory with the module, of the type of its weights (float32 for
        half precision). Without biases, where the module has none.

    Raises:
        InputError: the module is no such, or the library has no such cell.

    Example:
        >>> arrays = elman.weights.to_arrays(elman.LSTM(4, 8), "keras")
        >>> [array.shape for array in arrays]
        [(4, 32), (8, 32), (32,)]
    """
    how, kind = layout_named(layout), known_kind(module)
    how.check(kind)
    cell = module._formulas()[0][0]
    with torch.no_grad():
        parts = [how.written(gathered(cell, own), kind) for own in module._settled_weights()]
    return how.container.write(parts, _layers(module), kind)


def save_layer(module: Any, layout: str, number: int, kind: Kind) -> Any:
    """What :func:`save` has of one layer.

    Args:
        module, layout: as there; other layers may have other cells.
        number: of the layer.
        kind: of its cell.
    """
    how, two = layout_named(layout), 1 + bool(module.bidirectional)
    own, cell = slice(two * number, two * (number + 1)), module._formulas()[number][0]
    with torch.no_grad():
        parts = [how.written(gathered(cell, each), kind) for each in module._settled_weights()[own]]
    return how.container.write(parts, _layers(module)[own], kind)[0]


def from_arrays(module: Any, arrays: Any, layout: str) -> None:
    """Give a module the weights of another library.

    Biases that the arrays do not have become zero; two biases that are one in the module, or the
    other way round, are summed. Nothing is changed if something does not fit.

    Args:
        module: a recurrent module, as for :func:`save`.
        arrays: as :func:`save` returns them; anything that numpy makes arrays of. A dict of one
            layer needs no list; lists of Keras may be nested by layers and directions.
        layout: as of :func:`save`.

    Raises:
        InputError: the module or the layout is none, the library has no such cell, an array is
            missing or unknown, or a bias is not zero and the module has none.
        ShapeError: an array does not have the shape that the module needs.

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
        diagnostic(
            f"{name} is not a parameter: it is computed from others",
            [],
            f"torch.nn.utils.parametrize.remove_parametrizations(module, {name!r}) first",
        )
    )

"""Layers in residual blocks, called as torch's recurrent layers are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from elman.cell_files import find_sequence_cell
from elman.checks import check_dropout
from elman.frontend.cell import Cell
from elman.layers.arguments import check_sizes, check_state, check_steps, for_layers
from elman.layers.delta import DeltaNet, GatedDeltaNet
from elman.layers.diagonal import LRU, S4D
from elman.layers.gla import GatedLinearAttention
from elman.layers.mamba2 import Mamba2
from elman.layers.mlstm import MLSTM
from elman.layers.parts import CellLayer, Layer, RMSNorm, State
from elman.layers.rwkv7 import RWKV7

_HEAD = 64  # units of a head, where so many divide the layer


def _heads(size: int) -> int:
    """How many heads a layer of so many units has."""
    return max(1, size // _HEAD) if size % max(1, size // _HEAD) == 0 else 1


def _gated_delta_net(size: int, engine: str, **_: int) -> nn.Module:
    heads = _heads(size)
    keys = max(1, 3 * size // (4 * heads))
    return GatedDeltaNet(size, num_heads=heads, head_dim=keys, engine=engine)


def _rwkv7(size: int, engine: str, layer: int, layers: int) -> nn.Module:
    head = size // _heads(size)
    return RWKV7(size, head_size=head, layer=layer, layers=layers, engine=engine)


def _mamba2(size: int, engine: str, **_: int) -> nn.Module:
    return Mamba2(size, d_state=_HEAD, headdim=size // _heads(size), engine=engine)


def _of_heads(kind: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    return lambda size, engine, **_: kind(size, num_heads=_heads(size), engine=engine)


def _without_heads(kind: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    return lambda size, engine, **_: kind(size, engine=engine)


LAYERS: Mapping[str, Callable[..., nn.Module]] = {  # name of the cell -> its layer of some size
    "delta_net": _of_heads(DeltaNet),
    "gated_delta_net": _gated_delta_net,
    "gla": _of_heads(GatedLinearAttention),
    "lru": _without_heads(LRU),
    "mamba2": _mamba2,
    "mlstm": _of_heads(MLSTM),
    "rwkv7": _rwkv7,
    "s4d": _without_heads(S4D),
}


def _constructor(cell: str | Cell) -> Callable[..., nn.Module]:
    """Look up the constructor of a cell's layer. Raises InputError, RunError: as
    :func:`find_sequence_cell`."""
    if isinstance(cell, str) and cell in LAYERS:
        return LAYERS[cell]
    sequence_cell = find_sequence_cell(cell)
    return lambda size, engine, **_: CellLayer(size, sequence_cell, size, engine)


class _Block(nn.Module):
    """A layer behind a norm."""

    def __init__(self, size: int, layer: nn.Module, engine: str) -> None:
        super().__init__()
        self.norm, self.layer = RMSNorm(size, 1e-5, engine), layer

    def forward(self, x: Tensor, *rest: Any) -> Any:
        """What the layer returns for the normalised input."""
        return self.layer(self.norm(x), *rest)


class Stack(nn.Module):
    """Layers of one kind in residual blocks: x + layer(norm(x)), and a norm at the end. The norms
    let deep stacks learn.

    Heads have 64 units or so, where that divides ``hidden_size``; keys are smaller as published.

    Args:
        cell: the name of a cell that has a published layer: ``"delta_net"``,
            ``"gated_delta_net"``, ``"gla"``, ``"lru"``, ``"mamba2"``, ``"mlstm"``, ``"rwkv7"`` or
            ``"s4d"``; or any cell of one input, which is its own layer: ``"gru"``, ``"lstm"`` …
        input_size: of x, which is projected first unless it is ``hidden_size``.
        hidden_size: of every block and of the output.
        num_layers: number of blocks.
        dropout: share of values dropped after each block but the last, in training.
        engine: as of ``elman.Recurrent``.

    Raises:
        InputError: there is no such cell, it reads or returns something else than a vector of
            ``hidden_size``, or a size is no positive integer.

    Example:
        >>> net = elman.layers.Stack("gated_delta_net", 16, 32, num_layers=2)
        >>> out, state = net(torch.randn(10, 3, 16))
        >>> later, state = net(torch.randn(1, 3, 16), state)
        >>> out.shape, later.shape, len(state)
        (torch.Size([10, 3, 32]), torch.Size([1, 3, 32]), 8)
    """

    def __init__(
        self,
        cell: str | Cell,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        dropout: float = 0.0,
        engine: str = "auto",
    ) -> None:
        super().__init__()
        construct = _constructor(cell)
        check_sizes(input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        same = input_size == hidden_size
        self.embed = nn.Identity() if same else nn.Linear(input_size, hidden_size, bias=False)
        self.blocks = nn.ModuleList(
            _Block(hidden_size, construct(hidden_size, engine, layer=k, layers=num_layers), engine)
            for k in range(num_layers)
        )
        self.input_size = input_size
        self.dropout = nn.Dropout(check_dropout(dropout, num_layers))
        self.norm = RMSNorm(hidden_size, 1e-5, engine)

    def state_shapes(self, batch: int) -> list[list[int]]:
        """Shapes of the tensors of a state."""
        layers = [module for module in self.modules() if isinstance(module, Layer)]
        return [shape for layer in layers for shape in layer.state_shapes(batch)]

    @for_layers
    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Run all steps of x [T, B, input_size], or [T, input_size] unbatched, from a state, zeros
        if None.

        Returns:
            out [T, B, hidden_size], and the states of all blocks, one after another, with the batch
            as their second axis; neither has B if x has none.

        Raises:
            ShapeError: x or the state has another form.
        """
        check_steps(x, self.input_size)
        if state is not None:
            check_state(state, self.state_shapes(x.shape[1]))
        after: list[Tensor] = []  # list[Tensor]() is what torch's compiler cannot trace
        x, values = self.embed(x), ()
        parts = 0 if state is None else len(state) // len(self.blocks)
        for index, block in enumerate(self.blocks):
            begin = None if state is None else state[parts * index : parts * (index + 1)]
            change, end, *values = block(x, begin, *values)
            after += end
            last = index == len(self.blocks) - 1
            x = x + (change if last else self.dropout(change))
        return self.norm(x), tuple(after)

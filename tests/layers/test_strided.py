"""Strided layers compared with a loop over steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import elman
from elman import cells
from elman.errors import InputError, ShapeError
from elman.frontend.cell import Cell

F64 = torch.float64
I, H, B = 3, 8, 2


@elman.cell(input="x[I]", state="h[H]", output="y[H], e", weights="W[H, I]")
def pair(x, h, W):
    """Two outputs."""
    h = elman.ops.tanh(W @ x + h)
    return h, elman.ops.mean(h), h


def strided(cell: Cell, strides: Any, layers: int = 1, **options: Any) -> elman.layers.Strided:
    torch.manual_seed(0)
    return elman.layers.Strided(cell, I, H, strides, layers, **options).double()


def by_steps(net: Any, x: Tensor, states: Any) -> tuple[Tensor, list[Any]]:
    """Step by step: each group from its own state of so many steps before."""
    ends: list[Any] = []
    given = iter(states)
    for layer in net.layers:
        outputs: list[Tensor] = []
        for group, stride in zip(layer, net.strides, strict=True):
            state = next(given)
            parts: Any = state if isinstance(state, tuple) else (state,)
            past: list[Any] = [tuple(part[k : k + 1] for part in parts) for k in range(stride)]
            steps: list[Tensor] = []
            for row in x:
                begin = past.pop(0)
                out, end = group(row[None], begin if len(begin) > 1 else begin[0])
                past.append(end if isinstance(end, tuple) else (end,))
                steps.append(out[0])
            outputs.append(torch.stack(steps))
            last: Any = tuple(torch.cat(each) for each in zip(*past, strict=True))
            ends.append(last if len(last) > 1 else last[0])
        x = torch.cat(outputs, -1)
    return x, ends


def flat(states: Any) -> list[Tensor]:
    return tree_leaves(states)


@pytest.mark.parametrize("T", [1, 3, 8, 13])
@pytest.mark.parametrize("cell", [cells.gru, cells.lstm], ids=lambda cell: cell.name)
@pytest.mark.parametrize("strides, layers", [((1, 2, 4, 8), 1), ((3, 5), 2)])
def test_steps(cell: Cell, strides: Any, layers: int, T: int) -> None:
    """Outputs, last states and gradients of sequences shorter and longer than the strides, from
    states that are not zero."""
    net = strided(cell, strides, layers, engine="reference")
    units = H // len(strides)
    count = len(cell.states)
    shapes = [(stride, B, units) for _ in range(layers) for stride in strides]
    states: Any = [tuple(torch.randn(s, dtype=F64) for _ in range(count)) for s in shapes]
    states = tuple(state if count > 1 else state[0] for state in states)
    x = torch.randn(T, B, I, dtype=F64, requires_grad=True)
    results = [net(x, states), by_steps(net, x, states)]
    (out, last), (want, ends) = results
    torch.testing.assert_close(out, want)
    torch.testing.assert_close(flat(last), flat(ends))
    leaves = [x, *net.parameters()]
    totals = [torch.cat([value.sin().flatten() for value in flat(each)]).sum() for each in results]
    grads = [torch.autograd.grad(total, leaves) for total in totals]
    torch.testing.assert_close(*grads)


def test_options() -> None:
    """Each option of Recurrent is honoured or refused by name."""
    torch.manual_seed(1)
    x = torch.randn(7, B, I, dtype=F64)
    net = strided(cells.gru, (1, 2), 3, residual=True)
    plain = strided(cells.gru, (1, 2), 3)
    first = elman.layers.Strided(cells.gru, I, H, (1, 2), 1, batch_first=True).double()
    first.load_state_dict({k: v for k, v in plain.state_dict().items() if k[:8] == "layers.0"})
    y, want = plain(x), first(x.transpose(0, 1))
    inner = torch.cat([_group(plain, 0, k, x) for k in range(2)], -1)
    torch.testing.assert_close(want[0].transpose(0, 1), inner)
    for k in (1, 2):
        inner = inner + torch.cat([_group(plain, k, n, inner) for n in range(2)], -1)
    net.load_state_dict(plain.state_dict())
    torch.testing.assert_close(net(x)[0], inner)
    assert y[0].shape == inner.shape
    with pytest.raises(InputError, match="bidirectional=True: strided layers run in one direction"):
        strided(cells.gru, (1, 2), bidirectional=True)
    with pytest.raises(InputError, match="batch_first must be True or False"):
        strided(cells.gru, (1, 2), batch_first=2)
    with pytest.raises(InputError, match="no argument 'rezidual'"):
        strided(cells.gru, (1, 2), rezidual=True)
    assert strided(pair, (1, 2))(x)[0].shape == inner.shape  # of several outputs the first
    with pytest.raises(ShapeError, match=r"states of stride 2 must be \[2, 2, n\], got \[1, 2, 4"):
        plain(x, (torch.zeros(1, B, 4, dtype=F64),) * 6)
    with pytest.raises(ShapeError, match="of 6 groups, got a Tensor"):
        plain(x, torch.zeros(6, 1, B, 4, dtype=F64))


def _group(net: Any, layer: int, group: int, x: Tensor) -> Tensor:
    """Outputs of one group: of every stride-th step, one after the other."""
    stride, out = net.strides[group], x.new_empty(*x.shape[:2], H // len(net.strides))
    for k in range(stride):
        out[k::stride] = net.layers[layer][group](x[k::stride])[0]
    return out


def test_chunks_are_the_whole() -> None:
    """A sequence in chunks, whose ends are at no multiple of a stride."""
    net = strided(cells.mgu, (1, 4))
    x = torch.randn(14, B, I, dtype=F64)
    want, ends = net(x)
    states, parts = None, []
    for part in x.split([5, 1, 8]):
        out, states = net(part, states)
        parts.append(out)
    torch.testing.assert_close(torch.cat(parts), want)
    torch.testing.assert_close(flat(states), flat(ends))


def test_heads_and_names() -> None:
    """Heads are divided among the groups; a cell has a name."""
    net: Any = elman.layers.Strided("gru", I, H, (1, 2), heads=4, zoneout=0.1)
    assert [group.heads for group in net.layers[0]] == [2, 2]
    assert net(torch.randn(5, B, I))[0].shape == (5, B, H)


@pytest.mark.parametrize(
    "arguments, options, error, message",
    [
        ((I, H, ()), {}, InputError, "strides are none"),
        ((I, H, (1, 0)), {}, InputError, "stride"),
        ((I, 7, (1, 2)), {}, ShapeError, "hidden_size of 7 cannot be divided"),
        ((I, H, (1, 2)), {"heads": 3}, ShapeError, "heads of 3 cannot be divided"),
    ],
)
def test_what_is_refused(arguments: Any, options: Any, error: Any, message: str) -> None:
    """Sizes that do not fit."""
    with pytest.raises(error, match=message):
        elman.layers.Strided("gru", *arguments, **options)


def test_wrong_arguments() -> None:
    """Of a call."""
    net = elman.layers.Strided("gru", I, H, (1, 2))
    with pytest.raises(ShapeError, match=r"x must be \[T, B, 3\], or unbatched"):
        net(torch.randn(5, I + 1))
    with pytest.raises(ShapeError, match="states must be of 2 groups, got 1"):
        net(torch.randn(5, B, I), (torch.zeros(1, B, 4),))

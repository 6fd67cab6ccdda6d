"""Random numbers of a cell in training: keys drawn by torch's generator, one for each row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from elman.engines.call import Call
from elman.frontend.cell import Cell
from elman.ir.draws import BITS
from elman.nn.options import Option, known
from elman.nn.packing import Packing, Padding
from elman.passes.draws import SAMPLED, SEQUENCE, draws

for _rule in SAMPLED.values():
    known(_rule)


class Draws(Option):
    """The keys of one call.

    Args:
        per: what the cell draws by, as :func:`elman.passes.draws.draws` says.
        keys: of each: [layers · directions, 2, T, B] (packed [.., 2, N]) per step, [.., 2, B] per
            sequence.
    """

    def __init__(self, per: Sequence[str], keys: Sequence[Tensor]) -> None:
        self._per, self._keys = tuple(per), tuple(keys)
        self.rule = SAMPLED[self._per]

    def above(self, first: int, cell: Cell) -> Draws | None:
        """See :meth:`Option.above`."""
        per = draws(cell.graph)
        if not first and per == self._per:
            return self
        own = [keys[first:] for often, keys in zip(self._per, self._keys) if often in per]
        return Draws(per, own) if per else None

    def extend(self, call: Call, reverse: bool, member: int = 0) -> Call:
        """See :meth:`Option.extend`."""
        more: list[Tensor] = []
        for per, keys in zip(self._per, self._keys, strict=True):
            own = keys[member]
            more += (_repeated(own, call) if per == SEQUENCE else own).unbind(0)
        return call._replace(inputs=(*call.inputs, *more))


def _repeated(keys: Tensor, call: Call) -> Tensor:
    """Keys [2, B] of sequences at every step of theirs."""
    if call.packed is not None:
        return keys.index_select(1, call.packed.sequence.to(keys.device))
    steps, batch, _ = call.sizes
    return keys.unsqueeze(1).expand(2, steps, batch)


def key_sizes(
    per: Sequence[str], lead: int, rows: Sequence[int], batch: int
) -> list[tuple[int, ...]]:
    """Sizes of the keys of a call; arguments as of :func:`draw_keys`."""
    return [(lead, 2, batch) if one == SEQUENCE else (lead, 2, *rows) for one in per]


def draw_keys(
    per: Sequence[str],
    lead: int,
    rows: Sequence[int],
    batch: int,
    dtype: torch.dtype,
    device: torch.device,
) -> list[Tensor]:
    """Draw the keys of a call from the device's default generator.

    Args:
        per: what the cell draws by.
        lead: layers · directions.
        rows: T, B; of packed rows N.
        batch: B.
        dtype: of the call, float32 or float64.
        device: of the call.

    Returns:
        As of :class:`Draws`.
    """
    assert torch.finfo(dtype).eps <= 2.0**-BITS * 2, "a type that holds a half of a key"
    return [
        torch.randint(1 << BITS, size, dtype=torch.int32, device=device).to(dtype)
        for size in key_sizes(per, lead, rows, batch)
    ]


def no_keys(
    per: Sequence[str],
    lead: int,
    rows: Sequence[int],
    batch: int,
    dtype: torch.dtype,
    device: torch.device,
) -> list[Tensor]:
    """What stands for :func:`draw_keys` where nothing runs: no generator is asked."""
    nothing = torch.zeros((), dtype=dtype, device=device)
    return [nothing.expand(size) for size in key_sizes(per, lead, rows, batch)]


def packed_keys(
    per: Sequence[str], keys: Sequence[Tensor], padding: Padding, packing: Packing
) -> list[Tensor]:
    """Keys of a padded batch as those of its packed rows."""
    return [
        packing.sorted(own, 2)
        if one == SEQUENCE
        else padding.packed(own.movedim((2, 3), (0, 1))).movedim(0, 2)
        for one, own in zip(per, keys, strict=True)
    ]

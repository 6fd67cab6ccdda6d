"""Random numbers of a cell in training: keys drawn by torch's generator for each row, or given."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from elman.engines.call import Call
from elman.errors import InputError, diagnostic
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
        given: whether those per sequence are there at every step, too: :func:`keys_of`.
    """

    def __init__(self, per: Sequence[str], keys: Sequence[Tensor], given: bool = False) -> None:
        self._per, self._keys, self._given = tuple(per), tuple(keys), given
        self.rule = SAMPLED[self._per]

    def above(self, first: int, cell: Cell) -> Draws | None:
        """See :meth:`Option.above`."""
        per = draws(cell.graph)
        if not first and per == self._per:
            return self
        own = [keys[first:] for often, keys in zip(self._per, self._keys) if often in per]
        return Draws(per, own, self._given) if per else None

    def extend(self, call: Call, reverse: bool, member: int = 0) -> Call:
        """See :meth:`Option.extend`."""
        more: list[Tensor] = []
        for per, keys in zip(self._per, self._keys, strict=True):
            own = keys[member]
            once = per == SEQUENCE and not self._given
            more += (_repeated(own, call) if once else own).unbind(0)
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
    return [_drawn(size, device).to(dtype) for size in key_sizes(per, lead, rows, batch)]


def _drawn(size: Sequence[int], device: torch.device | None) -> Tensor:
    """Halves of keys, int32."""
    return torch.randint(1 << BITS, size, dtype=torch.int32, device=device)


def draws_to_keep(
    per: Sequence[str], lead: int, steps: int, batch: int, device: torch.device | None
) -> Tensor:
    """What :func:`draw_keys` draws for rows T, B, as one tensor that a caller keeps.

    Returns:
        [T, B, layers · directions, n] of int32: both halves of each of ``per``, in its order; those
        per sequence are the same at all steps.
    """
    keys = [_drawn(size, device) for size in key_sizes(per, lead, (steps, batch), batch)]
    each = [own if own.dim() == 4 else own.unsqueeze(2).expand(-1, -1, steps, -1) for own in keys]
    return torch.cat(each, 1).permute(2, 3, 0, 1).contiguous()


def keys_of(given: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """The keys of a call that is given its draws.

    Args:
        given: of :func:`draws_to_keep`, [T, B, layers · directions, n]; packed [N, ..].
        dtype: of the call, float32 or float64.

    Returns:
        [layers · directions, 2, T, B] (packed [.., 2, N]) for each of what the cell draws by.
    """
    keys = given.detach().movedim((-2, -1), (0, 1)).to(dtype).contiguous()
    return list(keys.split(2, 1))


def check_draws(per: Sequence[str], training: bool, name: str) -> None:
    """Refuse draws where nothing is drawn.

    Args:
        per: what the cell draws by.
        training: whether the module trains.
        name: of the cell.

    Raises:
        InputError: no such module, or it does not train.
    """
    if not per:
        hint = "zoneout= or recurrent_dropout= of the module, or dropout(v, p) in the formula"
        raise InputError(diagnostic(f"{name} draws no random numbers", [], hint))
    if not training:
        hint = "net.train(), or net(x) without draws="
        raise InputError(
            diagnostic("draws= has no effect in eval(): nothing is drawn there", [], hint)
        )


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


def packed_keys(keys: Sequence[Tensor], padding: Padding, packing: Packing) -> list[Tensor]:
    """Keys of a padded batch as those of its packed rows, per sequence [.., B] as its sequences."""
    return [
        packing.sorted(own, 2)
        if own.dim() == 3
        else padding.packed(own.movedim((2, 3), (0, 1))).movedim(0, 2)
        for own in keys
    ]

"""Random numbers of a cell in training: keys for each row, from torch's generator or the caller."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from elman.engines.call import Call
from elman.errors import InputError
from elman.ir.draws import BITS
from elman.nn.layout.packing import Rows
from elman.nn.options.base import StepOption, at_steps, register_rule
from elman.nn.options.bound import BoundCall, Facts, StepValues
from elman.passes.draws import SAMPLED, SEQUENCE
from elman.tuning.request import Rule

for _rule in SAMPLED.values():
    register_rule(_rule)
_EXPLICIT = "given"  # the caller's keys, of which those per sequence are repeated at every step


class DrawsOption(StepOption):
    """Keys of the random numbers of one call.

    For each period of a cell's draws, keys are [layers · directions, 2, T, B] (packed [.., 2, N])
    per step, [.., 2, B] per sequence; the caller's keys are all per step.
    """

    name = "draws"

    def sizes(self, runtime: Facts, training: bool) -> tuple[int, ...]:
        """See :meth:`StepOption.sizes`: layers · directions, and halves of keys."""
        check_draws(runtime.draws, training, runtime.signature.cell)
        return len(runtime.runners), 2 * len(runtime.draws)

    def enter(self, value: Tensor, call: BoundCall) -> None:
        keys = value.detach().movedim((-2, -1), (0, 1)).to(call.inputs[0].dtype).contiguous()
        facts = *call.runtime.draws, _EXPLICIT
        call.steps.append(StepValues(self.name, facts, keys.split(2, 1)))

    def draw(self, call: BoundCall, draw: Callable[..., list[Tensor]]) -> None:
        """Draw keys and add them to a call; for packed rows, keys of the whole padded batch, so
        that they do not depend on the lengths.

        Args:
            call: the call, which is changed in place.
            draw: :func:`draw_keys`, or :func:`no_keys`.
        """
        per, like, rows = call.runtime.draws, call.inputs[0], call.rows
        batch = call.states[0].shape[1]
        padded = rows is not None and rows.index is not None
        sizes = (rows.steps, batch) if rows and padded else like.shape[: 2 - (rows is not None)]
        keys = draw(key_sizes(per, len(call.weights), sizes, batch), like.dtype, like.device)
        values = StepValues(self.name, per, tuple(keys))
        call.steps.append(self.pack(values, rows) if rows and padded else values)

    def rule(self, facts: Sequence[str]) -> Rule:
        return SAMPLED[_per(facts)]

    def extend(self, values: StepValues, call: Call, reverse: bool, member: int) -> Call:
        further: list[Tensor] = []
        ready = _EXPLICIT in values.facts
        for per, keys in zip(_per(values.facts), values.tensors, strict=True):
            layer_keys = keys[member]
            further += (
                layer_keys if ready or per != SEQUENCE else at_steps(layer_keys, call, 1)
            ).unbind(0)
        return call._replace(inputs=(*call.inputs, *further))

    def for_layers(
        self, values: StepValues, first: int, end: int, draws: Sequence[str]
    ) -> StepValues | None:
        if not draws:
            return None
        pairs = zip(_per(values.facts), values.tensors)
        keys = tuple([keys[first:end] for per, keys in pairs if per in draws])
        return StepValues(self.name, (*draws, *values.facts[len(values.tensors) :]), keys)

    def pack(self, values: StepValues, rows: Rows) -> StepValues:
        keys = [
            rows.sort(layer_keys, 2)
            if layer_keys.dim() == 3
            else rows.pack(layer_keys.movedim((2, 3), (0, 1))).movedim(0, 2)
            for layer_keys in values.tensors
        ]
        return values._replace(tensors=tuple(keys))


DRAWS = DrawsOption()


def _per(facts: Sequence[str]) -> tuple[str, ...]:
    """The periods of the keys of a call: per step, per sequence."""
    return tuple([fact for fact in facts if fact != _EXPLICIT])


def key_sizes(
    per: Sequence[str], lead: int, rows: Sequence[int], batch: int
) -> list[tuple[int, ...]]:
    """Sizes of the keys of a call, see :class:`DrawsOption`.

    Args:
        per: periods of the cell's draws.
        lead: layers · directions.
        rows: T, B; of packed rows N.
        batch: B.
    """
    return [(lead, 2, batch) if kind == SEQUENCE else (lead, 2, *rows) for kind in per]


def draw_keys(
    sizes: Sequence[Sequence[int]], dtype: torch.dtype, device: torch.device
) -> list[Tensor]:
    """Draw the keys of a call from the device's default generator.

    Args:
        sizes: result of :func:`key_sizes`.
        dtype: of the call, float32 or float64, which hold half a key exactly.
        device: of the call.
    """
    return [_draw(size, device).to(dtype) for size in sizes]


def no_keys(
    sizes: Sequence[Sequence[int]], dtype: torch.dtype, device: torch.device
) -> list[Tensor]:
    """Replace :func:`draw_keys` in a call that is not run; no generator is advanced."""
    return [torch.zeros((), dtype=dtype, device=device).expand(*size) for size in sizes]


def _draw(size: Sequence[int], device: torch.device | None) -> Tensor:
    """Halves of keys, int32."""
    return torch.randint(1 << BITS, size, dtype=torch.int32, device=device)


def draws_to_keep(
    per: Sequence[str], lead: int, steps: int, batch: int, device: torch.device | None
) -> Tensor:
    """Draw keys like :func:`draw_keys`, as one tensor for the caller.

    Args:
        per, lead: see :func:`key_sizes`.
        steps, batch: T and B.
        device: of the module's weights.

    Returns:
        [T, B, layers · directions, n], int32: both halves of the key of each of ``per``, in its
        order; keys per sequence are the same at all steps.
    """
    keys = [_draw(size, device) for size in key_sizes(per, lead, (steps, batch), batch)]
    draws = [
        layer_keys if layer_keys.dim() == 4 else layer_keys.unsqueeze(2).expand(-1, -1, steps, -1)
        for layer_keys in keys
    ]
    return torch.cat(draws, 1).permute(2, 3, 0, 1).contiguous()


def check_draws(per: Sequence[str], training: bool, name: str) -> None:
    """Refuse draws for a module that draws nothing.

    Args:
        per: periods of the cell's draws.
        training: whether the module trains.
        name: of the cell.

    Raises:
        InputError: the cell has no draws, or the module does not train.
    """
    if not per:
        hint = "zoneout= or recurrent_dropout= of the module, or dropout(v, p) in the formula"
        raise InputError(f"{name} draws no random numbers", hint)
    if not training:
        hint = "net.train(), or net(x) without draws="
        raise InputError("draws= has no effect in eval(): nothing is drawn there", hint)

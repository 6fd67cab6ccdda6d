"""What a recurrent module computes, written by hand: one loop over time in plain torch, with every
option of a call and of a module. It reads no attribute of a module but its weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from elman.ir.draws import SCALE, drawn, stream

RECURRENT = ("R", "weight_hh")  # weights that multiply a state
Step = Callable[..., tuple[Sequence[Tensor], Sequence[Tensor]]]


@dataclass(frozen=True)
class Formula:
    """One step of a cell in torch.

    Attributes:
        step: (weights by name, inputs [B, n], states [B, n], :class:`Now`) -> outputs, next states.
        weights: names in declared order, constants included.
        states: names in declared order.
        outputs: of each, the place of the state that it is, or None.
    """

    step: Step
    weights: tuple[str, ...]
    states: tuple[str, ...] = ("h",)
    outputs: tuple[int | None, ...] = (0,)


@dataclass(frozen=True)
class Now:
    """What a step knows beside its inputs and states.

    Attributes:
        static: inputs [B, n] that are the same at all steps.
        keys: random keys [B, 2] by "step" and "sequence"; none where nothing is drawn.
        dropout: share of units that the recurrent product does not see, and how often it is drawn.
        heads: each draws as a gate block does.
    """

    static: tuple[Tensor, ...] = ()
    keys: dict[str, Tensor] = field(default_factory=dict)
    dropout: tuple[float, str] = (0.0, "sequence")
    heads: int = 1

    def numbers(self, number: int, sizes: tuple[int, ...], per: str = "step") -> Tensor:
        """u [B, n] in [0, 1): a draw of a formula, of a vector of so many gate blocks."""
        high, low = (half.long().unsqueeze(-1) for half in self.keys[per].unbind(-1))
        parts: list[Any] = [
            drawn(high, low, torch.arange(size), stream(number, at))  # type: ignore[arg-type]
            for at, size in enumerate(sizes)
        ]
        return torch.cat(parts, -1).double() * SCALE

    def kept(self, v: Tensor, p: float, number: int, per: str = "step") -> Tensor:
        """v with dropout."""
        if not p or not self.keys:
            return v
        return v * (self.units(v, number, per) >= p) / (1 - p)

    def units(self, v: Tensor, number: int, per: str = "step") -> Tensor:
        """u [B, n] of a vector v of one gate block, in each head."""
        return self.numbers(number, (v.shape[-1] // self.heads,) * self.heads, per)

    def seen(self, h: Tensor) -> Tensor:
        """h as the recurrent product reads it."""
        return self.kept(h, self.dropout[0], 0, self.dropout[1])


class Clip(torch.autograd.Function):
    """The value itself; its cotangent is held to a range. Forward mode knows no clip."""

    @staticmethod
    def forward(ctx, v, limit):
        ctx.limit = limit
        return v.clone()

    @staticmethod
    def backward(ctx, d):  # type: ignore[override]
        return d.clamp(-ctx.limit, ctx.limit), None

    @staticmethod
    def jvp(ctx, dv, _):  # type: ignore[override]
        return dv.clone()


def rows_of(flags: Tensor | None, t: int, counts: Tensor) -> Tensor:
    """Flags [B] of a step, none behind the end of a sequence."""
    if flags is None or not 0 <= t < len(flags):
        return torch.zeros_like(counts, dtype=torch.bool)
    return (flags[t] != 0) & (t < counts)


def where(flags: Tensor, new: Tensor, old: Any) -> Tensor:
    """By sample."""
    return torch.where(flags.view(-1, *[1] * (new.dim() - 1)), new, old)


def block_diagonal(weight: Tensor, heads: int) -> Tensor:
    """The dense matrix that a weight [rows, columns / heads] of heads stands for."""
    rows, own = weight.shape
    blocks = weight.view(rows // (own * heads), heads, own, own)
    parts = [functional.pad(blocks[:, k], (k * own, (heads - k - 1) * own)) for k in range(heads)]
    return torch.stack(parts, 1).reshape(rows, own * heads)


class Layer:
    """A layer in one direction.

    Args:
        formula: its step.
        own: weights by declared name.
        options: of the module.
        call: of the call; see :func:`judged`.
        reverse: whether time runs backward.
    """

    def __init__(
        self,
        formula: Formula,
        own: dict[str, Tensor],
        options: Mapping[str, Any],
        call: Mapping[str, Any],
        reverse: bool,
    ) -> None:
        heads = options.get("heads", 1)
        self.formula, self.options, self.call, self.reverse = formula, options, call, reverse
        self.own = {
            name: block_diagonal(value, heads) if heads > 1 and name in RECURRENT else value
            for name, value in own.items()
        }

    def now(self, t: int, keys: Tensor | None) -> Now:
        """What step t knows; keys [T, B, n]."""
        options = self.options
        dropout = (
            options.get("recurrent_dropout", 0.0),
            options.get("recurrent_dropout_per", "sequence"),
        )
        heads = options.get("heads", 1)
        if keys is None:
            return Now(self.call["static"], {}, dropout, heads)
        counts, samples = self.call["counts"], torch.arange(keys.shape[1])
        at = (counts - 1 - t).clamp(min=0) if self.reverse else torch.full_like(counts, t)
        own = dict(zip(self.call["per"], keys[at, samples].split(2, -1)))
        return Now(self.call["static"], own, dropout, heads)

    def zoned(self, new: Sequence[Tensor], old: Sequence[Tensor], now: Now) -> list[Tensor]:
        """Next states of which some units keep their value, or mix with it in evaluation."""
        share = self.options.get("zoneout", 0.0)
        states = len(self.formula.states)  # any of which a product could see
        number = states if self.options.get("recurrent_dropout", 0.0) else 0
        made = []
        for name, value, before in zip(self.formula.states, new, old, strict=True):
            p = share.get(name, 0.0) if isinstance(share, dict) else share
            if p and now.keys:
                value = torch.where(now.units(value, number) < p, before, value)
                number += 1
            elif p:
                value = p * before + (1 - p) * value
            made.append(value)
        return made

    def run(
        self,
        inputs: Sequence[Tensor],
        begin: Sequence[Tensor],
        start: Sequence[Tensor],
        keys: Tensor | None,
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Outputs and states [T, B, n] behind every step, and last states.

        Args:
            inputs [T, B, n], begin [B, n]: what the sequences begin with.
            start [B, n]: what an episode begins with after a reset.
            keys [T, B, n]: of the draws.
        """
        T, call, limit = len(inputs[0]), self.call, self.options.get("clip_gradient")
        counts, states = call["counts"], list(begin)
        outputs: list[Any] = [None] * T
        behind: list[Any] = [None] * T
        for t in reversed(range(T)) if self.reverse else range(T):
            begins = rows_of(call["reset"], t + self.reverse, counts)
            states = [where(begins, new, old) for new, old in zip(start, states, strict=True)]
            mask = call["mask"]
            counted = t < counts if mask is None else rows_of(mask, t, counts)
            x = [where(counted, value[t], 0.0) for value in inputs]
            read = states if limit is None else [Clip.apply(state, limit) for state in states]
            now = self.now(t, keys)
            made, new = self.formula.step(self.own, x, read, now)
            new = self.zoned(new, states, now)
            real = t < counts
            states = [where(counted, value, old) for value, old in zip(new, states, strict=True)]
            outputs[t] = [
                where(counted if call["masked_output"] == "zeros" else real, states[of], 0.0)
                if of is not None
                else where(counted, value, 0.0)
                for value, of in zip(made, self.formula.outputs, strict=True)
            ]
            behind[t] = [where(real, state, 0.0) for state in states]
        stacked = [[torch.stack(values) for values in zip(*each)] for each in (outputs, behind)]
        return stacked[0], stacked[1], states


def dropped(weights: Mapping[str, Tensor], p: float) -> dict[str, Tensor]:
    """Weights that multiply a state with some of their numbers dropped, in order of parameters."""
    return {
        name: torch.dropout(value, p, True)
        if p and name.rpartition("_l")[0] in RECURRENT
        else value
        for name, value in weights.items()
    }


def between(out: Tensor, p: float, lengths: Sequence[int] | None) -> Tensor:
    """Dropout between layers; of several lengths in the order of packed rows, as torch's layers."""
    if not p:
        return out
    if lengths is None:
        return functional.dropout(out, p)
    rows = pack_padded_sequence(out, torch.as_tensor(lengths), enforce_sorted=False)
    rows = rows._replace(data=functional.dropout(rows.data, p))
    return pad_packed_sequence(rows, total_length=len(out))[0]


def judged(
    formulas: Sequence[Formula],
    options: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    inputs: Sequence[Tensor],
    begin: Sequence[Sequence[Tensor]],
    *,
    state: Sequence[Sequence[Tensor]] | None = None,
    lengths: Sequence[int] | None = None,
    reset: Tensor | None = None,
    reset_to: str | None = None,
    mask: Tensor | None = None,
    masked_output: str = "held",
    draws: Tensor | None = None,
    per: tuple[str, ...] = (),
    static: Sequence[Tensor] = (),
    trains: bool = True,
) -> tuple[list[Tensor], list[Tensor], list[list[Tensor]]]:
    """Outputs and states of the last layer [T, B, n] behind every step, and all last states.

    Args:
        formulas: one of each layer.
        options: of the module: num_layers, bidirectional, zoneout …
        weights: parameters and constants by the module's names.
        inputs [T, B, n]: the first goes through the layers, all of them read the others.
        begin, state: of each layer and direction, of each of its states [B, n]: what a sequence
            begins with by itself, and what the caller gives.
        draws [T, B, layers · directions, n], per: keys, and how often each is drawn.
        trains: whether the module does.
        The rest is as of a module's call.
    """
    ways = 1 + bool(options.get("bidirectional"))
    T, B = inputs[0].shape[:2]
    counts = torch.full((B,), T) if lengths is None else torch.as_tensor(lengths)
    call = {
        "counts": counts, "reset": reset, "mask": mask, "masked_output": masked_output,
        "static": tuple(static), "per": per,
    }  # fmt: skip
    if trains:
        weights = dropped(weights, options.get("weight_dropout", 0.0))
    out, ends = inputs[0], []
    values: list[Tensor] = []
    behind: list[Tensor] = []
    for number, formula in enumerate(formulas):
        found = []
        if number and trains:
            out = between(out, options.get("dropout", 0.0), lengths)
        for back in range(ways):
            at = number * ways + back
            suffix = f"_l{number}{'_reverse' * back}"
            own = {name: weights[name + suffix] for name in formula.weights}
            given = begin[at] if state is None else state[at]
            zeros = [torch.zeros_like(value) for value in given]
            start = {None: begin[at], "zeros": zeros, "initial": given}[reset_to]
            keys = draws[:, :, at] if draws is not None and trains else None
            one = Layer(formula, own, options, call, bool(back))
            found.append(one.run([out, *inputs[1:]], given, start, keys))
        made, states, last = zip(*found, strict=True)
        ends += last
        values, behind = ([_beside(parts) for parts in zip(*each)] for each in (made, states))
        if options.get("residual") and number:
            values[0] = values[0] + out
        out = values[0]
    return values, behind, ends


def _beside(parts: Sequence[Tensor]) -> Tensor:
    """Both directions' values in one; of scalars too."""
    if len(parts) == 1:
        return parts[0]
    return torch.cat([part if part.dim() > 2 else part.unsqueeze(-1) for part in parts], -1)

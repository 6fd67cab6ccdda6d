"""Layers and directions of a module: which are run together, and how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from elman.engines.base import Kernel
from elman.engines.ragged import Ragged, over, turned
from elman.engines.together import Together
from elman.nn.function import run, through
from elman.nn.runner import MOST_CLASSES, Key, Runner, nearest, sizes_of
from elman.tuning.choose import Choice
from elman.tuning.together import APART, AT_ONCE, choose_together

States = tuple[Tensor, ...]


class Group:
    """Layers that follow one another with nothing in between, or both directions of one.

    Where every layer runs on a kernel with its own backward, all of them are one kernel and one
    node of autograd; whether they run at once is measured.

    Args:
        runners: lowest layer first; or forward and reverse.
        beside: whether they are directions.
    """

    def __init__(self, runners: Sequence[Runner], beside: bool) -> None:
        self.runners, self.beside = list(runners), beside
        self._chosen: dict[tuple[Key, ...], Choice | None] = {}
        self._pinned: dict[str, Mapping[str, Any]] = {}
        self._oracle: Kernel | None = None
        self.name: str | None = None  # by which compiled programs find it

    def __call__(
        self,
        inputs: Sequence[Tensor],
        states: Sequence[States],
        weights: Sequence[Sequence[Tensor]],
        engine: str,
        ragged: Ragged | None = None,
    ) -> tuple[Tensor, list[States]]:
        """Run all steps.

        Args:
            inputs: [T, B, n] each; of packed sequences [N, n].
            states: [B, n] each, a tuple per runner.
            weights: per runner, in declared order and shape.
            engine: a name, or ``auto``.
            ragged: how packed sequences lie.

        Returns:
            The output, of both directions joined; the last states per runner.
        """
        flows = [tensor.requires_grad for tensor in inputs]
        keys: list[Key] = []
        for runner, own, matrices in zip(self.runners, states, weights):
            key = runner.key(inputs[0], flows, own, matrices, engine, ragged)
            keys.append(key)
            if not self.beside and key[3]:
                flows[0] = True
        classes = tuple(keys)
        if classes not in self._chosen:
            self._chosen[classes] = self._choose(classes, *sizes_of(inputs[0], ragged))
        choice = self._chosen[classes]
        if choice is None:
            return self._in_turn(inputs, states, weights, engine, ragged)
        output, last = run(
            over(choice.kernel, ragged),
            self.oracle if ragged is None else partial(self.oracle, ragged),
            inputs,
            [state for own in states for state in own],
            [weight for own in weights for weight in own],
            any(key[3] for key in keys),
        )
        return output, self._by_runner(last)

    def oracle(self, ragged: Ragged | None = None) -> Kernel:
        """All layers as every transform goes through them."""
        if self._oracle is None:
            counts = [(len(r.cell.states), len(r.cell.weights)) for r in self.runners]
            self._oracle = Together([r.oracle() for r in self.runners], counts, self.beside)
        return over(self._oracle, ragged)

    def under_transforms(
        self,
        inputs: Sequence[Tensor],
        states: Sequence[States],
        weights: Sequence[Sequence[Tensor]],
        ragged: Ragged | None = None,
    ) -> tuple[Tensor, list[States]]:
        """Run all steps so that every transform goes through; as :meth:`__call__`."""
        flat = [[value for own in group for value in own] for group in (states, weights)]
        output, last = through(self.oracle(ragged), inputs, *flat, stacked=False)
        return output, self._by_runner(last)

    def _by_runner(self, last: States) -> list[States]:
        count = len(self.runners[0].cell.states)
        return [last[k : k + count] for k in range(0, len(last), count)]

    @property
    def choices(self) -> dict[str, Choice]:
        """What was chosen so far among several, by what :meth:`show` calls it; for records."""
        found = {self.show(keys): choice for keys, choice in self._chosen.items() if choice}
        return {shown: choice for shown, choice in found.items() if choice.why != "only"}

    @property
    def awaited(self) -> dict[str, Mapping[str, Any]]:
        """Pinned records of size classes that have not run since."""
        ran = {self.show(keys) for keys in self._chosen}
        return {shown: record for shown, record in self._pinned.items() if shown not in ran}

    def show(self, keys: Sequence[Key]) -> str:
        """Size classes of all layers as text."""
        return " | ".join(runner.show(key) for runner, key in zip(self.runners, keys))

    def pin(self, shown: str, record: Mapping[str, Any]) -> str | None:
        """Use the schedule of a record of :func:`elman.nn.choices`; else return why not."""
        schedule = record.get("schedule")
        if schedule not in (APART, AT_ONCE):
            return f"{shown}: no such schedule of a group: {schedule!r}"
        self._pinned[shown] = record
        self._chosen.clear()
        return None

    def _choose(self, keys: tuple[Key, ...], steps: int, batch: int) -> Choice | None:
        choices = [r.choice(key, steps, batch) for r, key in zip(self.runners, keys)]
        record = self._pinned.get(self.show(keys))
        pinned = record["schedule"] if record is not None else self._near(keys)
        jobs = [runner.job(key) for runner, key in zip(self.runners, keys)]
        return choose_together(jobs, choices, steps, batch, self.beside, pinned)

    def _near(self, keys: tuple[Key, ...]) -> str | None:
        """What was measured for the most similar T and B, once enough classes have been."""
        measured = {
            other[0][4:6]: choice.schedule
            for other, choice in self._chosen.items()
            if choice is not None
            and choice.why in ("measured", "remembered")
            and [(k[:4], k[6:]) for k in other] == [(k[:4], k[6:]) for k in keys]
        }
        return nearest(measured, keys[0][4:6]) if len(measured) >= MOST_CLASSES else None

    def _in_turn(
        self,
        inputs: Sequence[Tensor],
        states: Sequence[States],
        weights: Sequence[Sequence[Tensor]],
        engine: str,
        ragged: Ragged | None,
    ) -> tuple[Tensor, list[States]]:
        """One after another, each a node of autograd."""
        ends: list[States] = []
        outputs: list[Tensor] = []
        for index, (runner, own, matrices) in enumerate(zip(self.runners, states, weights)):
            given = inputs
            if index:
                given = (
                    [turned(value, ragged) for value in inputs]
                    if self.beside
                    else [outputs[-1], *inputs[1:]]
                )
            output, last = runner(given, own, matrices, engine, ragged=ragged)
            outputs.append(output)
            ends.append(last)
        if self.beside:
            return torch.cat((outputs[0], turned(outputs[1], ragged)), -1), ends
        return outputs[-1], ends


class Stack:
    """All layers of a module.

    Args:
        runners: one per layer and direction, in the order of their weights.
        directions: 1 or 2.
        joined: whether nothing ever stands between one layer and the next.
    """

    def __init__(self, runners: Sequence[Runner], directions: int, joined: bool = True) -> None:
        self.runners, self.directions = list(runners), directions
        self._single = self._cut(directions)
        whole = directions == 1 and joined and len(self.runners) > 1
        self._groups = self._cut(len(self.runners)) if whole else self._single

    def __reduce__(self) -> Any:
        return Stack, (self.runners, self.directions, self._groups is not self._single)

    def _cut(self, size: int) -> list[Group]:
        return [
            Group(self.runners[at : at + size], self.directions == 2)
            for at in range(0, len(self.runners), size)
        ]

    @property
    def groups(self) -> dict[str, Group]:
        """Those of several members, by a name for records."""
        return {
            f"layer {at}" if group.beside else "layers": group
            for at, group in enumerate(self._groups)
            if len(group.runners) > 1
        }

    def groups_for(self, between: bool) -> list[Group]:
        """What runs one after another, whether or not something stands between layers."""
        return self._single if between else self._groups

    def run(
        self,
        inputs: Sequence[Tensor],
        states: Sequence[States],
        weights: Sequence[Sequence[Tensor]],
        engine: str | None,
        dropout: float = 0.0,
        residual: bool = False,
        ragged: Ragged | None = None,
    ) -> tuple[Tensor, list[States]]:
        """Run all layers.

        Args:
            inputs: [T, B, n] each (of packed sequences [N, n]); the first goes to the lowest layer.
            states: [B, n] each, a tuple per runner.
            weights: per runner, in declared order and shape.
            engine: a name, ``auto``, or None: under transforms (``nn/differentiable``).
            dropout: share of values dropped between layers.
            residual: whether the input of every layer but the first is added to its output.
            ragged: how packed sequences lie.

        Returns:
            The output [T, B, n · directions] and the last states per runner.
        """
        groups = self.groups_for(dropout > 0.0 or residual)
        ends: list[States] = []
        at = 0
        out = inputs[0]
        for number, group in enumerate(groups):
            count = len(group.runners)
            own = slice(at, at + count)
            at += count
            given = (out, *inputs[1:])
            if engine is None:
                made, last = group.under_transforms(given, states[own], weights[own], ragged)
            elif count == 1:
                made, end = group.runners[0](
                    given, states[own][0], weights[own][0], engine, ragged=ragged
                )
                last = [end]
            else:
                made, last = group(given, states[own], weights[own], engine, ragged)
            ends.extend(last)
            if dropout and number < len(groups) - 1:
                made = torch.dropout(made, dropout, True)
            out = made + out if residual and number else made
        return out, ends

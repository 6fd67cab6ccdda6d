"""Interval of checkpoints in time: given, or the longest that fits a memory budget."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Literal, NamedTuple, cast

from elman.checks import MOST, shown
from elman.errors import InputError

Steps = int | Literal["auto"] | None
_UNITS = {
    **{unit: 1 << 10 * power for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB"))},
    **{unit: 1000**power for power, unit in enumerate(("", "KB", "MB", "GB", "TB"))},
}


class Checkpoint(NamedTuple):
    """Gradient checkpointing in time: which states a forward keeps for its backward.

    Attributes:
        steps: between two kept states; 0: as many as fit into the budget, or everything is kept.
        budget: bytes that all layers may keep, the tape of one span included; 0: any number.
        groups: groups of layers that share the budget, each with kept states of its own.
    """

    steps: int = 0
    budget: int = 0
    groups: int = 1

    def __bool__(self) -> bool:
        return bool(self.steps or self.budget)

    @staticmethod
    def of(steps: Steps, budget: int | None) -> Checkpoint:
        """``checkpoint`` and ``memory_budget`` of :class:`elman.PlanOptions`."""
        return Checkpoint(steps if isinstance(steps, int) else 0, budget or 0)


EVERYTHING = Checkpoint()  # is kept


class Sizes(NamedTuple):
    """Memory that one group of layers keeps for its backward (bytes).

    Attributes:
        state: the states between two steps.
        step: states and tape of a step.
    """

    state: int
    step: int

    def whole(self, steps: int) -> int:
        """Memory without checkpoints."""
        return steps * self.step + self.state

    def kept(self, steps: int, between: int) -> int:
        """Memory of the states at the start of spans of ``between`` steps."""
        return -(-steps // between) * self.state


def checked(steps: Any, budget: Any) -> tuple[Steps, int | None]:
    """``checkpoint=`` and ``memory_budget=`` of a module, the budget in bytes. Raises InputError:
    one is invalid, or they exclude each other."""
    number = isinstance(steps, int) and not isinstance(steps, bool)
    auto = isinstance(steps, str) and steps == "auto"
    if not (steps is None or auto or (number and 0 < cast(int, steps) <= MOST)):
        raise InputError(
            f'checkpoint must be a number of steps, "auto" or None, got {shown(steps)}',
            "checkpoint=100 keeps the states of every 100th step and no tape",
        )
    if auto and budget is None:
        raise InputError(
            'checkpoint="auto" has to know how many bytes may be kept',
            'checkpoint="auto", memory_budget="2GiB"',
        )
    if budget is None:
        return cast(Steps, steps), None
    if not auto:
        raise InputError(
            f"memory_budget={shown(budget)} does not go with checkpoint={steps!r}",
            'checkpoint="auto", memory_budget="2GiB"',
        )
    return "auto", _bytes(budget)


def _bytes(budget: Any) -> int:
    """A number of bytes, or ``"2GiB"``, as an int."""
    number = isinstance(budget, int | float | str) and not isinstance(budget, bool)
    text = str(budget) if number else ""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    count = int(float(match[1]) * _UNITS.get(match[2], 0)) if match else 0
    if not 0 < count < 2**63:  # compiled operators take it as an int64
        raise InputError(
            f"memory_budget must be a number of bytes, got {shown(budget)}",
            'memory_budget="2GiB"',
            units=", ".join(filter(None, _UNITS)),
        )
    return count


def least(sizes: Sizes, steps: int, groups: int = 1) -> tuple[int, int]:
    """The interval with the smallest peak memory, and that peak (bytes).

    Near ``K = sqrt(groups · T · state / step)``, where the kept states weigh as much as a span.
    """
    candidates = ((between, held(sizes, steps, between, groups)) for between in _between(steps))
    return min(candidates, key=lambda candidate: candidate[1])


def held(sizes: Sizes, steps: int, between: int, groups: int = 1) -> int:
    """Peak memory of a backward with spans of ``between`` steps (bytes)."""
    return groups * sizes.kept(steps, between) + sizes.whole(min(steps, between))


@lru_cache(maxsize=256)
def fitting(sizes: Sizes, steps: int, checkpoint: Checkpoint) -> int:
    """The interval between checkpoints: as given, or the longest that fits the budget; 0: no
    checkpoints. Raises InputError: nothing fits."""
    if checkpoint.steps:
        return checkpoint.steps
    if not checkpoint.budget or checkpoint.groups * sizes.whole(steps) <= checkpoint.budget:
        return 0
    for between in _between(steps):
        if held(sizes, steps, between, checkpoint.groups) <= checkpoint.budget:
            return between
    best, least_bytes = least(sizes, steps, checkpoint.groups)
    raise InputError(
        f"memory_budget is {checkpoint.budget:,} bytes, and {steps:,} steps cannot be run in it",
        f'checkpoint="auto", memory_budget={least_bytes}',
        least=f"{least_bytes:,} bytes, with checkpoint={best}",
    )


def _between(steps: int) -> Iterator[int]:
    """The shortest spans of which there are 1, 2, …, each length once: some 2 · sqrt(T) of them."""
    between = steps
    while between:
        yield between
        count = -(-steps // (between - 1)) if between > 1 else 0
        between = -(-steps // count) if count else 0

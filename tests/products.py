"""Products of options: a few combinations in the usual tests, all of them in the long ones."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import pytest


def covering(sizes: Sequence[int], together: int) -> set[tuple[int, ...]]:
    """Combinations of places in which any places of so many options meet, each time the one that
    has most of what is missing."""
    every = list(product(*map(range, sizes)))

    def meetings(places: tuple[int, ...]) -> set[tuple[tuple[int, int], ...]]:
        return set(combinations(enumerate(places), together))

    missing, chosen = {meeting for places in every for meeting in meetings(places)}, set()
    while missing:
        best = max(every, key=lambda places: len(meetings(places) & missing))
        missing -= meetings(best)
        chosen.add(best)
    return chosen


def every(step: int, values: Sequence[Any]) -> list[Any]:
    """Parameters of which every ``step``-th is of the usual tests; the others are ``long``."""
    return [
        pytest.param(v, marks=[pytest.mark.long] * (k % step > 0)) for k, v in enumerate(values)
    ]


def some_of(*options: Sequence[Any], together: int = 2) -> list[Any]:
    """Parameters of all combinations; most are ``long``.

    Args:
        options: the values of each.
        together: any values of so many options meet in the usual tests: 2 where a test could fail
            for a pair of them, 1 where it is enough that each value is there.
    """
    usual = covering([len(values) for values in options], together)
    return [
        pytest.param(
            *(values[at] for values, at in zip(options, places)),
            marks=() if places in usual else pytest.mark.long,
        )
        for places in product(*(range(len(values)) for values in options))
    ]

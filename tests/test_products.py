"""What the usual tests run of a product of options."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from products import covering, some_of


@pytest.mark.parametrize("sizes", [(3, 5), (3, 3, 4), (2, 2, 2), (1, 4, 2), (3, 7, 2, 6)])
@pytest.mark.parametrize("together", [1, 2])
def test_whatever_is_to_meet_meets(sizes, together):
    """In few combinations, the same each time."""
    chosen = covering(sizes, together)
    for places in combinations(range(len(sizes)), together):
        wanted = set(product(*(range(sizes[place]) for place in places)))
        assert {tuple(one[place] for place in places) for one in chosen} == wanted
    assert chosen == covering(sizes, together)
    largest = sorted(sizes)[-together:]
    assert len(chosen) <= 1.5 * largest[0] * (largest[-1] if together > 1 else 1)


def test_the_rest_is_long():
    """Nothing is lost: all combinations are there, in their order."""
    made = some_of("ab", [1, 2, 3], together=1)
    assert [one.values for one in made] == list(product("ab", [1, 2, 3]))
    usual = [one.values for one in made if not one.marks]
    assert len(usual) == 3
    assert {mark.name for one in made for mark in one.marks} == {"long"}

"""Which values of a step are known to be 0 or 1."""

from __future__ import annotations

import pytest

from elman import cell, cells, compiler
from elman.ops import relu, sigmoid, spike, stop_gradient, where
from elman.plan.two_valued import two_valued, worth_looking
from specs import spec_of


@cell(input="x[H]", state="s[H], z[H], m[H]", weights="R[H, H]")
def kept(x, s, z, m, R):
    """Both spikes go through what keeps them: a product, 1 - s, a choice."""
    m = 0.5 * m + x + R @ (s * z)
    fired = spike(m - 1.0)
    return where(x > 0, fired, 1.0 - s), relu(stop_gradient(fired)) * z, m


@cell(input="x[H]", state="s[H], z[H], m[H]", weights="R[H, H]")
def lost(x, s, z, m, R):
    """One is scaled, the other one is its sum with a number between."""
    m = 0.5 * m + x + R @ (s + z)
    return 0.5 * spike(m - 1.0), where(x > 0, spike(m - 1.0), sigmoid(x)), m


@cell(input="x[H]", state="s[H], z[H]", weights="R[H, H]")
def chained(x, s, z, R):
    """z is what s was, and s is something else."""
    return sigmoid(x + R @ s), s * z


@pytest.mark.parametrize(
    ("made", "states", "fires"),
    [
        (kept, {"s", "z"}, True),
        (lost, set(), False),
        (chained, set(), False),
        (cells.rlif, {"s"}, True),
        (cells.lif, set(), True),
        (cells.gru, set(), False),
    ],
)
def test_states_that_stay_two_valued(made, states, fires):
    """States whose next value is 0 or 1 if they are; inputs where a state or an output is."""
    step = compiler.job(made, spec_of(made.bind(4, 4).items())).pair.step
    known = two_valued(step)
    assert {leaf.data[0] for leaf in step.states if leaf in known} == states
    looked = worth_looking(step)
    assert known <= looked
    assert {leaf for leaf in step.inputs if leaf in looked} == (
        set(step.inputs) if fires else set()
    )

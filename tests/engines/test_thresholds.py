"""Cells with thresholds: engine c's are the oracle's, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from elman import cell, cells
from elman.engines.call import Call
from elman.ops import spike, stop_gradient, where
from elman.tuning.kernels import kernel_of
from elman.tuning.rounding import near_ties
from elman.tuning.trial import Trial, make_trial
from helpers import Sizes, job_of, need, random_case


@cell(input="x[I]", state="s[H], m[H]", weights="W[H, I], b[H]")
def reset_to_zero(x, s, m, W, b):
    """Leaky integrate and fire by numbers of few bits, reset to zero."""
    m = (0.75 * m + W @ x + b) * (1 - stop_gradient(m > 1.0))
    return spike(m - 1.0), m


@cell(input="x[I]", state="s[H], m[H]", weights="W[H, I], R[H, H], b[H]")
def recurrent(x, s, m, W, R, b):
    """Spikes feed back; the threshold is compared twice, before and after."""
    m = 0.875 * m + W @ x + R @ s + b - 0.5 * (m > 0.5)
    return spike(m - 0.5), m


@cell(input="x[I]", state="s[H], v[H], u[H]", weights="W[H, I]")
def izhikevich(x, s, v, u, W):
    """Izhikevich 2003, scaled to O(1): where resets two states."""
    v = v + 0.25 * (v * v - u + W @ x)
    u = u + 0.0625 * (0.25 * v - u)
    fired = v > 1.0
    return spike(v - 1.0), where(fired, -0.5, v), where(fired, u + 0.25, u)


EXACT = [reset_to_zero, recurrent]
LOWER = {  # thresholds of cells that hardly fire at their usual ones
    "spiking_lstm": cells.spiking_lstm.with_options(threshold=0.1),
    "lif_euler": cells.lif_euler.with_options(v_th=0.5),
}
SPIKING = [*(LOWER.get(own.name, own) for own in cells.SPIKING), *EXACT, izhikevich]


def exact(trial: Trial, seed: int) -> Trial:
    """Numbers of few bits: every sum of products is exact in float32, and ties are common."""
    source = torch.Generator().manual_seed(seed)

    def drawn(like: torch.Tensor, step: float) -> torch.Tensor:
        return torch.randint(-4, 5, like.shape, generator=source) * step

    call = Call(
        tuple(drawn(value, 0.25) for value in trial.call.inputs),
        tuple(drawn(value, 0.25) for value in trial.call.states),
        tuple(drawn(value, 0.125) for value in trial.call.weights),
    )
    return replace(trial, call=call)


@pytest.mark.parametrize("own", SPIKING)
def test_thresholds_are_the_oracles(own):
    """One step from equal states: 1 and 0, in the same places; ties too where sums are exact."""
    case = random_case(own, Sizes(T=1, B=64, I=13, H=33))
    wanted = job_of(case, training=False, wants=frozenset())
    need("c", wanted)
    kernel, oracle = kernel_of(wanted, "c"), kernel_of(wanted, "reference")
    fired = met = 0
    for seed in range(10):
        trial = make_trial(wanted, 1, 64, seed)
        inputs, states, weights, *_ = trial.call
        larger = [tuple(2 * value for value in values) for values in (states, weights)]
        trial = replace(trial, call=Call(inputs, *larger))
        trial = trial.samples(~near_ties(trial.double()))
        got, want = trial.run(kernel)["output"], trial.run(oracle)["output"]
        assert torch.equal(got, want)
        assert set(got.unique().tolist()) <= {0.0, 1.0}
        fired += int(got.sum())
        if own in EXACT:
            trial = exact(trial, seed)
            got, want = trial.run(kernel), trial.run(oracle)
            for name in want:
                assert torch.equal(got[name], want[name]), name
            met += sum(int((want[name] == t).sum()) for name in want for t in (1.0, 0.5))
    assert fired > 100
    assert met > 100 or own not in EXACT

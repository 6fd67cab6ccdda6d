"""Cells with thresholds: none is refused for rounding; thresholds are the oracle's, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from elman.engines.base import Job
from elman.engines.call import Call
from elman.tuning import verification
from elman.tuning.kernels import kernel_of
from elman.tuning.ties import near_ties
from elman.tuning.trial import Trial, make_trial
from elman.tuning.verification import verified
from helpers import Sizes, job_of, need, random_case
from published import PUBLISHED, SIZES, SPIKING

SMALL = SIZES[2]


def named(value):
    return getattr(value, "name", None) or str(value)


def job(own, sizes: Sizes, **options) -> Job:
    found = job_of(random_case(own, sizes), **options)
    need("c", found)
    return found


@pytest.mark.parametrize(
    "sizes",
    [s if s is SMALL else pytest.param(s, marks=pytest.mark.long) for s in SIZES],
    ids=named,
)
@pytest.mark.parametrize("own", PUBLISHED, ids=named)
def test_none_is_refused(own, sizes, nothing_known, monkeypatch):
    """Whatever numbers are drawn."""
    wanted = job(own, sizes)
    verified(wanted, "c")
    for seed in range(1, 6):
        monkeypatch.setattr(
            verification,
            "make_trial",
            lambda job, T, B, more=0, ends=False, seed=seed: make_trial(
                job, T, B, 100 * seed + more, ends
            ),
        )
        assert verification._wrong(wanted, kernel_of(wanted, "c")) is None


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


@pytest.mark.parametrize("own", SPIKING, ids=named)
def test_thresholds_are_the_oracles(own):
    """One step from equal states: 1 and 0, in the same places; ties too where sums are exact."""
    wanted = job(own, Sizes(T=1, B=64, I=13, H=33), training=False, wants=frozenset())
    kernel, oracle = kernel_of(wanted, "c"), kernel_of(wanted, "reference")
    fired = met = 0
    for seed in range(40):
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
            thresholds = {1.0, 0.5, 0.25}
            met += sum(int((want[name] == t).sum()) for name in want for t in thresholds)
    assert fired > 100
    assert met > 100 or own not in EXACT


EXACT = [own for own in SPIKING if own.name in ("lif", "lif_zero", "synaptic", "recurrent_lif")]

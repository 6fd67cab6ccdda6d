"""Trials: what they compute."""

from __future__ import annotations

import pytest
import torch

from elman import cells, torch_internals
from elman.tuning.kernels import kernel_of
from elman.tuning.trial import make_trial
from helpers import Sizes, job_of, random_case


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("engine", ["aten", "reference"])
def test_gradients_are_torchs_own(engine, ends, monkeypatch):
    """Of torch's layers and of the oracle, with and without cotangents of the last states."""
    job = job_of(random_case(cells.lstm, Sizes(T=7, B=3, I=5, H=13)))
    trial, kernel = make_trial(job, 7, 3, ends=ends), kernel_of(job, engine)
    got = trial.run(kernel)
    monkeypatch.setattr(torch_internals.autograd, "_run_backward", None)
    want = trial.run(kernel)
    assert got.keys() == want.keys()
    assert all(torch.equal(got[name], want[name]) for name in want)
    assert {"gradient of x", "gradient of h"} <= got.keys()


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("engine", ["aten", "c"])
def test_a_whole_call_gives_the_same(engine, training):
    """With autograd's part, as a layer runs its kernel, which nobody asks for dh."""
    job = job_of(random_case(cells.gru, Sizes(T=7, B=3, I=5, H=13)), training=training)
    trial, kernel = make_trial(job, 7, 3, ends=True), kernel_of(job, engine)
    got, want = trial.run(kernel, whole=True), trial.run(kernel)
    assert got.keys() == want.keys() - {"gradient of h"}
    assert ("gradient of x" in got) == training
    for name, value in got.items():
        torch.testing.assert_close(value, want[name])

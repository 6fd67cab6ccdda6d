"""Generated text."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from elman.errors import InputError
from elman.train.tasks.text.config import TextConfig
from elman.train.tasks.text.model import TextSpec, TrainedText, build_model


class Alphabet(nn.Module):
    """Predicts the next letter of the alphabet; its state counts the calls."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(30.0))

    def forward(self, ids, state=None):
        following = nn.functional.one_hot((ids % 5) + 1, 6)
        return self.scale * following, (0 if state is None else state) + 1


def sample(length, **options):
    """Draw from the alphabet."""
    run = TrainedText(Path(), TextConfig(), 0, Alphabet(), TextSpec(list("abcde")))
    return run.sample(length, **options)


def test_follows_the_model():
    """At temperature 0 and low ones the likeliest character; never the unknown one."""
    assert sample(7, temperature=0.0, prompt="a") == "bcdeabc"
    assert sample(7, temperature=0.1, prompt="a") == "bcdeabc"
    hot = sample(200, temperature=1000.0, prompt="a")
    assert set(hot) == set("abcde")
    assert hot == sample(200, temperature=1000.0, prompt="a", seed=0)
    assert hot != sample(200, temperature=1000.0, prompt="a", seed=1)


def test_leaves_torchs_random_numbers_alone():
    """A sample draws from a generator of its own."""
    before = torch.get_rng_state()
    sample(5, temperature=1.0)
    assert torch.equal(before, torch.get_rng_state())


def test_ids_that_are_no_integers_are_told():
    """A model of characters is called by whoever loads it."""
    model = build_model(TextConfig(hidden=4), TextSpec(list("abcde")))
    with pytest.raises(InputError, match=r"ids \[T, B\] must be a tensor of integers, got"):
        model(torch.ones(5, 2))

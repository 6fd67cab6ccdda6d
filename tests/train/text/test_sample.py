"""Generated text."""

from __future__ import annotations

import torch
from torch import nn

from elman.train.tasks.text.model import generate
from elman.train.tasks.text.vocabulary import Vocabulary


class Alphabet(nn.Module):
    """Predicts the next letter of the alphabet; its state counts the calls."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(30.0))

    def forward(self, ids, state=None):
        following = nn.functional.one_hot((ids % 5) + 1, 6)
        return self.scale * following, (0 if state is None else state) + 1


def test_follows_the_model():
    """At temperature 0 and low ones the likeliest character; never the unknown one."""
    model, vocabulary = Alphabet(), Vocabulary("abcde")
    model.train()

    assert generate(model, vocabulary, 7, 0.0, seed=0, prompt="a") == "bcdeabc"
    assert generate(model, vocabulary, 7, 0.1, seed=0, prompt="a") == "bcdeabc"
    hot = generate(model, vocabulary, 200, 1000.0, seed=0, prompt="a")
    assert set(hot) == set("abcde")
    assert hot == generate(model, vocabulary, 200, 1000.0, seed=0, prompt="a")
    assert hot != generate(model, vocabulary, 200, 1000.0, seed=1, prompt="a")
    assert model.training


def test_leaves_torchs_random_numbers_alone():
    """A sample draws from a generator of its own."""
    before = torch.get_rng_state()
    generate(Alphabet(), Vocabulary("abcde"), 5, 1.0, seed=0)
    assert torch.equal(before, torch.get_rng_state())

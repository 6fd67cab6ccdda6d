"""Language models of published layers: trained, resumed, loaded, sampled."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import elman
from elman.errors import InputError
from elman.layers.stack import LAYERS, Stack
from helpers import need_engine
from products import every
from runs import assert_equal_runs


@pytest.mark.parametrize(
    "cell", ["plastic_rnn", "gru", *every(3, sorted(LAYERS, key=lambda n: n != "gated_delta_net"))]
)
def test_resumed_equals_uninterrupted(small_config, train, resume, interrupt_at, cell):
    """With more than ten tensors of state, which are carried on in their order; a cell of one input
    needs no layer around it, and makes blocks if these are asked for."""
    layers = 3 if cell == "gated_delta_net" else 1
    blocks = {"norm": cell == "gru"}
    config = dataclasses.replace(small_config, cell=cell, hidden=8, layers=layers, **blocks)
    config = dataclasses.replace(config, engine="reference", batch=4, bptt=4, validation_chars=32)
    config = dataclasses.replace(config, steps=9, validate_every=4)
    whole = train(config)
    assert whole.complete
    interrupt_at(5)
    stopped = train(config)
    assert not stopped.complete
    resumed = resume(stopped.folder.path)
    assert_equal_runs(resumed.folder, whole.folder)
    run = elman.load(whole.folder.path)
    assert isinstance(run.layers, Stack) == (cell != "plastic_rnn")
    text = run.sample(12, prompt="the ", seed=3)
    assert len(text) == 12
    assert text == run.sample(12, prompt="the ", seed=3)


@pytest.mark.long
def test_they_learn(small_config, train):
    """On engine c: some words are known, where even chances are nearly five bits a character."""
    need_engine("c")
    config = dataclasses.replace(
        small_config,
        cell="gated_delta_net",
        hidden=32,
        embedding=16,
        dropout=0.0,
        batch=8,
        bptt=32,
        lr=1e-2,
        steps=80,
        validate_every=80,
        engine="c",
    )
    assert train(config).result["valid_loss"] < 1.5


def test_a_stack_reads_what_came_before(small_config, train):
    """The logits of a text are those of its parts, with the state handed on."""
    config = dataclasses.replace(small_config, cell="mlstm", hidden=8, engine="reference", steps=2)
    model = elman.load(train(config).folder.path).model
    ids = torch.randint(1, 20, (12, 2))
    with torch.no_grad():
        want, _ = model(ids)
        begin, state = model(ids[:5])
        rest, _ = model(ids[5:], state)
    torch.testing.assert_close(torch.cat((begin, rest)), want)


@pytest.mark.parametrize("option", ["zoneout", "recurrent_dropout", "weight_dropout", "uniform"])
def test_options_that_layers_lack_are_refused(small_config, train, option):
    """Before anything is trained."""
    config = dataclasses.replace(small_config, cell="mamba2", **{option: 0.1})
    with pytest.raises(
        InputError, match=f"a block of mamba2 has no option {option.replace('_', '-')}"
    ):
        train(config)


def test_cells_without_a_layer_are_refused(small_config, train):
    """They read queries, keys and values, which a run has not."""
    with pytest.raises(InputError, match="titans reads q"):
        train(dataclasses.replace(small_config, cell="titans"))

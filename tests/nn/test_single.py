"""RNNCell, GRUCell and LSTMCell beside torch's."""

from __future__ import annotations

import copy
import itertools
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune, spectral_norm

import elman
from elman.errors import EngineError
from helpers import assert_same, need_engine

KINDS = [("RNNCell", {}), ("RNNCell", {"nonlinearity": "relu"}), ("GRUCell", {}), ("LSTMCell", {})]


def pair(kind, engine, dtype, **options):
    """torch's cell and elman's, drawn from one seed."""
    torch.manual_seed(0)
    theirs = getattr(nn, kind)(5, 7, dtype=dtype, **options)
    torch.manual_seed(0)
    return theirs, getattr(elman, kind)(5, 7, dtype=dtype, engine=engine, **options)


def results(module, x, hx):
    """New states and all gradients."""
    leaves = [value.detach().clone().requires_grad_() for value in (x, *(hx or ()))]
    given = None if hx is None else tuple(leaves[1:])
    last = module(leaves[0], given if given is None or len(given) == 2 else given[0])
    values = last if isinstance(last, tuple) else (last,)
    weights = dict(module.named_parameters())
    grads = torch.autograd.grad(
        sum((value * (1 + k)).pow(2).sum() for k, value in enumerate(values)),
        [*leaves, *weights.values()],
    )
    names = ["dx", *(f"dh{k}" for k in range(len(leaves) - 1)), *(f"d{n}" for n in weights)]
    found = {f"state {k}": value.detach() for k, value in enumerate(values)}
    return found | dict(zip(names, grads, strict=True))


@pytest.mark.parametrize("engine", ["auto", "c", "reference"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind, options", KINDS)
def test_as_torch(kind, options, bias, engine):
    """States and gradients, with and without states and batch."""
    if engine == "c":
        need_engine("c")
    for dtype in (torch.float32, torch.float64):
        theirs, ours = pair(kind, engine, dtype, bias=bias, **options)
        for lead in ((3,), ()):
            x = torch.randn(*lead, 5, dtype=dtype)
            states = tuple(torch.randn(*lead, 7, dtype=dtype) for _ in range(1 + ("L" in kind)))
            for hx in (None, states):
                want, got = results(theirs, x, hx), results(ours, x, hx)
                assert want.keys() == got.keys()
                for name, value in want.items():
                    assert_same(name, got[name], value, dtype, 1)


@pytest.mark.parametrize("kind, options", KINDS)
def test_same_errors(kind, options):
    """Wrong sizes are told in torch's words, whatever the engine."""
    theirs, ours = pair(kind, "reference", torch.float32, **options)
    two = "L" in kind
    for x, hx in (
        (torch.randn(3, 4), None),
        (torch.randn(1, 2, 3, 5), None),
        (torch.randn(3, 5), (torch.randn(2, 7), torch.randn(2, 7)) if two else torch.randn(2, 7)),
    ):
        with pytest.raises((RuntimeError, ValueError)) as want:
            theirs(x, hx)
        with pytest.raises(type(want.value)) as got:
            ours(x, hx)
        assert str(got.value) == str(want.value)
    state = torch.randn(3, 7, dtype=torch.float64)
    with pytest.raises(EngineError, match="differ in dtype or device"):
        ours(torch.randn(3, 5), (state, state) if two else state)
    with pytest.raises(EngineError, match="no engine 'fast'"):
        getattr(elman, kind)(3, 4, engine="fast")


def test_copies_and_transforms():
    """A used cell is copied and pickled; torch.func sees torch ops."""
    cell = elman.GRUCell(5, 7, engine="reference")
    x, h = torch.randn(3, 5), torch.randn(3, 7)
    want = cell(x, h)
    for other in (copy.deepcopy(cell), pickle.loads(pickle.dumps(cell))):
        assert torch.equal(other(x, h), want)
    each = torch.func.vmap(cell)(x, h)
    torch.testing.assert_close(each, want)
    assert "engine='reference'" in repr(cell)


@pytest.mark.filterwarnings("ignore:Sparse CSR:UserWarning")
@pytest.mark.parametrize("kind", ["RNNCell", "GRUCell", "LSTMCell"])
def test_sparse_inputs(kind):
    """What torch's own takes is taken."""
    ours, theirs = getattr(elman, kind)(3, 4), getattr(nn, kind)(3, 4)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 3).to_sparse_csr()
    torch.testing.assert_close(ours(x), theirs(x))


def registered_anew(module, name):
    weight = getattr(module, name)
    delattr(module, name)
    setattr(module, name, nn.Parameter(weight.detach() * 2))


CHANGES = {
    "pruned": lambda module, name: prune.random_unstructured(module, name, 0.5),
    "registered anew": registered_anew,
    "spectral": spectral_norm,
    "parametrized": parametrizations.orthogonal,
}


@pytest.mark.filterwarnings("ignore:.*spectral_norm.*:FutureWarning")
@pytest.mark.parametrize(
    "change, name",
    [
        *itertools.product(CHANGES, ["weight_ih", "weight_hh"]),
        *itertools.product(["pruned", "registered anew"], ["bias_hh"]),
    ],
)
@pytest.mark.parametrize("kind", ["RNNCell", "GRUCell", "LSTMCell", "GRU"])
def test_what_stands_in_the_place_of_a_weight(kind, change, name):
    """Weights are found by name, in whatever order they were registered, whatever gives them."""
    found = []
    for where in (nn, elman):
        torch.manual_seed(0)
        module = getattr(where, kind)(4, 4, **({} if where is nn else {"engine": "auto"}))
        CHANGES[change](module, name if kind.endswith("Cell") else f"{name}_l0")
        made = module(torch.ones(2, 2, 4) if kind == "GRU" else torch.ones(2, 4))
        found.append(made[0] if isinstance(made, tuple) else made)
    torch.testing.assert_close(*found)

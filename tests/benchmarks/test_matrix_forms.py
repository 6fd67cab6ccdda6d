"""Loops and chunkwise forms in torch, of which suite ``matrices`` times elman beside."""

from __future__ import annotations

import pytest
import torch

from benchmarks.peers.matrix_forms import FORMS
from benchmarks.problem import Problem
from benchmarks.suites.matrices import CHUNKS, LOOP, MATRICES, enter_matrices

T, SAMPLES = 70, 2  # a chunk and a part of one


@pytest.mark.parametrize("name", FORMS)
def test_forms_agree_with_the_cell(name):
    """In float64, outputs and all gradients: those of the oracle."""
    (case, *_) = (case for case in MATRICES.cases if case.cell == name)
    forms = FORMS[name]
    leaves = forms.draw(T, SAMPLES, 3, 5, torch.Generator().manual_seed(1))
    assert tuple(leaves) == forms.names
    first, *others = (leaf.double() for leaf in leaves.values())
    dy = torch.randn(T, SAMPLES, 5, dtype=torch.float64)
    weights = dict(zip(forms.names[1:], others, strict=True))
    sizes = {"T": T, "B": SAMPLES, "I": 3, "H": 5}
    problem = Problem(type(case)(**{**vars(case), **sizes}), first, dy, weights)
    want = enter_matrices("elman-reference", problem)
    assert not isinstance(want, str)
    expected = want.results()
    assert len(expected) == 1 + len(leaves)
    for way in (LOOP, CHUNKS):
        form = enter_matrices(way, problem)
        if isinstance(form, str):
            assert (name, form) == ("m2rnn", "m2rnn has no chunkwise form")
            continue
        got = form.results()
        assert got.keys() == expected.keys()
        for key, value in expected.items():
            torch.testing.assert_close(got[key], value, rtol=1e-9, atol=1e-9, msg=key)

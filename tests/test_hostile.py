"""Weights used up to three times: every engine by name, deterministic and ``auto``, as users call
them, against the float64 oracle."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import elman
from elman.engines import registry
from elman.ir.types import shape_size
from elman.tuning.kernels import refusal
from helpers import Case, assert_all_same, job_of, oracle
from kernels import case_of, ill_conditioned
from random_cells import Drawn, reusing_cells

SHAPES = [(1, 1), (5, 3), (2, 1), (1, 4), (40, 2)]
LONG = 2000  # cells of the test marked ``long``


def results(net: elman.Recurrent, case: Case) -> dict[str, torch.Tensor]:
    """Output, last states and every gradient of a module that has the weights of a case."""
    with torch.no_grad():
        for name, value in case.weights.items():
            getattr(net, f"{name}_l0").copy_(value)
    inputs = {name: value.clone().requires_grad_() for name, value in case.inputs.items()}
    states = {name: value.clone().requires_grad_() for name, value in case.states.items()}
    weights = {name: getattr(net, f"{name}_l0") for name in case.weights}
    given = tuple(state.unsqueeze(0) for state in states.values())
    out, last = net(tuple(inputs.values()), given)
    roots = (out, *last)
    ds = (case.d_output, *(d.unsqueeze(0) for d in case.d_last.values()))
    leaves = inputs | states | weights
    grads = torch.autograd.grad(roots, list(leaves.values()), ds, allow_unused=True)
    found = {"out": out.detach()}
    found |= {f"last {name}": value[0].detach() for name, value in zip(states, last)}
    return found | {f"d{name}": d for name, d in zip(leaves, grads) if d is not None}


def module(case: Case, engine: str) -> elman.Recurrent:
    """A module for a case."""
    sizes = {entry.name: shape_size(entry.shape, case.dims) for entry in case.cell.inputs}
    net = elman.Recurrent(case.cell, sizes["x"][0], case.dims["H"], engine=engine)
    return net.to(case.dtype)


def check(drawn: Drawn, dtype: torch.dtype) -> None:
    """One module per engine, on several shapes: nothing is made anew for each."""
    first = case_of(drawn, *SHAPES[0], dtype)
    able = [name for name in registry.names() if refusal(name, job_of(first)) is None]
    nets = {name: module(first, name) for name in (*able, "auto")}
    for T, B in SHAPES:
        case = case_of(drawn, T, B, dtype)
        own = type(case)(first.cell, *[getattr(case, name) for name in FIELDS])
        want = oracle(own)
        bad = ill_conditioned(own, want) if dtype is not torch.float64 else set()
        judged = {name: value for name, value in want.items() if name not in bad}
        for name, net in nets.items():
            found = {k: v for k, v in results(net, own).items() if k not in bad}
            try:
                assert_all_same(found, judged, dtype, T)
            except AssertionError as error:
                raise AssertionError(f"engine {name}, T={T}, B={B}: {error}") from None
    torch.use_deterministic_algorithms(True)
    try:
        assert_all_same(results(nets["auto"], own), want, dtype, T) if not bad else None
    finally:
        torch.use_deterministic_algorithms(False)


FIELDS = ("dims", "inputs", "states", "weights", "d_output", "d_last")
DTYPES = st.sampled_from([torch.float64, torch.float32])


@pytest.mark.slow
@settings(max_examples=6)
@given(drawn=reusing_cells(), dtype=DTYPES)
def test_reused_weights(drawn, dtype):
    check(drawn, dtype)


@pytest.mark.long
@pytest.mark.timeout(7200)
@settings(max_examples=LONG)
@given(drawn=reusing_cells(), dtype=DTYPES)
def test_many_reused_weights(drawn, dtype):
    check(drawn, dtype)

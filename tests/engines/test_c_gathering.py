"""Products with spikes: rows of the weights added up where few are 1, tiles elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import elman
from benchmarks.users.spikes import rleaky
from calls import call
from elman import cell
from elman.cells import rlif
from elman.engines.c.run.kernel import CKernel
from elman.engines.c.text.directions import DirectionPrinter
from elman.frontend.cell import Cell
from elman.ops import spike, where
from elman.plan.build import program
from elman.plan.schedule import Blocks
from helpers import (
    Case,
    Sizes,
    assert_all_same,
    assert_close,
    job_of,
    need_engine,
    need_isa,
    oracle,
    random_case,
)
from kernels import c_kernel, scheduled

F32, F64 = torch.float32, torch.float64
SIZES = Sizes(T=17, B=5, I=260, H=260)  # units that gather, and are no whole panels or vectors
FEW, SOME, MOST = -0.5, 1.0, 6.0  # added to the current: an eighth of the spikes are 1, half, all


@cell(input="x[H]", state="s[H], z[H], m[H], n[H]", weights="V[H, H], Q[H, H], U[H, H], R[H, H]")
def excited(x, s, z, m, n, V, Q, U, R):
    """Two kinds of neurons: four matrices, joined along rows and along k; what is read of one kind
    is no state."""
    both = s * (m > -2.0)
    m = 0.5 * m + x + V @ both + Q @ z - where(m > 1.0, 1.0, 0.0)
    n = 0.5 * n + x + R @ both + U @ z + U @ n
    return spike(m - 1.0), spike(n - 1.0), m, 0.25 * n


def spiking(
    shift: float = FEW, dtype: torch.dtype = F64, sizes: Sizes = SIZES, made: Cell = rleaky
) -> Case:
    """A case whose numbers are short binary fractions: no rounding moves a spike."""
    drawn = random_case(made, sizes, 0, F64)

    def short(values: dict[str, torch.Tensor], by: float = 0.0) -> dict[str, torch.Tensor]:
        return {name: ((value + by) * 32).round() / 32 for name, value in values.items()}

    first = {
        name: (value > 0.75).to(F64) if name in "sz" else value
        for name, value in drawn.states.items()
    }
    return replace(
        drawn, inputs=short(drawn.inputs, shift), states=short(first), weights=short(drawn.weights)
    ).to(dtype)


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("shift", [FEW, SOME, MOST])
def test_agrees_whatever_the_share_of_ones(shift, dtype, monkeypatch):
    """Output, states and gradients, shared in every way among workers."""
    case = spiking(shift, dtype)
    want, kernel = oracle(case), c_kernel(case)
    for schedule in (("one", 1, 100), ("batch", 2, 3), ("units", 3, 100)):
        with monkeypatch.context() as patch:
            scheduled(patch, kernel, *schedule)
            assert_all_same(call(kernel, case), want, dtype, case.T)


@pytest.mark.parametrize("value", [0.5, -1.0, float("nan")])
def test_a_first_state_may_be_any_number(value):
    """One that is neither 0 nor 1 goes through tiles, step and sum alike."""
    case = spiking()
    case.states["s"][2, 5] = value
    got, want = call(c_kernel(case), case), oracle(case)
    for name, expected in want.items():
        assert torch.equal(got[name].isnan(), expected.isnan()), name
        assert_close(got[name].nan_to_num(), expected.nan_to_num())


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_infinite_cotangents_are_multiplied_by_zero(value):
    """The row of the gradient that one reaches is NaN where that sample's neurons were silent."""
    case = spiking()
    case.d_output[0, 1, 3] = value
    kernel = c_kernel(case)
    assert "add_listed(" in kernel.emitter.text()
    got, want = call(kernel, case)["dV"], oracle(case)["dV"]
    assert want.isnan().any()
    assert not want.isnan().all()
    assert torch.equal(got.isnan(), want.isnan())


def test_several_operands_and_matrices_agree():
    """Some operands of a product have lists, one has numbers."""
    case = spiking(made=excited)
    assert_all_same(call(c_kernel(case), case), oracle(case), F64, case.T)


@pytest.mark.parametrize("sizes", [replace(SIZES, B=1), replace(SIZES, B=100), replace(SIZES, T=1)])
def test_agrees_for_one_sample_several_blocks_and_one_step(sizes):
    """Blocks of one row, of some and of all; too few steps to look the matrix through."""
    case = spiking(sizes=sizes)
    assert_all_same(call(c_kernel(case), case), oracle(case), F64, case.T)


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["avx2", "scalar"])
def test_agrees_on_narrower_instruction_sets(isa, monkeypatch):
    """How ones are found, and how many vectors a row has."""
    need_engine("c")
    need_isa(isa, monkeypatch)
    case = spiking(dtype=F32)
    job = job_of(case)
    kernel = CKernel(job, program(job.pair, job.spec))
    assert_all_same(call(kernel, case), oracle(case), F32, case.T)


@pytest.mark.parametrize("option", ["reset", "lengths"])
def test_agrees_with_resets_and_lengths(option):
    """A spike is one behind a reset to zeros; rows of a ragged batch are fewer in each step."""
    need_engine("c")
    case = spiking()
    (x,) = case.inputs.values()
    torch.manual_seed(0)
    given = {
        "reset": {"reset": torch.rand(case.T, SIZES.B) < 0.2},
        "lengths": {"lengths": [17, 3, 16, 9, 12]},
    }[option]
    found = []
    for engine in ("c", "reference"):
        net = elman.Recurrent(rleaky, 260, 260, engine=engine, dtype=F64)
        net.load_state_dict({f"{name}_l0": value for name, value in case.weights.items()})
        y, _ = net(x, **given)
        found.append([y, *torch.autograd.grad(y.sum(), [*net.parameters()])])
    for a, b in zip(*found, strict=True):
        assert_close(a, b)


@pytest.mark.parametrize("share", [0.1, 0.6, None])
def test_inputs_that_are_spikes_agree(share):
    """Of the layer below, outside of the loop; inputs that are other numbers are multiplied."""
    case = spiking(made=rlif)
    if share is not None:
        torch.manual_seed(0)
        case.inputs["x"].copy_(torch.rand_like(case.inputs["x"]) < share)
    kernel = c_kernel(case)
    assert kernel.emitter.text().count("= list_ones(") == 2
    assert_all_same(call(kernel, case), oracle(case), F64, case.T)


def never_fires(case: Case, weight: float) -> Case:
    """The same, but one neuron is silent, and what it would send is ``weight``."""
    silent = torch.arange(SIZES.H) == 7
    inputs = {name: value.masked_fill(silent, -1000.0) for name, value in case.inputs.items()}
    states = {name: value.masked_fill(silent, 0.0) for name, value in case.states.items()}
    weights = dict(case.weights)
    weights["V"] = weights["V"].masked_fill(silent, weight)
    weights["V"][7] = 0
    return replace(case, inputs=inputs, states=states, weights=weights)


@pytest.mark.parametrize("weight", [float("inf"), float("nan")])
def test_infinite_weights_are_multiplied_by_zero(weight):
    """0 · inf is NaN, which rows that are left out would not give."""
    case = never_fires(spiking(), weight)
    kernel = c_kernel(case, wants=frozenset(), training=False)
    got, want = call(kernel, case), oracle(case)
    assert want["last m"].isnan().any()
    assert torch.equal(got["last m"].isnan(), want["last m"].isnan())


def test_rows_of_silent_neurons_are_not_read(monkeypatch):
    """Unless a matrix is looked through, an infinite row does not matter: so it was left out."""
    case = never_fires(spiking(), float("inf"))
    monkeypatch.setattr(DirectionPrinter, "_checked", lambda self: [])
    fresh = Blocks(rows=32)  # a kernel that no other test has
    kernel = c_kernel(case, wants=frozenset(), training=False, blocks=fresh)
    got, want = call(kernel, case), oracle(never_fires(spiking(), 0.0))
    assert_close(got["last m"], want["last m"])

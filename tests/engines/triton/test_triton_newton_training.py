"""Forward and backward of engine deer by Newton's kernels, beside the reference in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import elman
from calls import call
from elman import cells
from elman.engines import registry
from elman.engines.deer import kernel, solvers
from elman.engines.deer.kernel import DeerKernel
from elman.engines.triton.all_steps.group_kernels import GroupKernels
from elman.engines.triton.all_steps.newton import Newton
from elman.engines.triton.device import limits
from elman.engines.triton.device.call_graphs import CallGraphs
from elman.engines.triton.engine import ENGINE
from elman.frontend.cell import Cell
from engines.triton.test_triton_newton import given
from helpers import Sizes, assert_same, job_of, oracle, random_case, run

pytestmark = pytest.mark.interpreted


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The CPU's scans are the interpreter's too; what of Newton's kernels ran."""
    ran: list[str] = []
    for name in ("improved", "linearised"):
        for kind in (GroupKernels, *Newton.__subclasses__()):
            own = kind.__dict__.get(name)
            if own is not None:

                def spied(*args, own=own, name=name):
                    ran.append(name)
                    return own(*args)

                monkeypatch.setattr(kind, name, spied)
    monkeypatch.setattr(registry, "scans", lambda device: ENGINE.scans())
    monkeypatch.setattr(limits, "WALK_THREADS", 1024)  # programs are interpreted one by one
    return ran


@pytest.mark.parametrize(
    "cell, H",
    [
        (cells.gru.with_heads(3), 6),
        pytest.param(cells.gru, 8, marks=pytest.mark.long),
        pytest.param(cells.lstm.with_heads(2), 8, marks=pytest.mark.long),
        (cells.ealstm, 2),
    ],
)
def test_results_and_gradients(cell: Cell, H: int, launched: list[str]) -> None:
    """Groups of two states, eight of one, two groups of eight, values of a sequence: everything, in
    float32."""
    more = (("S", 3),) if cell is cells.ealstm else ()
    case = random_case(cell, Sizes(T=18, B=2, I=3, H=H, more=more))
    got = run(cell, case, "deer")
    assert {"improved", "linearised"} <= set(launched)
    for name, want in oracle(case).items():
        assert_same(name, got[name], want, torch.float32, case.T)


@pytest.mark.parametrize("what", ["reset", "lengths"])
def test_resets_and_lengths(what: str, launched: list[str]) -> None:
    """Episodes that begin within the sequence, and sequences that end before the others."""
    source = torch.Generator().manual_seed(0)
    x = torch.randn(16, 3, 2, generator=source)
    options = {"reset": torch.rand(16, 3, generator=source) < 0.2}
    if what == "lengths":
        options = {"lengths": torch.tensor([16, 5, 11])}
    net = elman.GRU(2, 6, heads=2, engine="deer")
    exact = elman.GRU(2, 6, heads=2, engine="reference", dtype=torch.float64)
    exact.load_state_dict(net.state_dict())
    found = []
    for module, own in ((net, x.clone()), (exact, x.double())):
        out, last = module(own.requires_grad_(), **options)
        grads = torch.autograd.grad(out.square().sum(), [own, *module.parameters()])
        found.append({"out": out, "last": last} | {f"d{k}": d for k, d in enumerate(grads)})
    assert {"improved", "linearised"} <= set(launched)
    for name, want in found[1].items():
        assert_same(name, found[0][name], want, torch.float32, 16)


@pytest.fixture
def graphs(launched: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU's calls go the way of a GPU's, where calls that come again are graphs."""
    monkeypatch.setattr(registry, "newton", lambda device: ENGINE.newton())
    monkeypatch.setattr(CallGraphs, "applies", lambda self, tensors: True)


@pytest.mark.parametrize("cell, H", [(cells.gru, 2), (cells.sru, 2), (given, 2)])
def test_calls_that_come_again(cell: Cell, H: int, graphs: None) -> None:
    """Other numbers in a graph's memory, and outputs that are no states; one look of the host."""
    made: Any = DeerKernel(job_of(random_case(cell, Sizes(9, 2, 3, H))), "deer")
    for seed in range(3):
        case = random_case(cell, Sizes(9, 2, 3, H), seed=seed)
        got = call(made, case)
        for name, want in oracle(case).items():
            assert_same(name, got[name], want, torch.float32, case.T)
    assert made.last.solver == "newton"
    assert [len(graphs._graphs) for graphs in made._graphs] == [1, 1]


def test_iterations_that_are_more_than_were_launched(
    graphs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host runs the rest of them, and launches as many the next time; what no kernel solves
    goes to the other solvers."""
    monkeypatch.setattr(solvers, "BURST", 1)
    monkeypatch.setattr(kernel, "BURST", 1)
    case = random_case(cells.gru, Sizes(9, 2, 3, 2))
    made = DeerKernel(job_of(case), "deer")
    for burst in (4, 4):
        got = call(made, case)
        for name, want in oracle(case).items():
            assert_same(name, got[name], want, torch.float32, case.T)
        assert made._burst == burst == made.last.iterations + 1
    monkeypatch.setattr(kernel, "refusal_of_errors", lambda *given: "no")
    got = call(made, case)
    assert made.last.solver == "newton"
    assert_same("out", got["out"], oracle(case)["out"], torch.float32, case.T)

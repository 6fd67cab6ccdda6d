"""Engine triton on a GPU at sizes that people train: every schedule that is offered for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch

import elman
from calls import call
from elman import cells
from elman.engines.registry import find
from elman.frontend.cell import Cell
from elman.tuning.kernels import kernel_of
from helpers import Case, Sizes, assert_all_same, job_of, random_case, run

pytestmark = pytest.mark.gpu
SHAPES = {  # what is met: a few units on chip, weights cut over many programs, few rows, many
    "small": Sizes(T=50, B=32, I=40, H=64),
    "large": Sizes(T=30, B=16, I=256, H=512),
    "one row": Sizes(T=40, B=1, I=64, H=256),
    "prime": Sizes(T=37, B=67, I=31, H=127),
    "long": Sizes(T=2000, B=3, I=8, H=32),
}
DTYPES = {"ieee": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.half}


@pytest.fixture(params=DTYPES)
def arithmetic(request, monkeypatch) -> Iterator[tuple[torch.dtype, torch.dtype]]:
    """The dtype of the tensors, and the one whose tolerances hold: tf32 has those of float16."""
    name, switch = request.param, cast(Any, torch.backends.cudnn.rnn)
    before = switch.fp32_precision
    switch.fp32_precision = "tf32" if name == "tf32" else "ieee"
    monkeypatch.setattr("elman.tuning.kernels._kernels", {})  # they are made for the one or other
    yield DTYPES[name], torch.half if name == "tf32" else DTYPES[name]
    switch.fp32_precision = before


def judged(case: Case, tolerance: torch.dtype) -> None:
    """Every schedule that the engine offers, against the oracle in float64."""
    want = run(case.cell, case.to(torch.float64).to("cuda"), "reference")
    want = {name: value.cpu() for name, value in want.items()}
    job = job_of(case.to("cuda"))
    schedules = find("triton").schedules(job, case.T, case.d_output.shape[1])
    assert schedules
    for schedule in schedules:
        assert_all_same(call(kernel_of(job, "triton", schedule), case), want, tolerance, case.T)


@pytest.mark.parametrize("sizes", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("cell", [cells.gru, cells.lstm])
def test_shapes(cell: Cell, sizes: Sizes, arithmetic: tuple[torch.dtype, torch.dtype]) -> None:
    """Output, last states and every gradient."""
    judged(random_case(cell, sizes).to(arithmetic[0]), arithmetic[1])


def with_exact_products(case: Case) -> Case:
    """The case with x in whole numbers, its weights in sixteenths: their products are numbers of
    bfloat16."""
    for value in case.inputs.values():
        value.round_()
    for name in ("W", "b"):
        case.weights[name].mul_(16).round_().div_(16)
    return case


@pytest.mark.parametrize("cell", cells.CORE)
def test_cells(cell: Cell) -> None:
    """Every cell at one of them, in bfloat16.

    Where a gradient has a step, rounding decides its side: in float64 too, W x + b rounded to
    bfloat16 changes the sign of 13 of the 102400 numbers that indrnn gives to relu, and with that
    dh by 3.2 % (RMS).
    """
    case = random_case(cell, SHAPES["small"])
    if cell is cells.indrnn:
        case = with_exact_products(case)
    judged(case.to(torch.bfloat16), torch.bfloat16)


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("engine", ["auto", "triton"])
def test_modules(kind: str, engine: str, arithmetic: tuple[torch.dtype, torch.dtype]) -> None:
    """Stacks of both directions as users have them, over packed rows, beside torch's in float64."""
    dtype, tolerance = arithmetic
    torch.manual_seed(0)
    options = {"num_layers": 2, "bidirectional": True}
    ours = getattr(elman, kind)(31, 65, engine=engine, **options).to("cuda", dtype)
    theirs = getattr(torch.nn, kind)(31, 65, **options).double()
    theirs.load_state_dict(ours.state_dict())
    rows = [torch.randn(n, 31).to(dtype) for n in (40, 40, 21, 7, 1)]
    found: list[dict[str, torch.Tensor]] = []
    for module, where in ((ours, ("cuda", dtype)), (theirs, ("cpu", torch.float64))):
        given = torch.nn.utils.rnn.pack_sequence([row.to(*where) for row in rows])
        out = module(given)[0].data
        grads = torch.autograd.grad(out.double().sin().sum(), list(module.parameters()))
        names = (f"d{name}" for name, _ in module.named_parameters())
        found.append({"out": out.cpu()} | {n: g.cpu() for n, g in zip(names, grads, strict=True)})
    got, want = found
    assert_all_same(got, want, tolerance, 40)

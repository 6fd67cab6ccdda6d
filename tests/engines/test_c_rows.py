"""Inputs and cotangents that lie in memory in other ways than row by row: engine c reads them where
they lie if it can, and the numbers are the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import elman
from elman import cell, cells, compiler
from elman.cells import gru
from elman.engines.c.process.memory import rows_of
from elman.engines.c.run.kernel import CKernel
from elman.engines.c.run.prepared import PreparedKernel
from elman.engines.call import Call
from elman.frontend.cell import Cell
from elman.ops import tanh
from elman.plan.schedule import Division
from elman.plan.spec import Spec
from elman.tuning.kernels import kernel_of
from helpers import Sizes, assert_close, need_engine, random_case
from kernels import c_kernel
from products import some_of

T, B, N = 6, 5, 17
F64 = torch.float64


@cell(input="x[H], z[H]", state="h[H]", weights="W[H, H], R[H, H]")
def mixed(x, z, h, W, R):
    """One input before the loop, one inside it alone."""
    return z * tanh(W @ x + R @ h)


@cell(input="x[H]", state="h[H]", weights="R[H, H]")
def inside(x, h, R):
    """Its input is read in the loop alone, by both directions."""
    return tanh(x + R @ h)


LAID: dict[str, Callable[[Tensor], Tensor]] = {
    "one step for all": lambda x: x[:1].expand(x.shape),
    "one sample for all": lambda x: x[:, :1].expand(x.shape),
    "one row for all": lambda x: x[:1, :1].expand(x.shape),
    "one number for all": lambda x: x[:1, :1, :1].expand(x.shape),
    "batch first": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "every other step": lambda x: x.repeat_interleave(2, 0)[::2],
    "a part of each row": lambda x: torch.cat((x, x), -1)[..., : x.shape[-1]],
    "units apart": lambda x: x.movedim(2, 0).contiguous().movedim(0, 2),
    "every second unit": lambda x: torch.stack([x, x * 9], -1).flatten(-2)[..., ::2],
    "off alignment": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
    "one unit for all": lambda x: x[..., :1].expand(x.shape),
}


@pytest.mark.parametrize(
    "of, units, name, lead",
    some_of([mixed, inside, gru], [N, 16], [*LAID], [(6, 5), (7, 1), (1, 3)]),
)
def test_as_if_contiguous(of: Cell, units: int, name: str, lead: tuple[int, int]):
    """Outputs and gradients, forward and backward; of whole vectors, and others."""
    need_engine("c")
    (T, B), laid = lead, LAID[name]
    torch.manual_seed(0)
    net = elman.Recurrent(of, units, units, engine="c", dtype=F64)
    inputs = [laid(torch.randn(T, B, units, dtype=F64)) for _ in net.cell.inputs]
    dy = laid(torch.randn(T, B, units, dtype=F64))

    def results(values: list[Tensor], cotangent: Tensor) -> tuple[Tensor, ...]:
        leaves = [value.detach().requires_grad_() for value in values]
        y, _ = net(tuple(leaves))
        return (y, *torch.autograd.grad(y, (*leaves, *net.parameters()), cotangent))

    found = results(inputs, dy)
    for a, b in zip(found, results([v.contiguous() for v in inputs], dy.contiguous()), strict=True):
        assert_close(a, b)


def test_read_where_it_lies():
    """Rows that only the loop reads need no common distance: nothing is copied for it."""
    need_engine("c")
    for of, joined in ((mixed, {0}), (inside, set())):
        job = compiler.job(of, Spec((("H", N),), "float64", wants=frozenset("xzWR")))
        kernel = kernel_of(job, "c")
        assert isinstance(kernel, CKernel)
        assert kernel.emitter.joined - {"dy"} == joined, of.name
    x = torch.randn(1, B, N).expand(T, -1, -1)
    assert rows_of(x, joined=False)[0] is x
    assert rows_of(x, joined=False)[1:] == (0, N)
    copied, *distances = rows_of(x)
    assert copied.is_contiguous()
    assert distances == [B * N, N]


def test_prepared_workspaces_fit_their_workers(monkeypatch):
    """A call that may use more threads than the one that it was prepared for has more memory."""
    case = random_case(cells.gru, Sizes(T=4, B=3, I=5, H=40), 1, torch.float32)
    kernel = c_kernel(case).scheduled(Division("units"), 3)
    states = tuple(state[None] for state in case.states.values())
    call = Call(tuple(case.inputs.values()), states, tuple(case.weights.values()), None, True)

    def allow(count: int) -> None:
        for module in ("prepared", "kernel"):
            monkeypatch.setattr(f"elman.engines.c.run.{module}.workers", lambda: count)

    allow(1)
    prepared = PreparedKernel(kernel, [kernel], call)
    for count in (1, 3):
        allow(count)
        (size,) = prepared._borrow(call).sizes
        assert (size + 1) * 4 >= kernel.workspace_bytes(4, 3)  # which rounds up

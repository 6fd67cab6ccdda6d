"""Random numbers on engine triton: those of the oracle, in every schedule."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import elman
from elman import compiler, ops
from elman.engines.call import Call
from elman.frontend.cell import cell
from elman.nn.autograd.function import run
from elman.nn.options.base import StepValues
from elman.nn.options.draws import DRAWS, draw_keys, key_sizes
from elman.passes.draws import draws
from elman.tuning.kernels import kernel_of
from helpers import Sizes, assert_close, forced, job_of, random_case

pytestmark = [pytest.mark.interpreted]


@cell(input="x[I]", state="h[H], c[H]", weights="W[2H, I], R[2H, H], b[2H]")
def noisy(x, h, c, W, R, b):
    """Draws of inputs, states, gates of two blocks, and scalars; per step and per sequence."""
    a = W @ ops.dropout(x, 0.3) + R @ ops.dropout(h, 0.2, per="sequence") + b
    i, n = ops.split(ops.tanh(a + 0.1 * ops.noise(a)), 2)
    c = ops.zoneout(0.5 * c + i * n, c, 0.4)
    return ops.zoneout(ops.sin(c + 0.1 * ops.uniform(1.0 * ops.sum(x))), h, 0.4), c


def never():
    """No second derivative is asked for."""
    raise AssertionError


@pytest.mark.parametrize("schedule", ["loop/16/4/1", "steps", "grid/16/2/3/1"])
def test_every_schedule(schedule):
    """Output, last states and gradients as on the oracle."""
    case = random_case(noisy, Sizes(T=4, B=3, I=3, H=5))
    spec = job_of(case).spec
    job = compiler.job(noisy, replace(spec, wants=spec.wants), compiler.training_rules(noisy))
    torch.manual_seed(0)
    per = draws(noisy.graph)
    keys = draw_keys(key_sizes(per, 1, (4, 3), 3), torch.float32, torch.device("cpu"))
    tensors = (case.inputs, case.states, case.weights)
    found: list[list[Tensor]] = []
    for engine in ("triton", "reference"):
        values = [[v.clone().requires_grad_() for v in group.values()] for group in tensors]
        plain = Call(*map(tuple, values))
        call = DRAWS.extend(StepValues("draws", tuple(per), tuple(keys)), plain, False, 0)
        kernel = kernel_of(job, engine, schedule if engine == "triton" else "")
        out, last, _ = run(kernel, never, call, True)
        loss = out.sin().sum() + sum(end.cos().sum() for end in last)
        leaves = [value for group in values for value in group]
        found.append([out, *last, *torch.autograd.grad(loss, leaves)])
    for got, want in zip(*found, strict=True):
        assert_close(got, want)


def test_modules():
    """A stack, both directions, and sequences of several lengths."""
    x = torch.randn(4, 3, 3)
    for options in ({"num_layers": 2}, {"bidirectional": True}):
        net = elman.Recurrent(noisy, 3, 5, engine="triton", **options)
        for lengths in (None, [2, 4, 1]):
            torch.manual_seed(0)
            got, _ = net(x, lengths=lengths)
            torch.manual_seed(0)
            with forced("reference"):
                want, _ = net(x, lengths=lengths)
            assert_close(got, want)

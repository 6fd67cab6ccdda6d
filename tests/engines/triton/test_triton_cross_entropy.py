"""Decoder and loss with Triton's softmax between torch's products."""

from __future__ import annotations

import math

import pytest
import torch

import elman
from elman.engines import cross_entropy as formulas
from elman.engines.cross_entropy import Found, Rows, Wants, in_torch
from elman.engines.triton import cross_entropy as kernels
from elman.engines.triton.device import limits
from elman.engines.triton.device.source import function
from elman.errors import DisagreementError
from helpers import assert_close
from offline import facts

ALL = Wants(True, True, True)
TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def drawn(N, H, V, device, dtype=torch.float32, bias=True, smoothing=0.0):
    source = torch.Generator().manual_seed(N + V)

    def normal(*shape):
        return torch.randn(*shape, generator=source, dtype=torch.float64).to(device, dtype)

    weight = normal(V, H) / H**0.5
    targets = torch.randint(V, (N,), generator=source).to(device)
    rows = Rows(normal(N, H), weight, normal(V) if bias else None, targets, smoothing)
    return rows, torch.randn(N, generator=source).to(device, formulas.accumulated(dtype))


def exact(rows, scale, wants):
    bias = None if rows.bias is None else rows.bias.double()
    wide = Rows(rows.x.double(), rows.weight.double(), bias, rows.targets, rows.smoothing)
    return in_torch(wide, scale.double(), wants)


def check(rows, scale, wants=ALL, most=None):
    found = kernels.losses_and_gradients(rows, scale, wants)
    assert found is not None
    most = kernels._EXACT[rows.x.dtype] if most is None else most
    for name, got, want in zip(Found._fields, found, exact(rows, scale, wants), strict=True):
        assert (got is None) == (want is None), name
        if got is not None and want is not None:
            off = float((got.double() - want).norm() / max(float(want.norm()), 1e-30))
            assert off <= most, (name, off)


@pytest.mark.parametrize("N, H, V", [(1, 1, 2), (5, 3, 33), (9, 4, 300), (3, 2, 257)])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"smoothing": 0.1}])
def test_as_torch_ops(device, N, H, V, options, monkeypatch):
    """Rows shorter and longer than what is looked at at once, in one chunk and in several."""
    monkeypatch.setattr(limits, "CLASSES", 64)
    monkeypatch.setattr(formulas, "_CACHE_BYTES", 0)
    monkeypatch.setattr(formulas, "_LEAST_ROWS", 4)
    monkeypatch.setattr(formulas, "LEAST_ROWS", {"cpu": 4})
    check(*drawn(N, H, V, device, **options))


@pytest.mark.parametrize("dtype", TYPES)
def test_half_precision_is_summed_in_float32(device, dtype):
    """Half precision is summed in float32; the gradient by logits has the rows' type."""
    check(*drawn(6, 8, 70, device, dtype=dtype, smoothing=0.1))


@pytest.mark.parametrize("wants", [Wants(), Wants(x=True), Wants(weight=True), Wants(bias=True)])
def test_no_more_than_wanted(device, wants):
    check(*drawn(6, 3, 40, device), wants)


def test_extremes(device):
    """Large logits, minus infinity as a bias that leaves a class out, and NaN, as in torch."""
    rows, scale = drawn(4, 3, 50, device)
    assert rows.bias is not None
    rows.targets[:] = torch.tensor([1, 7, 48, 49])
    rows.bias[3:40] = -math.inf
    rows.bias[7] = 0.5
    rows.bias[1] = 400.0
    check(rows, scale, most=1e-5)
    rows.x[2, 1] = math.nan
    found, want = kernels.losses_and_gradients(rows, scale, ALL), in_torch(rows, scale, ALL)
    assert found is not None
    assert_close(found.losses, want.losses, equal_nan=True)
    assert_close(found.x, want.x, equal_nan=True)


def test_modules_take_it(device, monkeypatch):
    """A decoder on the engine by name, and what it computes is compared before it is used."""
    torch.manual_seed(0)
    decoder = elman.LinearCrossEntropyLoss(5, 31, bias=True).to(device)
    x = torch.randn(7, 5, device=device, requires_grad=True)
    targets = torch.randint(31, (7,)).to(device)
    with elman.using(engine="triton"):
        loss = decoder(x, targets)
        got = torch.autograd.grad(loss, (x, *decoder.parameters()))
    plain = torch.nn.functional.cross_entropy(decoder.logits(x), targets)
    want = torch.autograd.grad(plain, (x, *decoder.parameters()))
    for a, b in zip((loss, *got), (plain, *want), strict=True):
        assert_close(a, b)
    wrong = kernels.TEXT.replace("factor * tl.exp(z - top) - even", "factor * tl.exp(z - top)")
    monkeypatch.setattr(kernels, "TEXT", wrong)
    kernels._verdict.cache_clear()
    with elman.using(engine="triton"), pytest.raises(DisagreementError, match="is off by"):
        decoder(x, targets)
    kernels._verdict.cache_clear()


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("V", [33, 33278])
def test_compiled(V, dtype, target):
    """A row in registers, without a spill."""
    constants = {
        "SMOOTHING": 0.1, "BIASED": True, "GRADIENTS": True, "BLOCK": kernels.block(V),
        "KIND": kernels.kind(torch.float32),
    }  # fmt: skip
    made = function("softmax", kernels.TEXT)
    types = {
        "logits": f"*{dtype}", "bias": f"*{dtype}", "targets": "*i64", "scale": "*fp32",
        "losses": "*fp32", "V": "i32",
    }  # fmt: skip
    found = facts(made, types, constants, target, warps=limits.CLASS_WARPS, stages=1)
    assert not found.spilled

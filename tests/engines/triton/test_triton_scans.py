"""Linear recurrences as Triton's associative scans."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elman.engines.deer.scans import Units, associative
from elman.engines.triton.all_steps import scans, walks
from elman.engines.triton.device import limits
from elman.engines.triton.device.source import function
from offline import facts
from products import some_of


@pytest.mark.interpreted
@pytest.mark.parametrize(
    "n, T, N", [(1, 5, 3), (2, 37, 34), (3, 5, 3), (4, 37, 34), (5, 1, 1), (8, 37, 34)]
)
def test_as_torch_ops(n, T, N, monkeypatch):
    """One block, several of channels, several of time, whose totals take rounds of their own."""
    monkeypatch.setattr(limits, "SCAN_ELEMENTS", dict.fromkeys(range(1, 5), 128))
    monkeypatch.setattr(limits, "WALK_THREADS", 1024)  # programs are interpreted one by one
    source = torch.Generator().manual_seed(n)
    A = torch.randn(T, n, n, N, generator=source, dtype=torch.float64) / (2 * n)
    b = torch.randn(T, n, N, generator=source, dtype=torch.float64)
    y0 = torch.randn(n, N, generator=source, dtype=torch.float64)
    want = associative(Units(n), A, b, y0)
    torch.testing.assert_close(scans.forward(A, b, y0, True), want)
    dense = scans.forward(A.permute(0, 3, 1, 2), b.mT, y0.mT, False)
    assert dense is not None
    torch.testing.assert_close(dense.mT, want)


@pytest.mark.parametrize("T, lanes, steps", [(1, 8, 4), (10_000, 8, 4), (10**6, 8, 32)])
def test_chunks_leave_processors_busy(T, lanes, steps, monkeypatch):
    """Short where there is little else to do at once, at most as long as they gain from."""
    monkeypatch.setattr(walks, "processors", lambda: 132)
    assert walks.chunk_steps(T, lanes) == steps


def test_what_has_no_kernel():
    """Systems of nine, and half precision: the caller's own."""
    A, b, y0 = torch.ones(3, 9, 9, 2), torch.ones(3, 9, 2), torch.ones(9, 2)
    assert scans.forward(A, b, y0, True) is None
    assert scans.forward(A[:, :2, :2].half(), b[:, :2].half(), y0[:2].half(), True) is None
    assert scans.forward(A.permute(0, 3, 1, 2), b.mT, y0.mT, False) is None


@given(n=st.integers(1, 4), seed=st.integers(0, 99))
def test_joining_is_associative(n, seed):
    """The interpreter joins from left to right; a GPU as it likes."""
    text = "\n".join(scans._joined(n)[1:])
    names: dict[str, object] = {}
    exec(text, names)
    after = names["after"]
    source = torch.Generator().manual_seed(seed)
    a, b, c = (
        tuple(torch.randn(n * n + n, generator=source, dtype=torch.float64)) for _ in range(3)
    )
    left = after(*after(*a, *b), *c)  # type: ignore[operator]
    right = after(*a, *after(*b, *c))  # type: ignore[operator]
    torch.testing.assert_close(torch.stack(left), torch.stack(right))


@pytest.mark.parametrize(
    "n, N, target", some_of([1, 2, 3, 4], [1, 64], ["sm_90", "gfx942"], together=1)
)
def test_compiled(n, N, target):
    """Neither kernel spills."""
    steps, channels = scans.block(n, N)
    texts = {"totals": scans.linear(n).totals_text, "steps": scans.linear(n).steps_text}
    _fits(texts, {"STEPS": steps, "CHANNELS": channels}, target)


@pytest.mark.parametrize("n, target", some_of([5, 8], ["sm_90", "gfx942"], together=1))
def test_walks_compiled(n, target):
    """Neither do those of larger systems."""
    texts = {"totals": walks.totals_text(n), "steps": walks.steps_text(n)}
    _fits(texts, {"STEPS": 32, "THREADS": limits.WALK_THREADS}, target)


def _fits(texts, constants, target):
    for name, text in texts.items():
        made = function(name, text)
        types = {
            name: "i32" if name in ("T", "N", "y0_n", "y0_c") else "*fp32"
            for name in made.arg_names
            if name not in constants
        }
        found = facts(made, types, constants, target, warps=4, stages=1)
        assert not found.spilled, name

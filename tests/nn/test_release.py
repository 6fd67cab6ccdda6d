"""Kernels and memory that are kept for later calls: bounded, and given back on demand."""

from __future__ import annotations

import gc
import linecache
import sys
import weakref
from pathlib import Path

import pytest
import torch

import elman
from elman.engines import registry
from elman.engines.c.process import memory
from elman.engines.c.process.memory import LARGE, LIMIT, Spares, Supply
from elman.tuning import kernels
from helpers import need_engine


@pytest.fixture(autouse=True)
def no_kernels(monkeypatch):
    """No kernel of another test is kept, nor released."""
    need_engine("c")
    monkeypatch.setattr(kernels, "_kernels", {})


def kernel_of(net) -> object:
    """The kernel that a module of one layer runs now."""
    (runner,) = net.stack.runners
    (choice,) = runner._chosen.values()
    return choice.kernel


def step(hidden: int) -> weakref.ref:
    """A training step of a module that is gone afterwards; a weak reference to its kernel."""
    net = elman.RNN(2, hidden, engine="c")
    net(torch.randn(3, 2, 2))[0].sum().backward()
    return weakref.ref(kernel_of(net))


def test_few_kernels_are_kept(monkeypatch):
    """Kernels of modules that are gone are forgotten, oldest first; those in use are not."""
    monkeypatch.setattr(kernels, "MOST_KERNELS", 4)
    net = elman.RNN(2, 3, engine="c")
    x = torch.randn(3, 2, 2)
    before = net(x)[0]
    used = step(11)
    for hidden in (5, 6, 7, 8, 9):
        step(hidden)
    elman.compiler._job.cache_clear()
    gc.collect()
    assert len(kernels._kernels) <= 4
    assert used() is None
    assert torch.equal(net(x)[0], before)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc lists what is loaded")
def test_release_unloads_libraries():
    """A released kernel's library is no longer part of the process."""
    net = elman.RNN(2, 13, engine="c")
    net(torch.randn(3, 2, 2))[0].sum().backward()
    path = kernel_of(net)._library._name
    assert path in Path("/proc/self/maps").read_text()
    elman.release()
    net(torch.randn(3, 2, 2))[0].sum().backward()  # a module keeps its kernel
    assert path in Path("/proc/self/maps").read_text()
    del net
    elman.release()
    gc.collect()
    assert path not in Path("/proc/self/maps").read_text()


def test_spare_buffers_are_limited():
    """A new buffer frees those that other kernels have spare, if all would exceed the limit."""
    supply = Supply(torch.float32)
    idle, busy = Spares(), Spares()
    for _ in range(2):
        idle.append(torch.empty(LIMIT // 16, dtype=torch.float32))  # a quarter of the limit each
    small = supply.take(busy, LARGE // 4)
    busy.append(small)
    assert len(idle) == 2
    supply.take(busy, LIMIT // 4 - 2 * LARGE)
    assert not idle


def test_release_frees_memory():
    """Results and spare buffers; a call afterwards has the same values."""
    net = elman.RNN(8, 64, engine="c")
    x = torch.randn(LARGE // (64 * 64 * 4) + 1, 64, 8)
    before = net(x)[0]
    before.sum().backward()
    grads = [p.grad.clone() for p in net.parameters()]
    arenas = kernel_of(net).arenas
    assert memory._storages
    assert arenas
    elman.release()
    assert not memory._storages
    assert not arenas
    net.zero_grad()
    after = net(x)[0]
    after.sum().backward()
    assert torch.equal(after, before)
    assert all(torch.equal(a, p.grad) for a, p in zip(grads, net.parameters()))


def test_exported_programs_run_after_release():
    """An exported program finds its layers by name, again."""
    net = elman.GRU(3, 5, engine="reference")
    x = torch.randn(4, 2, 3)
    program = torch.export.export(net, (x,)).module()
    want = net(x)[0]
    elman.release()
    torch.testing.assert_close(program(x)[0], want)


@pytest.mark.skipif(sys.platform != "linux", reason="Triton has wheels for Linux alone")
def test_texts_of_triton_are_forgotten():
    """Text and lines of a released function."""
    pytest.importorskip("triton")
    registry.find("triton")
    from elman.engines.triton.device.source import defined

    text = "@triton.jit\ndef released(x):\n    tl.store(x, 1.0)\n"
    function = defined("released", text, False)
    assert defined("released", text, False) is function
    names = [name for name in linecache.cache if name.startswith("<elman released")]
    assert len(names) == 1
    del function
    elman.release()
    gc.collect()
    assert names[0] not in linecache.cache

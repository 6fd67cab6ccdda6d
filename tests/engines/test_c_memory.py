"""Large results: memory is taken again once nobody holds it, and never before."""

from __future__ import annotations

import importlib.util
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import elman
from elman.engines.c.process import memory
from elman.engines.c.process.memory import LARGE, LIMIT, fresh
from helpers import need_engine

SHAPE = (3, LARGE // 4)


@pytest.fixture(autouse=True)
def empty(monkeypatch):
    monkeypatch.setattr(memory, "_storages", type(memory._storages)())
    if not memory.COUNTS_USERS:
        pytest.skip("this torch does not tell who holds a storage")


def test_used_again_only_when_free():
    """A tensor, a view of it, or its numpy array: as long as one lives, its memory is its own."""
    first = fresh(SHAPE, torch.float32)
    where = first.data_ptr()
    assert fresh(SHAPE, torch.float32).data_ptr() != where
    view = first[1:]
    del first
    assert fresh(SHAPE, torch.float32).data_ptr() != where
    array = view.numpy()
    del view
    assert fresh(SHAPE, torch.float32).data_ptr() != where
    del array
    found = {fresh(SHAPE, torch.float32).data_ptr() for _ in range(1)}
    held = [fresh(SHAPE, torch.float32) for _ in range(4)]
    assert where in found | {one.data_ptr() for one in held}
    assert len({one.data_ptr() for one in held}) == 4


def test_a_storage_alone_is_held_too():
    """Of a tensor that has gone."""
    first = fresh(SHAPE, torch.float32)
    storage = first.untyped_storage()
    del first
    assert fresh(SHAPE, torch.float32).data_ptr() != storage.data_ptr()
    where = storage.data_ptr()
    del storage
    assert where in {one.data_ptr() for one in [fresh(SHAPE, torch.float32) for _ in range(3)]}


def test_small_and_unlike_sizes():
    """Small ones are torch's; a storage is not used for much less than it holds."""
    fresh((10,), torch.float32)
    assert not memory._storages
    big = fresh((4 * LARGE,), torch.float32)
    where = big.data_ptr()
    del big
    assert fresh(SHAPE, torch.float32).data_ptr() != where
    assert fresh((4 * LARGE - 8,), torch.float32).data_ptr() == where


def test_shared_memory_is_let_go():
    """What another process may read is never written to again."""
    first = fresh(SHAPE, torch.float32)
    first.share_memory_()
    del first
    fresh(SHAPE, torch.float32)
    assert not any(storage.is_shared() for storage in memory._storages)


def test_bounded():
    """No more than the limit is kept."""
    held = [fresh((LIMIT // 16,), torch.float32) for _ in range(6)]
    assert sum(storage.nbytes() for storage in memory._storages) <= LIMIT
    del held
    fresh((LIMIT,), torch.float32)
    assert sum(storage.nbytes() for storage in memory._storages) <= LIMIT


def test_threads_never_share():
    """Many threads at once: all results differ."""

    def work(value: float) -> bool:
        right = True
        for _ in range(40):
            mine = fresh(SHAPE, torch.float32)
            mine[0, :100] = value
            right &= bool((mine[0, :100] == value).all())
        return right

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_kernels_results():
    """Outputs and gradients of a call lie in memory that is used again once they are gone, and not
    before."""
    need_engine("c")
    net = elman.RNN(8, 64, engine="c")
    x = torch.randn(LARGE // (64 * 64 * 4) + 1, 64, 8)
    net(x)[0].sum().backward()
    before = len(memory._storages)
    assert before, "large results are kept in mind"
    y, _ = net(x)
    kept = y.detach().clone()
    other, _ = net(2 * x)
    assert other.data_ptr() != y.data_ptr()
    assert torch.equal(y, kept)
    del y, other
    for _ in range(3):
        net(x)[0].sum().backward()
    assert len(memory._storages) <= before + 1, "steps of a training go on in the same memory"


def test_imported_inside_a_transform():
    """A process's first call may be inside of torch.func, where tensors have no storage."""
    spec = importlib.util.spec_from_file_location("elman_memory_again", memory.__file__)
    assert spec is not None
    assert spec.loader is not None
    loader = spec.loader

    def first(x):
        loader.exec_module(importlib.util.module_from_spec(spec))
        return x.sum()

    assert torch.func.grad(first)(torch.ones(2)).tolist() == [1.0, 1.0]

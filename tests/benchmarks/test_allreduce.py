"""Forecasts of an all-reduce: their formulas at sizes where one can count."""

from __future__ import annotations

import pytest

from benchmarks.allreduce import (
    INTERCONNECTS,
    Interconnect,
    buckets,
    find_interconnect,
    reduction_end_s,
    step_s,
)
from elman.errors import InputError

LINK = Interconnect(1e-3, 1e6)


def test_messages_are_counted():
    """A ring of four sends six messages of a quarter; two trees go up and down two levels."""
    assert LINK.ring_s(4e6, 4) == pytest.approx(6 * (1e-3 + 1.0))
    assert LINK.trees_s(4e6, 4) == pytest.approx(2 * (2e-3 + 4.0))
    assert LINK.ring_s(4e6, 1) == LINK.trees_s(4e6, 1) == LINK.allreduce_s(4e6, 1) == 0.0


@pytest.mark.parametrize("name", INTERCONNECTS)
def test_small_messages_by_trees_large_ones_by_rings(name):
    """Many workers: latency counts for what is small, bandwidth for what is large."""
    link = INTERCONNECTS[name]
    assert link.allreduce_s(1.0, 1024) == link.trees_s(1.0, 1024)
    assert link.allreduce_s(1e15, 1024) == link.ring_s(1e15, 1024)


def test_gradients_are_gathered():
    """The first message is small; none is cut, none is lost, the rest goes last."""
    ready = [(1.0, 3.0), (2.0, 4.0), (3.0, 7.0), (4.0, 2.0)]
    assert buckets(ready, 10.0, 2.0) == [(1.0, 3.0), (3.0, 11.0), (4.0, 2.0)]
    assert buckets([], 10.0, 2.0) == []


def test_messages_wait_for_one_another():
    """Each is sent when it is there and the one before is done."""
    link = Interconnect(0.0, 1.0)  # two workers, ring: a second per byte
    assert reduction_end_s([(0.0, 2.0), (1.0, 1.0), (9.0, 1.0)], 2, link) == 10.0


def test_what_is_released_early_is_hidden():
    """Layers of equal size: all but the lowest one's time is hidden behind a slow backward."""
    layers, link = [30e6] * 3, Interconnect(0.0, 30e6)  # a second each, ring of two
    late = step_s(layers, 9.0, 2, link, released=False)
    assert late == pytest.approx(9.0 + 3.0)
    assert step_s(layers, 9.0, 2, link) == pytest.approx(9.0 + 1.0)
    assert step_s(layers, 9.0, 1, link) == 9.0


def test_interconnects_by_name_and_numbers():
    """Microseconds and gigabytes per second."""
    assert find_interconnect("nvlink") is INTERCONNECTS["nvlink"]
    link = find_interconnect("5,7")
    assert (link.latency_s, link.bytes_per_s) == pytest.approx((5e-6, 7e9))


@pytest.mark.parametrize("text", ["pigeon", "5", "5,0", "-1,7", "5,nan", "inf,1", "1,2,3", ""])
def test_what_is_no_interconnect(text):
    """One line, and numbers to paste."""
    with pytest.raises(InputError, match=r"no interconnect is called .*") as caught:
        find_interconnect(text)
    assert "are infiniband, ethernet" in str(caught.value)
    assert "--interconnect 5,7" in str(caught.value)

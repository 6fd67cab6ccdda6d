"""Forecasts of many workers: at sizes where one can count."""

from __future__ import annotations

import pytest

from benchmarks.scaling.forecast import Nodes, Point, Times, forecast, paying, scaled
from elman.errors import InputError
from elman.tuning.allreduce import INTERCONNECTS, Interconnect, find_interconnect, step_s

FREE = Interconnect(0.0, 1e30)
LINK = Interconnect(1e-3, 1e6)
TIMES = Times({1: 1.0, 2: 1.5, 4: 3.0}, (1e3, 1e3))


@pytest.mark.parametrize(
    "minibatch, seconds", [(1, 1.0), (2, 1.5), (3, 2.25), (4, 3.0), (8, 6.0), (6, 4.5)]
)
def test_compute_of_any_minibatch(minibatch, seconds):
    """As measured, between two on a line, above all in proportion."""
    assert TIMES.compute_s(minibatch) == pytest.approx(seconds)


def test_compute_below_what_was_measured():
    """Takes what the smallest one takes: less was never seen."""
    assert Times({4: 3.0, 8: 5.0}, ()).compute_s(1) == 3.0


def test_free_messages_leave_compute():
    """Without an all-reduce, speed-up is the ratio of computes; the largest share counts."""
    points = scaled(TIMES, 4, 1024, FREE)
    assert [(point.workers, point.minibatch) for point in points] == [(1, 4), (2, 2), (4, 1)]
    assert [point.speedup for point in points] == pytest.approx([1.0, 2.0, 3.0])
    assert [point.efficiency for point in points] == pytest.approx([1.0, 1.0, 0.75])
    assert [point.exposed_s for point in points] == [0.0] * 3
    assert [point.minibatch for point in scaled(TIMES, 6, 4, FREE)] == [6, 3, 2]


def test_sharing_costs_those_who_share():
    """One worker gathers no gradients; of several each does, into messages."""
    times = Times(TIMES.seconds, (), 0.25)
    assert [point.step_s for point in scaled(times, 4, 4, FREE)] == [3.0, 1.75, 1.25]


def test_an_all_reduce_is_exposed():
    """A step is that of the formulas of the all-reduce, one home for both."""
    link = Interconnect(0.0, 1e3)
    point = forecast(TIMES, 4, 2, link)
    assert point.step_s == pytest.approx(step_s([1e3, 1e3], 1.5, 2, link))
    assert point.exposed_s == pytest.approx(point.step_s - 1.5)
    assert point.exposed_s > 0


def test_workers_fill_nodes():
    """Devices of one node by powers of two, then whole nodes."""
    times = Times({1: 1.0}, (1e3,))
    nodes = Nodes(6, LINK, LINK)
    assert [point.workers for point in scaled(times, 64, 40, nodes)] == [1, 2, 4, 6, 12, 24]
    assert [point.workers for point in scaled(times, 3, 40, nodes)] == [1, 2]
    assert forecast(times, 64, 12, nodes).step_s == pytest.approx(step_s([1e3], 6.0, 12, nodes))


def test_it_pays_until_a_doubling_saves_too_little():
    """The first poor doubling ends it, whatever comes after."""
    steps = [8.0, 4.4, 4.2, 2.1]
    points = [Point(2**k, 1, step, step, 8.0 / step) for k, step in enumerate(steps)]
    assert paying(points, 0.1).workers == 2
    assert paying(points, 0.01).workers == 8
    assert paying(points, 0.5).workers == 1
    assert paying(points[:1], 0.1).workers == 1


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


def test_nodes_sum_inside_and_across():
    """Four devices of two nodes: a ring of two inside, one of two nodes; never across in a node."""
    fast, slow = Interconnect(0.0, 4e6), Interconnect(0.0, 1e6)
    nodes = Nodes(2, fast, slow)
    assert nodes.allreduce_s(4e6, 1) == 0.0
    assert nodes.allreduce_s(4e6, 2) == pytest.approx(2 * 2e6 / 4e6)
    assert nodes.allreduce_s(4e6, 4) == pytest.approx(1.0 + 2 * 2e6 / 1e6)
    assert nodes.allreduce_s(4e6, 4) < slow.allreduce_s(4e6, 4)

"""Forecasts of many workers: at sizes where one can count."""

from __future__ import annotations

import pytest

from benchmarks.scaling.forecast import Machine, Point, Times, forecast, paying, scaled
from benchmarks.scaling.links import Memory, Nodes
from elman.errors import InputError
from elman.plan.allreduce import INTERCONNECTS, Interconnect, find_interconnect, step_s

FREE = Interconnect(0.0, 1e30)
NOTHING = Memory(0.0, 1e30)
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
    """One worker gathers no gradients; of several each does, into messages: not where they share
    memory."""
    times = Times(TIMES.seconds, (), 0.25)
    assert [point.step_s for point in scaled(times, 4, 4, FREE)] == [3.0, 1.75, 1.25]
    assert forecast(times, 4, 4, Machine(2, 1, NOTHING)).step_s == pytest.approx(2.0)


def test_an_all_reduce_is_exposed():
    """A step is that of the formulas of the all-reduce, one home for both."""
    link = Interconnect(0.0, 1e3)
    point = forecast(TIMES, 4, 2, link)
    assert point.step_s == pytest.approx(step_s([1e3, 1e3], 1.5, 2, link))
    assert point.exposed_s == pytest.approx(point.step_s - 1.5)
    assert point.exposed_s > 0


@pytest.mark.parametrize("workers, times", [(1, 1.0), (2, 1.0), (4, 2.0), (8, 4.0)])
def test_processes_share_cores(workers, times):
    """On two cores, more than two processes of one thread take so many times as long."""
    large = Times({1: 1.0, 2: 1.0, 4: 1.0, 8: 1.0}, ())
    assert forecast(large, 8, workers, Machine(2, 1, NOTHING)).step_s == pytest.approx(times)
    two_threads = forecast(large, 8, workers, Machine(2, 2, NOTHING)).step_s
    assert two_threads == pytest.approx(workers)


def test_sums_in_memory_come_after_the_backward():
    """Each process writes its gradients and reads all; all take longer where cores are too few."""
    memory = Memory(1e-3, 1e6)
    times = Times({1: 60.0, 2: 60.0, 4: 60.0}, (1e6, 2e6))
    alone, two, four = (forecast(times, 4, n, Machine(2, 1, memory)) for n in (1, 2, 4))
    assert alone.exposed_s == 0.0
    assert two.exposed_s == pytest.approx(1e-3 + 9.0)
    assert four.exposed_s == pytest.approx(2 * (2e-3 + 15.0))


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


def test_processes_at_once_take_as_long_as_measured():
    """What was measured of them takes the place of the cores' share; beyond it they share the
    cores; cores that are left are no limit."""
    contended = Machine(2, 1, NOTHING, {2: 1.3, 4: 2.8})
    assert forecast(TIMES, 4, 1, contended).step_s == 3.0
    assert forecast(TIMES, 4, 2, contended).step_s == pytest.approx(1.5 * 1.3)
    assert forecast(TIMES, 4, 4, contended).step_s == pytest.approx(1.0 * 2.8)
    assert forecast(TIMES, 8, 8, contended).step_s == pytest.approx(1.0 * 5.6)
    few = Machine(8, 1, NOTHING, {4: 1.2})
    assert forecast(TIMES, 4, 2, few).step_s == pytest.approx(1.5)
    assert forecast(TIMES, 8, 8, few).step_s == pytest.approx(1.2)


def test_nodes_sum_inside_and_across():
    """Four devices of two nodes: a ring of two inside, one of two nodes; never across in a node."""
    fast, slow = Interconnect(0.0, 4e6), Interconnect(0.0, 1e6)
    nodes = Nodes(2, fast, slow)
    assert nodes.allreduce_s(4e6, 1) == 0.0
    assert nodes.allreduce_s(4e6, 2) == pytest.approx(2 * 2e6 / 4e6)
    assert nodes.allreduce_s(4e6, 4) == pytest.approx(1.0 + 2 * 2e6 / 1e6)
    assert nodes.allreduce_s(4e6, 4) < slow.allreduce_s(4e6, 4)


def test_sums_in_memory():
    """Each writes once and reads as many times as there are processes; they wait pair by pair."""
    memory = Memory(1e-3, 1e6)
    assert memory.sum_s(2e6, 1) == 0.0
    assert memory.sum_s(2e6, 2) == pytest.approx(1e-3 + 6.0)
    assert memory.sum_s(2e6, 5) == pytest.approx(3e-3 + 12.0)

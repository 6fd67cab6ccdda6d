"""The one decision procedure: which values to keep between two phases."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from elman.ir.graph import Node
from elman.plan.maxflow import INFINITE as ENDLESS
from elman.plan.maxflow import Network

INFINITE = float("inf")
_UNITS = 1000  # costs become integers, so that the cut is exact


def frontier(
    nodes: Iterable[Node],
    needed: Collection[Node],
    free: Collection[Node],
    keep: Callable[[Node], float],
    recompute: Callable[[Node], float],
) -> tuple[Node, ...]:
    """Choose what to keep so that everything in ``needed`` can be computed from it at least cost.

    cost:  sum of keep(v) over kept v + sum of recompute(v) over values rematerialised
    exact: a minimum cut; v_in -> v_out costs keep(v), source -> v_in costs recompute(v), uses are
    infinite.
    Ties go to the value nearest its reader. Values in ``free`` are there already and cost nothing.

    Args:
        nodes: values in order, arguments first; arguments outside are available.
        needed: values that must be there in the later phase.
        free: values that are there anyway.
        keep, recompute: costs of one value; ``INFINITE`` forbids.

    Returns:
        the kept values in order, without those in ``free``.
    """
    order = list(nodes)
    place = {value: 2 * index for index, value in enumerate(order)}  # its entry; the exit is next
    source, sink = 2 * len(order), 2 * len(order) + 1
    if not any(value in place and value not in free for value in needed):
        return ()
    net = Network(2 * len(order) + 2)

    def units(cost: float) -> int:
        return ENDLESS if cost == INFINITE else round(cost * _UNITS)

    for value in order:
        if value in free:
            continue
        entry = place[value]
        net.edge(entry, entry + 1, units(keep(value)))
        net.edge(source, entry, units(recompute(value)))
        for arg in dict.fromkeys(value.args):
            if arg in place and arg not in free:
                net.edge(place[arg] + 1, entry, ENDLESS)
    for value in needed:
        if value in place and value not in free:
            net.edge(place[value] + 1, sink, ENDLESS)
    below = net.sink_side(source, sink)
    return tuple(
        value for value in order if place[value] + 1 in below and place[value] not in below
    )

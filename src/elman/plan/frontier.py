"""The one decision procedure: which values to keep between two phases, by a minimum cut.

Dinic's algorithm on integers is written here because importing a graph library costs more than all
the cuts of a program together; the tests compare it with networkx.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable

from elman.ir.graph import Node

ENDLESS = 1 << 60  # above the sum of all finite capacities


class Network:
    """Vertices 0 … n - 1; edges with integer capacities (``ENDLESS``: cannot be cut)."""

    def __init__(self, vertices: int) -> None:
        self._edges: list[list[int]] = [[] for _ in range(vertices)]
        self._head: list[int] = []
        self._residual: list[int] = []  # capacity left of an edge; edge e ^ 1 is its reverse

    def edge(self, tail: int, head: int, capacity: int) -> None:
        """Add an edge."""
        for start, end, room in ((tail, head, capacity), (head, tail, 0)):
            self._edges[start].append(len(self._head))
            self._head.append(end)
            self._residual.append(room)

    def sink_side(self, source: int, sink: int) -> set[int]:
        """The vertices on the sink's side of the minimum cut that lies nearest the sink."""
        while True:
            level = self._levels(source)
            if level[sink] < 0:
                return self._reaching(sink)
            position = [0] * len(self._edges)
            while self._push(source, sink, level, position):
                pass

    def _levels(self, source: int) -> list[int]:
        level = [-1] * len(self._edges)
        level[source] = 0
        queue = deque([source])
        while queue:
            vertex = queue.popleft()
            for edge in self._edges[vertex]:
                head = self._head[edge]
                if self._residual[edge] and level[head] < 0:
                    level[head] = level[vertex] + 1
                    queue.append(head)
        return level

    def _push(self, source: int, sink: int, level: list[int], position: list[int]) -> int:
        """Send flow along one path of rising levels; 0 if there is none left."""
        path: list[int] = []
        vertex = source
        while vertex != sink:
            while position[vertex] < len(self._edges[vertex]):
                edge = self._edges[vertex][position[vertex]]
                head = self._head[edge]
                if self._residual[edge] and level[head] == level[vertex] + 1:
                    path.append(edge)
                    vertex = head
                    break
                position[vertex] += 1
            else:
                if not path:
                    return 0
                vertex = self._head[path.pop() ^ 1]
                position[vertex] += 1
        flow = min(self._residual[edge] for edge in path)
        for edge in path:
            self._residual[edge] -= flow
            self._residual[edge ^ 1] += flow
        return flow

    def _reaching(self, sink: int) -> set[int]:
        """Vertices from which the sink can still be reached."""
        vertices = {sink}
        stack = [sink]
        while stack:
            vertex = stack.pop()
            for edge in self._edges[vertex]:
                tail = self._head[edge]  # edge ^ 1 runs from tail to vertex
                if self._residual[edge ^ 1] and tail not in vertices:
                    vertices.add(tail)
                    stack.append(tail)
        return vertices


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
    Ties go to the value nearest its reader.

    Args:
        nodes: values in order, arguments first; arguments outside are available.
        needed: values that the later phase reads.
        free: values that are available in both phases at no cost.
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
        # each value is two vertices, so that keeping it is an edge that the cut can pay for once
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

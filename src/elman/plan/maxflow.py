"""A minimum cut of a small network: Dinic's algorithm on integers.

Written here because importing a graph library costs more than all the cuts of a program together;
the tests compare it with networkx.
"""

from __future__ import annotations

from collections import deque

INFINITE = 1 << 60


class Network:
    """Vertices 0 … n - 1; edges with integer capacities (``INFINITE``: cannot be cut)."""

    def __init__(self, vertices: int) -> None:
        self._edges: list[list[int]] = [[] for _ in range(vertices)]
        self._head: list[int] = []
        self._left: list[int] = []  # what an edge can still carry; edge e ^ 1 runs backwards

    def edge(self, tail: int, head: int, capacity: int) -> None:
        """Add an edge."""
        for start, end, room in ((tail, head, capacity), (head, tail, 0)):
            self._edges[start].append(len(self._head))
            self._head.append(end)
            self._left.append(room)

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
                if self._left[edge] and level[head] < 0:
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
                if self._left[edge] and level[head] == level[vertex] + 1:
                    path.append(edge)
                    vertex = head
                    break
                position[vertex] += 1
            else:
                if not path:
                    return 0
                vertex = self._head[path.pop() ^ 1]
                position[vertex] += 1
        flow = min(self._left[edge] for edge in path)
        for edge in path:
            self._left[edge] -= flow
            self._left[edge ^ 1] += flow
        return flow

    def _reaching(self, sink: int) -> set[int]:
        """Vertices from which the sink can still be reached."""
        vertices = {sink}
        stack = [sink]
        while stack:
            vertex = stack.pop()
            for edge in self._edges[vertex]:
                tail = self._head[edge]  # edge ^ 1 runs from tail to vertex
                if self._left[edge ^ 1] and tail not in vertices:
                    vertices.add(tail)
                    stack.append(tail)
        return vertices

"""The minimum cut, beside networkx."""

import networkx as nx
from hypothesis import given
from hypothesis import strategies as st

from elman.plan.frontier import ENDLESS, Network


@st.composite
def networks(draw):
    """A random network with source 0 and sink 1."""
    count = draw(st.integers(2, 9))
    vertex = st.integers(0, count - 1)
    capacity = st.one_of(st.integers(0, 7), st.just(ENDLESS))
    edges = draw(st.lists(st.tuples(vertex, vertex, capacity), max_size=30))
    merged = {}
    for tail, head, room in edges:
        if tail != head and {tail, head} != {0, 1} and (tail, head) not in merged:
            merged[tail, head] = room
    return count, merged


@given(networks())
def test_cut_is_minimal_and_nearest_the_sink(network):
    """The value is networkx's; no minimum cut has a smaller sink side."""
    count, edges = network
    theirs = nx.DiGraph()
    theirs.add_nodes_from(range(count))
    ours = Network(count)
    for (tail, head), room in edges.items():
        ours.edge(tail, head, room)
        theirs.add_edge(tail, head, capacity=room)
    side = ours.sink_side(0, 1)
    value, (_, below) = nx.minimum_cut(theirs, 0, 1)
    cut = sum(room for (tail, head), room in edges.items() if tail not in side and head in side)
    assert cut == value
    if value < ENDLESS:
        assert side <= below

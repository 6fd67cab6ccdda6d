"""Hash of a formula as written, stable across processes and versions, for files.

``passes/digest`` names the canonical step instead: equal for cells that compute the same under
other weights, but another one whenever the canonical form changes.
"""

from __future__ import annotations

import hashlib
from collections import Counter

from elman.ir.graph import Graph, Node, walk
from elman.ir.ops import DISTINCT


def fingerprint(graph: Graph, static: int = 0) -> str:
    """Hash a graph: ops, constants, shapes, order of states, names and order of weights.

    Lines, files and names of variables play no part, nor whether a value is read twice or written
    twice, unless it clips gradients (:data:`elman.ir.ops.DISTINCT`). The same formula has the same
    fingerprint in every process and on every machine.

    Args:
        graph: as written.
        static: how many of its inputs, the last ones, have one value per sequence.
    """
    names: dict[Node, str] = {}
    distinct: Counter[str] = Counter()
    for leaves in (graph.inputs, graph.states):
        names.update({leaf: f"{leaf.op} {k} {leaf.shape}" for k, leaf in enumerate(leaves)})
    for value in walk((*graph.leaves, *graph.roots)):
        if value not in names:
            args = [names[arg] for arg in value.args]
            name = _hash(f"{value.op} {value.data} {value.shape} {args}")
            if value.op in DISTINCT:
                distinct[name] += 1
                if distinct[name] > 1:
                    name = _hash(f"{name} {distinct[name]}")
            names[value] = name
    groups = (graph.inputs, graph.states, graph.weights, graph.next_states, graph.outputs)
    fields: list[object] = [[names[value] for value in group] for group in groups]
    return _hash(str([*fields, static] if static else fields))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]

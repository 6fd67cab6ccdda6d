"""Names of a cell's variables on its canonical step, for printing."""

from __future__ import annotations

from collections.abc import Sequence

from elman.ir.build import Builder
from elman.ir.graph import Graph, Node, walk
from elman.ir.pair import Step
from elman.ir.printer import source_names
from elman.ir.stand_ins import running, values_of
from elman.passes import rewritten
from elman.passes.canonical import cut
from elman.passes.draws import expected


def step_names(graph: Graph, step: Step, outputs: Sequence[str] = ()) -> dict[Node, str]:
    """Find the values of a step that the cell's own lines name.

    The canonical form is built a second time; walks over both visit equal values in one order.

    Args:
        graph: a cell's graph as written.
        step: its canonical form.
        outputs: names of its outputs, if there are several.

    Returns:
        names; the parts of a value of several gate blocks are called ``pre.0``, ``pre.1`` …
    """
    graph = rewritten(expected(graph))
    entries = [*zip(graph.outputs, outputs)]
    entries += [(v, name) for v, name in source_names(graph.walk()).items() if len(v.shape) < 2]
    build = Builder()
    again, gate_blocks = cut(graph, build)
    values = values_of(again.roots, build)
    counterparts = dict(zip(walk(running(again, values).roots), walk(step.roots), strict=True))
    single: dict[Node, str] = {}
    blocks: dict[Node, str] = {}
    for value, name in entries:
        for index, gate_block in enumerate(gate_blocks[value]):
            counterpart = counterparts.get(values.get(gate_block, gate_block))
            if counterpart is not None and len(gate_blocks[value]) == 1:
                single.setdefault(counterpart, name)
            elif counterpart is not None:
                blocks.setdefault(counterpart, f"{name}.{index}")
    return {**blocks, **single}

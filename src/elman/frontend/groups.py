"""Whether the sizes of a cell can be divided into the groups that its formula asks for."""

from __future__ import annotations

from collections.abc import Mapping

from elman.errors import ShapeError, TraceError, diagnostic
from elman.ir.graph import Graph
from elman.ir.ops import OPS
from elman.ir.types import gate_block_size, names_in


def check_names(graph: Graph) -> None:
    """Raise TraceError, at the user's line, where groups are counted by a dim that no argument of
    the formula has."""
    known = {name for leaf in graph.leaves for name in names_in(leaf.shape)}
    for value in graph.walk():
        for name in sorted(names_in(value.shape) - known):
            raise TraceError(
                diagnostic(
                    f"groups={name!r}: no argument of the cell has a dim {name}",
                    [("at", value.where)],
                    f'declare what has one number for each group: weights="a[{name}]"',
                )
            )


def check_groups(graph: Graph, sizes: Mapping[str, int], heads: int = 1) -> None:
    """Raise ShapeError, at the user's line, where a dim is not a multiple of the groups in it.

    Args:
        graph: of all heads.
        sizes: of the named dims; with heads, of one head's part.
        heads: how many there are.
    """
    of_head = f" in each of {heads} heads" if heads > 1 else ""
    for value in graph.walk():
        kind = OPS[value.op].kind
        if kind not in ("reduce", "spread"):
            continue
        whole, groups = (value, value.args[0]) if kind == "spread" else (value.args[0], value)
        if not groups.shape:
            continue
        for gate_block, count in zip(whole.shape[0], groups.shape[0], strict=True):
            size, number = gate_block_size(gate_block, sizes), gate_block_size(count, sizes)
            if not number or size % number:
                number_text = count if isinstance(count, int) else f"{count} = {number}"
                what = f"{gate_block} = {size}{of_head}"
                raise ShapeError(
                    diagnostic(
                        f"{what} is not a multiple of its {number_text} groups",
                        [("at", value.where)],
                        f"{gate_block} = {-(-size // number) * number}{of_head} is one"
                        if number
                        else "",
                    )
                )

"""Heads: which dims and weights are divided among N copies of a cell; the formula is that of one.

Dims are divided, not arguments: every weight, input or state with a divided dim is split among
heads, all others are shared.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import NamedTuple

from elman.errors import InputError, ShapeError
from elman.frontend.dims import Cuts, cut
from elman.frontend.signature import Declared
from elman.ir.graph import Graph, Node, Rate, walk
from elman.ir.ops import OPS
from elman.ir.types import Dim, GateBlock

_NO_CUTS: Cuts = MappingProxyType({})


class Division(NamedTuple):
    """Dims and matrices that heads divide.

    Attributes:
        recurrent: names of the matrices that multiply a value that depends on the state.
        blocks: names of the matrices that become block-diagonal: both of their dims are divided.
            A matrix that multiplies what is a head's own is one of them.
        dims: the dims that are divided among the heads: names and numbers.
        elementwise: whether each unit is computed from its own past alone, so that any division
            changes nothing.
    """

    recurrent: frozenset[str] = frozenset()
    blocks: frozenset[str] = frozenset()
    dims: frozenset[GateBlock] = frozenset()
    elementwise: bool = True


class Share(NamedTuple):
    """One head's share of the dims that a formula writes.

    Attributes:
        cuts: how numbers among the dims are cut before they are divided.
        heads: how many there are.
        how: what they divide.
    """

    cuts: Cuts = _NO_CUTS
    heads: int = 1
    how: Division = Division()

    def gate_block(self, gate_block: GateBlock) -> GateBlock:
        """One head's part; a name stands for the size of that part from then on."""
        if not isinstance(gate_block, int) or gate_block not in self.how.dims:
            return gate_block
        return gate_block // self.heads

    def dim(self, dim: Dim) -> Dim:
        """One head's part of a dim."""
        return tuple(self.gate_block(gate_block) for gate_block in cut(dim, self.cuts))

    def entry(self, entry: Declared) -> Declared:
        """A declared argument as one head has it."""
        return Declared(entry.name, tuple(self.dim(dim) for dim in entry.shape))


class Tracing(NamedTuple):
    """Settings of a trace.

    Attributes:
        cuts: how numbers among the dims are cut.
        share: what is traced of the dims that the formula writes.
    """

    cuts: Cuts = _NO_CUTS
    share: Share = Share()


_PLAIN = Tracing()
_tracing: ContextVar[Tracing] = ContextVar("elman_tracing", default=_PLAIN)


@contextmanager
def tracing(settings: Tracing) -> Generator[None]:
    """Context for tracing with split numbers and one head's share of divided dims."""
    token = _tracing.set(settings)
    try:
        yield
    finally:
        _tracing.reset(token)


def traced_dim(dim: Dim) -> Dim:
    """A dim written in a formula, under the current trace's settings."""
    return cut_dim(_tracing.get().share.dim(dim))


def cut_dim(dim: Dim) -> Dim:
    """A dim with its numbers split as in the current trace."""
    return cut(dim, _tracing.get().cuts)


def division(graph: Graph) -> Division:
    """Find the dims that heads divide: those of states, and of matrices that multiply a value which
    depends on a state or has a divided dim, or that have divided dims on both sides."""
    products = [value for value in graph.walk() if value.op == "matmul"]
    matrices = {
        product: {leaf for leaf in walk(product.args[:1]) if _is_matrix(leaf)}
        for product in products
    }
    recurrent: set[Node] = set()
    for product in products:
        if product.args[1].rate >= Rate.STATE:
            recurrent |= matrices[product]
    while any(leaves & recurrent and not leaves <= recurrent for leaves in matrices.values()):
        recurrent = recurrent.union(*(names for names in matrices.values() if names & recurrent))
    blocks, added = set(recurrent), set(recurrent)
    dims = {gate_block for leaf in graph.states for dim in leaf.shape for gate_block in dim}
    while True:
        dims |= {gate_block for leaf in added for dim in leaf.shape for gate_block in dim}
        added = {
            leaf
            for leaf in graph.weights
            if _is_matrix(leaf) and all(not dims.isdisjoint(dim) for dim in leaf.shape)
        }
        for product in products:
            if not dims.isdisjoint(product.args[1].shape[0]):
                added |= matrices[product]
        if added <= blocks:
            break
        blocks |= added
    return Division(
        frozenset(leaf.name for leaf in recurrent),
        frozenset(leaf.name for leaf in blocks),
        frozenset(dims),
        all(_is_elementwise(value, dims) for value in graph.walk()),
    )


def _is_matrix(leaf: Node) -> bool:
    return leaf.op == "weight" and len(leaf.shape) == 2


def _is_elementwise(value: Node, dims: set[GateBlock]) -> bool:
    """Whether a value does not depend on how units are divided among heads."""
    if value.op in ("count", "draw"):
        return bool(value.shape) and dims.issuperset(value.shape[0])
    if value.op == "matmul":
        return dims.isdisjoint(value.args[1].shape[0])
    return OPS[value.op].kind not in ("reduce", "spread", "scan")


def check_divides(name: str, heads: int, division: Division) -> None:
    """Raise ShapeError if a number among the dims to be divided cannot be."""
    for gate_block in division.dims:
        if isinstance(gate_block, int) and gate_block % heads:
            raise ShapeError(f"{name}: a dim of {gate_block} cannot be divided among {heads} heads")


def check_parts(name: str, entry: Declared, division: Division) -> None:
    """Raise ShapeError if heads divide some gate blocks of what all heads return, but not all."""
    divided = [gate_block in division.dims for dim in entry.shape for gate_block in dim]
    if any(divided) and not all(divided):
        undivided = ", ".join(
            str(gate_block) for gate_block in entry.shape[0] if gate_block not in division.dims
        )
        raise ShapeError(
            f"{name}: heads divide a part of {entry} only, and not {undivided}; "
            "return that part as an output of its own"
        )


def check_shares_nothing(name: str, weights: Sequence[Declared]) -> None:
    """Raise InputError if heads that are samples of a cell would have trained weights in common."""
    if weights:
        names = ", ".join(map(str, weights))
        raise InputError(
            f"{name} has a matrix per sample: heads would be samples, all with the same {names}",
            f'static="{names}" in the cell, as cells.m2rnn has W, and a value for each head: '
            "net(x, static=…) of [heads, …]",
        )


Pieces = list[tuple[Dim, bool]]  # of a dim: one head's part, and whether each head has another one


def pieces(dim: Dim, share: Share, cuts: Cuts) -> Pieces:
    """The gate blocks of a declared dim as one head's formula has them.

    Args:
        dim: as the cell declares it.
        share: what a head has of it.
        cuts: how the numbers of one head's formula are cut.
    """
    return [
        (cut((share.gate_block(gate_block),), cuts), gate_block in share.how.dims)
        for gate_block in cut(dim, share.cuts)
    ]


def joined(dim_pieces: Pieces, heads: int) -> Dim:
    """The dim of all heads: each divided gate block once per head."""
    return tuple(_gate_blocks(dim_pieces, heads))


def _gate_blocks(dim_pieces: Pieces, heads: int) -> Iterator[GateBlock]:
    for piece, divided in dim_pieces:
        yield from piece * heads if divided else piece


def sizes_per_head(
    sizes: dict[str, int], heads: int, divided: Collection[GateBlock]
) -> dict[str, int]:
    """Sizes of one head's part, by name; of names that are not divided the whole. Raises ShapeError
    where there is none."""
    parts = dict(sizes)
    for name in sizes:
        if name in divided:
            parts[name], rest = divmod(sizes[name], heads)
            if rest:
                raise ShapeError(f"{name}={sizes[name]} cannot be divided among {heads} heads")
    return parts

"""The only rewrites of a formula. What leaves the loop or is taped is a partition, not a
rewrite."""

from __future__ import annotations

from collections.abc import Callable

from elman.ir.graph import Graph
from elman.passes.simplify import share, simplify

PASSES: tuple[Callable[[Graph], Graph], ...] = (simplify, share)  # then canonical: Graph -> Step

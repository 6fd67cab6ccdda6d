"""The registry of step functions, by name.

Cases without a package need torch only; the others import theirs when they are built.
"""

from __future__ import annotations

from benchmarks.steps import attending, dynamics, fastrnns, gated, libraries
from benchmarks.steps.case import CALLS, Built, Case, Sizes, build, call_step, plain_loop

__all__ = [
    "CALLS",
    "CASES",
    "Built",
    "Case",
    "Sizes",
    "build",
    "call_step",
    "plain_loop",
    "torch_only",
]

CASES: dict[str, Case] = {
    case.name: case
    for module in (libraries, gated, fastrnns, dynamics, attending)
    for case in module.CASES
}


def torch_only() -> dict[str, Case]:
    """Cases that need no package but torch."""
    return {name: case for name, case in CASES.items() if case.package is None}

"""Suite ``foundation``: is training faster than torch's, and does it start at once?"""

from __future__ import annotations

from benchmarks.cases import Case, Suite


def _built_in(cell: str, T: int, B: int, H: int, ratio: float, quick: bool = False) -> Case:
    """A training step of one of torch's cells, against torch's own layer."""
    return Case(
        f"{cell} {T},{B},{H}",
        "train",
        cell,
        *(T, B, H),
        contestants=("torch", "elman", "elman-c"),
        baseline="torch",
        ratio=ratio,
        quick=quick,
    )


def _own(cell: str, T: int, B: int, H: int, ratio: float, quick: bool = False) -> Case:
    """A training step of a cell that torch does not have, against a loop over torch ops."""
    return Case(
        f"{cell} {T},{B},{H}",
        "train",
        cell,
        *(T, B, H),
        contestants=("loop", "elman", "elman-c"),
        baseline="loop",
        ratio=ratio,
        quick=quick,
    )


def _call(measure: str) -> Case:
    """What one call costs: a problem with next to no arithmetic."""
    return Case(
        f"call {measure}",
        measure,
        "gru",
        *(1, 1, 8),
        contestants=("torch", "elman", "elman-c"),
        baseline="torch",
    )


FOUNDATION = Suite(
    "foundation",
    "How fast is a training step beside torch's, and how long until the first one?",
    (
        Case("peak", "peak", quick=True),
        _built_in("gru", 1000, 1, 64, 30.0, quick=True),
        _built_in("gru", 1000, 1, 256, 7.0),
        _built_in("gru", 100, 4, 128, 6.0, quick=True),
        _built_in("gru", 100, 32, 256, 2.0),
        _built_in("gru", 50, 64, 512, 1.5),
        _built_in("lstm", 100, 4, 128, 1.0, quick=True),
        _own("lstm_layernorm", 100, 4, 128, 20.0, quick=True),
        _own("lstm_peephole", 100, 4, 128, 20.0),
        _call("forward"),
        _call("train"),
        Case("first step, cold cache", "cold", T=100, B=4, H=128, seconds=5.0, quick=True),
        Case("first step, warm cache", "warm", T=100, B=4, H=128, seconds=0.1, quick=True),
        Case("import elman", "import", seconds=0.3, quick=True),
    ),
)

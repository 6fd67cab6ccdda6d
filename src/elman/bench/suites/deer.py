"""Suite ``deer``: where does it pay to run all time steps at once, and how fast are the scans?"""

from __future__ import annotations

from elman.bench.cases import Case, Suite

_ENGINES = ("elman", "elman-c", "elman-deer", "elman-scan-backward")


def _scan(T: int, B: int, H: int, ratio: float | None = None, *, quick: bool = False) -> Case:
    """Forward and backward of ``elman.linear_scan`` over channels."""
    return Case(
        f"scan {T},{B},{H}",
        "scan",
        "mingru",
        *(T, B, H),
        contestants=("loop", "elman", "jax"),
        baseline="loop",
        ratio=ratio,
        quick=quick,
    )


def _engines(cell: str, T: int, B: int, H: int, *, quick: bool = False) -> Case:
    """A training step by the compiled loop and by all steps at once."""
    theirs = ("torch",) if cell in ("gru", "lstm", "rnn") else ()
    return Case(
        f"{cell} {T},{B},{H}",
        "train",
        cell,
        *(T, B, H),
        contestants=(*_ENGINES, *theirs),
        baseline="elman-c",
        quick=quick,
    )


DEER = Suite(
    "deer",
    "Where does it pay to run all time steps at once on this processor?",
    (
        Case("bandwidth", "bandwidth", quick=True),
        _scan(10_000, 8, 256, 10.0),
        _scan(100_000, 1, 64),
        _scan(10_000, 1, 8, quick=True),
        _engines("mingru", 10_000, 8, 256),
        _engines("mingru", 10_000, 1, 16),
        _engines("lru", 10_000, 1, 16),
        _engines("sru", 10_000, 1, 16),
        _engines("paragru", 10_000, 1, 16, quick=True),
        _engines("paralstm", 10_000, 1, 16),
        _engines("indrnn", 10_000, 1, 16),
        _engines("gru", 10_000, 1, 2),
        _engines("gru", 10_000, 1, 8),
        _engines("gru", 10_000, 16, 8),
        _engines("lstm", 10_000, 1, 4),
        _engines("rnn", 10_000, 1, 16),
    ),
    seconds=2.0,
)

"""Suite ``deer``: where does it pay to run all time steps at once, and how does it converge?"""

from __future__ import annotations

from benchmarks.cases import Case, Suite
from benchmarks.suites.deer_claims import (
    BATCH,
    CLAIMS,
    DIFFICULT,
    INITIAL,
    LENGTHS,
    MEMORY,
    OVER_LENGTHS,
    TRAINED,
    UNITS,
    cell_of_grid,
    plots,
)

MOST_S = 2.0  # of a call in the grid
_QUICK = ((1, 1000), (1, 10_000), (4, 1000), (16, 1000))  # of the grid
STUDIES = {  # name -> cell, T, H, weights
    INITIAL: ("gru", 10_000, 8, "untrained"),
    TRAINED: ("gru", 10_000, 8, "trained"),
    DIFFICULT: ("rnn", 1000, 8, "difficult"),
    "chaotic rnn": ("rnn", 1000, 8, "chaotic"),
}


def _grid(n: int, T: int) -> Case:
    """The sequential methods beside all steps at once, where time and memory allow."""
    return Case(
        cell_of_grid(n, T),
        "train",
        "gru",
        *(T, BATCH, n),
        contestants=("elman-c", "elman-deer", "torch"),
        baseline="elman-c",
        quick=(n, T) in _QUICK,
        most=MOST_S,
    )


def _memory(name: str) -> Case:
    """What a training step takes, of a name that ends with T, B and n."""
    T, B, n = map(int, name.rpartition(" ")[2].split(","))
    names = ("elman-c", "elman-deer")
    return Case(name, "memory", "gru", *(T, B, n), contestants=names, baseline="elman-c")


def _engines(
    cell: str, T: int, B: int, H: int, measure: str = "train", *, quick: bool = False
) -> Case:
    """The compiled loop and all steps at once, and other libraries that have the cell."""
    ours = ("elman", "elman-c", "elman-deer")
    ours += ("elman-scan-backward",) * (measure == "train")
    others = ("torch", "jax") if cell in ("gru", "lstm", "rnn") else ()
    return Case(
        f"{cell} {T},{B},{H}" + (", forward" if measure == "forward" else ""),
        measure,
        cell,
        *(T, B, H),
        contestants=(*ours, *others),
        baseline="elman-c",
        quick=quick,
        most=MOST_S,
    )


DEER = Suite(
    "deer",
    "Where does it pay to run all time steps at once on this processor?",
    (
        *(
            Case(name, "convergence", cell, *(T, 1, H), kind=kind, quick=name == INITIAL)
            for name, (cell, T, H, kind) in STUDIES.items()
        ),
        Case(OVER_LENGTHS, "lengths", "gru", *(1, 1, 8)),
        *(_grid(n, T) for T in LENGTHS for n in UNITS),
        *map(_memory, MEMORY),
        *(_engines("gru", 10_000, BATCH, n, "forward") for n in (1, 4, 16)),
        _engines("mingru", 10_000, 8, 256),
        _engines("mingru", 10_000, 1, 16),
        _engines("lru", 10_000, 1, 16),
        _engines("sru", 10_000, 1, 16),
        _engines("paragru", 10_000, 1, 16),
        _engines("gru", 10_000, 1, 16),
        _engines("paralstm", 10_000, 1, 16),
        _engines("indrnn", 10_000, 1, 16),
        _engines("lstm", 10_000, 1, 4),
    ),
    seconds=1.0,
    rounds=3,
    source="Parallelizing non-linear sequential models over the sequence length (Lim, Zhu, "
    "Selfridge, Kasim; ICLR 2024)",
    claims=CLAIMS,
    plots=plots,
)

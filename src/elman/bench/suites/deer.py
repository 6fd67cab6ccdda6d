"""Suite ``deer``: where does it pay to run all time steps at once, and how does it converge?"""

from __future__ import annotations

from elman.bench.cases import Case, Suite

UNITS = (1, 2, 4, 8, 16, 32, 64)
LENGTHS = (1000, 10_000, 100_000, 1_000_000)
BATCH = 16
MOST_S = 5.0  # of a call in the grid
_QUICK = ((1, 1000), (1, 10_000), (16, 1000))  # of the grid
STUDIES = {  # name -> cell, T, H, weights
    "gru at initialisation": ("gru", 10_000, 8, "untrained"),
    "gru after training": ("gru", 10_000, 8, "trained"),
    "difficult rnn": ("rnn", 1000, 8, "difficult"),
    "chaotic rnn": ("rnn", 1000, 8, "chaotic"),
}


def cell_of_grid(n: int, T: int) -> str:
    """The name of a cell of the grid."""
    return f"gru {T},{BATCH},{n}"


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
            Case(name, "convergence", cell, *(T, 1, H), kind=kind)
            for name, (cell, T, H, kind) in STUDIES.items()
        ),
        Case("gru over lengths", "lengths", "gru", *(1, 1, 8)),
        *(_grid(n, T) for T in LENGTHS for n in UNITS),
        *(_engines("gru", 10_000, BATCH, n, "forward") for n in (1, 4, 16)),
        _engines("mingru", 10_000, 8, 256),
        _engines("mingru", 10_000, 1, 16),
        _engines("lru", 10_000, 1, 16),
        _engines("sru", 10_000, 1, 16),
        _engines("paragru", 10_000, 1, 16, quick=True),
        _engines("paralstm", 10_000, 1, 16),
        _engines("indrnn", 10_000, 1, 16),
        _engines("lstm", 10_000, 1, 4),
    ),
    seconds=1.0,
    rounds=3,
)

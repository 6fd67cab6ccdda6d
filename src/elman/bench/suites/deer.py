"""Suite ``deer``: where does it pay to run all time steps at once, and how does it converge?"""

from __future__ import annotations

from elman.bench.cases import Case, Suite

_LONG = 100_000  # steps from which libraries that take 100 µs a step are not timed
# GRU, B = 16: units by steps; what is missing takes minutes a call on two cores.
GRID = {
    1000: (1, 2, 4, 8, 16, 32),
    10_000: (1, 2, 4, 8),
    100_000: (1, 2),
}
STUDIES = {  # name -> cell, T, H, weights
    "gru at initialisation": ("gru", 10_000, 8, "untrained"),
    "gru after training": ("gru", 10_000, 8, "trained"),
    "difficult rnn": ("rnn", 1000, 8, "difficult"),
    "chaotic rnn": ("rnn", 1000, 8, "chaotic"),
}


def _others(cell: str, T: int) -> tuple[str, ...]:
    """Who else runs a cell."""
    if T >= _LONG:
        return ()
    return ("torch", "jax") if cell in ("gru", "lstm", "rnn") else ()


def _engines(
    cell: str, T: int, B: int, H: int, measure: str = "train", *, quick: bool = False
) -> Case:
    """The compiled loop and all steps at once, and other libraries where they are not pruned."""
    ours = ("elman", "elman-c", "elman-deer")
    ours += ("elman-scan-backward",) * (measure == "train")
    if T >= _LONG:
        ours = ("elman-c", "elman-deer")
    return Case(
        f"{cell} {T},{B},{H}" + (", forward" if measure == "forward" else ""),
        measure,
        cell,
        *(T, B, H),
        contestants=(*ours, *_others(cell, T)),
        baseline="elman-c",
        quick=quick,
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
        *(_engines("gru", T, 16, n) for T, sizes in GRID.items() for n in sizes),
        *(_engines("gru", 10_000, 16, n, "forward") for n in (1, 4, 16)),
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
)

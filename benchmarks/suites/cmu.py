"""Suite ``cmu``: what a report of 2016 measured of one RNN's training step, measured again."""

from __future__ import annotations

from typing import Any

from benchmarks.cases import Case, Suite
from benchmarks.claims import Rows, curve
from benchmarks.suites.cmu_claims import (
    BATCHES,
    CALLS,
    CLAIMS,
    COMBINED,
    COMBINED_QUICK,
    LENGTHS,
    PARTS,
    PEERS,
    PHASES,
    PHASES_QUICK,
    each,
    per_sample,
)
from benchmarks.workloads.fitting import COMBINATIONS

_CELL = "tanh_readout"
_OTHERS = ("numpy", "compiled", "numba", "halide")


def _fit(
    name: str,
    *contestants: str,
    baseline: str = "torch",
    threads: int = 2,
    ratio: float | None = None,
    quick: bool = False,
) -> Case:
    """A training step; a name ends with T,B,H."""
    T, B, H = map(int, name.split()[-1].split(","))
    return Case(
        name,
        "fit",
        _CELL,
        *(T, B, H),
        contestants=contestants,
        baseline=baseline,
        ratio=ratio,
        threads=threads,
        quick=quick,
    )


def _peers(name: str, *others: str, quick: bool = False) -> Case:
    """Beside who else there is: torch is to be the slower one."""
    return _fit(name, "torch", "elman", *others, ratio=1.0, quick=quick)


def _plots(rows: Rows) -> list[dict[str, Any]]:
    """Time by batch, by steps, and of the combinations."""

    def line(cases: tuple[str, ...], who: str, size: str, value: Any) -> list[tuple[int, float]]:
        return [
            (rows[case]["asked"][size], value(rows, case, who))
            for case in cases
            if case in rows and who in rows[case]["seconds"]
        ]

    batch = {who: line(BATCHES, who, "B", per_sample) for who in ("torch", "elman", "numpy")}
    steps = {who: line(LENGTHS, who, "T", each) for who in ("elman", "torch", "quadratic")}
    plots = (
        curve("time per sample by batch", "samples", "s", "xy", batch),
        curve("time of a training step by its length", "time steps", "s", "xy", steps),
    )
    return [plot for plot in plots if plot["lines"]]


CMU = Suite(
    "cmu",
    "What do tiling, vectors, threads, batches and compilation gain in training an RNN?",
    (
        Case("peak", "peak", quick=True),
        _fit(COMBINED_QUICK, *COMBINATIONS, baseline="serial", quick=True),
        _fit("one sample 10,1,1000", "serial", "elman-c", baseline="serial"),
        _fit(COMBINED, *COMBINATIONS, baseline="serial"),
        *(_peers(name) for name in BATCHES if name != PEERS),
        _peers(PEERS, *_OTHERS),
        _peers("peers 10,100,256", "numpy", "halide", quick=True),
        _peers("peers 10,1000,32", *_OTHERS),
        _peers("peers 10,1000,1024", "numpy", "halide"),
        _peers("peers 10,32,4096", "numpy", "halide"),
        *(
            _fit(f"{n} threads 10,100,1000", "torch", "elman-c", threads=n, baseline="torch")
            for n in (1, 2)
        ),
        *(
            _fit(name, "torch", "elman", "quadratic", quick=name in LENGTHS[::3])
            for name in LENGTHS
        ),
        _fit(CALLS, "elman-c", "per-step", "per-run", baseline="elman-c"),
        _fit(PARTS, *("elman-c", "without specialization", "without fusion"), baseline="elman-c"),
        Case(PHASES, "phases", _CELL, 10, 1000, 1000),
        Case(PHASES_QUICK, "phases", _CELL, 10, 100, 256, quick=True),
    ),
    seconds=1.0,
    source="Han & Uboweja 2016, Parallel Training of Recurrent Neural Networks, CMU 15-418/618",
    claims=CLAIMS,
    plots=_plots,
)

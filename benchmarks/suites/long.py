"""Suite ``long``: models of long sequences, trained by every engine."""

from __future__ import annotations

from typing import Any

from benchmarks.cases import OURS, Case, Suite
from benchmarks.claims import Claim, Reasons, Rows, UnmeasuredError, Verdict, curve

LOOP = f"{OURS}-c"  # the compiled loop over time
AT_ONCE = f"{OURS}-deer"
HALF = f"{OURS}-scan-backward"  # forward sequentially, backward at once
HEADS, WHOLE = "multi-head gru, pixels", "gru, pixels"
GRU, LEM = "gru, speech", "lem, speech"
LENGTH = 17_984  # steps of EigenWorms
_ALIKE = 1e-4  # relative difference of a loss that is rounding, after a few updates


def _pixels(name: str, steps: int, heads: int, *contestants: str, quick: bool = False) -> Case:
    """Images pixel by pixel: 1024 steps of three colours."""
    return Case(
        name,
        "learning",
        "gru",
        *(1024, 8, 64),
        contestants=(LOOP, OURS, *contestants),
        baseline=LOOP,
        kind="pixels",
        quick=quick,
        layers=2,
        heads=heads,
        steps=steps,
    )


def _speech(name: str, cell: str, steps: int, *contestants: str, quick: bool = False) -> Case:
    """Who speaks, from raw samples."""
    return Case(
        name,
        "learning",
        cell,
        *(LENGTH, 4, 16),
        contestants=(LOOP, OURS, *contestants),
        baseline=LOOP,
        kind="speech",
        quick=quick,
        steps=steps,
    )


def _same(rows: Rows) -> Verdict:
    """The loss that is most off, of all studies and contestants."""
    off = {
        f"{who}, {case}": value
        for case in (case.name for case in LONG.cases)
        if case in rows
        for who, value in rows[case]["off"].items()
    }
    if not off:
        raise UnmeasuredError("no study was measured")
    worst = max(off, key=lambda name: off[name])
    return Verdict(
        off[worst] <= _ALIKE,
        f"losses within {off[worst]:.0e} ({worst})",
        facts=f"relative to engine c in float64, over the first steps of {len(off)} trainings",
    )


def _faster(case: str, there: str, than: str, asked: float) -> Claim:
    """How much faster training gets with all time steps at once."""

    def judge(rows: Rows) -> Verdict:
        ratio = rows.faster(case, AT_ONCE, than)
        ours, theirs = (rows.seconds(case, who) for who in (AT_ONCE, than))
        return Verdict(
            ratio >= asked,
            f"{ratio:.2g}x",
            facts=f"a step of {ours:.2g} s beside {theirs:.2g} s on two cores; the compiled loop "
            f"is "
            f"{rows.faster(case, LOOP, than):.0f}x, elman by itself "
            f"{rows.faster(case, OURS, than):.0f}x as fast as {than}",
        )

    says = f"training is many times faster than step by step: {case}, beside {than}"
    return Claim("EigenWorms", says, there, judge)


def _accuracy(rows: Rows, case: str) -> float:
    return rows[case]["accuracy"]


def _long(rows: Rows) -> Verdict:
    accuracy, chance = _accuracy(rows, GRU), rows[GRU]["chance"]
    seconds = rows.seconds(GRU, OURS)
    return Verdict(
        accuracy >= chance + 0.2,
        f"{accuracy:.1%}",
        facts=f"another task: six speakers from raw samples, {chance:.1%} by chance, "
        f"{rows[GRU]['asked']['steps']} steps of {seconds:.2g} s; asked for are 20 % above chance",
    )


def _lem_first(rows: Rows) -> Verdict:
    lem, gru = _accuracy(rows, LEM), _accuracy(rows, GRU)
    return Verdict(
        lem > gru,
        f"{lem:.1%} beside {gru:.1%}",
        facts="one seed, equal units and steps; 55 held-out sequences tell no 10 % apart",
    )


def _few_units(rows: Rows) -> Verdict:
    ratio = rows.time(WHOLE, AT_ONCE).over(rows.time(HEADS, AT_ONCE))
    whole, heads = rows.seconds(WHOLE, AT_ONCE), rows.seconds(HEADS, AT_ONCE)
    return Verdict(
        ratio.gains,
        f"{ratio.median:.1f}x: {heads:.2g} s a step instead of {whole:.2g} s",
        facts="64 units in 8 heads have Jacobians of 8 x 8, not of 64 x 64",
    )


def _multi_head(rows: Rows) -> Verdict:
    row, whole = rows[HEADS], _accuracy(rows, WHOLE)
    return Verdict(
        row["accuracy"] >= 0.9,
        f"{row['accuracy']:.1%}, one head {whole:.1%}",
        facts=f"5000 images and {row['asked']['steps']} steps of {row['asked']['B']}",
        reasons=Reasons(
            "heads of few units are enough for pixels",
            "the paper's model sees 50 000 images for 100 000s of steps",
        ),
    )


def _plots(rows: Rows) -> list[dict[str, Any]]:
    """Accuracy over steps of the cells side by side."""
    plots = []
    for title, cases in (("pixels", (HEADS, WHOLE)), ("speech", (GRU, LEM))):
        lines = {
            case: [(step, score) for step, _, score in rows[case]["scores"]]
            for case in cases
            if case in rows
        }
        plots.append(curve(f"accuracy, {title}", "training steps", "held out", "", lines))
    return [plot for plot in plots if plot["lines"]]


LONG = Suite(
    "long",
    "Do models of long sequences learn alike by every engine, and how long do they take?",
    (
        _pixels(HEADS, 1000, 8, HALF, AT_ONCE, "torch"),
        _pixels(WHOLE, 1000, 1, HALF, AT_ONCE, "torch"),
        _speech(GRU, "gru", 800, HALF, AT_ONCE, "torch"),
        _speech(LEM, "lem", 800, HALF, AT_ONCE, "torch", "loop"),
        _pixels("multi-head gru, few steps", 12, 4, quick=True),
        _speech("gru, few steps", "gru", 12, HALF, quick=True),
    ),
    seconds=8.0,
    source="Lim, Zhu, Selfridge & Kasim 2024, arXiv:2309.12252v3 (DEER): V100, JAX; and its talk",
    claims=(
        Claim("Abstract", "no meaningful difference in the training results", "", _same),
        _faster(GRU, "25.8x, V100, beside lax.scan", "torch", 10),
        _faster(LEM, "", "loop", 10),
        Claim("EigenWorms", f"a GRU learns series of {LENGTH:,} steps", "88.0 ± 4.4 %", _long),
        Claim("EigenWorms", "LEM learns them better", "92.3 ± 2.1 %", _lem_first),
        Claim("Multi-head GRU", "fast with few units that depend on each other", "", _few_units),
        Claim("Multi-head GRU", "sequential CIFAR-10", "90.25 %", _multi_head),
    ),
    plots=_plots,
)

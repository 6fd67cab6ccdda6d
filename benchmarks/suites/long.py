"""Suite ``long``: models of long sequences, trained by every engine."""

from __future__ import annotations

from typing import Any

from benchmarks.cases import OURS, Suite, TrainedCase
from benchmarks.claims import Claim, Claims, Reasons, Rows, UnmeasuredError, Verdict, at_least
from benchmarks.studies import LEARNING

LOOP = f"{OURS}-c"  # the compiled loop over time
AT_ONCE = f"{OURS}-deer"
HALF = f"{OURS}-scan-backward"  # forward sequentially, backward at once
HEADS, ONE_HEAD = "multi-head gru, pixels", "gru, pixels"
GRU, LEM = "gru, speech", "lem, speech"
LENGTH = 17_984  # steps of EigenWorms
_ALIKE = 1e-4  # relative difference of a loss that is rounding, after a few updates
_APART = 0.2  # two standard errors of a difference of accuracies of 55 sequences
CLAIMS = Claims()


def _case(name: str, cell: str, sizes: tuple[int, int, int], *others: str, **fields: Any) -> Any:
    contestants = (LOOP, OURS, *others)
    return TrainedCase(
        name, LEARNING, cell, *sizes, contestants=contestants, baseline=LOOP, **fields
    )


def _pixels(name: str, steps: int, heads: int, *others: str, quick: bool = False) -> TrainedCase:
    """Images pixel by pixel: 1024 steps of three colours."""
    options: dict[str, Any] = {"kind": "pixels", "layers": 2, "heads": heads, "quick": quick}
    return _case(name, "gru", (1024, 8, 64), *others, steps=steps, **options)


def _speech(name: str, cell: str, steps: int, *others: str, quick: bool = False) -> TrainedCase:
    """Speaker recognition from raw samples."""
    return _case(name, cell, (LENGTH, 4, 16), *others, kind="speech", steps=steps, quick=quick)


@CLAIMS(
    *("Abstract", "no meaningful difference in the training results"),
    holds="a sequence whose steps all agree to rounding has gradients that agree to rounding",
    fails="an iteration stopped before each step agreed to rounding, or updates amplify rounding",
)
def alike(rows: Rows):
    """The loss that is most off, of all studies and contestants."""
    cases = rows.among((case.name for case in LONG.cases), "no study was measured")
    off = {
        f"{contestant}, {case}": value
        for case in cases
        for contestant, value in rows[case]["off"].items()
    }
    worst = max(off, key=lambda name: off[name])
    facts = f"relative to engine c in float64, over the first steps of {len(off)} trainings"
    return off[worst] <= _ALIKE, f"losses within {off[worst]:.0e} ({worst})", facts


def _faster(case: str, figure: str, than: str) -> Claim:
    """The claim that training gets ten times as fast with all time steps at once."""

    def judge(rows: Rows) -> Verdict:
        ratio = rows.ratio(case, AT_ONCE, than)
        at_once_s, reference_s = (rows.seconds(case, name) for name in (AT_ONCE, than))
        loop, alone = (rows.faster(case, name, than) for name in (LOOP, OURS))
        facts = (
            f"a step of {at_once_s:.2g} s beside {reference_s:.2g} s on two cores; the compiled "
            f"loop is {loop:.0f}x, elman by itself {alone:.0f}x as fast as {than}"
        )
        reasons = Reasons(
            f"all steps are solved in a few passes; {than} dispatches operators in each step",
            f"{than} takes less time for a step than Newton's iterations take for its Jacobians",
        )
        figure = f"{ratio.median:.2g}x"
        return Verdict(ratio.reaches(10), figure, facts=facts, reasons=reasons)

    says = f"training is many times faster than step by step: {case}, beside {than}"
    return Claim("EigenWorms", says, figure, judge)


CLAIMS += [_faster(GRU, "25.8x, V100, beside lax.scan", "torch"), _faster(LEM, "", "loop")]


@CLAIMS(
    *("EigenWorms", f"a GRU learns series of {LENGTH:,} steps", "88.0 ± 4.4 %"),
    holds="an update gate that is nearly closed carries a state over thousands of steps",
    fails="too few updates for gates to close that far",
)
def learns(rows: Rows):
    accuracy, chance = rows[GRU]["accuracy"], rows[GRU]["chance"]
    seconds, steps = rows.seconds(GRU, OURS), rows[GRU]["asked"]["steps"]
    facts = (
        f"another task: six speakers from raw samples, {chance:.1%} by chance, {steps} steps of "
        f"{seconds:.2g} s; asked for are 20 % above chance"
    )
    return at_least(accuracy, chance + 0.2, _APART), f"{accuracy:.1%}", facts


@CLAIMS(
    *("EigenWorms", "LEM learns them better", "92.3 ± 2.1 %"),
    holds="LEM learns the time scale of each of its two states",
    fails="with the settings of the GRU LEM learns less",
)
def lem_first(rows: Rows):
    lem, gru = rows[LEM]["accuracy"], rows[GRU]["accuracy"]
    facts = f"one seed, equal units and steps; 55 held-out sequences tell no {_APART:.0%} apart"
    return at_least(lem, gru, _APART), f"{lem:.1%} beside {gru:.1%}", facts


@CLAIMS(
    *("Multi-head GRU", "fast with few units that depend on each other"),
    holds="a Jacobian of heads has a block per head, and its products are as much smaller",
    fails="the work beside Jacobians is the same, and takes most of the time",
)
def few_units(rows: Rows):
    one_head, heads = (rows.time(case, AT_ONCE) for case in (ONE_HEAD, HEADS))
    ratio, facts = (
        one_head.over(heads),
        "64 units in 8 heads have Jacobians of 8 x 8, not of 64 x 64",
    )
    text = f"{heads.median:.2g} s a step instead of {one_head.median:.2g} s"
    return ratio.gains, f"{ratio.median:.1f}x: {text}", facts


@CLAIMS(
    *("Multi-head GRU", "sequential CIFAR-10", "90.25 %"),
    holds="heads of few units are enough for pixels",
    fails="heads of few units are not enough for pixels",
)
def multi_head(rows: Rows):
    row, one_head = rows[HEADS], rows[ONE_HEAD]["accuracy"]
    facts = f"5000 images and {row['asked']['steps']} steps of {row['asked']['B']}"
    text = f"{row['accuracy']:.1%}, one head {one_head:.1%}"
    if row["accuracy"] < 0.9:
        raise UnmeasuredError(
            f"the paper's model sees 50 000 images for 100 000s of steps; {facts} give {text}"
        )
    return True, text, facts


LONG = Suite(
    "long",
    "Do models of long sequences learn alike on every engine, and how long do they take?",
    (
        _pixels(HEADS, 1000, 8, HALF, AT_ONCE, "torch"),
        _pixels(ONE_HEAD, 1000, 1, HALF, AT_ONCE, "torch"),
        _speech(GRU, "gru", 800, HALF, AT_ONCE, "torch"),
        _speech(LEM, "lem", 800, HALF, AT_ONCE, "torch", "loop"),
        _pixels("multi-head gru, few steps", 12, 4, quick=True),
        _speech("gru, few steps", "gru", 12, HALF, quick=True),
    ),
    seconds=8.0,
    source="Lim, Zhu, Selfridge & Kasim 2024, arXiv:2309.12252v3 (DEER): V100, JAX; and its talk",
    claims=CLAIMS,
)

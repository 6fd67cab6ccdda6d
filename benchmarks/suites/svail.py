"""Suite ``svail``: four variants of a GRU, each faster than the one before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, get_args

from benchmarks.cases import Case, Effort, Suite, Way, sized
from benchmarks.claims import (
    SAME,
    Claims,
    Rows,
    Spread,
    UnmeasuredError,
    difference,
    every,
    opposite,
    some,
)
from benchmarks.contestants import TRAIN
from benchmarks.measures.training import Field, enter_all, timed
from benchmarks.rows import study
from benchmarks.studies import CELLS, CHARACTERS
from benchmarks.sweeps import Sweep
from benchmarks.worker import PEAK
from benchmarks.workloads.custom_cells import find_cell, spec_of
from elman import compiler
from elman.plan.build import program
from elman.plan.cost import backward_work, state_bytes, tape_bytes
from elman.plan.spec import PlanOptions, Tape

T, FEW = 16, 4  # the post does not tell its own; few steps where one takes 0.1 s
LARGE = 2048
PLACES = (  # units, minibatch; further places of the post's grid take minutes a call on two cores
    *((H, 128) for H in (128, 256, 512, 1024, 2048)),
    *((512, B) for B in (64, 32, 8)),
    (1024, 64),
)
BARS = tuple(place for place in PLACES if place[1] == 128)  # of the post's second figure
# Variants 1 to 4: how it is compiled, and the cell; then what lies between them.
ORIGINAL = "elman-apart gru_before"
CONCATENATED = "elman-c gru_before"
MOVED = "elman-save gru"
CHOSEN = "elman-c gru"
UNMERGED = "elman-unmerged gru_before"
RECOMPUTED = "elman-recompute gru"
VARIANTS = (CHOSEN, MOVED, RECOMPUTED, CONCATENATED, UNMERGED, ORIGINAL)
# the first three variants as the post had them, composed of a framework's products
ORIGINAL_OPERATORS = "operators-apart gru_before"
CONCATENATED_OPERATORS = "operators-joined gru_before"
MOVED_OPERATORS = "operators-joined gru"
OPERATORS = (ORIGINAL_OPERATORS, CONCATENATED_OPERATORS, MOVED_OPERATORS)
# Relative speed at minibatch 128 on a TitanX: variants 2 to 4, read off the figure (± 0.005).
POST = {
    128: (1.155, 1.287, 1.292),
    256: (1.18, 1.292, 1.31),
    512: (1.15, 1.27, 1.335),
    1024: (1.153, 1.275, 1.395),
    2048: (1.035, 1.114, 1.195),
}
_LOSS = 0.02  # bits per character
_ADDED_UP = "what each step gains adds up"
_NO_LAUNCHES = "one compiled loop has no launches of kernels to save"
Place = tuple[int, int]
CLAIMS = Claims()


def measure_variants(case: Case, effort: Effort) -> dict[str, Any]:
    """Time training steps of several formulas interleaved.

    A contestant is a name and its cell, ``elman-c gru``; it has agreed with the float64 run of the
    first one of its own formula.

    Raises:
        VerifyError, EngineError: as :func:`measure_steps`.
    """
    joint, groups = Field(), dict[str, list[str]]()
    for contestant in case.contestants:
        name, cell = contestant.split()
        groups.setdefault(cell, []).append(name)
    for cell, names in groups.items():
        group = {"cell": cell, "contestants": tuple(names), "baseline": names[0]}
        field = enter_all(replace(case, measure=TRAIN, **group), {}, 0)
        for kind in ("present", "absent", "errors"):
            by_name = {f"{name} {cell}": value for name, value in getattr(field, kind).items()}
            getattr(joint, kind).update(by_name)
        joint.flop = max(joint.flop, field.flop)
    return timed(case, effort, joint)


def measure_tapes(case: Case, effort: Effort) -> dict[str, Any]:
    """Per cell and tape, for one step of one sample: bytes that are kept, beside the states'; FLOP
    of products and pointwise evaluations of the backward. Nothing is run."""
    del effort
    tapes = {
        f"{name} {tape}": _tape_of(name, tape, case) for name in CELLS for tape in get_args(Tape)
    }
    texts = [f"{name} {tape['bytes']} bytes" for name, tape in tapes.items()]
    return study(f"kept per step and sample: {', '.join(texts)}", kept=tapes)


def _tape_of(name: str, tape: Tape, case: Case) -> dict[str, int]:
    cell = find_cell(name)
    wants = (entry.name for entry in (*cell.inputs, *cell.weights))
    spec = spec_of(case, wants, options=PlanOptions(tape))
    compiled = program(compiler.pair_of(cell), spec)
    work = backward_work(compiled)
    memory = {"bytes": tape_bytes(compiled), "states": state_bytes(compiled)}
    return {**memory, "products": work.products, "pointwise": work.pointwise}


def case_name(place: Place) -> str:
    """The case that runs all variants at a place."""
    H, B = place
    return f"ladder {FEW if H >= LARGE else T},{B},{H}"


def _everywhere(
    rows: Rows, later: str, earlier: str, places: Iterable[Place]
) -> dict[Place, Spread]:
    """How many times as fast one variant is as another, round by round beside the baseline,
    wherever they were measured.

    Raises:
        UnmeasuredError: nowhere.
    """
    cases = {place: case_name(place) for place in places}
    rows.among(cases.values(), "none of its sizes was measured")
    return {at: rows.ratio(name, later, earlier) for at, name in cases.items() if name in rows}


def _list(ratios: dict[Place, Spread]) -> str:
    return ", ".join(f"{ratio.median:.2f} ({H}, {B})" for (H, B), ratio in ratios.items())


def _gaining(ratios: dict[Place, Spread]) -> str:
    """In how many places it is a gain."""
    gains = sum(ratio.gains is True for ratio in ratios.values())
    return f"a gain in {gains} of {len(ratios)} places"


def _in_post(step: int) -> str:
    """The published gain of one step of the ladder, by units."""
    gains = {H: bars[step] / (bars[step - 1] if step else 1.0) for H, bars in POST.items()}
    return ", ".join(f"{gain:.2f} ({H}, 128)" for H, gain in gains.items()) + ", TitanX"


@CLAIMS(
    *("2", "GRUs are accelerated by up to 40 %", "1.40 (1024, 128), TitanX"),
    holds=_ADDED_UP,
    fails=_NO_LAUNCHES,
)
def best_of_all(rows: Rows):
    ratios = _everywhere(rows, CHOSEN, ORIGINAL, PLACES)
    best = max(ratios, key=lambda place: ratios[place].median)
    good = ratios[best].reaches(POST[1024][2] * (1 - SAME))
    return good, _list({best: ratios[best]}), "the best of all sizes"


@CLAIMS(
    *("6", "all four: 20 to 40 %, minibatch 128", "1.20 to 1.40, TitanX"),
    holds=_ADDED_UP,
    fails=_NO_LAUNCHES,
)
def ladder(rows: Rows):
    ratios = _everywhere(rows, CHOSEN, ORIGINAL, BARS)
    reached = every(ratio.reaches(1.2) for ratio in ratios.values())
    return reached, _list(ratios), "the whole ladder, variant 4 beside variant 1"


@CLAIMS(
    *("5.2.2", "concatenating products gains", _in_post(0)),
    holds="an operand is loaded once for all products that read it",
    fails="single products are tiles of the same loop over rows and units, and no launches",
)
def concatenate(rows: Rows):
    ratios = _everywhere(rows, CONCATENATED, ORIGINAL, BARS)
    hoisted = _list(_everywhere(rows, UNMERGED, ORIGINAL, ratios))
    facts = f"{_gaining(ratios)}; of it by the inputs' products for all steps at once: {hoisted}"
    return every(ratio.gains for ratio in ratios.values()), _list(ratios), facts


@CLAIMS(
    *("5.2.2", "… composed of a framework's operators", _in_post(0)),
    holds="a larger product runs closer to the processor's peak, and there are fewer calls",
    fails="at minibatch 128 the product of one gate is large enough for the processor's peak",
)
def concatenate_operators(rows: Rows):
    ratios = _everywhere(rows, CONCATENATED_OPERATORS, ORIGINAL_OPERATORS, BARS)
    smaller = _everywhere(rows, CONCATENATED_OPERATORS, ORIGINAL_OPERATORS, PLACES)
    fused = _list(_everywhere(rows, CONCATENATED, CONCATENATED_OPERATORS, ratios))
    facts = f"{_gaining(ratios)}; torch's operators in a loop; elman beside these: {fused}"
    return every(ratio.gains for ratio in ratios.values()), _list(smaller), facts


@CLAIMS(
    *("5.2.3", "… moving the gate, composed of a framework's operators", _in_post(1)),
    holds="one product a step instead of two, and fewer operations on units",
    fails="products take as long joined as apart, and take most of the time",
)
def reset_operators(rows: Rows):
    ratios = _everywhere(rows, MOVED_OPERATORS, CONCATENATED_OPERATORS, BARS)
    smaller = _everywhere(rows, MOVED_OPERATORS, CONCATENATED_OPERATORS, PLACES)
    faster = every(ratio.reaches(1.05) for ratio in ratios.values())
    return faster, _list(smaller), f"{_gaining(ratios)}; judged at minibatch 128"


@CLAIMS(
    *("2, 5.2.3", "moving the reset gate gains ~10 %", _in_post(1)),
    holds="one product a step instead of two that wait for each other",
    fails="at minibatch 128 two products that wait for each other keep two cores as busy as one",
)
def reset(rows: Rows):
    ratios = _everywhere(rows, CHOSEN, CONCATENATED, BARS)
    smaller = _everywhere(rows, CHOSEN, CONCATENATED, PLACES)
    faster = every(ratio.reaches(1.05) for ratio in ratios.values())
    facts = "both with the tape that the plan chooses; judged at minibatch 128"
    return faster, _list(smaller), facts


@CLAIMS(
    *("5.2.4", "saving other activations gains", _in_post(2)),
    holds="what is kept is less, and what is recomputed is elementwise",
    fails='tape="save" recomputes no product either',
)
def activations(rows: Rows):
    ratios = _everywhere(rows, CHOSEN, MOVED, BARS)
    again = _list(_everywhere(rows, CHOSEN, RECOMPUTED, ratios))
    facts = (
        f'{_gaining(ratios)}, tape="auto" beside "save"; beside "recompute", which recomputes a '
        f"product as variant 3 does: {again}"
    )
    return every(ratio.gains for ratio in ratios.values()), _list(ratios), facts


@CLAIMS(
    *("5.2.4", "… without more memory, no product recomputed", "3 H values"),
    holds="the minimum cut keeps the recurrent product and recomputes what is elementwise",
    fails="the cut trades a product for memory, or memory for a product",
)
def memory(rows: Rows):
    row = rows["kept"]
    auto, save = row["kept"]["gru auto"], row["kept"]["gru save"]
    text = f"{auto['bytes']} bytes beside {save['bytes']} per step and sample"
    less = auto["bytes"] <= save["bytes"] and auto["products"] <= save["products"]
    return less, f"{text}, H = {row['asked']['H']}"


@CLAIMS(
    *("6", "optimized at 64 as fast as original at 128", "1.0, TitanX"),
    holds="what the ladder gains is more than what a smaller product loses",
    fails="what the ladder gains is less than what a smaller product loses",
)
def minibatch(rows: Rows):
    ratios: dict[Place, Spread] = {}
    for H in (512, 1024):
        half, full = (case_name((H, B)) for B in (64, 128))
        if half in rows and full in rows:
            ratio = rows.time(full, ORIGINAL).over(rows.time(half, CHOSEN))
            ratios[H, 64] = Spread(ratio.median / 2, ratio.q1 / 2, ratio.q3 / 2)
    if not ratios:
        raise UnmeasuredError("minibatches of 64 and 128 were not measured")
    facts = "samples per second of variant 4 at 64 beside those of variant 1 at 128"
    return opposite(some(ratio.loses for ratio in ratios.values())), _list(ratios), facts


@CLAIMS(
    *("2", "the reset gate moves without loss in accuracy"),
    holds="after the product the gate can still clear a candidate of the past",
    fails="after the product the gate cannot choose which units a candidate reads",
)
def accuracy(rows: Rows):
    bits = rows["characters"]["bits"]
    before, after = bits["gru_before"], bits["gru"]
    loss = difference(after, before)
    facts = (
        f"means over {len(after)} seeds of equal steps and two standard errors; a loss is "
        f"{_LOSS:g} bits per character or more"
    )
    return opposite(loss.exceeds(_LOSS)), f"{loss} bits per character", facts


_LADDER: dict[str, Any] = {"cell": "gru", "baseline": CHOSEN}
_VARIANTS = Way("variants", measure_variants, dense=True)
SVAIL = Suite(
    "svail",
    "What does each step of the SVAIL post's ladder of GRUs gain here?",
    (
        PEAK,
        *(
            sized(
                case_name(at), _VARIANTS, *VARIANTS, *OPERATORS, quick=at == (128, 128), **_LADDER
            )
            for at in PLACES
        ),
        Case("kept", Way("kept", measure_tapes), "gru", T, 64, 512, quick=True),
        Case("characters", CHARACTERS, "gru", 64, 16, 128),
    ),
    seconds=1.0,
    source="Engel, Optimizing RNNs with Differentiable Graphs (Baidu SVAIL, 2016): TitanX, fp32",
    claims=CLAIMS,
    sweep=Sweep(
        f"at minibatch 128, beside {ORIGINAL}",
        *("units", "times as fast", tuple(POST), (CONCATENATED, MOVED, CHOSEN)),
        lambda rows, name, H: rows.faster(case_name((H, 128)), name, ORIGINAL),
        log="x",
    ),
)

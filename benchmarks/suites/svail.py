"""Suite ``svail``: four variants of a GRU, each faster than the one before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.cases import Case, Suite
from benchmarks.claims import SAME, Claim, Reasons, Rows, Spread, UnmeasuredError, Verdict, curve

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
# Relative speed at minibatch 128 on a TitanX: variants 2 to 4, read off the figure (± 0.005).
THERE = {
    128: (1.155, 1.287, 1.292),
    256: (1.18, 1.292, 1.31),
    512: (1.15, 1.27, 1.335),
    1024: (1.153, 1.275, 1.395),
    2048: (1.035, 1.114, 1.195),
}
_ADDED_UP = "what each step gains adds up"
Place = tuple[int, int]


def case_name(place: Place) -> str:
    """The case that runs all variants at a place."""
    H, B = place
    return f"ladder {FEW if H >= LARGE else T},{B},{H}"


def _case(place: Place) -> Case:
    H, B = place
    return Case(
        case_name(place),
        "variants",
        "gru",
        *(FEW if H >= LARGE else T, B, H),
        contestants=VARIANTS,
        baseline=CHOSEN,
        quick=place == (128, 128),
    )


def _faster(rows: Rows, later: str, earlier: str, place: Place) -> Spread:
    """How many times as fast one variant is as another, round by round beside the baseline."""
    return rows.ratio(case_name(place), later, earlier)


def _everywhere(
    rows: Rows, later: str, earlier: str, places: Iterable[Place]
) -> dict[Place, Spread]:
    """How many times as fast one variant is as another, wherever they were measured.

    Raises:
        UnmeasuredError: nowhere.
    """
    found = {
        place: _faster(rows, later, earlier, place) for place in places if case_name(place) in rows
    }
    if not found:
        raise UnmeasuredError("none of its sizes was measured")
    return found


def _list(found: dict[Place, Spread]) -> str:
    return ", ".join(f"{ratio.median:.2f} ({H}, {B})" for (H, B), ratio in found.items())


def _gaining(found: dict[Place, Spread]) -> str:
    """In how many places it is a gain."""
    gains = sum(ratio.gains for ratio in found.values())
    return f"a gain in {gains} of {len(found)} places"


def _there(step: int) -> str:
    """What one step of the ladder gains in the post, by units."""
    texts = []
    for H, bars in THERE.items():
        before = bars[step - 1] if step else 1.0
        texts.append(f"{bars[step] / before:.2f} ({H}, 128)")
    return f"{', '.join(texts)}, TitanX"


def _whole(rows: Rows) -> Verdict:
    found = _everywhere(rows, CHOSEN, ORIGINAL, PLACES)
    best = max(found, key=lambda place: found[place].median)
    return Verdict(
        found[best].median >= THERE[1024][2] * (1 - SAME),
        _list({best: found[best]}),
        facts="the best of all sizes",
        reasons=Reasons(_ADDED_UP, "one compiled loop has no launches of kernels to save"),
    )


def _ladder(rows: Rows) -> Verdict:
    found = _everywhere(rows, CHOSEN, ORIGINAL, BARS)
    return Verdict(
        min(ratio.median for ratio in found.values()) >= 1.2,
        _list(found),
        facts="the whole ladder, variant 4 beside variant 1",
        reasons=Reasons(_ADDED_UP, "one compiled loop has no launches of kernels to save"),
    )


def _concatenate(rows: Rows) -> Verdict:
    found = _everywhere(rows, CONCATENATED, ORIGINAL, BARS)
    hoisted = _everywhere(rows, UNMERGED, ORIGINAL, found)
    return Verdict(
        all(ratio.gains for ratio in found.values()),
        _list(found),
        facts=f"{_gaining(found)}; of it by the inputs' products for all steps at once: "
        f"{_list(hoisted)}",
        reasons=Reasons(
            "an operand is loaded once for all products that read it",
            "single products are tiles of the same loop over rows and units, and no launches",
        ),
    )


def _reset(rows: Rows) -> Verdict:
    found = _everywhere(rows, CHOSEN, CONCATENATED, BARS)
    smaller = _everywhere(rows, CHOSEN, CONCATENATED, PLACES)
    return Verdict(
        all(ratio.gains and ratio.median >= 1.05 for ratio in found.values()),
        _list(smaller),
        facts="both with the tape that the plan chooses; judged at minibatch 128",
        reasons=Reasons(
            "one product a step instead of two that wait for each other",
            "at minibatch 128 two products that wait for each other keep two cores as busy as one",
        ),
    )


def _activations(rows: Rows) -> Verdict:
    found = _everywhere(rows, CHOSEN, MOVED, BARS)
    again = _everywhere(rows, CHOSEN, RECOMPUTED, found)
    return Verdict(
        all(ratio.gains for ratio in found.values()),
        _list(found),
        facts=f'{_gaining(found)}, tape="auto" beside "save"; beside "recompute", which '
        f"recomputes a "
        f"product as variant 3 does: {_list(again)}",
        reasons=Reasons(
            "what is kept is less, and what is recomputed is elementwise",
            'tape="save" recomputes no product either',
        ),
    )


def _memory(rows: Rows) -> Verdict:
    row = rows["kept"]
    auto, save = row["kept"]["gru auto"], row["kept"]["gru save"]
    return Verdict(
        auto["bytes"] <= save["bytes"] and auto["products"] <= save["products"],
        f"{auto['bytes']} bytes beside {save['bytes']} per step and sample, "
        f"H = {row['asked']['H']}",
        reasons=Reasons(
            "the minimum cut keeps the recurrent product and recomputes what is elementwise",
            "the cut trades a product for memory, or memory for a product",
        ),
    )


def _minibatch(rows: Rows) -> Verdict:
    found: dict[Place, Spread] = {}
    for H in (512, 1024):
        if all(case_name((H, B)) in rows for B in (64, 128)):
            half, whole = (case_name((H, B)) for B in (64, 128))
            ratio = rows.time(whole, ORIGINAL).over(rows.time(half, CHOSEN))
            found[H, 64] = Spread(ratio.median / 2, ratio.q1 / 2, ratio.q3 / 2)
    if not found:
        raise UnmeasuredError("minibatches of 64 and 128 were not measured")
    return Verdict(
        not any(ratio.loses for ratio in found.values()),
        _list(found),
        facts="samples per second of variant 4 at 64 beside those of variant 1 at 128",
        reasons=Reasons(
            "what the ladder gains is more than what a smaller product loses",
            "what the ladder gains is less than what a smaller product loses",
        ),
    )


def _accuracy(rows: Rows) -> Verdict:
    bits = rows["characters"]["bits"]
    before, after = bits["gru_before"], bits["gru"]
    off = sum(after) / len(after) - sum(before) / len(before)
    spread = max(max(values) - min(values) for values in (before, after))
    return Verdict(
        off <= spread,
        f"{off:+.3f} bits per character",
        facts=f"means over {len(after)} seeds of equal steps; seeds differ by up to {spread:.3f}",
    )


def _plots(rows: Rows) -> list[dict[str, Any]]:
    """The post's second figure, there and here; and its first one, here."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for index, (name, variant) in enumerate(
        (("concatenate", CONCATENATED), ("+ reset moved", MOVED), ("+ activations", CHOSEN))
    ):
        lines[f"{name}, TitanX"] = [(H, bars[index]) for H, bars in THERE.items()]
        lines[f"{name}, here"] = [
            (place[0], _faster(rows, variant, ORIGINAL, place).median)
            for place in BARS
            if case_name(place) in rows
        ]
    rates = {
        f"variant {number}": [
            (place[0], rows[name]["flop"] / rows.seconds(name, variant) / 1e9)
            for place in BARS
            if (name := case_name(place)) in rows
        ]
        for number, variant in ((1, ORIGINAL), (4, CHOSEN))
    }
    plots = [
        curve("Speed at minibatch 128, beside the original", "units", "times as fast", "x", lines),
        curve("Products at minibatch 128", "units", "GFLOP/s", "xy", rates),
    ]
    return [plot for plot in plots if plot["lines"]]


SVAIL = Suite(
    "svail",
    "What does each step of the SVAIL post's ladder of GRUs gain here?",
    (
        Case("peak", "peak", quick=True),
        *(_case(place) for place in PLACES),
        Case("kept", "kept", "gru", T, 64, 512, quick=True),
        Case("characters", "characters", "gru", 64, 16, 128),
    ),
    seconds=1.0,
    source="Engel, Optimizing RNNs with Differentiable Graphs (Baidu SVAIL, 2016): TitanX, fp32",
    claims=(
        Claim("2", "GRUs are accelerated by up to 40 %", "1.40 (1024, 128), TitanX", _whole),
        Claim("6", "all four: 20 to 40 %, minibatch 128", "1.20 to 1.40, TitanX", _ladder),
        Claim("5.2.2", "concatenating products gains", _there(0), _concatenate),
        Claim("2, 5.2.3", "moving the reset gate gains ~10 %", _there(1), _reset),
        Claim("5.2.4", "saving other activations gains", _there(2), _activations),
        Claim("5.2.4", "… without more memory, no product recomputed", "3 H values", _memory),
        Claim("6", "optimized at 64 as fast as original at 128", "1.0, TitanX", _minibatch),
        Claim("2", "the reset gate moves without loss in accuracy", "", _accuracy),
    ),
    plots=_plots,
)

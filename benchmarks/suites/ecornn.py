"""Suite ``ecornn``: the recurrent part of word models, each way to run it beside the others."""

from __future__ import annotations

from typing import Any

from benchmarks.cases import OURS, Case, Suite
from benchmarks.claims import Rows, curve
from benchmarks.suites.ecornn_claims import (
    AGAIN,
    CHOOSING,
    CLAIMS,
    CURVES,
    DEFAULT,
    FIRST,
    GRID,
    LAUNCHES,
    LAYOUTS,
    OPERATORS,
    PHASES,
    PTB,
    Point,
    T,
    grid_name,
    layout_name,
    share_of_best,
)
from benchmarks.workloads.language import LANGUAGES
from benchmarks.workloads.products import COLUMNS, PANELS, ROWS

_WAYS = (DEFAULT, "torch", OURS, "elman-c", "elman-aten")


def _point(point: Point) -> Case:
    """A training step of the recurrent layers, by every way."""
    layers, B, H = point
    return Case(
        grid_name(point),
        "train",
        "lstm",
        *(T, B, H),
        contestants=_WAYS,
        baseline="torch",
        ratio=1.2 if point == PTB else None,
        layers=layers,
        quick=point == PTB,
    )


def _model(cell: str) -> Case:
    """A training step of the whole model."""
    layers, B, H = PTB
    return Case(
        f"model {layers} {cell} {T},{B},{H}",
        "language",
        cell,
        *(T, B, H),
        contestants=LANGUAGES,
        baseline="torch",
        ratio=1.4,
        layers=layers,
        quick=cell == "lstm",
    )


def _product(sizes: tuple[int, int, int]) -> Case:
    """Both layouts of a product; its step is one."""
    B, I, H = sizes
    return Case(
        layout_name(sizes),
        "product",
        *("projected", 1, B, H, I),
        contestants=(ROWS, COLUMNS, PANELS),
        baseline=ROWS,
        quick=sizes == LAYOUTS[0],
    )


def _plots(rows: Rows) -> list[dict[str, Any]]:
    """Words per second by units, what the choice is of the best, and both layouts."""
    points = [point for point in GRID if grid_name(point) in rows]

    def speed(point: Point, who: str) -> float:
        return T * point[1] / rows.seconds(grid_name(point), who)

    pairs = sorted({(layers, B) for layers, B, _ in points})
    speeds = {
        f"{who}, {layers} layer{'s' * (layers > 1)}, {B}": [
            (H, speed((layers, B, H), who))
            for H in sorted({H for _, _, H in points})
            if (layers, B, H) in points
        ]
        for layers, B in pairs
        if B == 20
        for who in (DEFAULT, "torch", OURS)
    }
    best = {
        f"{layers} layer{'s' * (layers > 1)}": [
            (H * B, share_of_best(rows, (layers, B, H))[0])
            for _, B, H in sorted(
                (point for point in points if point[0] == layers), key=lambda p: p[1] * p[2]
            )
        ]
        for layers in sorted({point[0] for point in points})
    }
    layouts = [sizes for sizes in sorted(LAYOUTS) if layout_name(sizes) in rows]
    products = {
        who: [
            (B, rows[name]["flop"] / rows.seconds(name, who) / 1e9)
            for B, I, H in layouts
            if LAYOUTS[0][1:] == (I, H)
            for name in [layout_name((B, I, H))]
        ]
        for who in (ROWS, COLUMNS, PANELS)
    }
    plots = (
        curve("Training of the recurrent layers, 20 rows", "units", "words/s", "xy", speeds),
        curve("The choice beside the best of all", "units x rows", "share", "x", best),
        curve("Product with W [2048, 512]", "rows of X", "GFLOP/s", "x", products),
    )
    return [plot for plot in plots if plot["lines"]]


ECORNN = Suite(
    "ecornn",
    "Which way to run a word model's LSTM is the fastest, and does the choice find it?",
    (
        Case("peak", "peak", quick=True),
        *map(_point, GRID),
        Case(
            grid_name(PTB).replace("lstm", "gru"),
            "train",
            "gru",
            *(T, *PTB[1:]),
            contestants=_WAYS,
            baseline="torch",
            ratio=2.0,
            layers=PTB[0],
        ),
        _model("lstm"),
        _model("gru"),
        Case(
            LAUNCHES,
            "train",
            "lstm",
            *(T, 1, 1),
            contestants=(DEFAULT, "torch", OURS),
            baseline="torch",
            quick=True,
        ),
        Case(OPERATORS, "operators", "lstm", T, 64, 512, contestants=(DEFAULT, "torch", OURS)),
        Case(PHASES, "phases", "lstm", T, 64, 512),
        *map(_product, LAYOUTS),
        Case(FIRST, "cold", T=T, B=PTB[1], H=PTB[2]),
        Case(AGAIN, "warm", T=T, B=PTB[1], H=PTB[2]),
        Case(CHOOSING, "choosing", "lstm", T, *PTB[1:], quick=True),
        Case(CURVES, "perplexities", "lstm", T, *PTB[1:], layers=PTB[0]),
    ),
    seconds=1.0,
    source="Zheng, EcoRNN: Efficient Computing of LSTM RNN on GPUs (extended abstract): Titan Xp",
    claims=CLAIMS,
    plots=_plots,
)

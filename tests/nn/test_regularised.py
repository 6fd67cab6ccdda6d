"""Zoneout, recurrent dropout, dropped weights and clipped gradients as options of modules."""

from __future__ import annotations

from typing import Any

import pytest

import elman
import elman.nn
from elman import cells, compiler
from elman.errors import InputError
from elman.frontend.cell import cell
from elman.frontend.changes import ClippedGradient, RecurrentDropout


def test_clipping_holds_what_all_readers_send_back():
    """Dropped in a product, read elsewhere as it is: the sum of both cotangents is clipped once,
    at the line of the cell."""

    @cell(input="x[H]", state="h[H]", weights="R[H, H]")
    def both(x, h, R):
        return R @ h + 0.5 * h + x

    made = both.with_changes(RecurrentDropout(0.5), ClippedGradient(0.1))
    graph = compiler.graph_of(made, compiler.training_rules(made))
    clips = [value for value in graph.walk() if value.op == "clip_gradient"]
    assert [clip.where for clip in clips] == [both.where]


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"zoneout": 1.5}, "zoneout must be in"),
    ({"zoneout": {"q": 0.1}}, "has no state 'q'"),
    ({"recurrent_dropout": -0.1}, "recurrent_dropout must be in"),
    ({"recurrent_dropout": 0.1, "recurrent_dropout_per": "batch"}, "recurrent_dropout_per must be"),
    ({"weight_dropout": 2}, "weight_dropout must be in"),
    *(
        ({"clip_gradient": limit}, "clip_gradient must be a positive number")
        for limit in (0, -1.0, True, "1", float("nan"))
    ),
]


@pytest.mark.parametrize(("options", "told"), MISTAKES)
def test_mistakes(options, told):
    """One problem, and what to write."""
    for make in (lambda: elman.GRU(3, 4, **options), lambda: recurrent(cells.gru, **options)):
        with pytest.raises(InputError, match=told):
            make()


def recurrent(of: Any, **options: Any) -> Any:
    return elman.Recurrent(of, 3, 4, **options)


def test_a_cell_without_a_recurrent_product():
    """There is nothing to be dropped: told with what there is instead."""
    with pytest.raises(InputError, match=r"multiplies no state \[H\] with a weight matrix"):
        recurrent(cells.indrnn, recurrent_dropout=0.1)
    recurrent(cells.indrnn, zoneout=0.1)


@cell(input="x[I]", output="y[H]", weights="W[H, I]")
def stateless(x, W):
    """No state."""
    return W @ x


@pytest.mark.parametrize(
    "of, options, text",
    [
        (stateless, {"zoneout": 0.2}, "zoneout: stateless has no state"),
        (stateless, {"clip_gradient": 0.2}, "clip_gradient: stateless has no state"),
        (stateless, {"learn_initial": True}, "learn_initial: stateless has no state"),
        (stateless, {"weight_dropout": 0.2}, "weight_dropout: stateless multiplies no state"),
        (elman.cells.indrnn, {"weight_dropout": 0.2}, "weight_dropout: indrnn multiplies no state"),
    ],
)
def test_options_without_an_effect(of, options, text):
    """They are refused, unless another layer has a use for them."""
    with pytest.raises(InputError, match=text):
        elman.Recurrent(of, 5, 5, **options)
    elman.Recurrent([of, elman.cells.gru], 5, 5, **options)

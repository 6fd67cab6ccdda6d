"""What a report of a run says: values as a reader writes them, engines as a table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elman.cli._reporting import divide_settings, engine_rows, format_cell
from elman.train.tasks.text.config import TextConfig


@pytest.mark.parametrize(
    "value, text",
    [
        (9578036, "9,578,036"),
        (0.00046465473790322583, "0.0004647"),
        (None, "–"),
        (True, "yes"),
        ({"name": "trigram", "loss": 2.58951546, "r2": None}, "name trigram, loss 2.59"),
        ([1, 2.5], "1, 2.5"),
        ("text", "text"),
    ],
)
def test_values_of_a_table(value, text):
    assert format_cell(value) == text


def test_settings_are_divided_by_their_defaults():
    changed, usual = divide_settings(replace(TextConfig(), hidden=64))
    assert changed["hidden"] == 64
    assert "lr" in usual
    assert not changed.keys() & usual.keys()


def test_engines_are_rows_however_deep():
    record = {"engine": "c", "schedule": "batch", "isa": "avx2", "plan": "a3e5"}
    choices = {"recurrent.l0": {"float32 T<=32": record, "float32 T<=1": record | {"isa": ""}}}
    assert engine_rows(choices) == (
        ("recurrent.l0", "float32 T<=32", "c", "batch", "avx2"),
        ("recurrent.l0", "float32 T<=1", "c", "batch", ""),
    )
    assert engine_rows([choices, choices]) == 2 * engine_rows(choices)
    assert engine_rows("damaged") == ()

"""Do two models learn alike? Language models of equal steps from the same seeds: studies."""

from __future__ import annotations

import os
from collections.abc import Mapping
from statistics import mean
from typing import Any

from elman.bench.cases import OURS, Case, Effort
from elman.bench.claims import curve

CELLS = ("gru_before", "gru")  # the reset gate before and after the recurrent product
SEEDS = (0, 1, 2)
STEPS, WORD_STEPS = 300, 100
TEXT = "ELMAN_BENCH_TEXT"  # names the text that models of words learn; else Python's own sources
_VALIDATIONS = 10
_TOKENS = 32768  # predicted per validation
_WORDS = 10_000  # that are known, and predicted per validation

Curve = list[tuple[int, float]]


def measure_characters(case: Case, effort: Effort, data: str | None = None) -> dict[str, Any]:
    """Train each cell from each seed; validation loss over steps.

    Args:
        case: T characters per segment, B rows, H units.
        effort: nothing here.
        data: a text; None: the one that the trainer finds by itself.

    Raises:
        RunError: there is no text.
    """
    del effort

    def one(cell: str, seed: int) -> Curve:
        return learned({**_sizes(case), "data": data, "cell": cell, "seed": seed, "engine": "c"})

    curves = {name: [one(name, seed) for seed in SEEDS] for name in CELLS}
    bits = {name: [line[-1][1] for line in lines] for name, lines in curves.items()}
    lines = {
        f"{name}, seed {seed}": line
        for name, found in curves.items()
        for seed, line in zip(SEEDS, found, strict=True)
    }
    texts = [
        f"{name} {mean(values):.3f} ({min(values):.3f} to {max(values):.3f})"
        for name, values in bits.items()
    ]
    title = f"Validation of a character model, {case.H} units"
    return {
        "bits": bits,
        "told": f"bits per character after {STEPS} steps: {', '.join(texts)}",
        "plots": [curve(title, "training steps", "bits per character", "", lines)],
    }


def measure_perplexities(case: Case, effort: Effort, data: str | None = None) -> dict[str, Any]:
    """Train a word model on elman's layers and one on torch's from one seed; perplexity over steps.

    Args:
        case: T words per segment, B rows, H units, layers and cell.
        effort: nothing here.
        data: a text, or a folder of its parts; None: what :data:`TEXT` names.

    Raises:
        RunError: there is no text.
    """
    del effort
    given = {
        **_sizes(case),
        "level": "word",
        "steps": WORD_STEPS,
        "validation_chars": _WORDS,
        "data": data or os.environ.get(TEXT) or None,
        "vocabulary": _WORDS,
        "cell": case.cell,
        "embedding": case.H,
    }
    curves = {OURS: learned(given), "torch": learned(given, baseline=True)}
    last = {name: line[-1][1] for name, line in curves.items()}
    texts = [f"{name} {value:.2f}" for name, value in last.items()]
    title = f"Validation of a word model, {case.layers} x {case.H} units"
    return {
        "perplexities": {name: [value for _, value in line] for name, line in curves.items()},
        "told": f"perplexity after {WORD_STEPS} steps: {', '.join(texts)}",
        "plots": [curve(title, "training steps", "perplexity", "y", curves)],
    }


def _sizes(case: Case) -> dict[str, Any]:
    """Options of a run, from a case."""
    return {
        "layers": case.layers,
        "hidden": case.H,
        "batch": case.B,
        "bptt": case.T,
        "steps": STEPS,
        "validation_chars": _TOKENS,
        "accelerator": "cpu",
    }


def learned(given: Mapping[str, Any], *, baseline: bool = False) -> Curve:
    """Steps and validation loss, in the unit of the text's level, of one model.

    Args:
        given: options of the run; with its number of steps.
        baseline: on torch's recurrent layers.
    """
    # deferred: the worker of every other case should not pay for the trainer
    from elman.bench.trained import curve_of
    from elman.train.text.config import TextConfig

    config = TextConfig.of(given)
    assert config.steps is not None, "a study has a length"
    return curve_of(config, max(1, config.steps // _VALIDATIONS), baseline=baseline)

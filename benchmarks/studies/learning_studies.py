"""Do two models learn alike? Language models of equal steps from the same seeds: studies.

Of a case, T are the characters or words of a segment, B the rows. Every study takes a text: what
``data`` names, else what :data:`TEXT` names, else the one that the trainer finds by itself.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import replace
from statistics import mean, median_low
from typing import Any

from benchmarks.cases import OURS, Case, Effort, TrainedCase, Way
from benchmarks.rows import Row, curve, study

CELLS = ("gru_before", "gru")  # the reset gate before and after the recurrent product
SEEDS = (0, 1, 2)
STEPS, WORD_STEPS = 300, 100
TEXT = "ELMAN_BENCH_TEXT"
TARGET = 3.0  # bits per character: above a trigram's, far below the alphabet's
WINDOW, STEP_SIZE = 512.0, 1 / 16  # samples that momentum remembers; learning rate per sample
_MEAN = 8  # steps whose mean loss is held against the target
_VALIDATIONS = 10
_TOKENS = 32768  # predicted per validation
_FEW = 4096  # … where a model is deep
_WORDS = 10_000  # that are known, and predicted per validation

Curve = list[tuple[int, float]]


def measure_characters(case: Case, effort: Effort, data: str | None = None) -> Row:
    """Train each cell from each seed; validation loss over steps."""
    del effort
    options = {**_sizes(case, data), "engine": "c"}
    runs = {
        name: [learned({**options, "cell": name, "seed": seed}) for seed in SEEDS] for name in CELLS
    }
    bits = {name: [run[-1][1] for run in each] for name, each in runs.items()}
    lines = {
        f"{name}, seed {seed}": run
        for name, each in runs.items()
        for seed, run in zip(SEEDS, each, strict=True)
    }
    texts = [
        f"{name} {mean(values):.3f} ({min(values):.3f} to {max(values):.3f})"
        for name, values in bits.items()
    ]
    return _row(f"a character model, {case.H} units", "bits per character", STEPS, texts, lines) | {
        "bits": bits
    }


def measure_perplexities(case: Case, effort: Effort, data: str | None = None) -> Row:
    """Train a word model on elman's layers and one on torch's from one seed; perplexity over
    steps. The text may be a folder of its parts."""
    del effort
    words = {"level": "word", "validation_chars": _WORDS, "vocabulary": _WORDS}
    options = {**_sizes(case, data), **words, "cell": case.cell, "embedding": case.H}
    options["steps"] = WORD_STEPS
    lines = {OURS: learned(options), "torch": learned(options, baseline=True)}
    texts = [f"{name} {line[-1][1]:.2f}" for name, line in lines.items()]
    title = f"a word model, {case.layers} x {case.H} units"
    return _row(title, "perplexity", WORD_STEPS, texts, lines, log="y") | {
        "perplexities": {name: [value for _, value in line] for name, line in lines.items()}
    }


def measure_residual(case: TrainedCase, effort: Effort, data: str | None = None) -> Row:
    """Train a stack as it is and one with residual layers; validation loss over steps."""
    del effort
    options = {**_sizes(case, data), "cell": case.cell, "engine": "c", "steps": case.steps}
    options["validation_chars"] = _FEW
    options["embedding"] = case.H  # so that the first layer's input is as wide as the others'
    lines = {
        name: learned({**options, "residual": name == "residual"}) for name in ("plain", "residual")
    }
    bits = {name: line[-1][1] for name, line in lines.items()}
    texts = [f"{name} {value:.3f}" for name, value in bits.items()]
    title = f"a character model of {case.layers} layers"
    return _row(title, "bits per character", case.steps, texts, lines) | {"bits": bits}


def _row(
    model: str, unit: str, steps: int, texts: list[str], lines: Mapping[str, Curve], log: str = ""
) -> Row:
    """What all studies of validation over steps show."""
    plot = curve(f"Validation of {model}", "training steps", unit, log, lines)
    return study(f"{unit} after {steps} steps: {', '.join(texts)}", plots=[plot])


def measure_samples(case: TrainedCase, effort: Effort, data: str | None = None) -> Row:
    """Samples (segments of a row) that a character model reads until its training loss is at
    :data:`TARGET`, by SGD whose momentum and learning rate follow the minibatch: of each seed, None
    for one that does not come to it, and their median.

    Args:
        case: at most so many training steps.
        effort: as many seeds as starts, all of :data:`SEEDS` at most.
    """
    # deferred: the worker of every other case should not pay for the trainer
    from benchmarks.studies.trainer_models import losses_until
    from elman.train.tasks.text.config import TextConfig

    rule = {"optimizer": "sgd", "window": WINDOW, "step_size": STEP_SIZE, "schedule": "constant"}
    options = {**_sizes(case, data), **rule, "cell": case.cell, "steps": case.steps}
    config = TextConfig.of({**options, "weight_decay": 0.0, "warmup": 0.0, "engine": "c"})
    each: list[int | None] = []
    for seed in SEEDS[: effort.starts]:
        losses = losses_until(replace(config, seed=seed), TARGET, _MEAN)
        reached = len(losses) < case.steps or sum(losses[-_MEAN:]) / _MEAN <= TARGET
        each.append(len(losses) * case.B if reached else None)
    middle = median_low(math.inf if count is None else count for count in each)
    counts = ", ".join("none" if count is None else str(count) for count in each)
    return study(
        f"samples to {TARGET} bits per character: {counts} (of {case.steps * case.B} at most); "
        f"momentum {config.used_momentum:.3f}, learning rate {config.peak_lr:.3g}",
        samples=None if middle == math.inf else int(middle),
        each=each,
        rate={"momentum": config.used_momentum, "lr": config.peak_lr},
    )


def _sizes(case: Case, data: str | None) -> dict[str, Any]:
    """Options of a run, from a case and its text."""
    model = {"layers": case.layers, "hidden": case.H, "batch": case.B, "bptt": case.T}
    run = {"steps": STEPS, "validation_chars": _TOKENS, "accelerator": "cpu"}
    return {**model, **run, "data": data or os.environ.get(TEXT) or None}


def learned(options: Mapping[str, Any], *, baseline: bool = False) -> Curve:
    """Steps and validation loss, in the unit of the text's level, of one model.

    Args:
        options: of the run; with its number of steps.
        baseline: on torch's recurrent layers.

    Raises:
        RunError: there is no text.
    """
    # deferred: the worker of every other case should not pay for the trainer
    from benchmarks.studies.trainer_models import curve_of
    from elman.train.tasks.text.config import TextConfig

    config = TextConfig.of(options)
    assert config.steps is not None, "a study has a length"
    return curve_of(config, max(1, config.steps // _VALIDATIONS), baseline=baseline)


CHARACTERS = Way("characters", measure_characters)
PERPLEXITIES = Way("perplexities", measure_perplexities)
RESIDUAL, SAMPLES = Way("residual", measure_residual), Way("samples", measure_samples)

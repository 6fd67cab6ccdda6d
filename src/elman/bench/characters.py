"""Do two formulas learn alike? Character models of equal steps on several seeds: a study."""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console

from elman.bench.cases import Case, Effort
from elman.bench.claims import curve
from elman.errors import RunError

CELLS = ("gru_before", "gru")  # the reset gate before and after the recurrent product
SEEDS = (0, 1, 2)
STEPS = 300
_VALIDATIONS = 10
_CHARS = 32768  # predicted per validation


def measure_characters(case: Case, effort: Effort, data: str | None = None) -> dict[str, Any]:
    """Train each cell from each seed; validation loss over steps.

    Args:
        case: T characters per segment, B rows, H units.
        effort: nothing here.
        data: a text; None: the one that the trainer finds by itself.

    Raises:
        RunError: there is no text, or a run was interrupted.
    """
    del effort
    curves = {name: [_curve(case, name, seed, data) for seed in SEEDS] for name in CELLS}
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


def _curve(case: Case, cell: str, seed: int, data: str | None) -> list[tuple[int, float]]:
    """Steps and validation loss (bits per character) of one run."""
    # deferred: the worker of every other case should not pay for the trainer
    from elman.train.metrics import read_metrics
    from elman.train.run import start
    from elman.train.text.config import TextConfig

    config = TextConfig(
        data=data,
        cell=cell,
        layers=1,
        hidden=case.H,
        batch=case.B,
        bptt=case.T,
        seed=seed,
        steps=STEPS,
        engine="c",
        threads=case.threads,
        validate_every=STEPS // _VALIDATIONS,
        checkpoint_every=STEPS,
        validation_chars=_CHARS,
        accelerator="cpu",
    )
    with tempfile.TemporaryDirectory(prefix="elman-bench-") as folder:
        outcome = start(config, Path(folder), Console(quiet=True), comparing=False)
        rows = read_metrics(outcome.folder.metrics)
    if not outcome.complete:
        raise RunError(f"the run of {cell} was interrupted")
    return [(row.step, row.valid_loss) for row in rows if row.valid_loss is not None]

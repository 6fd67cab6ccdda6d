"""Random cells on engine c, by ``auto`` and in deterministic mode, against engine reference.

    python benchmarks/robustness/random_cells.py --seeds 0:5000

A cell is twenty formulas (``--formulas``) that have nothing in common, of two kinds: elementwise
ones on zeros of both signs, infinities, NaN and subnormal numbers; values with another derivative
than their own, of every pair of rates (smooth ones are those of tests/random_cells.py). Output,
last states and every gradient are compared; no engine may refuse or fail. A cell that does is run
again formula by formula, and what is wrong is printed with the seed and the text. Forked processes
of some cells each do the work, in the order of their seeds. Kernels are kept in ELMAN_CACHE if that
is set, else for this run.
"""

from __future__ import annotations

import math
import random
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from forking import Ended, forked
from random_formulas import Draw, Formula, cell_of
from seeds import run_seeds
from torch import Tensor

from elman import compiler
from elman.engines.base import Job, Kernel
from elman.engines.call import Call, Cotangents
from elman.ir.types import shape_size
from elman.plan.spec import Spec
from elman.tuning.choose import choose
from elman.tuning.kernels import kernel_of
from elman.tuning.rounding import unsteady
from elman.tuning.trial import Trial

CELLS, LIMIT_S = 25, 900.0  # of a process; of a cell
STEPS, BATCH = 3, 5
SIZES = (4, 8, 12, 20)  # H: groups of 2 divide all of them
AUTO = 10  # of so many cells one is run by ``auto`` as well, which times its candidates
RELATIVE = {"float64": 1e-9, "float32": 2e-4}  # of a result's largest finite element
UNSTEADY = 24  # runs of the reference with rounding errors, where a result is off by more
LOST = 30.0  # times what these are off by
SMALLER = {"float64": 2.0**-400, "float32": 2.0**-50}

SPECIAL = (0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1.0, -1.0, 0.5, -2.0, 3.25)
TINY = {"float64": (1e-310, -3e-310), "float32": (1e-40, -2e-40)}  # subnormal

Results = dict[str, Tensor]


def trial_of(formulas: list[Formula], seed: int) -> Trial:
    """Arguments for the cell of some formulas; those of each are the same whatever stands beside
    it."""
    source = random.Random(seed)
    dtype, H = source.choice(("float64", "float64", "float32")), source.choice(SIZES)
    cell = cell_of(formulas)
    dims = cell.bind(H, H)
    wants = frozenset(leaf.name for leaf in (*cell.inputs, *cell.weights))
    job = compiler.job(cell, Spec(tuple(sorted(dims.items())), dtype, wants=wants))
    special = {f"{f.number}" for f in formulas if f.special}

    def values(name: str, *shape: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed * 1000 + sum(map(ord, name)) * 7 + len(name))
        tensor = torch.randn(shape, generator=generator, dtype=torch.float64)
        if len(shape) == 2 and name[0] == "A":
            tensor *= 0.7 / shape[1] ** 0.5
        if name[1:] in special:
            pool = torch.tensor([*SPECIAL, *TINY[dtype]], dtype=torch.float64)
            odd = pool[torch.randint(len(pool), shape, generator=generator)]
            tensor = torch.where(torch.rand(shape, generator=generator) < 0.7, odd, tensor)
        return tensor.to(getattr(torch, dtype))

    inputs = (values(x.name, STEPS, BATCH, *shape_size(x.shape, dims)) for x in cell.inputs)
    states = (values(h.name, BATCH, H) for h in cell.states)
    weights = (values(w.name, *shape_size(w.shape, dims)) for w in cell.weights)
    call = Call(tuple(inputs), tuple(states), tuple(weights))
    d_output = torch.cat([values(f"dy{f.number}", STEPS, BATCH, H) for f in formulas], -1)
    d_last = tuple(values(f"d{h.name}", BATCH, H) for h in cell.states)
    return Trial(job, call, Cotangents(d_output, d_last))


@contextmanager
def deterministic() -> Iterator[None]:
    """torch's deterministic algorithms."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def by(job: Job, engine: str) -> Kernel:
    """The kernel that ``c``, ``auto`` or ``deterministic`` would run.

    Raises:
        RuntimeError: it is engine reference, for the others refused.
    """
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("always")
        if engine == "deterministic":
            with deterministic():
                choice = choose(job, STEPS, BATCH)
        else:
            choice = choose(job, STEPS, BATCH, engine)
    if choice.engine == "reference":
        raise RuntimeError("; ".join(str(warning.message) for warning in log))
    return choice.kernel


def off(result: Tensor, want: Tensor, allowed: Tensor) -> Tensor:
    """Where two results disagree: NaN or an infinity in one place or of one sign, or a number
    that is off by more than is allowed."""
    equal = (result == want) | (result.isnan() & want.isnan())
    return ~(equal | ((result - want).abs() <= allowed))


def far_off(result: Tensor, want: Tensor, relative: float) -> Tensor:
    """Where two results in float64 disagree by more than a share of their columns' largest finite
    elements (of 1 at least), and of 1000 times their own."""
    rows = want.abs().where(want.isfinite(), torch.zeros(())).reshape(-1, (*want.shape, 1)[-1])
    largest = rows.amax(0).expand_as(rows).reshape(want.shape).clamp(1.0)
    return off(result, want, relative * torch.minimum(largest, 1e3 + want.abs()))


def differences(kernel: Kernel, want: Results, trial: Trial) -> dict[str, str]:
    """Texts of wrong results, by name.

    NaN and infinities are to stand where the reference has them, but for gradients. Cotangents of a
    value are summed, those of one of weights alone over all rows, before they are multiplied with
    its derivative; the reference multiplies those of each way that leads to it. Where the
    derivative is infinite it has NaN for a cotangent of 0, the sum may be infinite. The other way
    round, a factor of a sum is that of its terms, and the sum of two that overflow to unlike
    infinities is NaN: without overflow, of cotangents that are :data:`SMALLER` times as large, both
    are finite and agree. Where the derivative itself overflows, whatever the cotangent, the
    reference has NaN too for cotangents that are as much larger.
    """
    results, relative = trial.run(kernel), RELATIVE[trial.job.spec.dtype]
    wrong: dict[str, Tensor] = {}
    overflown: set[str] = set()
    for name in results.keys() | want.keys():
        if name not in results or name not in want:
            value = results.get(name, want.get(name))
            if value is not None and bool(value.count_nonzero()):
                wrong[name] = torch.ones_like(value, dtype=torch.bool)
            continue
        a, b = results[name].double(), want[name].double()
        bad = far_off(a, b, relative)
        if name.startswith("gradient"):
            bad &= ~(b.isnan() & ~a.isfinite())
            if (bad & a.isnan() & b.isinf()).any():
                overflown.add(name)
        if bad.any():
            wrong[name] = bad
    if overflown:
        factor, reference = SMALLER[trial.job.spec.dtype], kernel_of(trial.job, "reference")
        small, large = scaled(trial, factor), scaled(trial, 1 / factor)
        a, b, most = small.run(kernel), small.run(reference), large.run(reference)
        for name in overflown:
            x, y = a[name].double(), b[name].double()
            right = x.isfinite() & y.isfinite() & ~far_off(x, y, relative)
            right |= most[name].isnan()
            wrong[name] &= ~(results[name].isnan() & want[name].isinf() & right)
    wrong = {name: bad for name, bad in wrong.items() if bad.any()}
    if wrong:
        wrong = unexplained(wrong, results, want, trial)
    return {
        name: f"{int(bad.sum())} of {bad.numel()}"
        + (
            f": {results[name][bad][0].item()}, not {want[name][bad][0].item()}"
            if name in results and name in want
            else " missing"
        )
        for name, bad in wrong.items()
    }


def scaled(trial: Trial, factor: float) -> Trial:
    """Scale a trial's cotangents, and so its gradients, by ``factor``."""
    ds = trial.cotangents
    output = None if ds.output is None else ds.output * factor
    return replace(trial, cotangents=Cotangents(output, tuple(d * factor for d in ds.last)))


def unexplained(
    wrong: dict[str, Tensor], results: Results, want: Results, trial: Trial
) -> dict[str, Tensor]:
    """What no rounding error of the reference explains: it is near no threshold, and cancels
    nothing.

    Of each element by itself: it may be off by :data:`LOST` times as much as the reference with
    rounding errors is at most, in :data:`UNSTEADY` runs; anything if these have NaN or infinities
    at other places.
    """
    spread = {name: torch.zeros(bad.shape).double() for name, bad in wrong.items()}
    for seed in range(UNSTEADY):
        noisy = trial.run(unsteady(trial.job, seed))
        for name in wrong.keys() & noisy.keys() & want.keys():
            a, b = noisy[name].double(), want[name].double()
            kind = off(a, b, torch.full_like(a, math.inf))
            distance = (a - b).abs().nan_to_num(0.0).where(~kind, torch.tensor(math.inf).double())
            spread[name] = torch.maximum(spread[name], distance)
    for name in wrong.keys() & results.keys() & want.keys():
        a, b = results[name].double(), want[name].double()
        wrong[name] &= off(a, b, LOST * spread[name]) & spread[name].isfinite()
    return {name: bad for name, bad in wrong.items() if bad.any()}


def failures(formulas: list[Formula], seed: int, engines: tuple[str, ...]) -> list[str]:
    """Texts of wrong results of the cell of some formulas, by each engine."""
    trial = trial_of(formulas, seed)
    want = trial.run(kernel_of(trial.job, "reference"))
    texts: list[str] = []
    for engine in engines:
        try:
            wrong = differences(by(trial.job, engine), want, trial)
        except Exception as error:  # whatever it is, it is a failure
            texts.append(f"{engine}: {type(error).__name__}: {error}")
            continue
        texts += [f"{engine}: {name}: {text}" for name, text in wrong.items()]
    return texts


def checked(seed: int, count: int) -> list[dict[str, Any]]:
    """The failures of one cell of so many formulas: each one that fails alone, else the cell."""
    draw = Draw(seed)
    formulas = [draw.formula(number) for number in range(count)]
    engines = ("c", "deterministic", *(["auto"] if seed % AUTO == 0 else []))
    texts = failures(formulas, seed, engines)
    if not texts:
        return []
    rows: list[dict[str, Any]] = []
    for formula in formulas:
        alone = failures([formula], seed, engines)
        if alone:
            rows.append({"seed": seed, "formula": formula.text, "wrong": alone})
    return rows or [{"seed": seed, "formula": "all together", "wrong": texts}]


def campaign(seeds: Sequence[int], formulas: int) -> int:
    """The cells of some seeds, in processes of some each; how many failures there are."""
    failed, start = 0, time.perf_counter()
    do = partial(checked, count=formulas)
    cells = forked(seeds, do, batch=CELLS, limit_s=lambda seed: LIMIT_S)
    for count, (seed, rows) in enumerate(cells, 1):
        if isinstance(rows, Ended):
            rows = [{"seed": seed, "formula": "the process", "wrong": [str(rows)]}]
        for row in rows:
            print(f"seed {seed}: {row['formula']}", *row["wrong"], sep="\n    ")
        failed += len(rows)
        if count % CELLS == 0:
            hourly = count * formulas / (time.perf_counter() - start) * 3600
            progress = f"{count * formulas} formulas, {failed} failed, {hourly:.0f} an hour"
            print(f"seeds to {seed}: {progress}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(run_seeds(__doc__, "formulas", campaign, each="formulas", formulas=20))

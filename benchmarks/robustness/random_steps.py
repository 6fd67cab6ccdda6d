"""Random steps in torch's own operations by elman.scan, against their plain loops in float64.

    python benchmarks/robustness/random_steps.py --seeds 0:1000

A seed draws a step (tests/random_steps.py), how many samples and steps it runs over, and whether
backwards. Outputs, last carry and every gradient of elman.scan on engine c, in float64 and float32,
are compared with those of the plain loop and torch's autograd in float64; every fourth step also
runs as a module by elman.Loop. A step that elman refuses to read (StepError) is no failure: a table
of the operations that its texts name ends the run. Forked processes of some steps each do the work.
Kernels are kept in ELMAN_CACHE if that is set, else for this run. ELMAN_STEPS_ENGINE names another
engine than c; --verbose 1 prints the texts of refusals, too.
"""

from __future__ import annotations

import os
import random
import re
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from forking import Ended, forked
from seeds import run_seeds
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

import elman
from elman.errors import EngineError, StepError
from random_steps import AsModule, DrawnStep, random_step
from step_runs import Found, differences, found_by, plain_scan

STEPS, LIMIT_S = 20, 600.0  # of a process; of a step
DTYPES = (torch.float64, torch.float32)
TOO_LARGE = "it has thousands of operations"  # words of engine c's refusal


class Outcome(NamedTuple):
    """What became of a seed.

    Attributes:
        kind: agreed, refused, wrong or crashed.
        operation: that a refusal names.
        text: what went wrong or was refused, and the step.
    """

    kind: str
    operation: str = ""
    text: str = ""


def engine() -> str:
    """Of the runs that are checked."""
    return os.environ.get("ELMAN_STEPS_ENGINE", "c")


def scanned(step: Any, init: Any, xs: Any, *, reverse: bool = False) -> tuple[Any, Any]:
    """elman.scan on the engine."""
    return elman.scan(step, init, xs, reverse=reverse, engine=engine())


def looped(module: Any, init: Any, xs: Any, *, reverse: bool = False) -> tuple[Any, Any]:
    """elman.Loop on the engine, over a module ``module(carry, x)``."""
    loop = elman.Loop(module, carry_first=True, reverse=reverse, engine=engine())
    ys, carry = loop(xs, init)
    return carry, ys


def found(
    drawn: DrawnStep, dtype: torch.dtype, scan: Any, sizes: tuple[int, int], **how: Any
) -> Found:
    """What a way to run the step gives."""
    built = drawn.build(dtype)
    step: Any = AsModule(built) if scan is looped else built.step
    T, B = sizes
    return found_by(scan, step, built.init(B), built.xs(T, B), built.parameters, **how)


def frozen_got_none(drawn: DrawnStep, of: Found) -> list[str]:
    """Texts of weights that are not trained, and have a gradient nevertheless."""
    parameters: list[Tensor] = [*drawn.build().parameters]
    frozen = [f"d_parameter[{i}]" for i, p in enumerate(parameters) if not p.requires_grad]
    return [f"{name} is of a frozen weight" for name in frozen if of[name] is not None]


def mistakes(drawn: DrawnStep, draw: random.Random, seed: int) -> list[str]:
    """Texts of what differs from the plain loop."""
    sizes = draw.choice([1, 2, 5, 8, 11]), draw.choice([1, 2, 3, 4])
    reverse = draw.random() < 0.25
    try:
        want = found(drawn, torch.float64, plain_scan, sizes, reverse=reverse)
    except ValueError:  # torch's group_norm takes no single sample with groups of one number
        sizes = sizes[0], 2
        want = found(drawn, torch.float64, plain_scan, sizes, reverse=reverse)
    ways = [scanned, looped] if seed % 4 == 0 else [scanned]
    texts = []
    for dtype in DTYPES:
        near = None
        if dtype != torch.float64:
            near = found(drawn, dtype, plain_scan, sizes, reverse=reverse)
        for way in ways:
            got = found(drawn, dtype, way, sizes, reverse=reverse)
            off = differences(got, want, drawn.close(dtype), near) + frozen_got_none(drawn, got)
            run = f"{way.__name__}, {dtype}, T={sizes[0]} B={sizes[1]} reverse={reverse}"
            texts += [f"{run}: {each}" for each in off]
    return texts


def operation_of(error: StepError) -> str:
    """The operation that a refusal names: what is in quotes or like torch.something first, else how
    the text begins."""
    first = str(error).partition("\n")[0]
    named = re.search(r"(?:torch|aten|F|Tensor)\.[\w.]+|`[^`]+`|'[^']+'|\b\w+\(\)", first)
    return named[0] if named else first[:60]


def checked(seed: int) -> Outcome:
    """What becomes of the step of a seed."""
    draw = random.Random(seed)
    drawn = random_step(draw.choice)
    try:
        texts = mistakes(drawn, draw, seed)
    except StepError as error:
        return Outcome("refused", operation_of(error), f"{error}\n{drawn}")
    except Exception as error:  # whatever it is, it is a failure, but for the engine's refusal
        if isinstance(error, EngineError) and TOO_LARGE in str(error):
            return Outcome("refused", TOO_LARGE, f"{error}\n{drawn}")
        where = traceback.format_exc(limit=-3)
        return Outcome("crashed", text=f"{type(error).__name__}: {error}\n{where}\n{drawn}")
    return Outcome("wrong", text="\n".join([*texts, repr(drawn)])) if texts else Outcome("agreed")


def campaign(seeds: Sequence[int], workers: int, verbose: int) -> int:
    """The steps of some seeds, in processes of some each; how many failed."""
    kinds, refused, start = Counter[str](), Counter[str](), time.perf_counter()
    rows: Iterator[tuple[int, Any]] = forked(
        seeds, checked, batch=STEPS, workers=workers, limit_s=lambda seed: LIMIT_S
    )
    for count, (seed, outcome) in enumerate(rows, 1):
        if isinstance(outcome, Ended):
            text = f"the process {outcome}\n{random_step(random.Random(seed).choice)}"
            outcome = Outcome("crashed", text=text)
        kinds[outcome.kind] += 1
        if outcome.kind == "refused":
            refused[outcome.operation] += 1
        if outcome.kind in ("wrong", "crashed") or (verbose and outcome.text):
            text = outcome.text.replace("\n", "\n    ")
            print(f"seed {seed}: {outcome.kind}\n    {text}", flush=True)
        if count % (5 * STEPS) == 0:
            hourly = count / (time.perf_counter() - start) * 3600
            print(f"{count} steps, {dict(kinds)}, {hourly:.0f} an hour", flush=True)
    print(", ".join(f"{kind} {kinds[kind]}" for kind in ("agreed", "refused", "wrong", "crashed")))
    for operation, times in refused.most_common():
        print(f"{times:6d}  {operation}")
    return kinds["wrong"] + kinds["crashed"]


if __name__ == "__main__":
    sys.exit(run_seeds(__doc__, "steps", campaign, workers=1, verbose=0))

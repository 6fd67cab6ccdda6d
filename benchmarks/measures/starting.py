"""Start-up times: the import, and the first training step of a cell that was never compiled."""

from __future__ import annotations

import json
import random
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.cases import OURS, Case, Effort, Way
from benchmarks.programs import Program, program, run_program
from benchmarks.workloads.custom_cells import find_cell, spec_of
from elman import compiler
from elman.tuning.choose import choose
from elman.tuning.timing import quartiles

LIMIT_S = 120.0  # of one fresh process
_IMPORTS = """\
import time
start = time.perf_counter()
import torch
between = time.perf_counter()
import elman
end = time.perf_counter()
import json
try:  # this process ran, and waited for a core, so long
    ran, waited = map(int, open("/proc/self/schedstat").read().split()[:2])
except OSError:
    ran, waited = 1, 0
share = waited / (ran + waited)
print(json.dumps({"torch": between - start, "elman": end - between, "waited": share}))
"""
_TEXT = '''\
from elman import cell
from elman.ops import {f}, {g}, sigmoid, split


@cell(input="x[I]", state="h[H], c[H]", weights="W[3H, I], R[3H, H], b[3H], p[H]")
def unseen(x, h, c, W, R, b, p):
    """A cell drawn at random."""
    u, v, w = split(W @ x + R @ h + b, 3)
    u = sigmoid({k[0]} * u + p * c)
    c = u * c + (1 - u) * {f}({k[1]} * v)
    return sigmoid({k[2]} * w) * {g}(c), c
'''
_CURVES = ("cos", "erf", "relu", "silu", "sin", "softplus", "tanh")


def unseen_cell(source: random.Random) -> str:
    """Python text of a cell called ``unseen``; two draws never give the same kernel."""
    f, g = source.sample(_CURVES, 2)
    return _TEXT.format(f=f, g=g, k=[f"{source.uniform(0.5, 1.5):.9f}" for _ in range(3)])


def measure_import(case: Case, effort: Effort) -> dict[str, Any]:
    """The time of ``import elman`` beyond that of ``import torch``, in fresh processes."""
    del case
    imports = Program(("-c", _IMPORTS))
    run_program(imports, LIMIT_S)  # the files are in memory from now on
    times = [json.loads(run_program(imports, LIMIT_S)) for _ in range(effort.starts)]
    seconds = {name: quartiles([process[name] for process in times]) for name in ("torch", OURS)}
    return {
        "seconds": {name: asdict(spread) for name, spread in seconds.items()},
        "waited": max(process["waited"] for process in times),
    }


def measure_cold(case: Case, effort: Effort) -> dict[str, Any]:
    """The first training step of an unseen cell with an empty cache: compile, choose, run."""
    return _summary([_starts(case, 1)[0] for _ in range(effort.starts)])


def measure_warm(case: Case, effort: Effort) -> dict[str, Any]:
    """The first training step in a fresh process, once another process has compiled and chosen."""
    return _summary(_starts(case, 1 + effort.starts)[1:])


def measure_choosing(case: Case, effort: Effort) -> dict[str, Any]:
    """Choosing among the candidates for a training step, whose kernels are compiled and verified:
    all of it, the random data that they are called on included.

    Raises:
        EngineError: no engine but the reference can run the case.
    """
    cell = find_cell(case.cell)
    job = compiler.job(cell, spec_of(case, cell.differentiated))
    choose(job, case.T, case.B)
    times: list[float] = []
    for _ in range(effort.rounds):
        start = time.perf_counter()
        choice = choose(job, case.T, case.B, again=True)
        times.append(time.perf_counter() - start)
    return {
        "seconds": {OURS: asdict(quartiles(times))},
        "facts": {OURS: {"engine": choice.engine, "schedule": choice.schedule}},
    }


def _starts(case: Case, count: int) -> list[dict[str, Any]]:
    """First steps of one unseen cell in processes that share a cache, empty at first."""
    with tempfile.TemporaryDirectory(prefix="elman-bench-") as folder_name:
        folder = Path(folder_name)
        (folder / "cache").mkdir(mode=0o700)
        path = folder / "unseen.py"
        path.write_text(unseen_cell(random.SystemRandom()), encoding="utf-8")
        words = [str(path), *map(str, (case.T, case.B, case.H, case.threads))]
        settings = {"cache": folder / "cache", "threads": case.threads}
        first = program("measures.first_step", *words, **settings)
        return [json.loads(run_program(first, LIMIT_S)) for _ in range(count)]


def _summary(starts: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "seconds": {OURS: asdict(quartiles([start["seconds"] for start in starts]))},
        "facts": {OURS: starts[-1]["facts"]},
        "wants": ["x", "all weights"],
        "dy": "dense",
        "waited": max(start["waited"] for start in starts),
    }


COLD, WARM = Way("cold", measure_cold), Way("warm", measure_warm)
CHOOSING, IMPORT = Way("choosing", measure_choosing), Way("import", measure_import)

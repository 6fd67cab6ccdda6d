"""Peak memory of a training step, in a process of its own: beside torch's, and as forecast.

``python -m benchmarks.measures.memory`` reads a case, a contestant and what it chose, and prints
what it took. What is counted are resident pages, by the system (VmRSS, and VmHWM, which is reset
before the step), but for pages of files: whatever torch, kernels or threads allocate is in it. So
that pages are those of tensors that are alive, glibc is told to give back at once what is freed
from 64 KiB on, and before the step all that is free, and the system to use no large pages. What is
left is noise of small allocations and of first uses, up to a MiB.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

import elman.nn
from benchmarks.cases import OURS, Case, Effort, Way, packed, unpacked
from benchmarks.contestants import draw_layer, enter_layer, module_of
from benchmarks.measures.training import measure_steps
from benchmarks.problem import Contestant, Problem, draw_problem
from benchmarks.programs import program, run_program
from benchmarks.workloads.decoding import decoded, draw_decoder, few_rows
from elman.engines.c.process.memory import release
from elman.errors import EngineError
from elman.nn.inspect import explain

LIMIT_S = 300.0  # of one contestant
_MMAP_THRESHOLD, _PER_CALL = -3, 1 << 16  # glibc's mallopt
_THP_DISABLE = 41  # Linux's prctl
_WARM_UP = 8  # steps
_C = ctypes.CDLL(None)
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def measure_memory(case: Case, effort: Effort) -> dict[str, Any]:
    """Bytes of a training step of each contestant; times and agreement as of any case.

    Raises:
        VerifyError, EngineError: as :func:`measure_steps`.
        ProcessError: a contestant failed.
        EngineError: the system does not count peaks.
    """
    if not _CLEAR.exists():
        raise EngineError("only Linux counts the peak of resident memory anew")
    row = measure_steps(case, effort)
    memory: dict[str, Any] = {}
    for name in row["seconds"]:
        text = packed(case, name, row["facts"].get(name, {}))
        child = program("measures.memory", threads=case.threads, text=text)
        memory[name] = json.loads(run_program(child, LIMIT_S))
    return {**row, "memory": memory}


def resident() -> tuple[int, int]:
    """Bytes of this process in memory now, and the most since that was last forgotten; without
    pages of files, as code, which the system takes and brings back as it likes."""
    lines = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
    names = ("VmRSS", "VmHWM", "RssFile")
    now, most, files = (int(lines[name].split()[0]) * 1024 for name in names)
    return now - files, most - files


def take_peak(problem: Problem, module: nn.Module, engine: str) -> dict[str, int]:
    """Bytes of a training step beside weights, x, dy and the process itself.

    The first step of its size in the process, so that no kernel has memory of an earlier one; a few
    steps were run before, so that all code is there.

    Args:
        problem: of which shape.
        module: what runs it.
        engine: which one has to run the few steps before.

    Returns:
        ``held``: between forward and backward; ``peak``: the most; ``weights``: of the parameters.
    """
    x, leaves = problem.x.clone().requires_grad_(), list(module.parameters())
    short = x[:_WARM_UP].detach().requires_grad_()
    with elman.nn.using(engine=engine):
        torch.autograd.grad(module(short)[0], [short, *leaves], problem.dy[: short.shape[0]])
    del short
    before = _reset_peak()
    output, last = module(x)
    between, _ = resident()
    gradients = torch.autograd.grad(output, [x, *leaves], problem.dy)
    _, most = resident()
    del output, last, gradients
    weights = sum(weight.numel() * weight.itemsize for weight in leaves)
    return {"held": between - before, "peak": most - before, "weights": weights}


def _reset_peak() -> int:
    """Bytes in memory, now that all that is free was given back, what engine c keeps for further
    results included; the most since begins anew."""
    gc.collect()
    release()
    if hasattr(_C, "malloc_trim"):
        _C.malloc_trim(0)
    now, _ = resident()
    _CLEAR.write_text("5")  # VmHWM begins anew
    return now


def take_step(contestant: Contestant, before: Contestant) -> dict[str, int | None]:
    """What the first step of a contestant takes beside gradients, its arguments and the process
    itself (bytes), after one of ``before``."""
    before.run()
    before_bytes = _reset_peak()
    _, gradients = contestant.run()
    _, most = resident()
    gradient_bytes = sum(gradient.numel() * gradient.itemsize for gradient in gradients)
    return {"peak": most - before_bytes - gradient_bytes, "forecast": None}


def main() -> None:
    """Read, measure, print."""
    case, name, choices = unpacked(sys.stdin.read())
    torch.set_num_threads(case.threads)
    if hasattr(_C, "mallopt"):
        _C.mallopt(_MMAP_THRESHOLD, _PER_CALL)
    _C.prctl(_THP_DISABLE, 1, 0, 0, 0)
    problem = draw_problem(case)
    memory = (_of_decoder if case.measure.draw is draw_decoder else _of_layer)(
        name, problem, choices
    )
    sys.stdout.write(json.dumps(memory) + "\n")


def _of_decoder(name: str, problem: Problem, choices: Any) -> dict[str, int | None]:
    contestant, part = (decoded(name, size) for size in (problem, few_rows(problem)))
    if isinstance(contestant, str) or isinstance(part, str):
        raise EngineError(f"{name} is absent: {contestant}")
    return take_step(contestant, part)


def _of_layer(name: str, problem: Problem, choices: Any) -> dict[str, int | None]:
    module = module_of(name, problem)
    if isinstance(module, str):
        raise EngineError(module)
    engine = "auto"
    for records in choices.values():
        engine = next(iter(records.values()))["engine"]
    if complaints := elman.nn.pin(module, choices) if choices else []:
        raise EngineError("; ".join(complaints))
    expected = None
    if name.startswith(OURS):
        expected = explain(module, problem.x.clone().requires_grad_()).step_bytes
    return {**take_peak(problem, module, engine), "forecast": expected}


MEMORY = Way("memory", measure_memory, draw_layer, enter_layer, dense=True)
DECODER = Way("decoder", measure_memory, draw_decoder, decoded)


if __name__ == "__main__":
    main()

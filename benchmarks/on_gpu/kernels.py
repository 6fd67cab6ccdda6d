"""Kernels of a cell on a GPU, schedule by schedule, beside torch's layer or a loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from benchmarks.on_gpu.cases import Case
from benchmarks.on_gpu.timers import Clock, host_time
from elman import cells, compiler
from elman.engines.call import Call
from elman.errors import ElmanError
from elman.ir.types import shape_size
from elman.nn.modules.formulas import FORMULAS
from elman.plan.spec import Spec
from elman.tuning.agreement import disagreement
from elman.tuning.kernels import candidates, kernel_of
from elman.tuning.trial import make_trial

REASON = 2000  # characters of a reason in a row at most
LONG = 4096  # steps beyond which they are not launched one by one
COMPILED = {  # compiling a step takes up to a minute
    "cell lstm_layernorm 256,16,128 bf16",
    "cell lem 256,16,512 bf16",
    "deer paragru 2048,8,256 fp32",
}


def job_of(case: Case, device: str) -> Any:
    """Job of a case: torch's formula for torch's cells, else a cell of the library."""
    modes = {"gru": "GRU", "lstm": "LSTM", "rnn": "RNN_TANH", "relu": "RNN_RELU"}
    torchs = case.cell in modes and case.kind != "cell"
    cell = FORMULAS[modes[case.cell], True] if torchs else getattr(cells, case.cell)
    cell = cell.with_heads(case.heads)
    dims = tuple(sorted(cell.bind(case.H, case.H).items()))
    wants = frozenset(leaf.name for leaf in (*cell.inputs, *cell.weights))
    return compiler.job(cell, Spec(dims, case.dtype, device, wants))


def kernels(case: Case, job: Any, engine: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Kernels of an engine by schedule; and why others are none."""
    able, refused = candidates(job, (engine,), case.T, case.B)
    if case.T > LONG and len(able) > 1:
        able = [pair for pair in able if pair[1] != "steps"]
    return {schedule: kernel_of(job, engine, schedule) for _, schedule in able}, refused


def runs(trial: Any, kernel: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A forward, and a forward and backward."""
    forward = lambda: kernel.forward(trial.call)  # noqa: E731
    return forward, lambda: kernel.backward(trial.call, forward().saved, trial.cotangents, False)


def own_times(case: Case, device: str, clock: Clock, engine: str = "triton") -> dict[str, Any]:
    """Time every schedule of an engine that agrees with the reference in float64."""
    job = job_of(case, device)
    compiled, refused = kernels(case, job, engine)
    steps = 64 if engine == "deer" else 8  # of several blocks, where all are solved at once
    short = make_trial(job, min(case.T, steps), min(case.B, 20))
    want = short.double().run(kernel_of(job, "reference"))
    trial = make_trial(job, case.T, case.B)
    row: dict[str, Any] = {"schedules": {}, "refused": refused}
    for schedule, kernel in compiled.items():
        try:
            off = disagreement(short.run(kernel), want, case.dtype, case.T)
            if off is not None:
                row["refused"][schedule] = f"wrong: {off}"
                continue
            forward, train = runs(trial, kernel)
            row["schedules"][schedule] = clock(forward), clock(train)
        except (ElmanError, RuntimeError) as error:
            if "CUDA error" in str(error):  # no later call of this process would be right
                raise RuntimeError(f"CUDA error in schedule {schedule}: {error}") from error
            row["refused"][schedule] = str(error)[:REASON]
    if row["schedules"]:
        best = min(row["schedules"], key=lambda name: row["schedules"][name][1])
        row["best"] = best
        row["elman"] = row["schedules"][best]
        row["host"] = [host_time(run, device) for run in runs(trial, compiled[best])]
    return row


def torch_times(case: Case, device: str, clock: Clock) -> dict[str, Any]:
    """torch.nn's layer in the same dtype."""
    name, options = (
        ("RNN", {"nonlinearity": "relu"}) if case.cell == "relu" else (case.cell.upper(), {})
    )
    dtype = getattr(torch, case.dtype)
    module = getattr(torch.nn, name)(case.H, case.H, **options).to(device, dtype)
    x = torch.randn(case.T, case.B, case.H, device=device, dtype=dtype, requires_grad=True)
    dy = torch.randn(case.T, case.B, case.H, device=device, dtype=dtype)
    leaves = [x, *module.parameters()]
    train = lambda: torch.autograd.grad(module(x)[0], leaves, dy)  # noqa: E731
    return {"torch": (clock(lambda: module(x)), clock(train))}


def loop_times(case: Case, device: str, clock: Clock) -> dict[str, Any]:
    """A product per step and what follows it, forward: what a persistent kernel replaces."""
    dtype = getattr(torch, case.dtype)
    R = torch.randn(case.H, case.H, device=device, dtype=dtype) / case.H**0.5
    x = torch.randn(case.T, case.B, case.H, device=device, dtype=dtype)

    def run() -> Any:
        h = x.new_zeros(case.B, case.H)
        for row in x:
            h = torch.addmm(row, h, R.t()).relu_()
        return h

    return {"product per step": (clock(run), None)}


def in_python(case: Case, device: str, clock: Clock, compiled: bool) -> tuple[float, float]:
    """A loop over the steps of a cell in torch ops, or over a step that torch.compile made."""
    job = job_of(case, device)
    kernel = kernel_of(job, "reference")
    trial = make_trial(job, case.T, case.B)
    inputs, states, weights, *_ = trial.call
    weights = tuple(w.requires_grad_() for w in weights)

    def step(x: Any, *states: Any) -> Any:
        output, last, _ = kernel.forward(Call((x.unsqueeze(0),), states, weights))
        return output[0], last

    call = torch.compile(step) if compiled else step

    def forward() -> Any:
        now, outputs = states, []
        for x in inputs[0]:
            out, now = call(x, *now)
            outputs.append(out)
        return torch.stack(outputs)

    def train() -> Any:
        return torch.autograd.grad(forward(), weights, trial.cotangents.output)

    return clock(forward), clock(train)


def work_of(case: Case, device: str) -> dict[str, float]:
    """Least work of a forward and a backward: products (FLOP), arrays moved (bytes)."""
    job = job_of(case, device)
    sizes = job.spec.sizes
    shapes = [shape_size(weight.shape, sizes) for weight in job.graph.weights]
    weights = sum(shape[0] * shape[1] for shape in shapes if len(shape) == 2)
    rows = case.T * case.B
    item = getattr(torch, case.dtype).itemsize
    return {"flop": 6.0 * rows * weights, "bytes": 6.0 * rows * case.H * item}


@contextmanager
def products_of(case: Case) -> Iterator[None]:
    """float32 as it is in cases of kind exact, else rounded to tf32, torch's default for layers."""
    layers: Any = torch.backends.cudnn.rnn
    before, layers.fp32_precision = layers.fp32_precision, "tf32"
    if case.kind == "exact":
        layers.fp32_precision = "ieee"
    try:
        yield
    finally:
        layers.fp32_precision = before


def kernel_times(case: Case, device: str, clock: Clock) -> dict[str, Any]:
    """Every schedule of a cell's kernels, beside torch's layer or a loop."""
    row = work_of(case, device) | own_times(case, device, clock)
    if case.kind == "deer":
        row = row | {"in turn": row.get("elman")} | own_times(case, device, clock, "deer")
    if case.kind == "cell" or case.cell.startswith("para"):
        row["python loop"] = in_python(case, device, clock, False)
        if device == "cuda" and case.name in COMPILED:
            row["compiled loop"] = in_python(case, device, clock, True)
        return row
    row |= torch_times(case, device, clock)
    if case.kind == "persistent":
        row |= loop_times(case, device, clock)
    return row

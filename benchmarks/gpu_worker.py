"""Program: the worker of ``gpu.py``; with --warm it only compiles what cases need.

Each line of its input is a case, each line of its output a row.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

import torch  # noqa: E402
from torch.nn import functional  # noqa: E402

import elman  # noqa: E402
import elman.nn  # noqa: E402
from benchmarks.gpu import COMPILED, DTYPES, MODULES, Case  # noqa: E402
from elman import cells, compiler  # noqa: E402
from elman.engines.call import Call  # noqa: E402
from elman.errors import ElmanError  # noqa: E402
from elman.ir.types import shape_size  # noqa: E402
from elman.nn.modules.formulas import FORMULAS  # noqa: E402
from elman.plan.spec import Spec  # noqa: E402
from elman.tuning.agreement import disagreement  # noqa: E402
from elman.tuning.kernels import candidates, kernel_of  # noqa: E402
from elman.tuning.trial import make_trial  # noqa: E402

LONG = 4096  # steps beyond which they are not launched one by one
SAMPLE_S = 0.25  # of timing, per contestant and direction
MEETINGS = """@triton.jit
def meetings(counter, steps, programs):
    target = 0
    for _ in range(steps):
        target += programs
        lib.arrive(counter)
        lib.wait(counter, target)
"""


class Clock:
    """Seconds of a call: by CUDA's events, or the wall clock where there is no GPU."""

    def __init__(self, device: str) -> None:
        self.gpu = device == "cuda"

    def __call__(self, run: Callable[[], Any]) -> float:
        """The median over about :data:`SAMPLE_S`, after some that are not counted."""
        before = time.perf_counter()
        run()
        run()  # the second call may record what the third runs
        if self.gpu:
            torch.cuda.synchronize()
        slow = not self.gpu or time.perf_counter() - before > 4 * SAMPLE_S
        if not slow:
            run()
        taken: list[float] = []
        end = time.perf_counter() + (0.0 if slow else SAMPLE_S)
        while len(taken) < (1 if slow else 5) or (time.perf_counter() < end and len(taken) < 200):
            if self.gpu:
                first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                first.record()
                run()
                last.record()
                last.synchronize()
                taken.append(first.elapsed_time(last) / 1e3)
            else:
                start = time.perf_counter()
                run()
                taken.append(time.perf_counter() - start)
        return median(taken)


def job_of(case: Case, device: str) -> Any:
    """What is compiled: torch's formula for torch's cells, else a cell of the library."""

    modes = {"gru": "GRU", "lstm": "LSTM", "rnn": "RNN_TANH", "relu": "RNN_RELU"}
    own = case.cell in modes and case.kind != "cell"
    cell = FORMULAS[modes[case.cell], True] if own else getattr(cells, case.cell)
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


def host_time(run: Callable[[], Any], device: str) -> float:
    """How long the host takes to launch a call (s); where there is no GPU, the whole call."""

    taken: list[float] = []
    for _ in range(5 if device == "cuda" else 1):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return median(taken)


def own_times(case: Case, device: str, clock: Clock, engine: str = "triton") -> dict[str, Any]:
    """All schedules of an engine: agreement with the reference in float64 first, then time."""

    job = job_of(case, device)
    made, refused = kernels(case, job, engine)
    steps = 64 if engine == "deer" else 8  # of several blocks, where all are solved at once
    short = make_trial(job, min(case.T, steps), min(case.B, 20))
    want = short.double().run(kernel_of(job, "reference"))
    trial = make_trial(job, case.T, case.B)
    found: dict[str, Any] = {"schedules": {}, "refused": refused}
    for schedule, kernel in made.items():
        try:
            off = disagreement(short.run(kernel), want, case.dtype, case.T)
            if off is not None:
                found["refused"][schedule] = f"wrong: {off}"
                continue
            forward, both = runs(trial, kernel)
            found["schedules"][schedule] = clock(forward), clock(both)
        except (ElmanError, RuntimeError) as error:
            if "CUDA error" in str(error):  # no later call of this process would be right
                raise RuntimeError(f"CUDA error in schedule {schedule}: {error}") from error
            found["refused"][schedule] = str(error)[:300]
    if found["schedules"]:
        best = min(found["schedules"], key=lambda name: found["schedules"][name][1])
        found["best"] = best
        found["elman"] = found["schedules"][best]
        found["host"] = [host_time(run, device) for run in runs(trial, made[best])]
    return found


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
    both = lambda: torch.autograd.grad(module(x)[0], leaves, dy)  # noqa: E731
    return {"torch": (clock(lambda: module(x)), clock(both))}


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

    one = torch.compile(step) if compiled else step

    def forward() -> Any:
        now, outputs = states, []
        for x in inputs[0]:
            out, now = one(x, *now)
            outputs.append(out)
        return torch.stack(outputs)

    def both() -> Any:
        return torch.autograd.grad(forward(), weights, trial.cotangents.output)

    return clock(forward), clock(both)


def module_times(case: Case, device: str, clock: Clock) -> dict[str, Any]:
    """A stack as a user has it, of both directions or of four layers: engine auto, beside torch's
    module; and what was chosen."""

    name, dtype = case.cell.upper(), getattr(torch, case.dtype)
    options: dict[str, Any] = MODULES[case.kind]
    width = case.H * (2 if "bidirectional" in options else 1)
    theirs = getattr(torch.nn, name)(case.H, case.H, **options).to(device, dtype)
    exact = getattr(torch.nn, name)(case.H, case.H, **options).double()
    exact.load_state_dict({key: value.double().cpu() for key, value in theirs.state_dict().items()})
    engine = "auto" if device == "cuda" else "triton"
    ours = getattr(elman, name)(case.H, case.H, engine=engine, **options).to(device, dtype)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(case.T, case.B, case.H, device=device, dtype=dtype, requires_grad=True)
    dy = torch.randn(case.T, case.B, width, device=device, dtype=dtype)

    def both(module: Any, x: Any = x, dy: Any = dy) -> Any:
        out = module(x)[0]
        return out, *torch.autograd.grad(out, [x, *module.parameters()], dy)

    wide = x.detach().double().cpu().requires_grad_()
    want = [value.detach() for value in both(exact, wide, dy.double().cpu())]

    def off(module: Any) -> float:
        pairs = zip(both(module), want, strict=True)
        return max(float((a.detach().double().cpu() - b).norm() / b.norm()) for a, b in pairs)

    found: dict[str, Any] = {}
    for key, module in (("elman", ours), ("torch", theirs)):
        found[f"{key} error"] = off(module)
        found[key] = (clock(lambda m=module: m(x)), clock(lambda m=module: both(m)))
    if found["elman error"] > max(3 * found["torch error"], 1e-5):
        raise ArithmeticError(
            f"off by {found['elman error']:.2g}, torch {found['torch error']:.2g}"
        )
    chosen = [one for sizes in elman.nn.choices(ours).values() for one in sizes.values()]
    words = dict.fromkeys(f"{one['engine']} {one['schedule']}" for one in chosen)
    found["best"] = ", ".join(words)
    return found


def peaks(case: Case, device: str, clock: Clock) -> dict[str, Any]:
    """What the device can do: bytes copied (read and written) and products, a second."""

    source = torch.empty(1 << 28, device=device)
    target = torch.empty_like(source)
    found = {"copy": 2 * source.nbytes / clock(lambda: target.copy_(source))}
    for name in (*DTYPES, "tf32"):
        dtype = getattr(torch, name.replace("tf32", "float32"))
        a = torch.randn(case.H, case.H, device=device, dtype=dtype)
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        found[name] = 2 * case.H**3 / clock(lambda a=a: a @ a)
    torch.backends.cuda.matmul.allow_tf32 = False
    return {"peaks": found}


def work_of(case: Case, device: str) -> dict[str, float]:
    """What a forward and a backward have to do at least: products (FLOP), arrays moved (bytes)."""

    job = job_of(case, device)
    sizes = job.spec.sizes
    shapes = [shape_size(weight.shape, sizes) for weight in job.graph.weights]
    weights = sum(shape[0] * shape[1] for shape in shapes if len(shape) == 2)
    rows = case.T * case.B
    item = getattr(torch, case.dtype).itemsize
    return {"flop": 6.0 * rows * weights, "bytes": 6.0 * rows * case.H * item}


def barrier_time(case: Case, device: str, clock: Clock) -> dict[str, Any]:
    """The meeting of all programs alone, from 8 to all that are resident (s)."""

    from elman.engines.triton.source import function  # needs a GPU

    meetings = function("meetings", MEETINGS)
    most = torch.cuda.get_device_properties(device).multi_processor_count
    found = {}
    for programs in sorted({8, 16, 32, 64, 128, most}):
        counter = torch.zeros(1, dtype=torch.int32, device=device)

        def run(counter: Any = counter, programs: int = programs) -> None:
            counter.zero_()
            meetings[(programs,)](counter, case.T, programs, launch_cooperative_grid=True)

        found[str(programs)] = clock(run) / case.T
    return {"barrier": found}


def decoder_times(case: Case, device: str, clock: Clock) -> dict[str, Any]:
    """Decoder and loss, forward and backward (s), and the memory that they take at most (bytes)."""

    torch.manual_seed(0)
    dtype = getattr(torch, case.dtype)
    own = elman.LinearCrossEntropyLoss(case.H, case.T, bias=True, device=device, dtype=dtype)
    x = torch.randn(case.B, case.H, device=device, dtype=dtype, requires_grad=True)
    targets = torch.randint(case.T, (case.B,), device=device)
    leaves = [x, *own.parameters()]

    def by(engine: str) -> Any:
        with elman.using(engine=engine):
            return torch.autograd.grad(own(x, targets), leaves)

    def plain() -> Any:
        return torch.autograd.grad(functional.cross_entropy(own.logits(x), targets), leaves)

    runs = {"elman": lambda: by("triton"), "chunks": lambda: by("reference"), "torch": plain}
    found: dict[str, Any] = {"decoder": {}, "bytes": {}}
    for name, run in runs.items():
        for got, want in zip(run(), by("reference"), strict=True):
            off = float((got - want).double().norm() / want.double().norm())
            if off > (1e-4 if dtype == torch.float32 else 3e-2):
                raise ValueError(f"{name} is off by {off:.1e}")
        if device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            run()
            found["bytes"][name] = torch.cuda.max_memory_allocated() - before
        found["decoder"][name] = clock(run)
    return found


def measured(case: Case, device: str) -> dict[str, Any]:
    """All of a row but what is the same in every row."""
    clock = Clock(device)
    if case.kind == "barrier":
        return barrier_time(case, device, clock)
    if case.kind == "peaks":
        return peaks(case, device, clock)
    if case.kind == "decoder":
        return decoder_times(case, device, clock)
    if case.kind in MODULES:
        return module_times(case, device, clock)
    found = work_of(case, device) | own_times(case, device, clock)
    if case.kind == "deer":
        found = found | {"in turn": found.get("elman")} | own_times(case, device, clock, "deer")
    if case.kind == "cell" or case.cell.startswith("para"):
        found["python loop"] = in_python(case, device, clock, False)
        if device == "cuda" and case.name in COMPILED:
            found["compiled loop"] = in_python(case, device, clock, True)
        return found
    found |= torch_times(case, device, clock)
    if case.kind == "persistent":
        found |= loop_times(case, device, clock)
    return found


def warm(device: str) -> None:
    """Read cases, and compile what they need: Triton keeps it where the worker finds it."""

    for line in sys.stdin:
        case = Case(**json.loads(line))
        if case.kind in ("peaks", "barrier", "decoder", *MODULES):
            continue
        job = job_of(case, device)
        trial = make_trial(job, min(case.T, 2), case.B)
        for kernel in kernels(case, job, "triton")[0].values():
            try:
                trial.run(kernel)
            except Exception as error:  # told when it is measured
                sys.stderr.write(f"{case.name}: {error}\n")


def work(device: str) -> None:
    """Read cases, write rows: a line of JSON each."""

    torch.manual_seed(0)
    for line in sys.stdin:
        case = Case(**json.loads(line))
        start = time.perf_counter()
        try:
            row = measured(case, device)
        except Exception as error:
            row = {"failed": f"{type(error).__name__}: {error}"[:500]}
            if "CUDA" in row["failed"]:  # nothing that follows in this process would be right
                answer(row)
                raise
        answer({**row, "took": round(time.perf_counter() - start, 2)})


def answer(row: dict[str, Any]) -> None:
    """One line."""
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    (warm if "--warm" in sys.argv else work)(sys.argv[-1])

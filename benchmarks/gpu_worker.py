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
SAMPLE_MS = 250  # of timing, per contestant and direction
MEETINGS = """@triton.jit
def meetings(counter, steps, programs):
    target = 0
    for _ in range(steps):
        target += programs
        lib.arrive(counter)
        lib.wait(counter, target)
"""


Clock = Callable[[Callable[[], Any]], float]


def clock_of(device: str) -> Clock:
    """What times a call (s): the median by CUDA's events, or one call where there is no GPU."""
    if device == "cuda":
        from triton.testing import do_bench

        measure: Any = do_bench
        return lambda run: measure(run, rep=SAMPLE_MS, return_mode="median") / 1e3

    def once(run: Callable[[], Any]) -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    return once


def job_of(case: Case, device: str) -> Any:
    """What is compiled: torch's formula for torch's cells, else a cell of the library."""
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


def host_time(run: Callable[[], Any], device: str) -> float:
    """How long the host takes to launch a call (s); where there is no GPU, the whole call."""
    seconds: list[float] = []
    for _ in range(5 if device == "cuda" else 1):
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(clock_of("cpu")(run))
    return median(seconds)


def own_times(case: Case, device: str, clock: Clock, engine: str = "triton") -> dict[str, Any]:
    """All schedules of an engine: agreement with the reference in float64 first, then time."""
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
            row["refused"][schedule] = str(error)[:300]
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


def module_times(case: Case, device: str, clock: Clock) -> dict[str, Any]:
    """A stack as a user has it, of both directions or of four layers: engine auto, beside torch's
    module; and what was chosen."""
    name, dtype = case.cell.upper(), getattr(torch, case.dtype)
    options: dict[str, Any] = MODULES[case.kind]
    width = case.H * (2 if "bidirectional" in options else 1)
    reference = getattr(torch.nn, name)(case.H, case.H, **options).to(device, dtype)
    exact = getattr(torch.nn, name)(case.H, case.H, **options).double()
    exact.load_state_dict(
        {key: value.double().cpu() for key, value in reference.state_dict().items()}
    )
    engine = "auto" if device == "cuda" else "triton"
    layer = getattr(elman, name)(case.H, case.H, engine=engine, **options).to(device, dtype)
    layer.load_state_dict(reference.state_dict())
    x = torch.randn(case.T, case.B, case.H, device=device, dtype=dtype, requires_grad=True)
    dy = torch.randn(case.T, case.B, width, device=device, dtype=dtype)

    def train(module: Any, x: Any = x, dy: Any = dy) -> Any:
        out = module(x)[0]
        return out, *torch.autograd.grad(out, [x, *module.parameters()], dy)

    wide = x.detach().double().cpu().requires_grad_()
    want = [value.detach() for value in train(exact, wide, dy.double().cpu())]

    def off(module: Any) -> float:
        pairs = zip(train(module), want, strict=True)
        return max(float((a.detach().double().cpu() - b).norm() / b.norm()) for a, b in pairs)

    row: dict[str, Any] = {}
    for key, module in (("elman", layer), ("torch", reference)):
        row[f"{key} error"] = off(module)
        row[key] = (clock(lambda m=module: m(x)), clock(lambda m=module: train(m)))
    if row["elman error"] > max(3 * row["torch error"], 1e-5):
        raise ArithmeticError(f"off by {row['elman error']:.2g}, torch {row['torch error']:.2g}")
    chosen = [record for sizes in elman.nn.choices(layer).values() for record in sizes.values()]
    words = dict.fromkeys(f"{record['engine']} {record['schedule']}" for record in chosen)
    row["best"] = ", ".join(words)
    return row


def peaks(case: Case, device: str, clock: Clock) -> dict[str, Any]:
    """What the device can do: bytes copied (read and written) and products, a second."""
    source = torch.empty(1 << 28, device=device)
    target = torch.empty_like(source)
    rates = {"copy": 2 * source.nbytes / clock(lambda: target.copy_(source))}
    for name in (*DTYPES, "tf32"):
        dtype = getattr(torch, name.replace("tf32", "float32"))
        a = torch.randn(case.H, case.H, device=device, dtype=dtype)
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        rates[name] = 2 * case.H**3 / clock(lambda a=a: a @ a)
    torch.backends.cuda.matmul.allow_tf32 = False
    text = ", ".join(f"{name} {rate / 1e12:.1f}" for name, rate in rates.items())
    return {"peaks": rates, "text": f"TB/s and TFLOP/s: {text}"}


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
    seconds_by_programs = {}
    for programs in sorted({8, 16, 32, 64, 128, most}):
        counter = torch.zeros(1, dtype=torch.int32, device=device)

        def run(counter: Any = counter, programs: int = programs) -> None:
            counter.zero_()
            meetings[(programs,)](counter, case.T, programs, launch_cooperative_grid=True)

        seconds_by_programs[str(programs)] = clock(run) / case.T
    text = ", ".join(
        f"{programs}: {seconds * 1e6:.2f}" for programs, seconds in seconds_by_programs.items()
    )
    return {"barrier": seconds_by_programs, "text": f"us by programs: {text}"}


def decoder_times(case: Case, device: str, clock: Clock) -> dict[str, Any]:
    """Decoder and loss, forward and backward (s), and the memory that they take at most (bytes)."""
    torch.manual_seed(0)
    dtype = getattr(torch, case.dtype)
    decoder = elman.LinearCrossEntropyLoss(case.H, case.T, bias=True, device=device, dtype=dtype)
    x = torch.randn(case.B, case.H, device=device, dtype=dtype, requires_grad=True)
    targets = torch.randint(case.T, (case.B,), device=device)
    leaves = [x, *decoder.parameters()]

    def by(engine: str) -> Any:
        with elman.using(engine=engine):
            return torch.autograd.grad(decoder(x, targets), leaves)

    def plain() -> Any:
        return torch.autograd.grad(functional.cross_entropy(decoder.logits(x), targets), leaves)

    runs = {"elman": lambda: by("triton"), "chunks": lambda: by("reference"), "torch": plain}
    row: dict[str, Any] = {"decoder": {}, "bytes": {}}
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
            row["bytes"][name] = torch.cuda.max_memory_allocated() - before
        row["decoder"][name] = clock(run)
    times = ", ".join(f"{name} {seconds * 1e3:.3f}" for name, seconds in row["decoder"].items())
    sizes = ", ".join(f"{name} {size / 2**20:.0f}" for name, size in row["bytes"].items())
    return {**row, "text": f"ms: {times}; MiB: {sizes or '-'}"}


KINDS: dict[str, Callable[[Case, str, Clock], dict[str, Any]]] = {  # others have schedules
    "barrier": barrier_time,
    "peaks": peaks,
    "decoder": decoder_times,
    **dict.fromkeys(MODULES, module_times),
}


def measure(case: Case, device: str) -> dict[str, Any]:
    """All of a row but what is the same in every row."""
    clock = clock_of(device)
    if case.kind in KINDS:
        return KINDS[case.kind](case, device, clock)
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


def warm(device: str) -> None:
    """Read cases, and compile what they need: Triton keeps it where the worker finds it."""
    for line in sys.stdin:
        case = Case(**json.loads(line))
        if case.kind in KINDS:
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
            row = measure(case, device)
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

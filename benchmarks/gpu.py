"""Measure elman's kernels on a GPU beside torch.nn (cuDNN), in one command.

    python benchmarks/gpu.py                     # eight minutes; writes gpu.jsonl and gpu.md
    python benchmarks/gpu.py --only 'gru*' --seconds 120
    python benchmarks/gpu.py --dry               # tiny cases in Triton's interpreter, on a CPU

First the tests marked gpu run, and nothing is measured if they fail (--untested leaves them out).
Cases come in order of importance. Each is checked on the device before it is timed, written as soon
as it is measured, and left out when the file has it already. Cases run in a process of their own:
one that crashes or hangs costs its own row. Needs torch, triton and numpy, and this checkout; the
tests also what its extra dev brings.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))
LIMIT_S = 90.0  # of one case, compiling included
LONG = 4096  # steps beyond which they are not launched one by one
SAMPLE_S = 0.25  # of timing, per contestant and direction
DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True)
class Case:
    """One row: what is measured, of which cell and sizes."""

    name: str
    kind: str
    cell: str
    T: int
    B: int
    H: int
    dtype: str = "bfloat16"
    heads: int = 1


def layer(cell: str, T: int, B: int, H: int, dtype: str, kind: str = "layer") -> Case:
    """A case named after its sizes."""
    return Case(f"{kind} {cell} {T},{B},{H} {DTYPES[dtype]}", kind, cell, T, B, H, dtype)


def heads(D: int) -> Case:
    """FlashRNN's sweep: 768 units in all."""
    return Case(f"heads lstm {768 // D}x{D}", "heads", "lstm", 1024, 16, 768, heads=768 // D)


def divided(T: int, B: int, H: int, heads: int) -> Case:
    """A GRU of heads that do not see each other's past, as DEER's authors train it."""
    name = f"deer gru {T},{B},{heads}x{H // heads} fp32"
    return Case(name, "deer", "gru", T, B, H, "float32", heads)


def decoder(rows: int, H: int, classes: int, dtype: str) -> Case:
    """Decoder and loss of so many rows; T stands for the classes."""
    name = f"decoder {rows}x{H} to {classes} {DTYPES[dtype]}"
    return Case(name, "decoder", "", classes, rows, H, dtype)


def first() -> Iterator[Case]:
    """A few of each kind: what is wanted most if time is short."""
    yield Case("peaks", "peaks", "", 0, 0, 8192)
    yield layer("gru", 256, 16, 512, "bfloat16")
    yield layer("lstm", 256, 16, 512, "float32")
    yield layer("relu", 64, 4, 1152, "float32", "persistent")
    yield Case("barrier", "barrier", "gru", 4096, 1, 1024)
    yield heads(64)
    yield layer("gru", 10_000, 1, 2, "float32", "deer")
    yield divided(1024, 16, 256, 32)
    yield layer("lstm_layernorm", 256, 16, 128, "bfloat16", "cell")
    yield layer("gru", 100, 32, 256, "float32", "module")
    yield layer("lstm", 1024, 16, 256, "bfloat16", "stack")
    yield decoder(700, 200, 10_000, "float32")


def cases() -> Iterator[Case]:
    """All cases, most important first."""
    found = dict.fromkeys([*first(), *rest()])
    yield from found


def rest() -> Iterator[Case]:
    """The lists of the question's seven parts, in order; the largest lists last."""
    both = ("bfloat16", "float32")
    for H, B in ((512, 16), (256, 16), (1024, 16), (128, 16), (64, 16), (2048, 16)):
        for cell in ("gru", "lstm", "rnn"):
            for dtype in both:
                yield layer(cell, 256, B, H, dtype)
    for B in (4, 1, 2, 3, 8, 16, 32, 64):
        yield layer("relu", 64, B, 1152, "float32", "persistent")
    for D in (128, 16, 32, 256, 768):
        yield heads(D)
    for cell, H in (("lem", 512), ("slstm", 512), ("lem", 128), ("lstm_layernorm", 512)):
        yield layer(cell, 256, 16, H, "bfloat16", "cell")
    for n in (1, 2, 4, 8, 16, 32):
        for T in (1000, 10_000, 100_000):
            yield layer("gru", T, 1, n, "float32", "deer")
    for T, B, H, parts in ((1024, 16, 64, 16), (10_000, 1, 256, 32), (10_000, 1, 64, 16)):
        yield divided(T, B, H, parts)
    for dtype in both:
        yield decoder(2240, 650, 33_278, dtype)
        yield decoder(8192, 2048, 50_257, dtype)
    for cell in ("paragru", "paralstm"):
        for T in (2048, 256):
            yield layer(cell, T, 8, 256, "float32", "deer")
    for cell in ("gru", "lstm"):
        yield layer(cell, 100, 32, 512, "bfloat16", "module")
    for T, B, H in ((256, 16, 256), (1024, 16, 512), (1024, 64, 128)):
        yield layer("gru", T, B, H, "bfloat16", "stack")
    for cell, T, B, H in (  # DeepBench's list of training
        *(("lstm", 25, B, H) for H in (512, 1024) for B in (16, 32, 64, 128)),
        *(("lstm", 150, B, 256) for B in (16, 32, 64, 128)),
        *(("rnn", 50, B, 1760) for B in (16, 32, 64, 128)),
        ("gru", 1500, 32, 1024),
        ("gru", 375, 32, 1536),
    ):
        yield layer(cell, T, B, H, "float16", "deepbench")
    for H in (512, 256, 1024, 128, 64):
        for B in (1, 32, 64, 256):
            for cell in ("gru", "lstm"):
                for dtype in both:
                    yield layer(cell, 256, B, H, dtype)
    for H in (512, 1024, 256, 128, 2048):  # the ladder of Baidu's post on graphs of a GRU
        for B in (32, 8, 16, 64, 128):
            yield layer("gru", 50, B, H, "float32", "ladder")


def tiny() -> Iterator[Case]:
    """A case of each kind that the interpreter runs in seconds."""
    yield Case("layer gru dry", "layer", "gru", 3, 2, 8, "float32")
    yield Case("layer lstm dry", "layer", "lstm", 2, 2, 8, "bfloat16")
    yield Case("persistent dry", "persistent", "relu", 2, 2, 24, "float32")
    yield Case("cell dry", "cell", "lstm_layernorm", 2, 2, 8, "float32")
    yield Case("deer dry", "deer", "gru", 40, 1, 2, "float32")
    yield Case("deer heads dry", "deer", "gru", 9, 1, 4, "float32", heads=2)
    yield Case("deer five dry", "deer", "gru", 9, 1, 5, "float32")
    yield Case("para dry", "deer", "paragru", 40, 1, 3, "float32")
    yield Case("heads dry", "heads", "lstm", 2, 2, 8, "float32", heads=2)
    yield Case("module dry", "module", "gru", 3, 2, 8, "float32")
    yield Case("stack dry", "stack", "gru", 32, 2, 4, "float32")
    yield Case("decoder dry", "decoder", "", 33, 5, 4, "float32")


MODULES = {"module": {"num_layers": 2, "bidirectional": True}, "stack": {"num_layers": 4}}
COMPILED = {  # compiling a step takes up to a minute
    "cell lstm_layernorm 256,16,128 bf16",
    "cell lem 256,16,512 bf16",
    "deer paragru 2048,8,256 fp32",
}
MEETINGS = """@triton.jit
def meetings(counter, steps, programs):
    target = 0
    for _ in range(steps):
        target += programs
        lib.arrive(counter)
        lib.wait(counter, target)
"""


# --- the worker: one process, one case after another -------------------------------------------


class Clock:
    """Seconds of a call: by CUDA's events, or the wall clock where there is no GPU."""

    def __init__(self, device: str) -> None:
        import torch

        self.torch, self.gpu = torch, device == "cuda"

    def __call__(self, run: Callable[[], Any]) -> float:
        """The median over about :data:`SAMPLE_S`, after some that are not counted."""
        torch = self.torch
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
    from elman import cells, compiler
    from elman.nn.formulas import FORMULAS
    from elman.plan.spec import Spec

    modes = {"gru": "GRU", "lstm": "LSTM", "rnn": "RNN_TANH", "relu": "RNN_RELU"}
    own = case.cell in modes and case.kind != "cell"
    cell = FORMULAS[modes[case.cell], True] if own else getattr(cells, case.cell)
    cell = cell.with_heads(case.heads)
    dims = tuple(sorted(cell.bind(case.H, case.H).items()))
    wants = frozenset(leaf.name for leaf in (*cell.inputs, *cell.weights))
    return compiler.job(cell, Spec(dims, case.dtype, device, wants))


def kernels(case: Case, job: Any, engine: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Kernels of an engine by schedule; and why others are none."""
    from elman.tuning.kernels import candidates, kernel_of

    able, refused = candidates(job, (engine,), case.T, case.B)
    if case.T > LONG and len(able) > 1:
        able = [pair for pair in able if pair[1] != "steps"]
    return {schedule: kernel_of(job, engine, schedule) for _, schedule in able}, refused


def runs(trial: Any, kernel: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A forward, and a forward and backward."""

    def forward() -> Any:
        return kernel.forward(trial.call)

    def both() -> Any:
        return kernel.backward(trial.call, forward().saved, trial.cotangents, False)

    return forward, both


def host_time(run: Callable[[], Any], device: str) -> float:
    """How long the host takes to launch a call (s); where there is no GPU, the whole call."""
    import torch

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
    from elman.errors import ElmanError
    from elman.tuning.agreement import disagreement
    from elman.tuning.kernels import kernel_of
    from elman.tuning.trial import make_trial

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
    import torch

    modes = {"gru": torch.nn.GRU, "lstm": torch.nn.LSTM, "rnn": torch.nn.RNN, "relu": torch.nn.RNN}
    options = {"nonlinearity": "relu"} if case.cell == "relu" else {}
    dtype = getattr(torch, case.dtype)
    module = modes[case.cell](case.H, case.H, **options).to(device, dtype)
    x = torch.randn(case.T, case.B, case.H, device=device, dtype=dtype, requires_grad=True)
    dy = torch.randn(case.T, case.B, case.H, device=device, dtype=dtype)
    leaves = [x, *module.parameters()]

    def forward() -> Any:
        return module(x)[0]

    def both() -> Any:
        return torch.autograd.grad(forward(), leaves, dy)

    return {"torch": (clock(forward), clock(both))}


def loop_times(case: Case, device: str, clock: Clock) -> dict[str, Any]:
    """A product per step and what follows it, forward: what a persistent kernel replaces."""
    import torch

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
    import torch

    from elman.engines.call import Call
    from elman.tuning.kernels import kernel_of
    from elman.tuning.trial import make_trial

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
    import torch

    import elman
    import elman.nn

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
    import torch

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
    import torch

    from elman.ir.types import shape_size

    job = job_of(case, device)
    sizes = job.spec.sizes
    shapes = [shape_size(weight.shape, sizes) for weight in job.graph.weights]
    weights = sum(shape[0] * shape[1] for shape in shapes if len(shape) == 2)
    rows = case.T * case.B
    item = getattr(torch, case.dtype).itemsize
    return {"flop": 6.0 * rows * weights, "bytes": 6.0 * rows * case.H * item}


def barrier_time(case: Case, device: str, clock: Clock) -> dict[str, Any]:
    """The meeting of all programs alone, from 8 to all that are resident (s)."""
    import torch

    from elman.engines.triton.source import function

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
    import torch
    from torch.nn import functional

    import elman

    torch.manual_seed(0)
    dtype = getattr(torch, case.dtype)
    own = elman.LinearCrossEntropy(case.H, case.T, device=device, dtype=dtype)
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
    from elman.tuning.trial import make_trial

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
    import torch

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


# --- the parent ---------------------------------------------------------------------------------


class Worker:
    """The process that measures; started again when it has died or was too slow."""

    def __init__(self, device: str) -> None:
        words = [sys.executable, str(Path(__file__).resolve()), "--worker", device]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put("")

    def ask(self, case: Case, limit: float) -> dict[str, Any]:
        """A row, or why there is none; after a failure the worker is done."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(asdict(case)) + "\n")
            self.process.stdin.flush()
            line = self.lines.get(timeout=limit)
        except (queue.Empty, BrokenPipeError):
            self.end()
            return {"failed": f"no answer in {limit:.0f} s: it hung, or compiling takes too long"}
        row = json.loads(line) if line else {"failed": f"the process ended ({self.process.wait()})"}
        if "CUDA" in row.get("failed", ""):  # it ends by itself, but not at once
            self.end()
        return row

    def end(self) -> None:
        """Kill it, and wait until it is gone: the next case is another's."""
        self.process.kill()
        self.process.wait()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None


def warmed(todo: list[Case], device: str, seconds: float) -> None:
    """Compile for some cases, each in one of several processes; nothing is timed meanwhile."""
    count = max(1, (os.cpu_count() or 1) - 2)
    words = [sys.executable, str(Path(__file__).resolve()), "--warm", device]
    helpers = [
        subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for _ in range(min(count, len(todo)))
    ]
    for number, helper in enumerate(helpers):
        assert helper.stdin is not None
        helper.stdin.writelines(json.dumps(asdict(case)) + "\n" for case in todo[number::count])
        helper.stdin.close()
    end = time.monotonic() + seconds
    for helper in helpers:
        try:
            helper.wait(timeout=max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            helper.kill()


def facts(device: str) -> dict[str, Any]:
    """Machine, versions and commit."""
    import torch
    import triton

    words = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--abbrev=12"]
    try:
        commit = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = "unknown"
    gpu = torch.cuda.get_device_name() if device == "cuda" else "none (interpreted)"
    return {
        "gpu": gpu,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if device == "cuda" else None,
        "commit": commit,
    }


def shown(row: dict[str, Any], most: dict[str, float]) -> str:
    """A row as a line of the table: microseconds per step, forward and with the backward."""
    if "failed" in row:
        return f"{row['name']:36} failed: {row['failed'][:80]}"
    if "barrier" in row:
        told = ", ".join(f"{k}: {v * 1e6:.2f}" for k, v in row["barrier"].items())
        return f"{row['name']:36} us by programs: {told}"
    if "peaks" in row:
        told = ", ".join(f"{k} {v / 1e12:.1f}" for k, v in row["peaks"].items())
        return f"{row['name']:36} TB/s and TFLOP/s: {told}"
    if "decoder" in row:
        took = ", ".join(f"{k} {v * 1e3:.3f}" for k, v in row["decoder"].items())
        told = ", ".join(f"{k} {v / 2**20:.0f}" for k, v in row["bytes"].items())
        return f"{row['name']:36} ms: {took}; MiB: {told or '-'}"
    T = row["T"]

    def pair(name: str) -> str:
        found = row.get(name)
        if found is None:
            return f"{'-':>8} {'-':>8}"
        return " ".join(f"{'-' if s is None else f'{s / T * 1e6:.2f}':>8}" for s in found)

    ratio = shares = "-"
    names = ("torch", "compiled loop", "python loop", "product per step", "in turn")
    others = [name for name in names if row.get(name)]
    if others and row.get("elman"):
        ratio = f"{row[others[0]][1] / row['elman'][1]:.2f}x"
        if most and "flop" in row:
            product = "tf32" if row["dtype"] == "float32" else row["dtype"]
            part = [row["flop"] / most[product], row["bytes"] / most["copy"]]
            shares = "/".join(f"{100 * share / row['elman'][1]:.0f}" for share in part)
    rest = ", ".join(f"{name} {pair(name)}" for name in others if name != "torch")
    best = row.get("best", "-")
    found = f"{row['name']:36} {pair('elman')} {pair('torch')} {ratio:>8} {shares:>7} {best:18}"
    return f"{found} {rest}".rstrip()


def report(rows: list[dict[str, Any]], machine: dict[str, Any], file: Path) -> None:
    """The table as a page of Markdown, with what was refused and why."""
    told = "\n".join(f"- {key}: {value}" for key, value in machine.items())
    own = [row for row in rows if row["machine"] == machine]
    most = peaks_of(own)
    table = "\n".join([HEAD, *(shown(row, most) for row in own)])
    refused = [
        f"- {row['name']}, {schedule}: {why}"
        for row in own
        for schedule, why in row.get("refused", {}).items()
    ]
    file.write_text(
        f"# elman on a GPU\n\n{told}\n\n```\n{table}\n```\n\n"
        f"Microseconds per step; ratio of forward and backward to the first other that was measured"
        f" (torch.nn in the same dtype, else a loop); shares of the matrix and copy peaks in"
        f" percent.\n\n## Not run\n\n" + "\n".join(refused) + "\n"
    )


def peaks_of(rows: list[dict[str, Any]]) -> dict[str, float]:
    """What the device can do, if it was measured."""
    return next((row["peaks"] for row in reversed(rows) if "peaks" in row), {})


HEAD = (
    f"{'case (T,B,H)':36} {'elman fw':>8} {'fw+bw':>8} {'torch fw':>8} {'fw+bw':>8} {'ratio':>8} "
    f"{'peaks %':>7} {'schedule':18} others"
)


def proven() -> None:
    """Run the tests marked gpu on all cores, and stop if one fails: a time of wrong numbers is
    none."""
    words = ["-m", "pytest", "-q", "-m", "gpu", "-n", "auto", "--timeout=900", str(ROOT / "tests")]
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, check=False, env=os.environ | {"PYTHONPATH": paths}
    )
    if done.returncode:
        sys.exit(
            f"nothing was measured: pytest -m gpu ended with status {done.returncode}. It needs "
            "pip install -e '.[dev]'; --untested measures without it"
        )


def main() -> None:
    """Measure what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=480.0, help="no case begins after so long")
    parser.add_argument("--out", type=Path, default=Path("gpu.jsonl"))
    parser.add_argument("--only", default="*", help="cases whose names fit this pattern")
    parser.add_argument("--dry", action="store_true", help="tiny cases, in Triton's interpreter")
    parser.add_argument("--untested", action="store_true", help="without the tests marked gpu")
    parser.add_argument(
        "--warming", type=float, default=120.0, help="seconds of it for compiling on all cores"
    )
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--warm", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        work(asked.worker)
        return
    if asked.warm:
        warm(asked.warm)
        return
    device = "cpu" if asked.dry else "cuda"
    if asked.dry:
        os.environ["TRITON_INTERPRET"] = "1"
    else:
        import torch

        if not torch.cuda.is_available():
            sys.exit("no GPU is at hand; --dry runs tiny cases in Triton's interpreter")
        if not asked.untested:
            proven()
    machine = facts(device)
    old = (
        [json.loads(line) for line in asked.out.read_text().splitlines()]
        if asked.out.exists()
        else []
    )
    done = {row["name"] for row in old if "failed" not in row and row["machine"] == machine}
    end = time.monotonic() + asked.seconds
    todo = [
        case
        for case in (tiny() if asked.dry else cases())
        if case.name not in done and fnmatchcase(case.name, asked.only)
    ]
    if todo and not asked.dry:
        warmed(todo, device, asked.warming)
    worker, limit = Worker(device), asked.seconds if asked.dry else LIMIT_S
    print(f"{machine['gpu']}, torch {machine['torch']}, triton {machine['triton']}; us per step")
    print(HEAD)
    rows = list(old)
    for case in todo:
        left = end - time.monotonic()
        if left <= 0:
            break
        if not worker.alive:
            worker = Worker(device)
        row = {**asdict(case), **worker.ask(case, min(limit, left + 10.0)), "machine": machine}
        with asked.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        rows.append(row)
        print(shown(row, peaks_of(rows)), flush=True)
    report(rows, machine, asked.out.with_suffix(".md"))
    worker.process.kill()
    failed = sum("failed" in row for row in rows)
    print(f"{len(rows)} rows in {asked.out}, {failed} failed; table in {asked.out.stem}.md")


if __name__ == "__main__":
    main()

"""Measure elman's kernels on a GPU beside torch.nn (cuDNN), in one command.

    python benchmarks/gpu.py                     # eight minutes; writes gpu.jsonl and gpu.md
    python benchmarks/gpu.py --only 'gru*' --seconds 120
    python benchmarks/gpu.py --dry               # tiny cases in Triton's interpreter, on a CPU

First the tests marked gpu run, and nothing is measured if they fail (--untested leaves them out).
Cases come in order of importance. Each is checked on the device before it is timed, written as soon
as it is measured, and left out when the file has it already. Cases run in a process of their own,
this file with --work: one that crashes or hangs costs its own row. Needs torch, triton and numpy,
and this checkout; the tests also what its extra dev brings.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

import torch  # noqa: E402
from torch.nn import functional  # noqa: E402

import elman.nn  # noqa: E402
from benchmarks.machine import commit  # noqa: E402
from benchmarks.peers.matrix_forms import FORMS  # noqa: E402
from benchmarks.programs import ProcessError, Worker  # noqa: E402
from benchmarks.rows import append_row, read_rows  # noqa: E402
from elman import cells, compiler  # noqa: E402
from elman.engines.call import Call  # noqa: E402
from elman.errors import ElmanError  # noqa: E402
from elman.ir.types import shape_size  # noqa: E402
from elman.nn.modules.formulas import FORMULAS  # noqa: E402
from elman.plan.spec import Spec  # noqa: E402
from elman.tuning.agreement import disagreement  # noqa: E402
from elman.tuning.kernels import candidates, kernel_of  # noqa: E402
from elman.tuning.trial import make_trial  # noqa: E402

LIMIT_S = 90.0  # of one case, compiling included
REASON = 2000  # characters of a reason in a row at most
LONG = 4096  # steps beyond which they are not launched one by one
SAMPLE_MS = 250  # of timing, per contestant and direction
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


def matrices(cell: str, T: int, B: int, H: int) -> Case:
    """A cell whose state is a matrix of H rows and columns for each of B samples."""
    return layer(cell, T, B, H, "bfloat16", "matrices")


def decoder(rows: int, H: int, classes: int, dtype: str) -> Case:
    """Decoder and loss of so many rows; T stands for the classes."""
    name = f"decoder {rows}x{H} to {classes} {DTYPES[dtype]}"
    return Case(name, "decoder", "", classes, rows, H, dtype)


def first() -> Iterator[Case]:
    """A few of each kind: what matters most if time is short; those without a row before."""
    yield Case("peaks", "peaks", "", 0, 0, 8192)
    yield matrices("gated_delta_net", 1024, 32, 64)
    for n in (2, 1, 4):
        yield layer("gru", 100_000, 1, n, "float32", "deer")
    yield layer("lstm_layernorm", 256, 16, 128, "bfloat16", "cell")
    yield layer("gru", 100, 32, 256, "float32", "module")
    yield layer("lstm", 25, 32, 512, "float16", "deepbench")  # cuDNN has a persistent kernel
    yield layer("lstm", 1024, 16, 256, "bfloat16", "stack")
    yield decoder(700, 200, 10_000, "float32")
    yield decoder(2240, 650, 33_278, "bfloat16")
    yield divided(1024, 16, 256, 32)
    yield layer("paragru", 2048, 8, 256, "float32", "deer")
    yield layer("gru", 256, 16, 512, "bfloat16")
    yield layer("lstm", 256, 16, 512, "float32")
    yield layer("relu", 64, 4, 1152, "float32", "persistent")
    yield Case("barrier", "barrier", "gru", 4096, 1, 1024)
    yield heads(64)
    yield layer("gru", 10_000, 1, 2, "float32", "deer")


def cases() -> list[Case]:
    """Every case, most important first."""
    return [*dict.fromkeys([*first(), *remaining_cases()])]


def remaining_cases() -> Iterator[Case]:
    """The lists of the question's parts, in order; the largest lists last."""
    for cell, T, B, H in (
        ("gated_delta_net", 4096, 128, 64),
        ("gated_delta_net", 1024, 32, 128),
        ("gla", 1024, 32, 128),
        ("mlstm", 1024, 32, 64),
        ("rwkv7", 1024, 32, 64),
        ("mamba2", 1024, 32, 64),
    ):
        yield matrices(cell, T, B, H)
    dtypes = ("bfloat16", "float32")
    for H, B in ((512, 16), (256, 16), (1024, 16), (128, 16), (64, 16), (2048, 16)):
        for cell in ("gru", "lstm", "rnn"):
            for dtype in dtypes:
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
    for T, B, H, count in ((1024, 16, 64, 16), (10_000, 1, 256, 32), (10_000, 1, 64, 16)):
        yield divided(T, B, H, count)
    for dtype in dtypes:
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
                for dtype in dtypes:
                    yield layer(cell, 256, B, H, dtype)
    for H in (512, 1024, 256, 128, 2048):  # the ladder of Baidu's post on graphs of a GRU
        for B in (32, 8, 16, 64, 128):
            yield layer("gru", 50, B, H, "float32", "ladder")


TINY = (  # a case of each kind that the interpreter runs in seconds
    Case("layer gru dry", "layer", "gru", 3, 2, 8, "float32"),
    Case("layer lstm dry", "layer", "lstm", 2, 2, 8, "bfloat16"),
    Case("persistent dry", "persistent", "relu", 2, 2, 24, "float32"),
    Case("cell dry", "cell", "lstm_layernorm", 2, 2, 8, "float32"),
    Case("deer dry", "deer", "gru", 40, 1, 2, "float32"),
    Case("deer heads dry", "deer", "gru", 9, 1, 4, "float32", heads=2),
    Case("deer five dry", "deer", "gru", 9, 1, 5, "float32"),
    Case("para dry", "deer", "paragru", 40, 1, 3, "float32"),
    Case("heads dry", "heads", "lstm", 2, 2, 8, "float32", heads=2),
    Case("module dry", "module", "gru", 3, 2, 8, "float32"),
    Case("stack dry", "stack", "gru", 32, 2, 4, "float32"),
    Case("matrices dry", "matrices", "gated_delta_net", 2, 2, 16, "float32"),
    Case("decoder dry", "decoder", "", 33, 5, 4, "float32"),
)
MODULES = {"module": {"num_layers": 2, "bidirectional": True}, "stack": {"num_layers": 4}}
COMPILED = {  # compiling a step takes up to a minute
    "cell lstm_layernorm 256,16,128 bf16",
    "cell lem 256,16,512 bf16",
    "deer paragru 2048,8,256 fp32",
}
LOOPED = 1024 * 8  # steps of samples at most of which a loop in torch is timed


MEETINGS = """@triton.jit
def meetings(counter, steps, programs):
    target = 0
    for _ in range(steps):
        target += programs
        lib.arrive(counter)
        lib.wait(counter, target)
"""


Clock = Callable[[Callable[[], Any]], float]
Measure = Callable[[Case, str, Clock], dict[str, Any]]
KINDS: dict[str, Measure] = {}  # cases of other kinds are timed by every schedule


def of_kind(*names: str) -> Callable[[Measure], Measure]:
    """Note what measures cases of some kinds; a decorator."""

    def note(measure: Measure) -> Measure:
        KINDS.update(dict.fromkeys(names, measure))
        return measure

    return note


def clock_of(device: str) -> Clock:
    """Build a timer of a call (s): the median by CUDA events, or one call without a GPU."""
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


def host_time(run: Callable[[], Any], device: str) -> float:
    """Time of the host to launch a call (s); without a GPU, of the whole call."""
    seconds: list[float] = []
    for _ in range(5 if device == "cuda" else 1):
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(clock_of("cpu")(run))
    return median(seconds)


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


@of_kind(*MODULES)
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
    records = [record for sizes in elman.nn.choices(layer).values() for record in sizes.values()]
    words = dict.fromkeys(f"{record['engine']} {record['schedule']}" for record in records)
    row["best"] = ", ".join(words)
    return row


@of_kind("matrices")
def matrix_times(case: Case, device: str, clock: Clock) -> dict[str, Any]:
    """Matrices per sample beside torch's chunkwise form, a loop, and the kernels of
    flash-linear-attention where they are installed."""
    row = own_times(case, device, clock)
    forms, source = FORMS[case.cell], torch.Generator().manual_seed(0)
    drawn = forms.draw(case.T, case.B, case.H, case.H, source)
    leaves = {name: value.to(device).requires_grad_() for name, value in drawn.items()}
    contestants: dict[str, Callable[[], Any]] = {}
    if (chunks := forms.chunks) is not None:
        contestants["chunks"] = lambda: chunks.run(chunks.body, **leaves)
    if case.T * case.B <= LOOPED:
        contestants["python loop"] = lambda: forms.loop(**leaves)
    for name, run in contestants.items():
        row[name] = _both_ways(run, list(leaves.values()), clock)
    if case.cell == "gated_delta_net" and (kernels := _linear_attention(drawn, device)) is not None:
        row["fla"] = _both_ways(*kernels, clock)
    return row


def _both_ways(
    run: Callable[[], Any], leaves: Sequence[torch.Tensor], clock: Clock
) -> tuple[float, float]:
    """Times of a function's forward, and of its forward and backward (s)."""
    d = torch.randn_like(run().detach())
    return clock(run), clock(lambda: torch.autograd.grad(run(), leaves, d))


def _linear_attention(
    drawn: dict[str, torch.Tensor], device: str
) -> tuple[Callable[[], Any], list[torch.Tensor]] | None:
    """The chunkwise kernels of flash-linear-attention for a gated delta rule, in bfloat16."""
    try:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule  # pyright: ignore
    except ImportError:
        return None
    q, k, v, b = (drawn[name].to(device, torch.bfloat16).unsqueeze(0) for name in "qkvb")
    g = drawn["a"].log().to(device).unsqueeze(0)
    leaves = [value.requires_grad_() for value in (q, k, v, g, b)]
    return lambda: chunk_gated_delta_rule(*leaves, scale=1.0)[0], leaves  # pyright: ignore


@of_kind("peaks")
def peaks(case: Case, device: str, clock: Clock) -> dict[str, Any]:
    """Peaks of the device: bytes copied (read and written) and FLOP of products per second."""
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
    """Least work of a forward and a backward: products (FLOP), arrays moved (bytes)."""
    job = job_of(case, device)
    sizes = job.spec.sizes
    shapes = [shape_size(weight.shape, sizes) for weight in job.graph.weights]
    weights = sum(shape[0] * shape[1] for shape in shapes if len(shape) == 2)
    rows = case.T * case.B
    item = getattr(torch, case.dtype).itemsize
    return {"flop": 6.0 * rows * weights, "bytes": 6.0 * rows * case.H * item}


@of_kind("barrier")
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


@of_kind("decoder")
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


def measure(case: Case, device: str) -> dict[str, Any]:
    """Measurements of a case, as a row."""
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


def compile_for(case: Case, device: str) -> dict[str, Any]:
    """Compile what a case needs: Triton keeps it where the next process finds it."""
    if case.kind not in KINDS or case.kind == "matrices":
        job = job_of(case, device)
        trial = make_trial(job, min(case.T, 2), case.B)
        for kernel in kernels(case, job, "triton")[0].values():
            with suppress(Exception):  # told when it is measured
                trial.run(kernel)
    return {}


def work(do: Callable[[Case, str], dict[str, Any]], device: str) -> None:
    """Read cases, write rows: a line of JSON each."""
    torch.manual_seed(0)
    for text in sys.stdin:
        start = time.perf_counter()
        try:
            row: dict[str, Any] = do(Case(**json.loads(text)), device)
        except Exception as error:
            row = {"failed": f"{type(error).__name__}: {error}"[:REASON]}
        row["took"] = round(time.perf_counter() - start, 2)
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()
        if "CUDA" in row.get("failed", ""):  # nothing that follows in this process would be right
            sys.exit(1)


def ask(worker: Worker, case: Case, limit: float) -> dict[str, Any]:
    """A row, or why there is none; after some failures the worker is gone."""
    try:
        row = worker.ask(asdict(case), limit)
    except ProcessError as error:
        return {"failed": str(error)}
    if "CUDA" in row.get("failed", ""):  # it ends by itself, but not at once
        worker.close()
    return row


def warm(todo: list[Case], device: str, seconds: float) -> None:
    """Compile for some cases, each in one of several processes; nothing is timed meanwhile."""
    count = min(max(1, (os.cpu_count() or 1) - 2), len(todo))
    options: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}

    def compile_all(cases: list[Case]) -> None:
        text = "".join(json.dumps(asdict(case)) + "\n" for case in cases)
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(
                working("compile", device), input=text, text=True, timeout=seconds, **options
            )

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(compile_all, (todo[number::count] for number in range(count))))


def working(task: str, device: str) -> list[str]:
    """The command of a process that measures cases, or compiles for them."""
    return [sys.executable, __file__, "--work", task, device]


def facts(device: str) -> dict[str, Any]:
    """Machine, versions and commit."""
    import triton

    on_gpu = device == "cuda"
    return {
        "gpu": torch.cuda.get_device_name() if on_gpu else "none (interpreted)",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if on_gpu else None,
        "commit": commit(),
    }


def line(row: dict[str, Any], peaks: dict[str, float]) -> str:
    """A row of the table: microseconds per step, forward and with the backward."""
    if "failed" in row:
        return f"{row['case']:36} failed: {row['failed'][:80]}"
    if "text" in row:
        return f"{row['case']:36} {row['text']}"
    pairs = {name: _pair(row[name], row["T"]) for name in ("elman", *PEERS) if row.get(name)}
    peers = [name for name in pairs if name != "elman"]
    ratio = shares = "-"
    if peers and "elman" in pairs:
        ratio = f"{row[peers[0]][1] / row['elman'][1]:.2f}x"
        if peaks and "flop" in row:
            product = "tf32" if row["dtype"] == "float32" else row["dtype"]
            least = row["flop"] / peaks[product], row["bytes"] / peaks["copy"]
            shares = "/".join(f"{100 * seconds / row['elman'][1]:.0f}" for seconds in least)
    elman, torchs = (pairs.get(name, _pair((None, None), 1)) for name in ("elman", "torch"))
    others = ", ".join(f"{name} {pairs[name]}" for name in peers if name != "torch")
    columns = f"{row['case']:36} {elman} {torchs} {ratio:>8} {shares:>7}"
    return f"{columns} {row.get('best', '-'):18} {others}".rstrip()


def _pair(times: Sequence[float | None], steps: int) -> str:
    """Microseconds per step of a contestant, forward and with the backward."""
    texts = ("-" if s is None else f"{s / steps * 1e6:.2f}" for s in times)
    return " ".join(f"{text:>8}" for text in texts)


def report(rows: list[dict[str, Any]], machine: dict[str, Any], file: Path) -> None:
    """The table as a page of Markdown, with what was refused and why."""
    facts = "\n".join(f"- {key}: {value}" for key, value in machine.items())
    table = "\n".join([HEAD, *(line(row, peaks_of(rows)) for row in rows)])
    refused = "\n".join(
        f"- {row['case']}, {schedule}: {' '.join(reason.split())[:300]}"
        for row in rows
        for schedule, reason in row.get("refused", {}).items()
    )
    file.write_text(
        f"# elman on a GPU\n\n{facts}\n\n```\n{table}\n```\n\n"
        "Microseconds per step; ratio of forward and backward to the first other that was measured "
        "(torch.nn in the same dtype, else a loop); shares of the matrix and copy peaks in "
        f"percent.\n\n## Not run\n\n{refused}\n"
    )


def peaks_of(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Measured peaks of the device; {} if there are none."""
    return next((row["peaks"] for row in rows if "peaks" in row), {})


PEERS = ("torch", "fla", "chunks", "compiled loop", "python loop", "product per step", "in turn")
HEAD = (
    f"{'case (T,B,H)':36} {'elman fw':>8} {'fw+bw':>8} {'torch fw':>8} {'fw+bw':>8} {'ratio':>8} "
    f"{'peaks %':>7} {'schedule':18} others"
)


def run_tests(failures: Path) -> None:
    """Run the tests marked gpu on all cores, and stop if one fails: a time of wrong numbers is
    none. Reports of failures are in a file as soon as there are any."""
    # pytest-benchmark warns under xdist, and warnings are errors
    words = ["-m", "pytest", "-q", "-m", "gpu and not long", "-n", "auto", "--timeout=900"]
    words += ["-p", "no:benchmark", f"--failures={failures.absolute()}", str(ROOT / "tests")]
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    result = subprocess.run(
        [sys.executable, *words], cwd=ROOT, check=False, env=os.environ | {"PYTHONPATH": paths}
    )
    if result.returncode:
        sys.exit(
            f"nothing was measured: pytest -m gpu ended with status {result.returncode}. It needs "
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
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        task, device = options.work
        work({"measure": measure, "compile": compile_for}[task], device)
        return
    device = "cpu" if options.dry else "cuda"
    if options.dry:
        os.environ["TRITON_INTERPRET"] = "1"  # of the workers
    else:
        if not torch.cuda.is_available():
            sys.exit("no GPU is at hand; --dry runs tiny cases in Triton's interpreter")
        if not options.untested:
            run_tests(options.out.with_suffix(".failures.txt"))
    machine = facts(device)
    rows = {name: row for name, row in read_rows(options.out).items() if row["machine"] == machine}
    end = time.monotonic() + options.seconds
    todo = [
        case
        for case in (TINY if options.dry else cases())
        if fnmatchcase(case.name, options.only)
        and "failed" in rows.get(case.name, {"failed": "not measured"})
    ]
    if todo and not options.dry:
        warm(todo, device, options.warming)
    command, limit = working("measure", device), options.seconds if options.dry else LIMIT_S
    worker = Worker(command)
    print(f"{machine['gpu']}, torch {machine['torch']}, triton {machine['triton']}; us per step")
    print(HEAD)
    for case in todo:
        remaining = end - time.monotonic()
        if remaining <= 0:
            break
        if not worker.alive:
            worker = Worker(command)
        row = ask(worker, case, min(limit, remaining + 10.0))
        row = {"case": case.name, **asdict(case), **row, "machine": machine}
        append_row(options.out, row)
        rows[case.name] = row
        print(line(row, peaks_of([*rows.values()])), flush=True)
    report([*rows.values()], machine, options.out.with_suffix(".md"))
    worker.process.kill()
    failed = sum("failed" in row for row in rows.values())
    print(f"{len(rows)} rows in {options.out}, {failed} failed; table in {options.out.stem}.md")


if __name__ == "__main__":
    main()

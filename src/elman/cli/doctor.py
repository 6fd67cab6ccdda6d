"""Check this machine and say how to fix problems."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch
import typer
from rich.table import Table

from elman import cells, compiler
from elman.cli._terminal import plain, wide_console
from elman.engines import registry
from elman.engines.base import Job
from elman.engines.c.compilation.compilers import Compiler, find_compiler
from elman.engines.c.compilation.eviction import VARIABLE, limit_bytes, limit_text
from elman.engines.c.compilation.isa import detect
from elman.engines.c.compilation.kernel_cache import kernel_folder
from elman.engines.c.process.threads import pool, workers
from elman.errors import ElmanError
from elman.extras import EXTRAS, install_line
from elman.folders import cache_folder, private_folder
from elman.plan.spec import Spec
from elman.tuning.choose import Choice, choose
from elman.tuning.kernels import kernel_of, refusal
from elman.tuning.machine import cores, machine_facts
from elman.tuning.trial import make_trial

BROKEN = 1
EXAMPLES = ("elman doctor",)
TRAIN = "train"  # the extra of training and of this command line
SIZES = (("H", 8), ("I", 4))
STEPS, BATCH = 4, 2
OPTIONAL = {  # package -> what it is for, the extra that brings it
    "ziglang": ("a C compiler", EXTRAS["ziglang"]),
    "onnx": ("exported models", EXTRAS["onnx"]),
    "onnxscript": ("exported models", EXTRAS["onnxscript"]),
    "datasets": ("data sets", EXTRAS["datasets"]),
    "aeon": ("data sets of time series", EXTRAS["aeon"]),
    "triton": ("kernels on a GPU", "gpu-dev"),
}


@dataclass(frozen=True)
class Finding:
    """One row: name, result, and how to fix it (empty: nothing to fix).

    ``broken``: nothing works without it.
    """

    name: str
    result: str
    fix: str = ""
    broken: bool = False


def doctor() -> None:
    """Check this machine and say how to fix problems.

    Compiler, vector instructions, threads, torch, GPU, cache and engines are checked, and a small
    GRU is trained. The exit status is 0 unless nothing can run.
    """
    console = wide_console()
    findings = [*machine(), *compilation(), *caches(), *computation()]
    wanting = [finding for finding in findings if finding.fix]
    table = Table("", "found", *(["how to fix it"] if wanting else []), title="machine")
    table.title_justify = "left"
    for finding in findings:
        colour = "red" if finding.broken else "yellow" if finding.fix else "green"
        texts = [plain(finding.result), plain(finding.fix)][: 2 if wanting else 1]
        table.add_row(f"[{colour}]{finding.name}[/]", *texts)
    console.print(table)
    console.print(engines())
    console.print(packages())
    names = ", ".join(finding.name for finding in wanting)
    console.print(plain(f"to fix: {names}" if wanting else "all good"))
    if any(finding.broken for finding in findings):
        raise typer.Exit(BROKEN)


def machine() -> Iterator[Finding]:
    """Python, processor, torch, threads, GPU."""
    facts = machine_facts()
    yield Finding("python", f"{platform.python_version()}, {platform.platform()}")
    yield Finding("processor", f"{facts['cpu']}; {cores()} CPUs for this process")
    yield Finding("torch", f"{torch.__version__}, {torch.get_num_threads()} threads")
    if torch.cuda.is_available():
        yield graphics(job("cuda"))
    else:
        yield Finding("GPU", "none that torch can use")


def graphics(gpu_job: Job) -> Finding:
    """The GPU, and the engines that run a small GRU there by their own word."""
    device_name = f"{torch.cuda.get_device_name()}, {torch.version.cuda or 'hip'}"
    refusals = {name: refusal(name, gpu_job) for name in registry.names()}
    able = [name for name, reason in refusals.items() if reason is None]
    compiled = refusals["triton"]
    fix = "" if compiled is None else f"no generated kernels there: {compiled}"
    return Finding("GPU", f"{device_name}: {', '.join(able)} run there", fix)


def compilation() -> Iterator[Finding]:
    """Compiler, instruction set, thread pool."""
    compiler = find_compiler()
    if isinstance(compiler, Compiler):
        yield Finding("compiler", f"{' '.join(compiler.command)}: {compiler.version}")
    else:
        advice = "apt install gcc (xcode-select --install), or " + install_line("compiler")
        variable = next((name for name in ("ELMAN_CC", "CC") if os.environ.get(name)), "")
        advice = f"unset {variable}, or set it to a compiler; or {advice}" if variable else advice
        yield Finding(
            "compiler", f"{compiler.partition(': install')[0]}; aten and reference run", advice
        )
    yield zig(compiler)
    try:
        isa = detect()
        variable = ", as ELMAN_ISA says" if os.environ.get("ELMAN_ISA") else ""
        lanes = f"{isa.lanes('float32')} float32 per vector, {isa.registers} registers"
        yield Finding("vector ISA", f"{isa.name}: {lanes}{variable}")
    except ElmanError as error:
        yield Finding("vector ISA", str(error), "unset ELMAN_ISA")
    threads = pool()
    if threads.parallel:
        yield Finding("thread pool", f"{threads.library}, {workers()} threads, shared with torch")
    else:
        library = f"{threads.library} lacks GOMP_parallel" if threads.library else "none was found"
        yield Finding(
            "thread pool",
            f"{library}: kernels run on one thread",
            "install torch from its own wheels: they bring an OpenMP library",
        )


def zig(compiler: Compiler | str) -> Finding:
    """Whether ziglang's compiler is used, and why; it links no OpenMP, so it shares the pool."""
    installed_here = importlib.util.find_spec("ziglang") is not None
    if isinstance(compiler, Compiler) and "ziglang" in compiler.command:
        return Finding("ziglang", "used; its kernels share torch's pool like any other's")
    if not installed_here:
        fix = "" if isinstance(compiler, Compiler) else install_line("compiler")
        return Finding("ziglang", "not installed", fix)
    if isinstance(compiler, Compiler):
        command = f"ELMAN_CC='{sys.executable} -m ziglang cc'"
        text = f"installed, not used: {compiler.command[0]} comes first; {command} prefers it"
        return Finding("ziglang", f"{text} (it shares torch's pool, too)")
    return Finding("ziglang", "installed, but it does not run", "pip install -U ziglang")


def caches() -> Iterator[Finding]:
    """Location, size and permissions of the caches."""
    try:
        folder = cache_folder()
    except RuntimeError:
        yield Finding("cache", "no home folder", "set ELMAN_CACHE to a private folder")
        return
    usable = private_folder(folder / "kernels") and os.access(folder / "kernels", os.W_OK)
    count, size = contents(folder / "kernels", "*.so")
    _, parts = contents(folder / "kernels", "*.o")
    choices, choices_bytes = contents(folder / "tuning", "*.json")
    kernels = f"{count} kernels of {(size + parts) / 2**20:.1f} MiB (at most {limit_text()})"
    text = f"{folder}: {kernels}, {choices} choices of {choices_bytes / 2**20:.1f} MiB"
    try:
        limit_bytes()
    except ElmanError as error:
        yield Finding("cache size", str(error), f"unset {VARIABLE}")
    if usable:
        yield Finding("cache", text)
    else:
        yield Finding(
            "cache",
            f"{text}; not writable, or open to others: kernels go to {kernel_folder()}",
            f"chmod 700 {folder}, or set ELMAN_CACHE to a private folder",
        )


def contents(folder: Path, pattern: str) -> tuple[int, int]:
    """(files, bytes) of a folder."""
    sizes: list[int] = []
    try:
        for path in folder.glob(pattern):
            sizes.append(path.stat().st_size)
    except OSError:
        pass
    return len(sizes), sum(sizes)


def computation() -> Iterator[Finding]:
    """Whether a GRU can be trained here, and on which engine."""
    try:
        choice: Choice = choose(job("cpu"), STEPS, BATCH)
        make_trial(job("cpu"), STEPS, BATCH).run(choice.kernel)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        yield Finding("a small GRU", text, "please report this, with the output above", True)
        return
    wrong = [f"{name}: {reason}" for name, reason in choice.refusals.items() if "agree" in reason]
    fix = "; ".join(wrong)
    yield Finding("a small GRU", f"trains on engine {choice.engine}, {choice.why}", fix)


def job(device: str) -> Job:
    """A small GRU that wants every gradient."""
    wants = frozenset(entry.name for entry in (*cells.gru.inputs, *cells.gru.weights))
    return compiler.job(cells.gru, Spec(SIZES, "float32", device, wants))


def engines() -> Table:
    """Table of the engines' answers to a small GRU in float32, per device."""
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    table = Table("engine", *devices, title="engines", title_justify="left")
    for name in registry.names():
        table.add_row(name, *(plain(answer(name, device)) for device in devices))
    return table


def answer(name: str, device: str) -> str:
    """Answer of an engine: its refusal, or the facts of its kernel."""
    reason = refusal(name, job(device))
    if reason is not None:
        return f"no: {reason}"
    try:
        facts = kernel_of(job(device), name).describe()
    except ElmanError as error:
        return f"no: {error}"
    return f"ready ({facts['isa']})" if facts.get("isa") else "ready"


def packages() -> Table:
    """Packages of training that are missing, and all optional packages."""
    table = Table("package", "version", "for", title="optional packages", title_justify="left")
    for name in (name for name, extra in EXTRAS.items() if extra == TRAIN):
        if importlib.util.find_spec(name) is None:
            text = plain(f"missing: {install_line(TRAIN)}")
            table.add_row(f"[red]{name}[/]", text, "training, this command")
    for name, (use, extra) in OPTIONAL.items():
        present = importlib.util.find_spec(name) is not None
        version = installed(name) if present else f"missing: {install_line(extra)}"
        table.add_row(name, plain(version), use)
    return table


def installed(name: str) -> str:
    """A package's version."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "installed"

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
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from benchmarks.programs import Worker  # noqa: E402
from benchmarks.rows import append_row, read_rows  # noqa: E402
from elman.measuring.process import ProcessError  # noqa: E402

WORKER = str(Path(__file__).with_name("gpu_worker.py"))
LIMIT_S = 90.0  # of one case, compiling included
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
    """A few of each kind: what matters most if time is short."""
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


def cases() -> list[Case]:
    """All cases, most important first."""
    return [*dict.fromkeys([*first(), *rest()])]


def rest() -> Iterator[Case]:
    """The lists of the question's seven parts, in order; the largest lists last."""
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
    Case("decoder dry", "decoder", "", 33, 5, 4, "float32"),
)
MODULES = {"module": {"num_layers": 2, "bidirectional": True}, "stack": {"num_layers": 4}}
COMPILED = {  # compiling a step takes up to a minute
    "cell lstm_layernorm 256,16,128 bf16",
    "cell lem 256,16,512 bf16",
    "deer paragru 2048,8,256 fp32",
}


def measure(worker: Worker, case: Case, limit: float) -> dict[str, Any]:
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
    words = [sys.executable, WORKER, "--warm", device]

    def compile_all(cases: list[Case]) -> None:
        text = "".join(json.dumps(asdict(case)) + "\n" for case in cases)
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(words, input=text, stderr=subprocess.DEVNULL, text=True, timeout=seconds)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(compile_all, (todo[number::count] for number in range(count))))


def facts(device: str) -> dict[str, Any]:
    """Machine, versions and commit."""
    import torch
    import triton

    from benchmarks.machine import commit

    gpu = torch.cuda.get_device_name() if device == "cuda" else "none (interpreted)"
    return {
        "gpu": gpu,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if device == "cuda" else None,
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
    rest = ", ".join(f"{name} {pairs[name]}" for name in peers if name != "torch")
    columns = f"{row['case']:36} {elman} {torchs} {ratio:>8} {shares:>7}"
    return f"{columns} {row.get('best', '-'):18} {rest}".rstrip()


def _pair(times: Sequence[float | None], steps: int) -> str:
    """Microseconds per step of a contestant, forward and with the backward."""
    texts = ("-" if s is None else f"{s / steps * 1e6:.2f}" for s in times)
    return " ".join(f"{text:>8}" for text in texts)


def report(rows: list[dict[str, Any]], machine: dict[str, Any], file: Path) -> None:
    """The table as a page of Markdown, with what was refused and why."""
    facts = "\n".join(f"- {key}: {value}" for key, value in machine.items())
    table = "\n".join([HEAD, *(line(row, peaks_of(rows)) for row in rows)])
    refused = "\n".join(
        f"- {row['case']}, {schedule}: {why}"
        for row in rows
        for schedule, why in row.get("refused", {}).items()
    )
    file.write_text(
        f"# elman on a GPU\n\n{facts}\n\n```\n{table}\n```\n\n"
        "Microseconds per step; ratio of forward and backward to the first other that was measured "
        "(torch.nn in the same dtype, else a loop); shares of the matrix and copy peaks in "
        f"percent.\n\n## Not run\n\n{refused}\n"
    )


def peaks_of(rows: list[dict[str, Any]]) -> dict[str, float]:
    """What the device can do, if it was measured."""
    return next((row["peaks"] for row in rows if "peaks" in row), {})


PEERS = ("torch", "compiled loop", "python loop", "product per step", "in turn")
HEAD = (
    f"{'case (T,B,H)':36} {'elman fw':>8} {'fw+bw':>8} {'torch fw':>8} {'fw+bw':>8} {'ratio':>8} "
    f"{'peaks %':>7} {'schedule':18} others"
)


def run_tests() -> None:
    """Run the tests marked gpu on all cores, and stop if one fails: a time of wrong numbers is
    none."""
    words = ["-m", "pytest", "-q", "-m", "gpu", "-n", "auto", "--timeout=900", str(ROOT / "tests")]
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
    options = parser.parse_args()
    device = "cpu" if options.dry else "cuda"
    if options.dry:
        os.environ["TRITON_INTERPRET"] = "1"
    else:
        import torch

        if not torch.cuda.is_available():
            sys.exit("no GPU is at hand; --dry runs tiny cases in Triton's interpreter")
        if not options.untested:
            run_tests()
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
    command, limit = [sys.executable, WORKER, device], options.seconds if options.dry else LIMIT_S
    worker = Worker(command)
    print(f"{machine['gpu']}, torch {machine['torch']}, triton {machine['triton']}; us per step")
    print(HEAD)
    for case in todo:
        remaining = end - time.monotonic()
        if remaining <= 0:
            break
        if not worker.alive:
            worker = Worker(command)
        row = measure(worker, case, min(limit, remaining + 10.0))
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
